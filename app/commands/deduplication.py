"""Sends to topics with deduplication.

Messages whose id the partition has received lately are dropped; the others keep their order and get consecutive
offsets. A batch of duplicates only is a success too.

Each topic may choose whether to deduplicate, and within which bounds; `system.message_deduplication` has the defaults.
The ids are in memory, and are read back from the log after a start, or when a topic begins to deduplicate.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from whippet.app.config.system import System
from whippet.app.model.deduplication_window import Bounds, DeduplicationWindow, PendingWrite
from whippet.app.model.topic_options import UNLIMITED
from whippet.storage import batch as batches
from whippet.storage.appended import Appended
from whippet.storage.batch import Message, Writable
from whippet.storage.engine import Partition
from whippet.storage.errors import StorageError
from whippet.storage.options import Durability, TopicOptions
from whippet.storage.producers import Producer

if TYPE_CHECKING:
    from whippet.app.model.catalogue import Topic

_log = logging.getLogger(__name__)

READ_MESSAGES, READ_BYTES = 100_000, 8 * 1024 * 1024
"""Read from the log at once: the event loop processes each id."""


class Deduplication:
    """The windows of all partitions."""

    def __init__(self, system: System) -> None:
        wanted = system.message_deduplication
        self._enabled = wanted.enabled
        self._usual = Bounds(wanted.max_entries, int(wanted.expiry * 1_000_000))
        self._bytes_max = system.limits.deduplication_bytes
        self.left_out = 0
        """Messages since the start."""
        self._windows: dict[Partition, asyncio.Task[DeduplicationWindow]] = {}
        self._is_full = False

    @property
    def ids(self) -> int:
        return sum(len(window) for window in self._filled())

    @property
    def size_bytes(self) -> int:
        return sum(window.size_bytes for window in self._filled())

    def bounds(self, chosen: TopicOptions) -> Bounds | None:
        """Returns the bounds for a topic; None if it does not deduplicate."""
        enabled = chosen.message_deduplication
        if not (self._enabled if enabled is None else enabled):
            return None
        return Bounds(
            _bound(chosen.message_deduplication_max_entries, self._usual.entries_max),
            _bound(chosen.message_deduplication_expiry, self._usual.expiry_us),
        )

    async def append(
        self,
        partition: Partition,
        bounds: Bounds,
        batch: Writable,
        now: int,
        durability: Durability | None = None,
        producer: Producer | None = None,
        checked: batches.Checked | None = None,
    ) -> Appended | None:
        """Returns None if the whole batch was duplicates."""
        if checked is None:
            checked = partition.check(batch)
        window, pending = await self._begin_write(partition, bounds, batch, checked, now)
        decided_at = None
        try:
            appended = None
            if len(pending.new):
                if len(pending.new) < checked.message_count:
                    batch, checked = _only(batch, pending.new.tolist()), None
                if producer is None:
                    appended = await partition.append(batch, durability, checked=checked)
                else:
                    appended = await partition.append_once(batch, producer, durability, checked=checked)
            decided_at = now
        finally:
            window.end_write(pending, decided_at)
        return appended

    async def _begin_write(
        self, partition: Partition, bounds: Bounds, batch: Writable, checked: batches.Checked, now: int
    ) -> tuple[DeduplicationWindow, PendingWrite]:
        ids = batches.ids(batch, checked.frames)
        while True:
            window = await self._window(partition, bounds, now)
            pending = window.begin_write(ids, now)
            if isinstance(pending, PendingWrite):
                self.left_out += checked.message_count - len(pending.new)
                return window, pending
            await asyncio.shield(pending)

    def forget(self, partitions: Sequence[Partition | None]) -> None:
        """Forgets the ids of partitions that were purged, removed, or are no longer deduplicated."""
        for partition in partitions:
            if partition is not None:
                self._windows.pop(partition, None)

    async def _window(self, partition: Partition, bounds: Bounds, now: int) -> DeduplicationWindow:
        while True:
            filling = self._windows.get(partition)
            if filling is None or (filling.done() and _failed(filling)):
                filling = asyncio.create_task(self._fill(partition, bounds, now))
                self._windows[partition] = filling
            # A caller that is cancelled must not cancel it for the others.
            window = filling.result() if filling.done() else await asyncio.shield(filling)
            if self._windows.get(partition) is filling:
                window.bounds = bounds
                return window

    async def _fill(self, partition: Partition, bounds: Bounds, now: int) -> DeduplicationWindow:
        window = DeduplicationWindow(bounds, self._has_room)
        offset = partition.first_offset
        if bounds.entries_max:
            offset = max(offset, partition.readable - bounds.entries_max)
        if bounds.expiry_us and offset < partition.readable:
            offset = max(offset, await partition.offset_at(now - bounds.expiry_us))
        while True:
            found = await partition.read(offset, READ_MESSAGES, READ_BYTES)
            if not found.messages:
                return window
            for batch in _batches(b"".join(found.buffers)):
                # A clock that was ahead when the batch arrived must not keep its ids for years.
                came_at = min(batches.header(batch).base_timestamp, now)
                window.fill(batches.ids(batch, batches.frame_positions(batch)), came_at)
                await asyncio.sleep(0)
            offset = found.next_offset

    async def fill(self, topic: Topic, now: int) -> None:
        """Fills the windows of a topic before a send has to wait for it."""
        bounds = self.bounds(topic.document.options)
        if bounds is None:
            return
        for partition in topic.served:
            try:
                await self._window(partition, bounds, now)
            except StorageError as error:
                _log.warning(
                    "the message ids of %s were not read back; the next send tries again: %s", partition.place, error
                )

    def _filled(self) -> Iterator[DeduplicationWindow]:
        for filling in self._windows.values():
            if filling.done() and not _failed(filling):
                yield filling.result()

    def _has_room(self, more_bytes: int) -> bool:
        has_room = self.size_bytes + more_bytes <= self._bytes_max
        if not has_room and not self._is_full:
            _log.warning(
                "message ids fill system.limits.deduplication_bytes = %d: the oldest are forgotten earlier than the "
                "topics are configured for, and their duplicates will be stored",
                self._bytes_max,
            )
        self._is_full = not has_room
        return has_room


def _bound(chosen: int | None, usual: int) -> int:
    return usual if chosen is None else 0 if chosen == UNLIMITED else chosen


def _failed(filling: asyncio.Task[DeduplicationWindow]) -> bool:
    return filling.cancelled() or filling.exception() is not None


def _batches(octets: bytes) -> Iterator[memoryview]:
    view = memoryview(octets)
    while view:
        length = batches.header(view).length
        yield view[:length]
        view = view[length:]


def _only(batch: Writable, positions: Sequence[int]) -> Writable:
    """The batch with only these of its messages."""
    messages = list(batches.messages(batch))
    kept = [
        Message(one.payload, one.id, one.user_headers, one.origin_timestamp)
        for one in (messages[position] for position in positions)
    ]
    return batches.build(kept, 0, os.urandom)
