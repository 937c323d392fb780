"""What happened in each interval of a run: messages, bytes, and the latencies of the requests that ended in it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import zip_longest

import msgspec

POINTS_MAX = 4096
"""When a run has more intervals, two neighbours become one: a run of any length fits."""


class Points(msgspec.Struct, frozen=True):
    """The series as lists of one length; the first interval begins with the measurement."""

    interval_s: float
    messages: list[int]
    bytes: list[int]
    requests: list[int]
    latency_total_us: list[float]
    """The sum of the latencies of the requests."""


class Series:
    def __init__(self, interval_s: float) -> None:
        self._interval_ns = interval_s * 1e9
        self._columns = [array("d") for _ in range(4)]

    def record(self, at_ns: int, messages: int, size: int, requests: int, latency_us: float) -> None:
        """`at_ns` is counted from the begin of the measurement."""
        index = max(int(at_ns / self._interval_ns), 0)
        while index >= POINTS_MAX:
            self._interval_ns *= 2
            self._columns = [array("d", halved(column)) for column in self._columns]
            index //= 2
        for column, value in zip(self._columns, (messages, size, requests, latency_us), strict=True):
            if index >= len(column):
                column.extend([0] * (index + 1 - len(column)))
            column[index] += value

    def points(self) -> Points:
        return _points(self._interval_ns / 1e9, [column.tolist() for column in self._columns])


def _points(interval_s: float, columns: list[list[float]]) -> Points:
    messages, sizes, requests = (list(map(int, column)) for column in columns[:3])
    return Points(interval_s, messages, sizes, requests, columns[3])


def halved(column: Sequence[float]) -> list[float]:
    """Adds up each two neighbours."""
    return [first + second for first, second in zip_longest(column[::2], column[1::2], fillvalue=0)]


def added(all_points: list[Points]) -> Points:
    """Adds up the series of several processes. Their intervals are the same, times a power of two."""
    widest = max(points.interval_s for points in all_points)
    columns: list[list[float]] = [[], [], [], []]
    for points in all_points:
        own: list[Sequence[float]] = [points.messages, points.bytes, points.requests, points.latency_total_us]
        for _ in range(round(widest / points.interval_s).bit_length() - 1):
            own = [halved(column) for column in own]
        columns = [
            [first + second for first, second in zip_longest(column, more, fillvalue=0)]
            for column, more in zip(columns, own, strict=True)
        ]
    return _points(widest, columns)


def moving_average(values: Sequence[float], window: int) -> list[float]:
    """Returns the average of each value and those before it, as many as the window has."""
    found: list[float] = []
    total = 0.0
    for index, value in enumerate(values):
        total += value - (values[index - window] if index >= window else 0.0)
        # Differences of large numbers leave something of either sign.
        found.append(max(total, 0.0) / min(index + 1, window))
    return found
