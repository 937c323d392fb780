"""A line on the terminal that shows how far a run is. Nothing is shown where nobody watches."""

from __future__ import annotations

import sys
import time

WIDTH = 24
REDRAW_S = 0.1
CLEAR = "\r\x1b[K"


class ProgressBar:
    def __init__(self) -> None:
        self._shows = sys.stderr.isatty()
        self._began = self._drawn = time.monotonic()

    def show(self, sent: int, read: int, part: float | None) -> None:
        now = time.monotonic()
        if not self._shows or now - self._drawn < REDRAW_S:
            return
        self._drawn = now
        elapsed = now - self._began
        line = f"{elapsed:5.1f} s  {sent:,} sent  {read:,} read"
        if part is not None:
            filled = round(min(part, 1.0) * WIDTH)
            line = f"[{'#' * filled}{'.' * (WIDTH - filled)}] {min(part, 1.0):4.0%}  {line}"
        print(f"{CLEAR}{line}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._shows:
            print(CLEAR, end="", file=sys.stderr, flush=True)
