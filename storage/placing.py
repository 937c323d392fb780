"""Gives batches their place in the log of a partition: the next offset, and the time of their arrival."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whippet.storage import batch as batches
from whippet.storage.entry import Entry
from whippet.storage.layout import PartitionId
from whippet.storage.single_batch import Single, batch_of
from whippet.storage.timestamps import Timestamps

if TYPE_CHECKING:
    from whippet.storage.write_pipeline import Shared, WritePipeline


class Placing:
    """Refuses what there is no room for."""

    __slots__ = ("_partition", "_pipeline", "_shared", "_timestamps")

    def __init__(self, partition: PartitionId, shared: Shared, pipeline: WritePipeline, timestamps: Timestamps) -> None:
        self._partition = partition
        self._shared = shared
        self._pipeline = pipeline
        self._timestamps = timestamps

    def of_batch(self, batch: batches.Writable, checked: batches.Checked) -> Entry:
        """Stamps its place into a batch."""
        base, timestamp = self._next(len(batch))
        batches.stamp(batch, self._partition.partition, base, timestamp, checked.checksums)
        return Entry(batch, base, base + checked.message_count, timestamp, checked.frames)

    def of_single(self, message: Single, size: int) -> Entry:
        """Makes a batch of that size, at its place."""
        base, timestamp = self._next(size)
        batch, _ = batch_of(message, self._partition.partition, base, timestamp)
        return Entry(batch, base, base + 1, timestamp, size - batches.HEADER_BYTES)

    def _next(self, size: int) -> tuple[int, int]:
        shared = self._shared
        check_room = shared.room.check
        if check_room is not None:
            check_room(self._partition, size)
        timestamp = shared.clock()
        times = self._timestamps
        if timestamp < times.newest:
            timestamp = times.not_before_newest(timestamp)
        else:
            times.newest = timestamp
        return self._pipeline.appended, timestamp
