"""Bad records of a sink that takes a batch in one commit: they are found on the way to it, and the others go in.

When such a batch comes again, the sink has it, and says no more what it has refused of it. So that is written down
before the commit, in the state of the pipeline, and counts if the commit was made.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from whippet.pipelines.bad_records import COLUMNS, BadRecords, origin
from whippet.pipelines.record_columns import CORRUPT, ORIGIN, json_document

ORIGINALS = (CORRUPT, ORIGIN)
BATCH = "batch"


def with_originals(frame: DataFrame) -> DataFrame:
    """With what a bad record is made of, should a row become one: the row as JSON, and where it comes from."""
    return frame.withColumns({CORRUPT: json_document(frame).cast("binary"), ORIGIN: origin(frame)})


def rows_where(frame: DataFrame, is_bad: Column, reason: str) -> DataFrame:
    """Bad records that a condition finds."""
    found = with_originals(frame.where(is_bad))
    return found.select(F.col(CORRUPT).alias("payload"), F.lit(reason).alias("reason"), F.col(ORIGIN).alias("origin"))


@dataclass(frozen=True)
class RefusedRows:
    """Those of one sink in one batch."""

    session: SparkSession
    bad: BadRecords
    step: str
    path: Path
    batch: int

    @property
    def stops(self) -> bool:
        """The first one stops the pipeline, and nobody needs to look for more."""
        return self.bad.stops

    def stop_if_any(self, found: DataFrame) -> None:
        """Of a sink that keeps nothing back: before it writes. BadRecordError if there are any and they stop the
        pipeline."""
        first = found.first() if self.stops else None
        if first is not None:
            raise self.bad.stopping(first.asDict(), self.step)

    def record(self, rows: pa.Table, refused: Mapping[int, str]) -> DataFrame | None:
        """Before the commit of the others. `rows` have ORIGINALS; `refused` are places in them, and the reasons.
        BadRecordError if they stop the pipeline."""
        if not refused:
            self.record_none()
            return None
        found = _records(rows, refused)
        if self.stops:
            raise self.bad.stopping(found.slice(0, 1).to_pylist()[0], self.step)
        _write(self.path, found.replace_schema_metadata({BATCH: str(self.batch)}))
        return self._frame(found)

    def record_none(self) -> None:
        """Before a commit of all: an earlier try of this batch may have written some down."""
        self.path.unlink(missing_ok=True)

    def recorded(self) -> DataFrame | None:
        """Of a batch that the sink has already."""
        if not self.path.exists():
            return None
        found = pa.ipc.open_file(self.path.read_bytes()).read_all()
        return self._frame(found) if int(found.schema.metadata[BATCH.encode()]) == self.batch else None

    def _frame(self, found: pa.Table) -> DataFrame:
        rows = [(each["payload"], each["reason"], each["origin"]) for each in found.to_pylist()]
        return self.session.createDataFrame(rows, COLUMNS).coalesce(1)


def _records(rows: pa.Table, refused: Mapping[int, str]) -> pa.Table:
    some = rows.select(ORIGINALS).take(pa.array(refused, pa.int64()))
    reasons = pa.array(refused.values(), pa.string())
    return pa.table({"payload": some[CORRUPT], "reason": reasons, "origin": some[ORIGIN]})


def _write(path: Path, found: pa.Table) -> None:
    """All of it or nothing, and to the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.new")
    with new.open("wb") as file:
        with pa.ipc.new_file(file, found.schema) as writer:
            writer.write_table(found)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
