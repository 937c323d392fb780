"""Reads topics as a stream.

All methods but `read` run in one process on the driver for as long as the query runs, so state kept in `self` lasts.
Spark kills that process at the end: there is nothing to close. `read` runs in the tasks, on a copy.

1. Spark asks for the latest offset some 80 times a second while a topic is idle, and twice each time. What the gateway
   reports about its topics is cached for `pollIntervalMs`.
2. The checkpoint holds only the ends of batches. The end of the first batch therefore also says where it began:
   otherwise a first batch that failed would start again from a later `latest`.
3. Spark calls `commit` when it plans the next batch, and never for the last batch of a run. But when it asks for the
   latest offset, it passes the offset up to which everything is done. That one is stored for `consumerName`.
4. An offset is valid in the epoch of its partition. After a purge, or if a topic was created again, the query fails, or
   begins again with the first message; the tasks compare epochs, too, because a purge can come after the plan.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from pyspark_whippet import offset_resolution, offsets
from pyspark_whippet.backends import backend_for, read
from pyspark_whippet.errors import DataLossError, OptionError, PipelineError
from pyspark_whippet.gateway_reader import report_loss, split_of
from pyspark_whippet.offsets import SINCE, Position, Range
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
        self._first: Position | None = None
        self._is_begun = False
        self._target: Position | None = None
        self._known: tuple[float, TopicBounds] | None = None
        self._committed: dict[tuple[str, str], int] = {}
        self._store_at = 0.0
        self._reached: set[tuple[str, int, int]] = set()
        self._last_batch_at = -math.inf

    # -------------------------------------------------------------------------------------------------------- offsets

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Spark asks twice; the answer must not change in between."""
        if self._first is None:
            found = self._bounds(all_there=True)
            offsets_found = offset_resolution.starting_offsets(self._backend, self._settings, found, "latest")
            self._first = Position(offsets_found, offset_resolution.epochs(found))
            if self._target is not None:
                # It was looked up before. Others have sent messages since, and `latest` must not be after it.
                self._target = offset_resolution.end_position(found)
        return self._first.document

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self._settings.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._ends()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._ends().document

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begun = Position.of(start)
        self._store_offsets(begun)
        is_first = self._first is not None and not self._is_begun
        now = self._ends() if self._target is None else self._target
        self._refuse_lost(begun, now)
        # Where offsets have started over, everything is new.
        valid = begun.in_epochs_of(now)
        end = self._not_below(valid.offsets, now.offsets)
        if not is_first and self._is_too_little(offsets.waiting(valid.offsets, end)):
            return start
        if isinstance(limit, ReadMaxRows):
            end = offsets.limited(valid.offsets, end, limit.max_rows)
        self._is_begun = True
        self._last_batch_at = time.monotonic()
        found = Position(end, now.epochs, begun if is_first else None).document
        if not is_first and found == {name: value for name, value in start.items() if name != SINCE}:
            # Spark would run an empty batch for a document that differs.
            return start
        return found

    def _is_too_little(self, waiting: int) -> bool:
        """Whether the next batch waits for more messages. With `availableNow` none are coming."""
        least = self._settings.min_offsets_per_trigger
        if least is None or waiting >= least or self._target is not None:
            return False
        return time.monotonic() - self._last_batch_at < self._settings.max_trigger_delay_ms / 1000

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

    def _refuse_lost(self, start: Position, end: Position) -> None:
        if not self._settings.fail_on_data_loss:
            return
        for topic, partitions in start.offsets.items():
            if topic not in end.offsets:
                raise DataLossError(f"topic {topic!r} was deleted; set failOnDataLoss=false to continue without it")
            restarted = [number for number in partitions if start.is_other_epoch(end, topic, number)]
            if restarted:
                raise DataLossError(
                    f"{topic} partition(s) {restarted}: purged or created again since the last batch, which ended at "
                    f"{partitions}; messages that were not read may be gone. Set failOnDataLoss=false to read what it "
                    "has now, from its first message"
                )
            there = end.offsets[topic]
            missing = [number for number, offset in partitions.items() if there.get(number, -1) < offset]
            if missing and not self._still_has_all(topic, missing, partitions):
                raise DataLossError(
                    f"{topic} partition(s) {missing}: the checkpoint is ahead of the server "
                    f"({partitions} > {there}); was the topic created again? "
                    "Set failOnDataLoss=false to read what it has now"
                )

    def _still_has_all(self, topic: str, numbers: list[str], partitions: dict[str, int]) -> bool:
        return all(self._still_has(topic, int(number), partitions[number]) for number in numbers)

    # -------------------------------------------------------------------------------------------------------- batches

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
        # When the first batch is replayed, Spark calls this before it asks for the latest offset.
        self._is_begun = True
        begun, stop = Position.of(start), Position.of(end)
        if stop.since is not None and SINCE not in start:
            # The first batch. If it is replayed, `start` has been resolved again, and may be later.
            begun = stop.since
        valid = begun.in_epochs_of(stop)
        found = []
        for each in offsets.ranges(valid.offsets, stop.offsets):
            number = str(each.partition)
            checked = self._checked_range(each, valid.offsets, begun.is_other_epoch(stop, each.topic, number))
            if checked.start < checked.end:
                found.append(checked._replace(epoch=stop.epoch(each.topic, number)))
        return list(self._backend.plan_splits(found, self._settings))

    def _checked_range(self, each: Range, start: Offsets, is_restarted: bool) -> Range:
        if is_restarted:
            _log.warning(
                "%s partition %d: purged or created again; reading it from its beginning", each.topic, each.partition
            )
            return each._replace(start=self._beginning(each))
        if str(each.partition) not in start.get(each.topic, {}):
            return self._range_since_added(each)
        if each.start <= each.end:
            return each
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
            report_loss(
                self._settings,
                split_of(each),
                each.start,
                begins,
                "the partition was added later and has already lost it",
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

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: see rule 3 of the module."""

    def _store_offsets(self, done: Position) -> None:
        """Stores the query's progress for `consumerName`, so that the gateway can report its lag. Never fails the
        query."""
        name = self._settings.stored_as
        if name is None or time.monotonic() < self._store_at:
            return
        for topic, partitions in done.offsets.items():
            for number, offset in partitions.items():
                if not offset or self._committed.get((topic, number)) == offset:
                    continue
                place = {"consumer_id": name, "partition_id": int(number), "offset": offset - 1}
                epoch = done.epoch(topic, number)
                body = json.dumps(place if epoch is None else {**place, "epoch": epoch}).encode()
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

    def _ends(self) -> Position:
        return offset_resolution.end_position(self._bounds())

    def _bounds(self, *, all_there: bool = False) -> TopicBounds:
        """Returns the bounds of all topics. With `all_there`, every topic must exist, as when the query begins."""
        if self._fault is not None:
            raise self._fault
        now = time.monotonic()
        if all_there or self._known is None or now - self._known[0] > self._settings.poll_interval_ms / 1000:
            found = subscribed_bounds(self._backend, self._settings, all_there=all_there)
            self._known = (time.monotonic(), found)
        return self._known[1]
