"""Makes the zip with which the data source and pipelines travel: python -m app.pipeline.zipped dist/whippet-spark.zip

For `spark-submit --py-files`, `sc.addPyFile` and Connect's `addArtifacts`. Of the rest of Whippet nothing is in it.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
EMPTY = '"""Of Whippet, the data source and the pipelines alone."""\n'
ALWAYS = (1980, 1, 1, 0, 0, 0)
"""The same code gives the same zip."""


def make(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        _add(file, "app/__init__.py", EMPTY.encode())
        for source in sorted(HERE.rglob("*.py")):
            _add(file, f"app/pipeline/{source.relative_to(HERE).as_posix()}", source.read_bytes())


def _add(file: zipfile.ZipFile, name: str, octets: bytes) -> None:
    file.writestr(zipfile.ZipInfo(name, ALWAYS), octets, zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
