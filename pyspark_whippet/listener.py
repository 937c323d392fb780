"""The lag of streaming queries, under the names that Kafka's source uses.

A source in Python cannot add numbers to Spark's progress report, but the report contains both offsets: the end of the
batch, and the latest one.

    spark.streams.addListener(LagListener())
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from pyspark_whippet import offsets


@dataclass(frozen=True)
class Lag:
    """The lag after one batch of a query."""

    query: str
    """Its name, or its id if it has none."""
    batch: int
    numInputRows: int  # noqa: N815
    processedRowsPerSecond: float  # noqa: N815
    triggerExecutionMs: int  # noqa: N815
    minOffsetsBehindLatest: int  # noqa: N815
    maxOffsetsBehindLatest: int  # noqa: N815
    avgOffsetsBehindLatest: float  # noqa: N815

    def __str__(self) -> str:
        return (
            f"{self.query}: batch {self.batch}, {self.numInputRows} rows, {self.processedRowsPerSecond:.0f} rows/s, "
            f"{self.triggerExecutionMs} ms, behind by {self.minOffsetsBehindLatest} to {self.maxOffsetsBehindLatest} "
            f"messages per partition, {self.avgOffsetsBehindLatest:.1f} on average"
        )


def _line(lag: Lag) -> None:
    sys.stderr.write(f"{lag}\n")


class LagListener(StreamingQueryListener):
    """Passes the lag to `report` after each batch. By default it is printed to standard error."""

    def __init__(self, report: Callable[[Lag], None] = _line) -> None:
        self._report = report

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        pass

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        lag = lag_of(json.loads(event.progress.json))
        if lag is not None:
            self._report(lag)


def lag_of(progress: dict[str, Any]) -> Lag | None:
    """Reads the lag from a progress report as JSON. Returns None if no source is `whippet`."""
    lags: list[int] = []
    rows = 0
    for source in progress.get("sources", ()):
        position, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        if position is not None and latest is not None:
            lags += offsets.lags(position, latest)
            # The total for the query is missing under Connect.
            rows += source.get("numInputRows", 0)
    if not lags:
        return None
    return Lag(
        query=progress.get("name") or progress.get("id") or "",
        batch=progress.get("batchId", -1),
        numInputRows=rows,
        processedRowsPerSecond=progress.get("processedRowsPerSecond") or 0.0,
        triggerExecutionMs=(progress.get("durationMs") or {}).get("triggerExecution", 0),
        minOffsetsBehindLatest=min(lags),
        maxOffsetsBehindLatest=max(lags),
        avgOffsetsBehindLatest=sum(lags) / len(lags),
    )


def _offsets(value: Any) -> Any:
    """Returns the offsets if they are those of our source, or None."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    if not isinstance(value, dict) or not all(isinstance(each, dict) for each in value.values()):
        return None
    topics = offsets.topics_in(value)
    whole = all(isinstance(offset, int) for each in topics.values() for offset in each.values())
    return value if whole and value.keys() - topics.keys() <= {offsets.EPOCHS, offsets.SINCE} else None
