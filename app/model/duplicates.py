"""De-duplication by message id: what each partition has been sent lately, bounded by number and by age.

1. An id counts as seen when its message is in the log. While that is being written nobody knows, so whoever sends the
   same id meanwhile waits for the outcome: a write that fails must not make the repetition vanish.
2. The first message with an id is kept, in one batch as well as over several.
3. A message without an id, which 0.9 clients may send, is new each time.
4. Nothing is kept over a restart, and a purge forgets what it has purged.

Pure state for the event loop; time is a number that the caller passes in.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence

Future = asyncio.Future[None]

NO_ID = bytes(16)


class Window:
    """The ids of one partition."""

    __slots__ = ("_entries_max", "_expiry_us", "_pending", "_seen")

    def __init__(self, entries_max: int, expiry_us: int) -> None:
        """0 entries: unlimited; no expiry: until it is pushed out."""
        self._entries_max = entries_max
        self._expiry_us = expiry_us
        self._seen: OrderedDict[bytes, int] = OrderedDict()
        self._pending: dict[bytes, Future] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def undecided(self, ids: Iterable[bytes]) -> Future | None:
        """Somebody else's write of one of these ids that is under way."""
        return next((future for identity in ids if (future := self._pending.get(identity)) is not None), None)

    def take(self, ids: Sequence[bytes], now: int) -> tuple[list[int], Future]:
        """The positions of the ids that are new, which are pending until the future is done."""
        self._forget_old(now)
        done: Future = asyncio.get_running_loop().create_future()
        fresh = []
        for position, identity in enumerate(ids):
            if identity == NO_ID:
                fresh.append(position)
            elif identity not in self._seen and identity not in self._pending:
                self._pending[identity] = done
                fresh.append(position)
        return fresh, done

    def decided(self, ids: Iterable[bytes], done: Future, now: int | None) -> None:
        """The messages with these ids are in the log since `now`, or (None) they are not."""
        for identity in ids:
            if self._pending.get(identity) is done:
                del self._pending[identity]
                if now is not None:
                    self._seen[identity] = now
        done.set_result(None)
        while self._entries_max and len(self._seen) > self._entries_max:
            self._seen.popitem(last=False)

    def forget(self) -> None:
        """After a purge. What is on its way comes after it."""
        self._seen.clear()

    def _forget_old(self, now: int) -> None:
        if not self._expiry_us:
            return
        while self._seen:
            identity, since = next(iter(self._seen.items()))
            if since + self._expiry_us > now:
                return
            del self._seen[identity]
