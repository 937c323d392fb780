"""Reads topics as a stream.

All methods but `read` run in one process on the driver for as long as the query runs, so state kept in `self` lasts.
Spark kills that process at the end: there is nothing to close. `read` runs in the tasks, on a copy.

1. Spark asks for the latest offset some 80 times a second while a topic is idle, and twice each time. What the gateway
   reports about its topics is cached for `pollIntervalMs`.
2. The first batch of a new query is empty on purpose: the checkpoint holds only the ends of batches, so the starting
   point of the query is stored as the end of an empty batch. Otherwise a first batch that failed would start again
   from a later `latest`.
3. Spark calls `commit` when it plans the next batch, and never for the last batch of a run. But when it asks for the
   latest offset, it passes the offset up to which everything is done. That one is stored for `consumerName`.
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

from pyspark_whippet import offset_resolution, offsets
from pyspark_whippet.backends import backend_for, read
from pyspark_whippet.errors import DataLossError, OptionError, PipelineError
from pyspark_whippet.gateway_reader import Split, report_loss
from pyspark_whippet.offsets import Range, canonical
from pyspark_whippet.partition_bounds import Backend, TopicBounds, subscribed_bounds
from pyspark_whippet.session import session_of, topic_path
from pyspark_whippet.settings import Offsets, Settings

_log = logging.getLogger(__name__)
STORE_AGAIN_S = 10.0
"""The pause after an offset could not be stored: an idle query comes here 80 times a second."""


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, settings: Settings, schema: StructType, fault: OptionError | None = None) -> None:
        """`fault` is a mistake in the options, raised at Spark's first request."""
        self._settings = settings
        self._schema = schema
        self._fault = fault
        self._first: Offsets | None = None
        self._is_begun = False
        self._target: Offsets | None = None
        self._known: tuple[float, TopicBounds] | None = None
        self._committed: dict[tuple[str, str], int] = {}
        self._store_at = 0.0
        self._reached: set[tuple[str, int, int]] = set()

    # -------------------------------------------------------------------------------------------------------- offsets

    def initialOffset(self) -> Offsets:  # noqa: N802
        """Spark asks twice; the answer must not change in between."""
        if self._first is None:
            found = self._bounds(all_there=True)
            self._first = offset_resolution.starting_offsets(self._backend, self._settings, found, "latest")
            if self._target is not None:
                # It was looked up before. Others have sent messages since, and `latest` must not be after it.
                self._target = offset_resolution.end_offsets(found)
        return self._first

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self._settings.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._ends()

    def reportLatestOffset(self) -> Offsets:  # noqa: N802
        return self._ends()

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        self._store_offsets(start)
        if self._first is not None and not self._is_begun:
            self._is_begun = True
            return start
        end = self._not_below(start, self._ends() if self._target is None else self._target)
        self._refuse_lost(start, end)
        if isinstance(limit, ReadMaxRows):
            end = offsets.limited(start, end, limit.max_rows)
        return canonical(end)

    def _not_below(self, start: Offsets, end: Offsets) -> Offsets:
        """Returns the ends, but not lower than what was read and still exists."""
        held = {topic: dict(partitions) for topic, partitions in end.items()}
        for topic, partitions in start.items():
            for number, offset in partitions.items():
                if offset > end.get(topic, {}).get(number, offset) and self._still_has(topic, int(number), offset):
                    held[topic][number] = offset
        return held

    def _still_has(self, topic: str, partition: int, offset: int) -> bool:
        """Looked up once per offset, because it may require walking through a file."""
        place = (topic, partition, offset)
        if place not in self._reached and self._backend.still_has(*place):
            self._reached.add(place)
        return place in self._reached

    def _refuse_lost(self, start: Offsets, end: Offsets) -> None:
        if not self._settings.fail_on_data_loss:
            return
        for topic, partitions in start.items():
            if topic not in end:
                raise DataLossError(f"topic {topic!r} was deleted; set failOnDataLoss=false to continue without it")
            missing = [number for number, offset in partitions.items() if end[topic].get(number, -1) < offset]
            if missing:
                raise DataLossError(
                    f"{topic} partition(s) {missing}: the checkpoint is ahead of the server "
                    f"({partitions} > {end[topic]}); was the topic created again? "
                    "Set failOnDataLoss=false to read what it has now"
                )

    # -------------------------------------------------------------------------------------------------------- batches

    def partitions(self, start: Offsets, end: Offsets) -> list[Any]:
        # When the first batch is replayed, Spark calls this before it asks for the latest offset.
        self._is_begun = True
        found = [self._checked_range(each, start) for each in offsets.ranges(start, end)]
        found = [each for each in found if each.start < each.end]
        return list(self._backend.plan_splits(found, self._settings))

    def _checked_range(self, each: Range, start: Offsets) -> Range:
        if str(each.partition) not in start.get(each.topic, {}):
            return self._range_since_added(each)
        if each.start <= each.end:
            return each
        if self._first is not None and canonical(start) == self._first:
            # The empty first batch is replayed, after messages have arrived: its end is from before.
            return each._replace(start=each.end)
        if self._settings.fail_on_data_loss:
            place = f"{each.topic} partition {each.partition}"
            raise PipelineError(f"{place}: offsets run backwards, from {each.start} to {each.end}")
        _log.warning(
            "%s partition %d: it ends at %d but was read up to %d; reading it from its beginning",
            each.topic,
            each.partition,
            each.end,
            each.start,
        )
        return each._replace(start=self._beginning(each))

    def _range_since_added(self, each: Range) -> Range:
        """Returns all messages since the partition was added to the topic. What it has already lost, nobody has
        read."""
        begins = self._beginning(each)
        if begins > each.start:
            split = Split(each.topic, each.partition, each.start, each.end)
            report_loss(
                self._settings, split, each.start, begins, "the partition was added later and has already lost it"
            )
        return each._replace(start=begins)

    def _beginning(self, each: Range) -> int:
        bounds = self._bounds().get(each.topic, {}).get(each.partition)
        if bounds is None:
            # If it is gone, the reader finds out.
            return 0
        return min(each.end, self._backend.first_offset(each.topic, each.partition, bounds))

    def read(self, partition: Any) -> Iterator[Any]:
        return read(self._settings, self._schema, partition)

    # ------------------------------------------------------------------------------------------------------- progress

    def commit(self, end: Offsets) -> None:
        """Nothing to do: see rule 3 of the module."""

    def _store_offsets(self, done: Offsets) -> None:
        """Stores the query's progress for `consumerName`, so that the gateway can report its lag. Never fails the
        query."""
        name = self._settings.consumer_name
        if name is None or time.monotonic() < self._store_at:
            return
        for topic, partitions in done.items():
            for number, offset in partitions.items():
                if not offset or self._committed.get((topic, number)) == offset:
                    continue
                body = json.dumps({"consumer_id": name, "partition_id": int(number), "offset": offset - 1}).encode()
                try:
                    session_of(self._settings.access).call("PUT", f"{topic_path(topic)}/consumer-offsets", body)
                except PipelineError as error:
                    _log.warning("could not store the offset of consumer %r: %s", name, error)
                    self._store_at = time.monotonic() + STORE_AGAIN_S
                    return
                self._committed[topic, number] = offset

    # ----------------------------------------------------------------------------------------- available messages

    @property
    def _backend(self) -> Backend:
        return backend_for(self._settings)

    def _ends(self) -> Offsets:
        return offset_resolution.end_offsets(self._bounds())

    def _bounds(self, *, all_there: bool = False) -> TopicBounds:
        """Returns the bounds of all topics. With `all_there`, every topic must exist, as when the query begins."""
        if self._fault is not None:
            raise self._fault
        now = time.monotonic()
        if all_there or self._known is None or now - self._known[0] > self._settings.poll_interval_ms / 1000:
            found = subscribed_bounds(self._backend, self._settings, all_there=all_there)
            self._known = (time.monotonic(), found)
        return self._known[1]
