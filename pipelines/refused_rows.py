"""Rows refused by a sink that takes a batch in one commit: they are found before the commit, and the others are
written.

When such a batch is replayed, the sink already has it and no longer reports what it refused. So the refused rows are
recorded in the state of the pipeline before the commit, and count if the commit was made.
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
    """Adds what a bad record needs, in case a row becomes one: the row as JSON, and where it comes from."""
    return frame.withColumns({CORRUPT: json_document(frame).cast("binary"), ORIGIN: origin(frame)})


def rows_where(frame: DataFrame, is_bad: Column, reason: str) -> DataFrame:
    """Returns the rows that meet a condition, as bad records."""
    found = with_originals(frame.where(is_bad))
    return found.select(F.col(CORRUPT).alias("payload"), F.lit(reason).alias("reason"), F.col(ORIGIN).alias("origin"))


@dataclass(frozen=True)
class RefusedRows:
    """The refused rows of one sink in one batch."""

    session: SparkSession
    bad: BadRecords
    step: str
    path: Path
    batch: int

    @property
    def stops(self) -> bool:
        """Whether the first one stops the pipeline, so that the search for more can end."""
        return self.bad.stops

    def stop_if_any(self, found: DataFrame) -> None:
        """For a sink without transactions, called before it writes. Raises BadRecordError if there are any and they
        stop the pipeline."""
        first = found.first() if self.stops else None
        if first is not None:
            raise self.bad.stop_error(first.asDict(), self.step)

    def record(self, rows: pa.Table, refused: Mapping[int, str]) -> DataFrame | None:
        """Records refused rows before the others are committed. `rows` have ORIGINALS; `refused` maps places in them
        to reasons. Raises BadRecordError if they stop the pipeline."""
        if not refused:
            self.record_none()
            return None
        found = _records(rows, refused)
        if self.stops:
            raise self.bad.stop_error(found.slice(0, 1).to_pylist()[0], self.step)
        _write(self.path, found.replace_schema_metadata({BATCH: str(self.batch)}))
        return self._frame(found)

    def record_none(self) -> None:
        """Called before a commit of all rows: an earlier attempt at this batch may have recorded some."""
        self.path.unlink(missing_ok=True)

    def recorded(self) -> DataFrame | None:
        """Returns what was recorded for a batch that the sink already has."""
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
    """Writes all of it or nothing, and syncs it to the disk."""
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
