"""Measures what an actor does in one role."""

from __future__ import annotations

from typing import Any

import numpy as np

from whippet.bench.run.histogram import Histogram
from whippet.bench.run.jobs import Latency, Performance
from whippet.bench.run.series import Series


class Recorder:
    """Ignores requests that began before the measurement: those of the warm-up."""

    def __init__(self, begin_ns: int, series: Series, *, with_end_to_end: bool = False) -> None:
        self._begin = begin_ns
        self._series = series
        self._latency = Histogram()
        self._end_to_end = Histogram() if with_end_to_end else None
        self._first = self._last = 0
        self._messages = self._size = self._requests = self._empty = 0

    def is_measured(self, began_ns: int) -> bool:
        return began_ns >= self._begin

    def request(self, began_ns: int, ended_ns: int, messages: int, size: int) -> None:
        """Latency begins when the request was due, which may be before it was sent."""
        if began_ns < self._begin:
            return
        self._first = self._first or began_ns
        self._last = ended_ns
        self._messages += messages
        self._size += size
        self._requests += 1
        self._latency.record(ended_ns - began_ns)
        self._series.record(ended_ns - self._begin, messages, size, 1, (ended_ns - began_ns) / 1000)

    def empty(self, began_ns: int) -> None:
        if began_ns >= self._begin:
            self._empty += 1

    def arrived(self, began_ns: int, ages_ns: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        """The time since each of these messages was due to be sent."""
        if began_ns >= self._begin and self._end_to_end is not None:
            self._end_to_end.record_all(ages_ns)

    def performance(self, actor: str, role: str) -> Performance:
        return Performance(
            actor,
            role,
            self._messages,
            self._size,
            self._requests,
            self._empty,
            max(self._first - self._begin, 0),
            max(self._last - self._begin, 0),
            _encoded(self._latency),
            None if self._end_to_end is None else _encoded(self._end_to_end),
        )


def _encoded(histogram: Histogram) -> Latency:
    return Latency(histogram.encode(), histogram.total, histogram.highest)


def decoded(latency: Latency) -> Histogram:
    return Histogram.decode(latency.histogram, latency.total_ns, latency.highest_ns)
