"""Keeps some of the disk free, so that a server whose disk is full can still do everything but take messages.

A thread asks how much of the file system of the data folder is free: every few seconds, and the more often the less
there is above the reserve. Below it, copies of what is in the archive are deleted first. If that is not enough, or if
half of the reserve is gone meanwhile, messages are refused. They are accepted again, without any request, as soon as
a little more than the reserve is free.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

from whippet.storage.errors import StorageError
from whippet.storage.files import Files, Space
from whippet.storage.options import MIB
from whippet.storage.room import Allowance, Room

_log = logging.getLogger(__name__)

RESERVE = "system.disk.reserve"
AUTOMATIC_BYTES = 128 * MIB
AUTOMATIC_SHARE = 20
"""Without a choice, the reserve is this many bytes, or this fraction of a smaller disk: the files of a small server
fit into it, and no machine with a usable disk is refused for its sake."""
RESUME_SHARE = 10
"""Messages are accepted again when this fraction of the reserve is free beyond it, so that it does not change all the
time."""
RELIEF_BYTES = 256 * MIB
"""Deleting frees the reserve once more beyond that, or this much if that is less: little at a time would keep the disk
at the edge."""

PAUSE_MAX_S = 5.0
PAUSE_MIN_S = 0.05
BYTES_PER_SECOND = 2 << 30
"""How fast a disk may fill up. The next check comes before the reserve could be reached."""
NEAR_BYTES = int(PAUSE_MIN_S * BYTES_PER_SECOND)
"""With less than this above the reserve, what is accepted is counted until the next check."""
FULL_PAUSE_S = 1.0
"""The pause while messages are refused. Nothing fills the disk then."""
RELIEF_PAUSE_S = 30.0
"""What could not be deleted may be deleted later, even if nothing is known to have changed."""
SETTLE_S = 0.2
"""How long the system may take to free the blocks of deleted files, which readers may have open."""


class Relief(Protocol):
    """Deletes files of the data folder that are elsewhere, too."""

    @property
    def progress(self) -> int:
        """Another number whenever there may be more to delete."""
        ...

    async def free(self, size: int) -> int:
        """Deletes at least `size` bytes if it can. Returns how many it has deleted."""
        ...


def reserve_of(chosen: int | None, total: int) -> int:
    return min(AUTOMATIC_BYTES, total // AUTOMATIC_SHARE) if chosen is None else chosen


def pause(available: int, reserve: int) -> float:
    """The seconds until the next check."""
    return min(max((available - reserve) / BYTES_PER_SECOND, PAUSE_MIN_S), PAUSE_MAX_S)


class DiskSpace:
    """See the module. Used on the event loop; begun by `start`, ended by `stop`."""

    def __init__(self, path: str, reserve: int | None, files: Files, room: Room, unflushed: Callable[[], int]) -> None:
        """`unflushed` returns how many bytes have been accepted and still need space. A reserve of None is chosen by
        the size of the disk, and 0 means that nothing is checked."""
        self.reserve = reserve or 0
        """In bytes."""
        self.space: Space | None = None
        """As of the last check; None before the first one."""
        self.deleted_bytes = 0
        """What was deleted here because the disk was full, since the start."""
        self._path = path
        self._chosen = reserve
        self._files = files
        self._room = room
        self._unflushed = unflushed
        self._problem: str | None = None
        self._relief: Relief | None = None
        self._relieving: asyncio.Task[None] | None = None
        self._settles_until = 0.0
        self._exhausted_at: int | None = None
        """The progress of the relief when it could not delete enough."""
        self._exhausted_until = 0.0
        self._left = 0
        """What was free at the last check, less what was yet to be written."""
        self._thread: ThreadPoolExecutor | None = None
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    # ----------------------------------------------------------------------------------------------------------- state

    @property
    def is_watched(self) -> bool:
        return self._chosen != 0

    @property
    def is_full(self) -> bool:
        return self._room.disk_full is not None

    @property
    def is_scarce(self) -> bool:
        """Returns whether there is so little space that nothing should be kept which is only convenient."""
        space = self.space
        return space is not None and space.free < self._resumes_at

    @property
    def _resumes_at(self) -> int:
        return self.reserve + self.reserve // RESUME_SHARE

    def summary(self) -> str | None:
        """Returns what is wrong, without the name of any folder. None if nothing is."""
        if not self.is_full:
            return None
        return f"disk: messages are refused, because only {self._left} bytes are free ({RESERVE} = {self.reserve})"

    # ----------------------------------------------------------------------------------------------- starting, stopping

    async def start(self) -> None:
        """Checks for the first time, and from then on again and again, unless that is turned off."""
        if not self.is_watched:
            return
        # A thread of its own: the others may all be waiting for this disk.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="disk-space")
        await self.check()
        self._task = asyncio.create_task(self._run(), name="disk space")

    async def stop(self) -> None:
        tasks = [task for task in (self._task, self._relieving) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._thread is not None:
            await asyncio.get_running_loop().run_in_executor(None, partial(self._thread.shutdown, wait=True))
            self._thread = None

    async def use(self, relief: Relief | None) -> None:
        """Sets what is asked to delete files from now on. With None, returns when nothing is being deleted any more."""
        self._relief, self._exhausted_at = relief, None
        if relief is None and self._relieving is not None:
            self._relieving.cancel()
            await asyncio.gather(self._relieving, return_exceptions=True)
        self._changed.set()

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause()):
                    await self._changed.wait()
            self._changed.clear()
            try:
                await self.check()
            except Exception:  # noqa: BLE001 -- without the check, the disk would fill up unnoticed
                _log.exception("the check of the disk's space met a defect; it will run again")

    def _pause(self) -> float:
        if self.is_full or self.space is None:
            return FULL_PAUSE_S
        return pause(self._available(self.space), self.reserve)

    # --------------------------------------------------------------------------------------------------------- checking

    async def check(self) -> None:
        """Looks how much is free, and decides what follows from that."""
        space = await self._measured()
        if space is None:
            return
        is_first, self.space = self.space is None, space
        self.reserve = reserve_of(self._chosen, space.total)
        if is_first and self.reserve >= space.total:
            _log.error(
                "%s (%d bytes) is not less than what the file system of %s has (%d bytes), so all messages are refused",
                RESERVE,
                self.reserve,
                self._path,
                space.total,
            )
        available = self._available(space)
        self._left = max(available, 0)
        if available >= (self._resumes_at if self.is_full else self.reserve):
            self._accept()
        elif not self._relieve(available) or available < self.reserve // 2:
            self._refuse()
        is_near = available - self.reserve < NEAR_BYTES
        on_spent = partial(self._on_spent, available)
        self._room.allow(Allowance(available - self.reserve // 2, on_spent) if is_near else None)

    async def _measured(self) -> Space | None:
        measure = partial(self._files.space, self._path)
        reason = "its file system does not report its size"
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._thread, measure)
            if found.total:
                self._problem = None
                return found
        except OSError as error:
            reason = error.strerror or str(error)
        # What is known stays valid until something else is known.
        problem = f"the free space of {self._path} cannot be determined: {reason}"
        if problem != self._problem:
            _log.warning("disk: %s", problem)
        self._problem = problem
        return None

    def _available(self, space: Space) -> int:
        """Returns what is free once everything is written that was accepted."""
        return space.free - self._unflushed()

    def _accept(self) -> None:
        self._exhausted_at = None
        if self.is_full:
            self._room.disk_full = None
            self._settles_until = 0.0
            _log.info("disk: messages are accepted again, because %d bytes are free", self._left)

    def _refuse(self) -> None:
        was_full = self.is_full
        self._room.disk_full = self._sentence(self._left)
        if not was_full:
            _log.error(
                "disk: messages are refused, because the file system of %s has only %d bytes free, and %s is %d bytes",
                self._path,
                self._left,
                RESERVE,
                self.reserve,
            )

    def _on_spent(self, available: int, accepted: int) -> str:
        """Called when more was accepted since the last check than fits above half of the reserve."""
        self._changed.set()
        return self._sentence(available - accepted)

    def _sentence(self, free: int) -> str:
        return (
            f"the disk is full: {free} bytes are free, and {RESERVE} keeps {self.reserve} bytes for everything "
            "but messages; they are accepted again when there is more space"
        )

    # --------------------------------------------------------------------------------------------------------- deleting

    def _relieve(self, available: int) -> bool:
        """Begins to delete what is elsewhere, too. Returns whether that may help."""
        relief, now = self._relief, asyncio.get_running_loop().time()
        if self._relieving is not None or now < self._settles_until:
            return True
        if relief is None or (relief.progress == self._exhausted_at and now < self._exhausted_until):
            return False
        missing = max(self._resumes_at, self.reserve + min(self.reserve, RELIEF_BYTES)) - available
        self._relieving = asyncio.create_task(self._free(relief, missing), name="disk relief")
        return True

    async def _free(self, relief: Relief, missing: int) -> None:
        progress, freed = relief.progress, 0
        try:
            freed = await relief.free(missing)
        except (StorageError, OSError) as error:
            _log.warning("disk: archived segments cannot be deleted: %s", error)
        except Exception:  # noqa: BLE001 -- messages are refused then, and it is tried again
            _log.exception("the deletion of archived segments met a defect")
        finally:
            self._relieving = None
        self.deleted_bytes += freed
        now = asyncio.get_running_loop().time()
        if freed < missing:
            self._exhausted_at, self._exhausted_until = progress, now + RELIEF_PAUSE_S
        else:
            self._settles_until = now + SETTLE_S
        self._changed.set()
