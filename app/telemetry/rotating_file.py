"""A file that grows by whole lines and is replaced by a new one before it is too large or too old.

The log and the audit log are such files. Nothing here knows a thread: one thread writes, and the owner keeps others
out.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from collections.abc import Callable
from typing import NamedTuple

OWNER_ALONE = 0o600


class Bounds(NamedTuple):
    """Sizes in bytes, where 0 means unlimited, and a time in seconds."""

    max_file_size: int
    max_total_size: int
    retention: float


class RotatingFile:
    """Raises OSError wherever the disk fails; what was written before is whole then, and writing can be tried again."""

    def __init__(
        self,
        folder: str,
        name: str,
        bounds: Bounds,
        clock: Callable[[], float] = time.time,
        on_untidy: Callable[[OSError], None] = lambda _: None,
    ) -> None:
        """`on_untidy` is told that a line was written, but an old file could not be removed."""
        self.path = os.path.join(folder, name)
        self._on_untidy = on_untidy
        self._folder = folder
        self._older = older_than(name)
        self._bounds = bounds
        self._clock = clock
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self._open()

    def _open(self) -> None:
        handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, OWNER_ALONE)
        try:
            found = os.fstat(handle)
            size = found.st_size
            # A crash may have left half a line.
            if size and os.pread(handle, 1, size - 1) != b"\n":
                size += os.write(handle, b"\n")
        except OSError:
            os.close(handle)
            raise
        self._handle = handle
        self._size = size
        self._started_at = min(self._clock(), found.st_mtime) if found.st_size else self._clock()

    def write(self, line: bytes) -> None:
        """Writes all of a line or nothing."""
        is_full = self._size and 0 < self._bounds.max_file_size < self._size + len(line)
        if is_full:
            self._rotate()
        written = os.write(self._handle, line)
        if written < len(line):
            os.ftruncate(self._handle, self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
        self._size += written
        if is_full:
            try:
                self._remove_old()
            except OSError as error:
                self._on_untidy(error)

    def sync(self) -> None:
        os.fdatasync(self._handle)

    def tidy(self) -> None:
        """Begins a new file if this one is too old, and removes files that are too old or too many."""
        if self._size and self._clock() - self._started_at >= self._bounds.retention:
            self._rotate()
        self._remove_old()

    def _rotate(self) -> None:
        """If no new file can be created, the one under its new name goes on growing."""
        moment = self._clock()
        stamp = time.strftime("%Y%m%d%H%M%S", time.gmtime(moment)) + f"{int(moment % 1 * 1e6):06}"
        # It is gone after an attempt that failed, or if somebody else moves files away.
        with contextlib.suppress(FileNotFoundError):
            os.rename(self.path, f"{self.path}.{stamp}")
        full = self._handle
        self._open()
        os.close(full)

    def _remove_old(self) -> None:
        bounds = self._bounds
        # The growing file counts with its maximum size, so that the sum holds until the next time.
        total = max(self._size, bounds.max_file_size)
        for name in sorted(filter(self._older.fullmatch, os.listdir(self._folder)), reverse=True):
            path = os.path.join(self._folder, name)
            found = os.stat(path)
            total += found.st_size
            if self._clock() - found.st_mtime >= bounds.retention or 0 < bounds.max_total_size < total:
                os.remove(path)

    def close(self) -> None:
        os.close(self._handle)


def older_than(name: str) -> re.Pattern[str]:
    """The names of closed files: the time at which they were closed, to the microsecond, follows the name."""
    return re.compile(rf"{re.escape(name)}\.\d{{20}}")
