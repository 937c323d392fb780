"""Deduplication by message id: the ids that a partition has received lately, bounded by number and by age.

1. An id counts as received when its message is in the log. While the message is being written, a send with the same id
   waits for the outcome: if the write fails, the second message must not be dropped.
2. The first message with an id is kept, within one batch as well as across batches.
3. A message without an id, which 0.9 clients may send, is always new.
4. `fill` adds what the log had before, oldest first; a purge discards the window.

Pure state for the event loop; the caller passes the time in.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from whippet.app.model.recent_ids import NOT_FOUND, Ids, Numbers, RecentIds

Future = asyncio.Future[None]

AGES = 1024
"""The expiry is divided into this many periods, which share one time: an id may stay for one period longer, and never
shorter."""
_MIX = np.uint64(0x9E3779B97F4A7C15)


class Bounds(NamedTuple):
    entries_max: int
    """0: unlimited."""
    expiry_us: int
    """0: no expiry."""


class PendingWrite(NamedTuple):
    new: Numbers
    """The positions of the new messages in the batch."""
    start: int
    end: int
    done: Future


class DeduplicationWindow:
    """The ids of one partition."""

    __slots__ = ("_ages", "_ids", "_pending", "bounds")

    def __init__(self, bounds: Bounds, room: Callable[[int], bool] = lambda more_bytes: True) -> None:
        self.bounds = bounds
        """May be changed at any time."""
        self._ids = RecentIds(room)
        self._pending: list[PendingWrite] = []
        self._ages: deque[tuple[int, int, int]] = deque()
        """For each period: the number after its last id, the time of that id, and when the period began."""

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def size_bytes(self) -> int:
        return self._ids.size_bytes

    def begin_write(self, ids: Ids, now: int) -> PendingWrite | Future:
        """Returns what is new in a batch, which is pending until `end_write`. If one of the ids is being written,
        returns the future of that write: wait for it, then try again."""
        self._forget_old(now)
        numbers = self._ids.find(ids)
        for other in self._pending:
            if ((numbers >= other.start) & (numbers < other.end)).any():
                return other.done
        new, added = _new(ids, numbers)
        start = self._ids.add(added)
        pending = PendingWrite(new, start, start + len(added), asyncio.get_running_loop().create_future())
        self._pending.append(pending)
        return pending

    def end_write(self, pending: PendingWrite, now: int | None) -> None:
        """Reports that the messages were appended at `now`, or that they were not (None)."""
        self._pending = [one for one in self._pending if one is not pending]
        if now is None:
            self._ids.strike_out(pending.start, pending.end)
        else:
            self._record_time(now)
        pending.done.set_result(None)
        self._keep_bounds()

    def fill(self, ids: Ids, appended_at: int) -> None:
        """Adds messages of the log, in ascending order."""
        self._ids.add(_new(ids, self._ids.find(ids))[1])
        self._record_time(appended_at)
        self._keep_bounds()

    def _record_time(self, now: int) -> None:
        """Records the time by which all settled ids were received."""
        if not self.bounds.expiry_us:
            self._ages.clear()
            return
        began = now
        if self._ages and now - self._ages[-1][2] < self.bounds.expiry_us // AGES:
            began = self._ages.pop()[2]
        self._ages.append((self._settled_end, now, began))

    def _forget_old(self, now: int) -> None:
        while self._ages and self._ages[0][1] + self.bounds.expiry_us <= now:
            self._ids.forget_before(min(self._ages.popleft()[0], self._settled_end))

    def _keep_bounds(self) -> None:
        if self.bounds.entries_max:
            self._ids.forget_before(min(self._ids.end - self.bounds.entries_max, self._settled_end))

    @property
    def _settled_end(self) -> int:
        """Ids with lower numbers are not pending."""
        return min((pending.start for pending in self._pending), default=self._ids.end)


def _new(ids: Ids, numbers: Numbers) -> tuple[Numbers, Ids]:
    """Returns the positions of the new messages, and their ids. Of messages with the same id, the first one is new."""
    named = ids[:, 0] | ids[:, 1] != 0
    unknown = ((numbers == NOT_FOUND) & named).nonzero()[0]
    unknown = unknown[_first_of_each(ids[unknown])]
    nameless = (~named).nonzero()[0]
    return np.sort(np.concatenate((unknown, nameless))) if nameless.size else unknown, ids[unknown]


def _first_of_each(ids: Ids) -> Numbers | slice:
    """Usually all ids are different, which sorting a mixture of both halves shows at once."""
    mixed = np.sort(ids[:, 0] + ids[:, 1] * _MIX)
    if (mixed[1:] != mixed[:-1]).all():
        return slice(None)
    first: Numbers = np.sort(np.unique(ids.view("V16").ravel(), return_index=True)[1])
    return first
