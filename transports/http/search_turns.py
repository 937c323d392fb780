"""Lets searches take turns, so that they leave the machine to other requests."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

AT_ONCE = 2
"""Users whose searches are served at the same time."""


class Searches:
    """Each user is served one search at a time."""

    def __init__(self) -> None:
        self._served = asyncio.Semaphore(AT_ONCE)
        self._turns: dict[str, asyncio.Lock] = {}
        """By the mark of the user."""
        self._waiting: Counter[str] = Counter()

    @asynccontextmanager
    async def turn(self, mark: str) -> AsyncIterator[None]:
        self._waiting[mark] += 1
        try:
            async with self._turns.setdefault(mark, asyncio.Lock()), self._served:
                yield
        finally:
            self._waiting[mark] -= 1
            if not self._waiting[mark]:
                del self._waiting[mark], self._turns[mark]
