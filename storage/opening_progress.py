"""The progress of opening the partitions of a store."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple


class Progress(NamedTuple):
    """How many partitions have been opened."""

    opened: int
    total: int

    def __str__(self) -> str:
        return f"opened {self.opened} of {self.total} partitions"


Listener = Callable[[Progress], None]


class ProgressCounter:
    """Reports the progress of opening at most once a second."""

    def __init__(self, total: int, progress: Listener) -> None:
        self._total = total
        self._done = 0
        self._progress = progress
        self._reported_at = time.monotonic()
        progress(Progress(0, total))

    def add(self, count: int) -> None:
        self._done += count
        if self._done == self._total or time.monotonic() - self._reported_at > 1:
            self._reported_at = time.monotonic()
            self._progress(Progress(self._done, self._total))
