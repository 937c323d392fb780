"""Processes one batch: sets bad records aside, applies transforms, and writes to sinks and dead letters.

Spark calls it on the driver (over Connect, next to the server). It calls again with the same batch if the process ended
before Spark had recorded the batch as done.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from pyspark_whippet import polls
from pyspark_whippet.errors import PipelineError
from whippet.pipelines import bad_row_search, transform_chain
from whippet.pipelines.bad_records import COLUMNS, BadRecords, unparsable
from whippet.pipelines.pipeline_file import Pipeline
from whippet.pipelines.record_columns import CORRUPT, HIDDEN, NOW, ORIGIN, ROW, Batch, json_document
from whippet.pipelines.refused_rows import RefusedRows
from whippet.pipelines.run_control import BatchControl
from whippet.pipelines.state import REFUSED
from whippet.pipelines.transform_chain import Analysis
from whippet.pipelines.transforms.computed import BatchContext


@dataclass
class RunStatus:
    """What a run has done so far, for progress lines and the final report."""

    noun: str = "row"
    """What `rows` counts: rows that were read, or, where transforms keep state, results."""
    rows: int = 0
    batches: int = 0
    bad_records: int = 0
    last_batch: int = -1
    last_batch_s: float = 0.0
    last_error: str | None = None
    failure: BaseException | None = field(default=None, repr=False)
    """Why the run ended; Spark itself reports the reason only as text."""


class StopRequested(Exception):
    """The pipeline was asked to stop before this batch started."""


class BatchProcessor:
    def __init__(self, pipeline: Pipeline, analysis: Analysis, status: RunStatus, control: BatchControl) -> None:
        self._pipeline = pipeline
        self._analysis = analysis
        self._status = status
        self._control = control

    def __call__(self, frame: DataFrame, number: int) -> None:
        began = time.monotonic()
        try:
            rows, bad = self._process(frame, number)
        except BaseException as error:
            self._status.failure = error
            raise
        status = self._status
        status.rows += rows
        status.bad_records += bad.count
        status.last_error = bad.last_reason or status.last_error
        status.last_batch, status.last_batch_s = number, time.monotonic() - began
        status.batches += bool(rows)
        self._control.report(status)

    def _process(self, frame: DataFrame, number: int) -> tuple[int, BadRecords]:
        if self._control.is_stopping():
            raise StopRequested
        pipeline = self._pipeline
        query = self._control.query_id(frame)
        bad = BadRecords(pipeline.on_error, pipeline.dead_letter, pipeline.key)
        rows = frame.withColumn(ROW, F.monotonically_increasing_id()).persist()
        kept = [rows]
        try:
            counted = rows.agg(F.count(F.lit(1)), F.count(CORRUPT), F.max(NOW)).first()
            assert counted is not None
            count, broken, now = counted
            if not count:
                return 0, bad
            bad.add(unparsable(rows, pipeline.why_unparsable), broken, "source")
            result = rows.where(F.col(CORRUPT).isNull())
            if not self._analysis.keeps_state:
                result = self._transformed(result, BatchContext(F.lit(now), _unique(query, number)), bad)
                kept.append(result)
            if count > broken or self._analysis.keeps_state:
                kept += self._written(result.drop(*HIDDEN), query, number, bad)
            bad.send_dead_letters(pipeline.iggy, query, number)
            return count, bad
        finally:
            for each in kept:
                each.unpersist()

    # ----------------------------------------------------------------------------------------------------- transforms

    def _transformed(self, rows: DataFrame, context: BatchContext, bad: BadRecords) -> DataFrame:
        def apply(some: DataFrame) -> DataFrame:
            return transform_chain.apply(some.drop(*HIDDEN), self._pipeline.transforms, context)

        result = apply(rows)
        if not self._analysis.can_fail:
            return result
        # Before anything is written: if a batch failed in the middle, a sink might keep what it has.
        result = result.persist()
        try:
            result.count()
        except PySparkException as error:
            result.unpersist()
            if not bad_row_search.is_about_data(error):
                raise
            failing = bad_row_search.failing_rows(rows, apply)
            if not failing:
                raise
            bad.add(self._originals(rows, failing), len(failing), "transforms")
            result = apply(rows.where(~F.col(ROW).isin(*failing))).persist()
        return result

    def _originals(self, rows: DataFrame, failing: dict[int, str]) -> DataFrame:
        """Returns the rows on which a transform fails as bad records, with the original payloads where they still
        exist."""
        chosen = rows.where(F.col(ROW).isin(*failing))
        shown = json_document(chosen.drop(*HIDDEN)).alias("shown")
        found = [
            (self._payload(row[ORIGIN]) or row["shown"].encode(), failing[row[ROW]], row[ORIGIN])
            for row in chosen.select(ROW, ORIGIN, shown).orderBy(ROW).collect()
        ]
        return rows.sparkSession.createDataFrame(found, COLUMNS).coalesce(1)

    def _payload(self, origin: Any) -> bytes | None:
        if origin is None or origin["topic"] is None:
            return None
        topic = f"{origin['stream']}/{origin['topic']}"
        session = self._pipeline.iggy.session
        try:
            found = polls.finish(polls.begin(session, topic, origin["partition"], "offset", origin["offset"], 1))
        except PipelineError:
            # The topic may have been deleted; then the record is shown as it was parsed.
            return None
        is_it = len(found) == 1 and int(found.offsets[0]) == origin["offset"]
        return bytes(found.payloads) if is_it else None

    # ---------------------------------------------------------------------------------------------------------- sinks

    def _written(self, result: DataFrame, query: str, number: int, bad: BadRecords) -> Sequence[DataFrame]:
        kept = []
        for place, (name, sink) in enumerate(self._pipeline.placed_sinks, start=1):
            writer = f"{query}-{place}"
            refusals = RefusedRows(
                result.sparkSession, bad, name, self._pipeline.state / REFUSED / f"{writer}.arrow", number
            )
            batch = Batch(result, self._pipeline.key, writer, number, self._analysis.is_one_to_one, refusals)
            refused = sink.write(batch, self._pipeline.iggy, name)
            if refused is not None:
                kept.append(refused)
                bad.add(refused, refused.count(), name)
        return kept


def _unique(query: str, number: int) -> Column:
    return F.concat_ws("|", F.lit(query), F.lit(number), F.monotonically_increasing_id())
