"""Counters and timings of the running server: plain numbers, accessed without a lookup of labels.

`telemetry.metrics` exports them. Only the event loop changes them, except `SharedHistogram`.
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
"""Seconds: from a poll from memory to a sync on a failing disk."""


class Histogram:
    """Durations, counted by bounds."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        """Durations up to each bound and above the previous one; the last counts the rest."""
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds


class SharedHistogram(Histogram):
    """A histogram that several threads change."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def add(self, seconds: float) -> None:
        with self._lock:
            super().add(seconds)


def _by_transport() -> list[Histogram]:
    """Creates a list indexed by the number of the transport; none of them is 0."""
    return [Histogram() for _ in range(len(Transport) + 1)]


class Measurements:
    def __init__(self) -> None:
        self.commands: defaultdict[type[Any], list[Histogram]] = defaultdict(_by_transport)
        """Keyed by the type of the request; indexed by its transport."""
        self.refusals: Counter[tuple[str, str]] = Counter()
        """Keyed by the names of the command and of the error."""
        self.http_requests = 0
        """All requests on the HTTP port that could be parsed, whatever the response, except those below."""
        self.http_sends_at_once = 0
        """Single messages that were sent by a repeated head."""
        self.http_sends_refused = 0
        """Those of them that were refused after all."""
        self.http_responses = [0] * 6
        """Indexed by the first digit of the status; without the successful ones of those sends."""
        self.messages_sent = self.bytes_sent = 0
        """Received from producers and appended."""
        self.messages_polled = 0
        """Returned to consumers."""
        self.file_syncs = SharedHistogram()
        self.folder_syncs = SharedHistogram()
