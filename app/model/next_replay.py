"""The executed requests of a session, by their numbers, and the responses to them.

After a connection was lost, a 0.12 client repeats requests without a response under their old numbers. It has many
requests in progress, so a number below the newest one may be new: the set of numbers counts, not the highest one. The
oldest responses are evicted first; whether a request with a lower number than an evicted one was executed is unknown.

Pure state, for the event loop only.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any, NamedTuple

from whippet.app.errors import Code, CommandError

REQUESTS_MAX = 256
"""The number of requests that a client has in progress at once: all of them may be repeated."""
BYTES_MAX = 64 << 10
"""Limit for the responses of one session; the newest one is kept however long it is."""
REQUEST_BYTES = 800
"""Memory of a remembered request besides the body of its response."""
ALL_BYTES_MAX = 256 << 20
"""Limit for all sessions together. While they take more, an active session keeps no more than the two limits below."""
SCARCE_REQUESTS_MAX = 16
SCARCE_BYTES_MAX = 4 << 10


class _Done(NamedTuple):
    operation: int
    mark: bytes | int
    """Identifies a request: another one under the same number has another mark."""
    response: asyncio.Future[Any]


class ReplayMemory:
    """Memory that the responses of all sessions take."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 0


class ReplayWindow:
    __slots__ = ("_bytes", "_evicted", "_memory", "_requests", "_sizes")

    def __init__(self, memory: ReplayMemory) -> None:
        self._memory = memory
        self._requests: OrderedDict[int, _Done] = OrderedDict()
        """Keyed by request number: executed requests in the order in which they finished, then pending ones in the
        order in which they started."""
        self._sizes: dict[int, int] = {}
        self._bytes = 0
        self._evicted = 0
        """The highest number whose response was evicted."""

    def find(self, number: int, operation: int, mark: bytes | int) -> asyncio.Future[Any] | None:
        """Returns the response to a request that was sent before, which may be pending; None for a new one."""
        done = self._requests.get(number)
        if done is not None:
            if (done.operation, done.mark) != (operation, mark):
                raise CommandError(Code.INVALID_COMMAND, f"request {number} was sent before with different content")
            return done.response
        if number < 1:
            raise CommandError(Code.INVALID_COMMAND, "requests are numbered from 1")
        if number <= self._evicted:
            raise CommandError(
                Code.REQUEST_TOO_OLD, f"request {number}: responses up to request {self._evicted} are no longer known"
            )
        return None

    def start(self, number: int, operation: int, mark: bytes | int) -> asyncio.Future[Any]:
        """The request is new and is being executed; `finish` or `discard` must follow, whatever happens."""
        response: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._requests[number] = _Done(operation, mark, response)
        return response

    def finish(self, number: int, size: int) -> None:
        """The request was executed; its response has `size` bytes."""
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
            self._evicted = max(self._evicted, oldest)

    def _is_over_limit(self) -> bool:
        if self._memory.size > ALL_BYTES_MAX:
            return len(self._sizes) > SCARCE_REQUESTS_MAX or self._bytes > SCARCE_BYTES_MAX
        return len(self._sizes) > REQUESTS_MAX or self._bytes > BYTES_MAX

    def clear(self) -> None:
        """The session has ended."""
        self._memory.size -= self._bytes + REQUEST_BYTES * len(self._sizes)
        self._requests.clear()
        self._sizes.clear()
        self._bytes = 0

    def discard(self, number: int) -> None:
        """Nothing was executed: the request may be sent again."""
        self._requests.pop(number, None)
