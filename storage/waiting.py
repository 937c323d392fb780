"""Ways of waiting for a partition: until an offset is written or synced, until a message is readable, or exclusively.

Only the event loop uses these. Cancelling one waiting coroutine does not affect the others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from whippet.storage.errors import StorageError
from whippet.storage.options import Durability

if TYPE_CHECKING:
    from whippet.storage.takeover import Arrival

Future = asyncio.Future[None]


def wake(waiting: Iterable[Future]) -> None:
    for future in waiting:
        if not future.done():
            future.set_result(None)


class Awaiting(Protocol):
    """A future, or an object that reacts at once when it is told that an offset was reached, or why it will not be.
    Such an object may neither raise nor append anything: the partition is in the middle of its work."""

    def done(self) -> bool: ...
    def set_result(self, result: None, /) -> None: ...
    def set_exception(self, exception: StorageError, /) -> None: ...


class Waiting:
    """Waits for offsets to be reached. They are added in rising order, so only the first needs to be checked."""

    __slots__ = ("_futures",)

    def __init__(self) -> None:
        self._futures: deque[tuple[int, Awaiting]] = deque()

    def until(self, offset: int) -> Future:
        future: Future = asyncio.get_running_loop().create_future()
        self.add(offset, future)
        return future

    def add(self, offset: int, waiting: Awaiting) -> None:
        self._futures.append((offset, waiting))

    def reached(self, offset: int) -> None:
        futures = self._futures
        while futures and futures[0][0] <= offset:
            future = futures.popleft()[1]
            if not future.done():
                future.set_result(None)

    def refuse(self, offset: int, failure: StorageError) -> None:
        """Wakes those that wait for offsets up to this one; the others get the failure."""
        self.reached(offset)
        while self._futures:
            future = self._futures.popleft()[1]
            if not future.done():
                future.set_exception(failure)


class Readers:
    """Waits for messages to be readable, or to reach a durability: any offsets, in any order."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: list[tuple[int, Durability | None, Future]] = []

    def begin(self, offset: int, durability: Durability | None) -> Future:
        """A future that is done as soon as `until` would return. `end` gives it up."""
        future: Future = asyncio.get_running_loop().create_future()
        self.waiting.append((offset, durability, future))
        return future

    def end(self, future: Future) -> None:
        self.waiting = [reader for reader in self.waiting if reader[2] is not future]

    async def until(self, offset: int, durability: Durability | None) -> None:
        future = self.begin(offset, durability)
        try:
            await future
        except asyncio.CancelledError:
            self.end(future)
            raise

    def advance(self, reached: Callable[[Durability | None], int]) -> None:
        ready = [future for offset, durability, future in self.waiting if offset < reached(durability)]
        if ready:
            self.waiting = [reader for reader in self.waiting if reader[0] >= reached(reader[1])]
            wake(ready)

    def wake_all(self) -> None:
        """Wakes everyone, after a purge: the messages may never come."""
        readers, self.waiting = self.waiting, []
        wake(future for _, _, future in readers)

    def refuse(self, failure: Exception) -> None:
        readers, self.waiting = self.waiting, []
        for _, _, future in readers:
            if not future.done():
                future.set_exception(failure)


class Exclusion:
    """Gives one operation at a time a partition exclusively. All others wait for it, but not for each other."""

    __slots__ = ("_future", "arrival", "is_held")

    def __init__(self) -> None:
        self.is_held = False
        self._future: Future | None = None
        self.arrival: Arrival | None = None
        """What holds it, if the partition is still to come from the archive. It begins when somebody waits."""

    async def over(self) -> None:
        """Returns when no operation holds it."""
        while self._future is not None:
            future = self._future
            if self.arrival is not None:
                self.arrival.begin()
            await asyncio.shield(future)

    def enter(self) -> None:
        assert self._future is None
        self.is_held = True
        self._future = asyncio.get_running_loop().create_future()

    def leave(self) -> None:
        assert self._future is not None
        self._future.set_result(None)
        self._future = None
        self.is_held = False

    def refuse(self, failure: Exception) -> None:
        """The operation has failed, and holds the partition all the same. Whoever waits gets the failure."""
        assert self._future is not None
        future, self._future = self._future, asyncio.get_running_loop().create_future()
        future.set_exception(failure)
        # Perhaps nobody waits.
        future.exception()
