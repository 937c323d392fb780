"""What is counted and timed while the server works: plain numbers, found without looking up any label.

`telemetry.metrics` tells them to whoever scrapes. The event loop alone changes what is here, but for `SharedHistogram`.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter, defaultdict
from typing import Any

from whippet.app.model.sessions import Transport

BOUNDS = (
    *(0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
"""Seconds: from a poll out of memory to a sync on a disk that is about to fail."""


class Histogram:
    """How long something took, by the bounds."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        """Those up to each bound and above the one before it; the last for what took longer than all."""
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds


class SharedHistogram(Histogram):
    """One that several threads change."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def add(self, seconds: float) -> None:
        with self._lock:
            super().add(seconds)


def _by_transport() -> list[Histogram]:
    """A transport is its number; none has the 0."""
    return [Histogram() for _ in range(len(Transport) + 1)]


class Measurements:
    def __init__(self) -> None:
        self.commands: defaultdict[type[Any], list[Histogram]] = defaultdict(_by_transport)
        """By the type of the request, then by its transport."""
        self.refusals: Counter[tuple[str, str]] = Counter()
        """By the name of the command and that of the error."""
        self.http_requests = 0
        """All that has reached the HTTP port and could be read, whatever became of it."""
        self.messages_sent = self.bytes_sent = 0
        """By producers, and appended."""
        self.messages_polled = 0
        """Handed out to consumers."""
        self.file_syncs = SharedHistogram()
        self.folder_syncs = SharedHistogram()
