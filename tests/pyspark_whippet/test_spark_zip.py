"""The data source without the rest of Whippet, as executors have it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from whippet.pipelines.spark_zip import make

ALONE = """
import sys

REFUSED = {"cryptography", "httpx", "msgspec", "obstore", "uvloop", "whippet", "xxhash", "zstandard"}

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in REFUSED:
            raise ModuleNotFoundError(name)

sys.path[:] = [sys.argv[1]] + [each for each in sys.path if "whippet" not in each and each != sys.argv[2]]
sys.meta_path[:] = [Refuse()] + [each for each in sys.meta_path if "editable" not in type(each).__module__ + str(each)]
import pyspark_whippet.source, pyspark_whippet.listener, pyspark_whippet.hashes
assert sys.argv[1] in pyspark_whippet.source.__file__, pyspark_whippet.source.__file__
assert pyspark_whippet.hashes.xxh3 is None
print(sorted(name for name in sys.modules if name.split(".")[0] in {"whippet", "pandas"}))
"""


def test_an_executor_needs_only_the_zip_pyarrow_and_numpy(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed: install whippet-gateway[spark]")
    zipped = tmp_path / "whippet-spark.zip"
    make(zipped)
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(zipped), root],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    again = tmp_path / "again.zip"
    make(again)
    assert again.read_bytes() == zipped.read_bytes()
    assert zipped.stat().st_size < 300_000
    with zipfile.ZipFile(zipped) as archive:
        assert {name.partition("/")[0] for name in archive.namelist()} == {"pyspark_whippet", "whippet"}
        assert {name.split("/")[1] for name in archive.namelist() if name.startswith("whippet/")} == {
            "__init__.py",
            "pipelines",
            "spark.py",
        }
