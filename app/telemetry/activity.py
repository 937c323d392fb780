"""Activity: how much came in and went out, per second, for the charts of the dashboard.

The counters of the server are read once a second, whether or not anybody watches, so that a chart begins in the past.
That is a handful of numbers, whatever the size of the catalogue. Points of three widths are kept in rings: for five
minutes, an hour and a day. Latencies are those of the last minute.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from whippet.app.model.sessions import Transport
from whippet.app.telemetry.measurements import BOUNDS

if TYPE_CHECKING:
    from whippet.app.telemetry.measurements import Measurements

INTERVAL_SECONDS = 1.0
WIDTHS: Mapping[int, int] = {1: 300, 12: 300, 300: 288}
"""How many points are kept, by their width in seconds."""
LATENCY_SAMPLES = 7
LATENCY_SECONDS = 10
DECIMALS = 3


class Point(msgspec.Struct, frozen=True):
    at: int
    """The end of the time that it covers, in us since 1970."""
    messages_in: float
    """Appended per second."""
    messages_out: float
    """Returned to consumers per second, by polls."""
    bytes_in: float


class Latency(msgspec.Struct, frozen=True):
    command: str
    transport: str
    count: int
    p50: float | None
    """Seconds, rounded up to a bound of the histogram; null above the last one."""
    p99: float | None


class _Counts(NamedTuple):
    seconds: float
    """By the clock that only goes forward."""
    messages_in: int
    messages_out: int
    bytes_in: int


Durations = dict[tuple[type[Any], Transport], list[int]]


class Activity:
    def __init__(
        self,
        measurements: Callable[[], Measurements],
        clock: Callable[[], int],
        timer: Callable[[], float],
        timed: Mapping[Any, str],
    ) -> None:
        """`clock` returns us since 1970, `timer` seconds; `timed` names the requests whose latencies are kept."""
        self._measurements = measurements
        self._clock = clock
        self._timer = timer
        self._timed = timed
        self._rings = {width: deque[Point](maxlen=count) for width, count in WIDTHS.items()}
        now = self._counts()
        self._before = dict.fromkeys(WIDTHS, now)
        self._durations: deque[Durations] = deque([self._read_durations()], maxlen=LATENCY_SAMPLES)
        self._timed_at = now.seconds

    def measure(self) -> None:
        """Called once a second. A call that comes late makes one wider point."""
        now = self._counts()
        at = self._clock()
        for width, ring in self._rings.items():
            before = self._before[width]
            # A timer that fires a moment early must not skip a point.
            if now.seconds - before.seconds >= width - INTERVAL_SECONDS / 2:
                ring.append(_point(at, before, now))
                self._before[width] = now
        if now.seconds - self._timed_at >= LATENCY_SECONDS - INTERVAL_SECONDS / 2:
            self._durations.append(self._read_durations())
            self._timed_at = now.seconds

    def points(self, width: int, since: int = 0) -> list[Point]:
        """Returns the points that end after `since`, oldest first."""
        return [point for point in self._rings[width] if point.at > since]

    @property
    def latest(self) -> Point | None:
        """The last second; None in the first one."""
        ring = self._rings[min(WIDTHS)]
        return ring[-1] if ring else None

    def latencies(self) -> list[Latency]:
        """Returns the latencies of the last minute, of what was executed at all."""
        before = self._durations[0]
        found: list[Latency] = []
        for key, counts in self._read_durations().items():
            recent = [now - then for now, then in zip(counts, before.get(key, [0] * len(counts)), strict=True)]
            total = sum(recent)
            if total:
                request, transport = key
                quantiles = _bound(recent, total, 0.5), _bound(recent, total, 0.99)
                found.append(Latency(self._timed[request], transport.name.lower(), total, *quantiles))
        return found

    def _counts(self) -> _Counts:
        read = self._measurements()
        return _Counts(self._timer(), read.messages_sent, read.messages_polled, read.bytes_sent)

    def _read_durations(self) -> Durations:
        commands = self._measurements().commands
        return {
            (request, transport): commands[request][transport].counts.copy()
            for request in self._timed
            if request in commands
            for transport in Transport
        }


def _point(at: int, before: _Counts, now: _Counts) -> Point:
    seconds = max(now.seconds - before.seconds, 1e-6)
    return Point(
        at,
        round((now.messages_in - before.messages_in) / seconds, DECIMALS),
        round((now.messages_out - before.messages_out) / seconds, DECIMALS),
        round((now.bytes_in - before.bytes_in) / seconds, DECIMALS),
    )


def _bound(counts: Sequence[int], total: int, quantile: float) -> float | None:
    """Returns the bound below which this part of the durations is."""
    reached = 0
    for bound, count in zip(BOUNDS, counts, strict=False):
        reached += count
        if reached >= total * quantile:
            return bound
    return None
