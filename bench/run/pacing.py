"""Spreads requests over time, so that an actor moves so many bytes a second and no more."""

from __future__ import annotations

import time

from whippet.bench.run.precise_timer import PreciseTimer


class Pacer:
    """Says when the next request is due. A request that is late is sent at once, and its latency begins when it was
    due: a server that stalls cannot hide that by getting fewer requests."""

    def __init__(self, timer: PreciseTimer, bytes_per_s: float | None, begin_ns: int) -> None:
        self._timer = timer
        self._rate = bytes_per_s
        self._due = float(begin_ns)

    @property
    def is_limited(self) -> bool:
        return self._rate is not None

    def due(self) -> int:
        """When the next request is to be sent."""
        return int(self._due) if self.is_limited else time.monotonic_ns()

    async def wait(self) -> int:
        """Waits until the next request is due, and returns the time at which it should have been sent."""
        if not self.is_limited:
            return time.monotonic_ns()
        due = int(self._due)
        await self._timer.wait_until(due)
        return due

    def spend(self, size: int) -> None:
        """The next request is due when these bytes have had their time."""
        if self._rate is not None:
            self._due += size / self._rate * 1e9

    def restart(self, at_ns: int) -> None:
        """There was nothing to do until now: that time is not made up for."""
        self._due = max(self._due, float(at_ns))
