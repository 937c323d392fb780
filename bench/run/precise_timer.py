"""Waits until a moment with the precision of the kernel's timers. The timers of event loops have milliseconds."""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import itertools
import os
import struct
import time

_TFD_NONBLOCK = 0o4000
_TFD_TIMER_ABSTIME = 1
_TIMES = struct.Struct("@qqqq")
"""Interval and first expiration, each in seconds and nanoseconds."""


class PreciseTimer:
    """One timer of the kernel (timerfd) for everything on one event loop that waits. Times are those of
    `time.monotonic_ns`."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.timerfd_create(time.CLOCK_MONOTONIC, _TFD_NONBLOCK)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._loop.add_reader(self._descriptor, self._on_expired)

    async def wait_until(self, at_ns: int) -> None:
        """Returns at once if the moment is over."""
        if at_ns <= time.monotonic_ns():
            return
        future = self._loop.create_future()
        heapq.heappush(self._waiting, (at_ns, next(self._numbers), future))
        if self._waiting[0][2] is future:
            self._arm()
        await future

    def _arm(self) -> None:
        times = _TIMES.pack(0, 0, *divmod(self._waiting[0][0], 1_000_000_000))
        if self._libc.timerfd_settime(self._descriptor, _TFD_TIMER_ABSTIME, times, None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def _on_expired(self) -> None:
        try:
            os.read(self._descriptor, 8)
        except BlockingIOError:
            # It was set anew in the meantime.
            return
        now = time.monotonic_ns()
        while self._waiting and self._waiting[0][0] <= now:
            future = heapq.heappop(self._waiting)[2]
            if not future.done():
                future.set_result(None)
        if self._waiting:
            self._arm()

    def close(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
