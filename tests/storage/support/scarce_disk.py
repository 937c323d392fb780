"""A disk whose free space a test decides. Everything else is the real one."""

from __future__ import annotations

import errno
import os
import threading

from tests.support.running import HANGS_S
from whippet.storage.files import Files, Space

MIB = 1 << 20
RESERVE = 100 * MIB
TOTAL = 100_000 * MIB
PLENTY = 50_000 * MIB


class ScarceDisk(Files):
    def __init__(self, free: int = PLENTY, total: int = TOTAL) -> None:
        self.free = free
        self.total = total
        self.looks = 0
        """How often somebody asked."""
        self.threads: set[str] = set()
        self.fails = False
        self.answers = threading.Event()
        self.answers.set()
        self.asked = threading.Event()

    def space(self, path: str) -> Space:
        self.looks += 1
        self.threads.add(threading.current_thread().name)
        self.asked.set()
        assert self.answers.wait(HANGS_S)
        if self.fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return Space(self.free, self.total)
