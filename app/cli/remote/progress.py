"""Shows on a terminal how many messages have been worked on, how fast, and how long the rest will take."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterable

from whippet.app.cli.remote.output import size_text

PROGRESS_S = 0.5
_CLEAR_LINE = "\r\x1b[K"


class Meter:
    """`total` is the size of everything, if it is known."""

    def __init__(self, total: int | None = None) -> None:
        self._total = total
        self._began = self._shown = time.monotonic()
        self._shows = sys.stderr.isatty()

    def show(self, messages: int, size: int) -> None:
        """Call this often: it writes now and then."""
        now = time.monotonic()
        if self._shows and now - self._shown >= PROGRESS_S:
            self._shown = now
            rate = size / (now - self._began)
            parts = [f"{messages:,} messages", size_text(size), f"{size_text(int(rate))}/s"]
            if self._total is not None and rate:
                parts.append(f"{_duration(max(self._total - size, 0) / rate)} left")
            print(f"{_CLEAR_LINE}{', '.join(parts)} ", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._shows and self._shown > self._began:
            print(file=sys.stderr)


def size_of_files(names: Iterable[str]) -> int | None:
    """Returns the size of files together; None if one of them is a pipe, or does not exist."""
    total = 0
    for name in names:
        try:
            found = os.fstat(sys.stdin.fileno()) if name == "-" else os.stat(name)
        except (OSError, ValueError):
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        total += found.st_size
    return total


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
