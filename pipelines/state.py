"""The state folder of a pipeline: Spark's checkpoint, the rows that sinks have refused of the last batch
(refused_rows.py), Spark's log, and the lock that keeps other processes out."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path

from whippet.pipelines.errors import FileError

CHECKPOINT, REFUSED, LOCK, SOURCE = "checkpoint", "refused", "lock", "source.json"


@contextlib.contextmanager
def locked(folder: Path, source: str) -> Iterator[None]:
    """Holds the lock while the pipeline runs. Raises FileError if another process holds it, or if the state belongs
    to another type of source."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise FileError(f"[state]: {error.filename}: {error.strerror}") from None
    try:
        _lock(file, folder)
        _check(folder, source)
        yield
    finally:
        os.close(file)


def _lock(file: int, folder: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        process = os.read(file, 20).decode().strip()
        raise FileError(
            f"{folder}: this pipeline is already running as process {process}; use another key for another pipeline"
        ) from None
    os.ftruncate(file, 0)
    os.write(file, b"%d\n" % os.getpid())


def _check(folder: Path, source: str) -> None:
    """Offsets of one type of source are meaningless to another."""
    path = folder / SOURCE
    if path.exists():
        there = json.loads(path.read_text())["source"]
        if there != source:
            raise FileError(
                f"{folder}: this is the state of a pipeline with the source {there}, not {source}; "
                "choose another key, or move the folder away"
            )
    path.write_text(json.dumps({"source": source}) + "\n")


def last_batch(folder: Path) -> int | None:
    """Returns the last batch that is done, or None."""
    commits = folder / CHECKPOINT / "commits"
    numbers = [int(each.name) for each in commits.iterdir() if each.name.isdigit()] if commits.is_dir() else []
    return max(numbers, default=None)
