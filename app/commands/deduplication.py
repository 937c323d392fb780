"""Sending with de-duplication on: messages whose id the partition has seen lately are left out, the others keep their
order and get consecutive offsets. That all are repetitions is a success too."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from app.model.duplicates import Window
from storage import batch as batches
from storage.batch import Message, Writable
from storage.options import Durability
from storage.partition import Appended, Partition
from storage.producers import Producer


class Deduplication:
    """The windows of all partitions."""

    def __init__(self, entries_max: int, expiry_s: float) -> None:
        self._entries_max = entries_max
        self._expiry_us = int(expiry_s * 1_000_000)
        self._windows: dict[Partition, Window] = {}

    async def append(
        self,
        partition: Partition,
        batch: Writable,
        now: int,
        durability: Durability | None = None,
        producer: Producer | None = None,
    ) -> Appended | None:
        """None when nothing of the batch was new."""
        checked = batches.check(batch)
        window = self._windows.setdefault(partition, Window(self._entries_max, self._expiry_us))
        ids = _ids(batch, checked)
        while (under_way := window.undecided(ids)) is not None:
            await asyncio.shield(under_way)
        fresh, done = window.take(ids, now)
        taken = [ids[position] for position in fresh]
        try:
            if not fresh:
                appended = None
            elif producer is None:
                appended = await partition.append(_only(batch, checked, fresh), durability)
            else:
                appended = await partition.append_once(_only(batch, checked, fresh), producer, durability)
        except BaseException:
            window.decided(taken, done, None)
            raise
        window.decided(taken, done, now)
        return appended

    def forget(self, partitions: Sequence[Partition | None]) -> None:
        """They were purged or removed."""
        for partition in partitions:
            if partition is not None:
                self._windows.pop(partition, None)


def _ids(batch: Writable, checked: batches.Checked) -> list[bytes]:
    view = memoryview(batch)
    starts = (batches.start_of(checked.frames, i) for i in range(checked.message_count))
    return [bytes(view[start + 8 : start + 24]) for start in starts]


def _only(batch: Writable, checked: batches.Checked, positions: Sequence[int]) -> Writable:
    """The batch with these of its messages; itself if they are all."""
    if len(positions) == checked.message_count:
        return batch
    messages = list(batches.messages(batch))
    kept = [
        Message(one.payload, one.id, one.user_headers, one.origin_timestamp)
        for one in (messages[position] for position in positions)
    ]
    return batches.build(kept, 0, os.urandom)
