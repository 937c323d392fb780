"""A disk whose reserve is watched, something that deletes files for it, and what the log says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.storage.support.scarce_disk import RESERVE, ScarceDisk
from tests.storage.support.world import sized
from whippet.storage import disk_space
from whippet.storage.disk_space import DiskSpace
from whippet.storage.layout import PartitionId
from whippet.storage.room import Room

FULL = RESERVE - 1
ENOUGH = RESERVE + RESERVE // 10
BATCH = len(sized(1, 100))
HERE = PartitionId(0, 0, 0)


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [(record.levelno, record.getMessage()) for record in caplog.records if record.name == disk_space.__name__]


async def until(holds: Callable[[], bool]) -> None:
    """Runs the event loop until a condition holds of which no event informs."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0)


class Helper:
    """A relief that a test controls."""

    def __init__(self, disk: ScarceDisk, has: int) -> None:
        self.progress = 0
        self.disk = disk
        self.has = has
        self.asked: list[int] = []
        self.goes = asyncio.Event()
        self.goes.set()
        self.error: Exception | None = None

    async def free(self, size: int) -> int:
        self.asked.append(size)
        await self.goes.wait()
        if self.error is not None:
            raise self.error
        freed = min(size, self.has)
        self.has -= freed
        self.disk.free += freed
        return freed


class Case:
    """A watched disk without a store."""

    def __init__(self, has: int, unflushed: int = 0) -> None:
        self.disk = ScarceDisk()
        self.room = Room()
        self.space = DiskSpace("here", RESERVE, self.disk, self.room, lambda: unflushed)
        self.helper = Helper(self.disk, has)
        self.space._relief = self.helper

    async def look(self, free: int | None = None) -> bool:
        """Returns whether messages are refused then."""
        if free is not None:
            self.disk.free = free
        await self.space.check()
        return self.space.is_full

    async def relieved(self) -> None:
        assert self.space._relieving is not None
        await self.space._relieving
