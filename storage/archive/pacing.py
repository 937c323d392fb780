"""Limits how many bytes the archiver's threads send in a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from whippet.storage.errors import ArchiveUnavailable


class Pacer:
    """The threads share it. Each waits before it sends, so the average holds whatever the sizes are."""

    def __init__(self, bytes_per_second: int, require: Callable[[int], None] = lambda _: None) -> None:
        """`require` raises an error if so many bytes may not be sent now."""
        self._require = require
        self._rate = bytes_per_second
        self._lock = threading.Lock()
        self._free_at = 0.0
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Ends all waits with an error, now and later."""
        self._stopping.set()

    def wait(self, size: int) -> None:
        """Returns when `size` bytes may be sent."""
        if self._stopping.is_set():
            raise ArchiveUnavailable("the archiver is stopping")
        self._require(size)
        if not self._rate:
            return
        with self._lock:
            now = time.monotonic()
            begin = max(self._free_at, now)
            self._free_at = begin + size / self._rate
        if begin > now and self._stopping.wait(begin - now):
            raise ArchiveUnavailable("the archiver is stopping")
