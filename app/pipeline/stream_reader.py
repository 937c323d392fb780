"""Reading topics as a stream.

All but `read` runs in one process on the driver for as long as the query runs, so what is kept in `self` stays. It is
killed at the end: there is nothing to close. `read` runs in the tasks, on a copy.

1. Spark asks for the latest offset some 80 times a second while a topic is idle, and twice each time. What the gateway
   said of its topics is believed for `pollIntervalMs`.
2. The first batch of a new query is empty on purpose: only the end of a batch is in the checkpoint, so the place where
   the query began is kept by being an end. Else a first batch that failed would begin anew at a later `latest`.
3. Spark's `commit` is a hint: it comes when the next batch is decided, and not at all for the last one of a run.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from app.pipeline import offsets, positions, reading, topics
from app.pipeline.errors import DataLossError, PipelineError
from app.pipeline.offsets import Range, canonical
from app.pipeline.options import Offsets, Settings
from app.pipeline.reading import Slice
from app.pipeline.session import Session, session_of, topic_path
from app.pipeline.topics import Extents

_log = logging.getLogger(__name__)


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, settings: Settings, schema: StructType) -> None:
        self._settings = settings
        self._schema = schema
        self._first: Offsets | None = None
        self._is_begun = False
        self._target: Offsets | None = None
        self._known: tuple[float, Extents] | None = None
        self._committed: dict[tuple[str, str], int] = {}

    # -------------------------------------------------------------------------------------------------------- offsets

    def initialOffset(self) -> Offsets:  # noqa: N802
        """Asked for twice, and must not move in between."""
        if self._first is None:
            self._first = positions.starting(self._session, self._settings, self._extents(), "latest")
        return self._first

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self._settings.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._ends()

    def reportLatestOffset(self) -> Offsets:  # noqa: N802
        return self._ends()

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        if self._first is not None and not self._is_begun:
            self._is_begun = True
            return start
        end = self._target or self._ends()
        self._refuse_lost(start, end)
        if isinstance(limit, ReadMaxRows):
            end = offsets.limited(start, end, limit.max_rows)
        return canonical(end)

    def _refuse_lost(self, start: Offsets, end: Offsets) -> None:
        if not self._settings.fail_on_data_loss:
            return
        for topic, partitions in start.items():
            if topic not in end:
                raise DataLossError(f"topic {topic!r} is gone; set failOnDataLoss=false to go on without it")
            lost = [number for number, offset in partitions.items() if end[topic].get(number, -1) < offset]
            if lost:
                raise DataLossError(
                    f"{topic} partition(s) {lost}: checkpoint is ahead of the server ({partitions} > {end[topic]}); "
                    "topic recreated? Set failOnDataLoss=false to read what is there now"
                )

    # -------------------------------------------------------------------------------------------------------- batches

    def partitions(self, start: Offsets, end: Offsets) -> list[Slice]:
        # When the first batch is replayed, this comes before anybody asks for the latest offset.
        self._is_begun = True
        settings = self._settings
        found = [self._whole(each, start) for each in offsets.ranges(start, end)]
        found = [each for each in found if each.start < each.end]
        return reading.slices(offsets.split(found, settings.min_partitions, settings.max_records_per_partition))

    def _whole(self, each: Range, start: Offsets) -> Range:
        if str(each.partition) not in start.get(each.topic, {}):
            return each._replace(start=self._beginning(each))
        if each.start <= each.end:
            return each
        if self._first is not None and canonical(start) == self._first:
            # The empty first batch is replayed, after messages have come: its end is from before they did.
            return each._replace(start=each.end)
        if self._settings.fail_on_data_loss:
            place = f"{each.topic} partition {each.partition}"
            raise PipelineError(f"{place}: offsets run backwards, from {each.start} to {each.end}")
        _log.warning(
            "%s partition %d: it ends at %d and was read up to %d; it is read from its beginning",
            each.topic,
            each.partition,
            each.end,
            each.start,
        )
        return each._replace(start=self._beginning(each))

    def _beginning(self, each: Range) -> int:
        extent = self._extents().get(each.topic, {}).get(each.partition)
        if extent is None:
            return each.end
        return min(each.end, topics.first_offset(self._session, each.topic, each.partition, extent))

    def read(self, partition: Any) -> Iterator[Any]:
        return reading.read(self._settings, self._schema, partition)

    # ------------------------------------------------------------------------------------------------------- progress

    def commit(self, end: Offsets) -> None:
        """Stores how far it has come under `consumerName`, for the gateway's views of lag. Never fails the query."""
        name = self._settings.consumer_name
        if name is None:
            return
        for topic, partitions in end.items():
            for number, offset in partitions.items():
                if not offset or self._committed.get((topic, number)) == offset:
                    continue
                body = json.dumps({"consumer_id": name, "partition_id": int(number), "offset": offset - 1}).encode()
                try:
                    self._session.call("PUT", f"{topic_path(topic)}/consumer-offsets", body)
                except PipelineError as error:
                    _log.warning("the offset of consumer %r could not be stored: %s", name, error)
                    return
                self._committed[topic, number] = offset

    # ---------------------------------------------------------------------------------------------------- the gateway

    @property
    def _session(self) -> Session:
        return session_of(self._settings.access)

    def _ends(self) -> Offsets:
        return positions.ends(self._extents())

    def _extents(self) -> Extents:
        now = time.monotonic()
        if self._known is None or now - self._known[0] > self._settings.poll_interval_ms / 1000:
            found = topics.extents(self._session, self._settings)
            self._known = (time.monotonic(), found)
        return self._known[1]
