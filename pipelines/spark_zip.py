"""Builds the zip that takes the data source and the pipelines to a cluster: `make spark-zip`.

It is for `spark-submit --py-files`, `sc.addPyFile` and Connect's `addArtifacts`. It contains `pyspark_whippet` for
executors, and `whippet.spark` and `whippet.pipelines` for drivers; it contains nothing of the server.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pyspark_whippet
import whippet

FOLDERS = {
    "pyspark_whippet": Path(pyspark_whippet.__file__).parent,
    "whippet/pipelines": Path(__file__).parent,
}
PACKAGE = Path(whippet.__file__).parent
FILES = {"whippet/__init__.py": PACKAGE / "__init__.py", "whippet/spark.py": PACKAGE / "spark.py"}
ALWAYS = (1980, 1, 1, 0, 0, 0)
"""A fixed date, so that the same code yields the same zip."""


def make(path: Path) -> None:
    files = dict(FILES)
    for name, folder in FOLDERS.items():
        files |= {f"{name}/{source.relative_to(folder).as_posix()}": source for source in folder.rglob("*.py")}
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as zipped:
        for name, source in sorted(files.items()):
            zipped.writestr(zipfile.ZipInfo(name, ALWAYS), source.read_bytes(), zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
