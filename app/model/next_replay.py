"""Which requests of a session were carried out, by their numbers, and what they were answered.

A client of 0.12 sends again, under the old number, what had no answer when its connection was lost. It has many
requests under way, so a number below the newest one may be new: what counts is the set of numbers, not the highest one.
The oldest answers are forgotten first; about a number that is older than a forgotten one nothing can be said any more.

Pure state, for the event loop alone.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any, NamedTuple

from whippet.app.errors import Code, CommandError

REQUESTS_MAX = 256
"""As many as a client has under way at once: all of them may come again."""
BYTES_MAX = 64 << 10
"""Of the answers of one session; the newest one is kept however long it is."""
REQUEST_BYTES = 800
"""Memory that a remembered request takes beside the body of its answer."""
ALL_BYTES_MAX = 256 << 20
"""Of all sessions together. While they take more, a session that is used keeps no more than the two numbers below."""
SCARCE_REQUESTS_MAX = 16
SCARCE_BYTES_MAX = 4 << 10


class _Done(NamedTuple):
    operation: int
    mark: bytes | int
    """By which a request is known: another one under the same number has another mark."""
    answer: asyncio.Future[Any]


class ReplayMemory:
    """Memory that the answers of all sessions take."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 0


class ReplayWindow:
    __slots__ = ("_bytes", "_forgotten", "_memory", "_requests", "_sizes")

    def __init__(self, memory: ReplayMemory) -> None:
        self._memory = memory
        self._requests: OrderedDict[int, _Done] = OrderedDict()
        """By number, in the order in which they were done; those that are not done yet, in which they were begun."""
        self._sizes: dict[int, int] = {}
        self._bytes = 0
        self._forgotten = 0
        """The highest number whose answer was forgotten."""

    def find(self, number: int, operation: int, mark: bytes | int) -> asyncio.Future[Any] | None:
        """The answer to a request that was made before, perhaps still on its way; None for a new one."""
        done = self._requests.get(number)
        if done is not None:
            if (done.operation, done.mark) != (operation, mark):
                raise CommandError(Code.INVALID_COMMAND, f"request {number} was another one")
            return done.answer
        if number < 1:
            raise CommandError(Code.INVALID_COMMAND, "requests are numbered from 1")
        if number <= self._forgotten:
            raise CommandError(
                Code.REQUEST_TOO_OLD, f"request {number}: what was done up to {self._forgotten} is not remembered"
            )
        return None

    def start(self, number: int, operation: int, mark: bytes | int) -> asyncio.Future[Any]:
        """The request is new and is being carried out; `finish` or `forget` follows, whatever happens."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._requests[number] = _Done(operation, mark, answer)
        return answer

    def finish(self, number: int, size: int) -> None:
        """It was done; its answer has so many bytes."""
        if number not in self._requests:
            # The session has ended meanwhile.
            return
        self._requests.move_to_end(number)
        self._sizes[number] = size
        self._bytes += size
        self._memory.size += REQUEST_BYTES + size
        while len(self._sizes) > 1 and self._is_over_limit():
            oldest = next(number for number in self._requests if number in self._sizes)
            size = self._sizes.pop(oldest)
            self._bytes -= size
            self._memory.size -= REQUEST_BYTES + size
            del self._requests[oldest]
            self._forgotten = max(self._forgotten, oldest)

    def _is_over_limit(self) -> bool:
        if self._memory.size > ALL_BYTES_MAX:
            return len(self._sizes) > SCARCE_REQUESTS_MAX or self._bytes > SCARCE_BYTES_MAX
        return len(self._sizes) > REQUESTS_MAX or self._bytes > BYTES_MAX

    def clear(self) -> None:
        """The session is over."""
        self._memory.size -= self._bytes + REQUEST_BYTES * len(self._sizes)
        self._requests.clear()
        self._sizes.clear()
        self._bytes = 0

    def discard(self, number: int) -> None:
        """Nothing was done: it may be asked again."""
        self._requests.pop(number, None)
