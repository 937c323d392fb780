"""Numbers that are unique in the life of a data folder: those of sessions and of incarnations of partitions.

They are reserved in blocks, and a block is on the disk before its first number is used, so that a server that was
killed uses no number twice. If the clock in milliseconds is ahead of the blocks, numbers continue from there: this
covers a folder that was restored without its reservation. Clients shift session numbers by 20 bits, which leaves 43:
milliseconds since 1970 need that many in the year 2248.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

BLOCK = 10_000


class UniqueNumbers:
    def __init__(
        self, reserved: int, now_us: int, reserve: Callable[[int], Awaitable[None]], *, block: int = BLOCK
    ) -> None:
        """Numbers below `reserved` may have been used. `reserve` returns when the reservation is on the disk."""
        self._next = self._reserved = max(reserved, now_us // 1000)
        self._reserve = reserve
        self._block = block
        self._reserving = asyncio.Lock()

    async def next(self) -> int:
        while self._next >= self._reserved:
            async with self._reserving:
                if self._next >= self._reserved:
                    below = self._next + self._block
                    await self._reserve(below)
                    self._reserved = below
        number = self._next
        self._next += 1
        return number
