"""Room in memory that requests share. Who does not fit waits; the first who came is the first who goes on."""

from __future__ import annotations

import asyncio
from collections import deque


class Budget:
    def __init__(self, limit: int) -> None:
        self.used = 0
        self._limit = limit
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size: int) -> None:
        """Something larger than the whole room gets it alone."""
        if not self._waiting and self._fits(size):
            self.used += size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(size)
            else:
                self._waiting.remove((size, turn))
                self._wake()
            raise

    def give_back(self, size: int) -> None:
        self.used -= size
        self._wake()

    def _wake(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size, turn = self._waiting.popleft()
            if not turn.cancelled():
                self.used += size
                turn.set_result(None)

    def _fits(self, size: int) -> bool:
        return not self.used or self.used + size <= self._limit
