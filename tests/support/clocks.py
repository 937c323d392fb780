"""Clocks that advance only when a test says so: the time of day in microseconds, and monotonic seconds."""

from __future__ import annotations

from typing import Protocol

NOON = 1_700_000_000_000_000


class Clock:
    """Microseconds since 1970. A test may also set them back."""

    def __init__(self, now: int = NOON) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


class Listener(Protocol):
    def close_overdue(self, now: float) -> None: ...


class Witness(Protocol):
    async def is_alive(self) -> bool: ...


class Seconds:
    """Monotonic seconds. They replace the module `time`, a clock, and `asyncio.sleep`."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    async def passes(self, seconds: float, listener: Listener, witness: Witness) -> None:
        """Advances the time of a listener. The witness is one of its clients: the response that it gets proves that the
        listener has read everything that was sent before."""
        assert await witness.is_alive()
        self.now += seconds
        listener.close_overdue(self.now)
