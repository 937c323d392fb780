"""The newest batches of a partition in memory, for readers that keep up, and the budgets that limit memory.

Only the event loop uses these. A batch is in its partition's tail from the moment it is appended. Once it is written,
it counts against the store's tail budget, which drops the oldest written batch of all partitions first.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable
from itertools import repeat

from whippet.storage import batch as batches
from whippet.storage.entry import Entry
from whippet.storage.fetched import Fetched

OBJECT_BYTES = 400
"""An estimate of the memory for one entry besides the bytes of the batch."""


class Tail:
    """Consecutive entries up to the newest of the partition."""

    __slots__ = ("_entries", "_fell_at", "_gone", "_offsets")

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._offsets: list[int] = []
        # Entries before this one were dropped. The lists are shortened only now and then, so that dropping is cheap.
        self._gone = 0
        self._fell_at = -1
        """The offset at which times fell last, because the clock had been ahead (timestamps.py)."""

    def __len__(self) -> int:
        return len(self._entries) - self._gone

    @property
    def first_offset(self) -> int | None:
        return self._offsets[self._gone] if len(self) else None

    def push(self, entry: Entry) -> None:
        entries = self._entries
        if len(entries) > self._gone and entry.timestamp < entries[-1].timestamp:
            self._fell_at = entry.base_offset
        entries.append(entry)
        self._offsets.append(entry.base_offset)

    def drop_first(self) -> int:
        """Drops the oldest entry and returns how many bytes that frees; 0 if there is none."""
        if not len(self):
            return 0
        size = len(self._entries[self._gone].batch) + OBJECT_BYTES
        self._entries[self._gone] = _NOTHING
        self._gone += 1
        if self._gone > 64 and 2 * self._gone > len(self._entries):
            del self._entries[: self._gone], self._offsets[: self._gone]
            self._gone = 0
        return size

    def drop_from(self, offset: int) -> None:
        """Drops all entries from an offset on, because they could not be written."""
        i = max(bisect_left(self._offsets, offset), self._gone)
        del self._entries[i:], self._offsets[i:]

    def offset_at(self, timestamp: int) -> int | None:
        """Like `Log.offset_at`. None if the answer may be an older message, which the tail does not have."""
        if len(self) and self._fell_at >= self._offsets[self._gone]:
            older = (entry for entry in reversed(self._entries[self._gone :]) if entry.timestamp < timestamp)
            last = next(older, None)
            return None if last is None else last.next_offset
        if not len(self) or self._entries[self._gone].timestamp >= timestamp:
            return None
        i = bisect_left(self._entries, timestamp, lo=self._gone, key=lambda entry: entry.timestamp)
        return self._offsets[i] if i < len(self._entries) else self._entries[-1].next_offset

    def read(self, offset: int, count: int, room: int, end: int) -> Fetched:
        """Like `Log.read`, without a copy: the buffers are the tail's own, or views of them."""
        buffers: list[batches.Readable] = []
        messages = 0
        i = max(bisect_right(self._offsets, offset) - 1, self._gone)
        while i < len(self._entries) and messages < count and room > 0:
            entry = self._entries[i]
            batch, base = entry.batch, entry.base_offset
            if base >= end:
                break
            i += 1
            skip = max(offset - base, 0)
            total = entry.next_offset - base
            if skip >= total:
                continue
            wanted = min(total - skip, count - messages)
            if wanted < total or len(batch) > room:
                wanted, pieces = batches.cut_to_fit(batch, entry.frames, skip, wanted, room, not messages)
                if not wanted:
                    break
                room -= sum(map(len, pieces))
                buffers += pieces
            else:
                buffers.append(batch)
                room -= len(batch)
            messages += wanted
            offset = base + skip + wanted
            if skip + wanted < total:
                break
        return Fetched(buffers, messages, offset)


_NOTHING = Entry(bytearray(), 0, 0, 0, 0)


class TailBudget:
    """Limits the bytes of written batches in all tails together."""

    def __init__(self, limit: int) -> None:
        self.used = 0
        self._limit = limit
        self._oldest: deque[Tail] = deque()

    def admit(self, tail: Tail, size: int) -> None:
        """Counts a batch that was written. From now on it may be dropped, after all batches admitted earlier."""
        self._oldest.append(tail)
        self.used += size + OBJECT_BYTES
        if self.used > self._limit:
            self._make_room()

    def admit_several(self, tail: Tail, count: int, size: int) -> None:
        """Counts `count` batches of `size` bytes together."""
        self._oldest.extend(repeat(tail, count))
        self.used += size + count * OBJECT_BYTES
        self._make_room()

    def _make_room(self) -> None:
        while self.used > self._limit:
            self.used -= self._oldest.popleft().drop_first()

    def release(self, tail: Tail) -> None:
        """Stops counting a tail whose partition is closed or purged."""
        kept = [other for other in self._oldest if other is not tail]
        for _ in range(len(self._oldest) - len(kept)):
            self.used -= tail.drop_first()
        self._oldest = deque(kept)


class UnflushedBudget:
    """Bytes accepted but not yet written, over all partitions. Appends that would exceed the limit wait."""

    def __init__(self, limit: int) -> None:
        self.used = 0
        self.limit = limit
        self.buffering: dict[Callable[[], None], None] = {}
        """Callbacks that make partitions write which hold back acknowledged messages to write more of them at once."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def full(self) -> bool:
        return self.used >= self.limit

    def release(self, size: int) -> None:
        self.used -= size
        if self._waiting and not self.full:
            waiting, self._waiting = self._waiting, deque()
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    async def room(self) -> None:
        for hand_over in list(self.buffering):
            hand_over()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future
