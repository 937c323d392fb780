"""Counts the turns of the running event loop, and how much each of them does."""

from __future__ import annotations

import asyncio
from collections import Counter


class TurnCounter:
    def __init__(self) -> None:
        self.done: Counter[int] = Counter()
        """By the number of the turn."""
        self._turn = 0
        self._loop = asyncio.get_running_loop()
        self._next()

    def _next(self) -> None:
        self._turn += 1
        self._handle = self._loop.call_soon(self._next)

    def note(self, amount: int) -> None:
        self.done[self._turn] += amount

    def stop(self) -> None:
        self._handle.cancel()
