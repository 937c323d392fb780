"""De-duplication by message id: what each partition has been sent lately, bounded by number and by age.

1. An id counts as seen when its message is in the log. While that is being written nobody knows, so whoever sends the
   same id meanwhile waits for the outcome: a write that fails must not make the repetition vanish.
2. The first message with an id is kept, in one batch as well as over several.
3. A message without an id, which 0.9 clients may send, is new each time.
4. What the log had before is `fill`ed in, oldest first; a purge forgets what it has purged.

Pure state for the event loop; time is a number that the caller passes in.
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
"""Times are kept for so many parts of the expiry: an id may stay for a part more, and never a moment less."""
_MIX = np.uint64(0x9E3779B97F4A7C15)


class Bounds(NamedTuple):
    entries_max: int
    """0: unlimited."""
    expiry_us: int
    """0: until it is pushed out."""


class PendingWrite(NamedTuple):
    fresh: Numbers
    """The positions of the messages that are new."""
    start: int
    end: int
    done: Future


class DeduplicationWindow:
    """The ids of one partition."""

    __slots__ = ("_ages", "_ids", "_pending", "bounds")

    def __init__(self, bounds: Bounds, room: Callable[[int], bool] = lambda more_bytes: True) -> None:
        self.bounds = bounds
        """May be changed; holds from then on."""
        self._ids = RecentIds(room)
        self._pending: list[PendingWrite] = []
        self._ages: deque[tuple[int, int, int]] = deque()
        """The number after the last id that came before a time; that time; and when this part of the expiry began."""

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def size_bytes(self) -> int:
        return self._ids.size_bytes

    def begin_write(self, ids: Ids, now: int) -> PendingWrite | Future:
        """What of it is new, which is pending until `decided`; or the write of one of the ids that is under way, to be
        waited for and to be followed by another try."""
        self._forget_old(now)
        numbers = self._ids.find(ids)
        for under_way in self._pending:
            if ((numbers >= under_way.start) & (numbers < under_way.end)).any():
                return under_way.done
        fresh, added = _new(ids, numbers)
        start = self._ids.add(added)
        taken = PendingWrite(fresh, start, start + len(added), asyncio.get_running_loop().create_future())
        self._pending.append(taken)
        return taken

    def end_write(self, taken: PendingWrite, now: int | None) -> None:
        """Its messages are in the log since `now`, or (None) they are not."""
        self._pending = [one for one in self._pending if one is not taken]
        if now is None:
            self._ids.strike_out(taken.start, taken.end)
        else:
            self._came(now)
        taken.done.set_result(None)
        self._keep_bounds()

    def fill(self, ids: Ids, appended_at: int) -> None:
        """Messages of the log, from its older to its newer ones."""
        self._ids.add(_new(ids, self._ids.find(ids))[1])
        self._came(appended_at)
        self._keep_bounds()

    def _came(self, now: int) -> None:
        """All that is decided has come by now."""
        if not self.bounds.expiry_us:
            self._ages.clear()
            return
        began = now
        if self._ages and now - self._ages[-1][2] < self.bounds.expiry_us // AGES:
            began = self._ages.pop()[2]
        self._ages.append((self._decided, now, began))

    def _forget_old(self, now: int) -> None:
        while self._ages and self._ages[0][1] + self.bounds.expiry_us <= now:
            self._ids.forget_before(min(self._ages.popleft()[0], self._decided))

    def _keep_bounds(self) -> None:
        if self.bounds.entries_max:
            self._ids.forget_before(min(self._ids.end - self.bounds.entries_max, self._decided))

    @property
    def _decided(self) -> int:
        """Nothing before this number is under way."""
        return min((taken.start for taken in self._pending), default=self._ids.end)


def _new(ids: Ids, numbers: Numbers) -> tuple[Numbers, Ids]:
    """The positions of what is new, and the ids among them: of those that come twice, the first."""
    named = ids[:, 0] | ids[:, 1] != 0
    unknown = ((numbers == NOT_FOUND) & named).nonzero()[0]
    unknown = unknown[_first_of_each(ids[unknown])]
    nameless = (~named).nonzero()[0]
    return np.sort(np.concatenate((unknown, nameless))) if nameless.size else unknown, ids[unknown]


def _first_of_each(ids: Ids) -> Numbers | slice:
    """Nearly always they are all different, which a sorted mixture of their halves shows at once."""
    mixed = np.sort(ids[:, 0] + ids[:, 1] * _MIX)
    if (mixed[1:] != mixed[:-1]).all():
        return slice(None)
    first: Numbers = np.sort(np.unique(ids.view("V16").ravel(), return_index=True)[1])
    return first
