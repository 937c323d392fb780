"""Plots as SVG: lines over time, and latencies by percentile. Colours are classes, which the page defines."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from whippet.bench.run.histogram import Histogram

WIDTH, HEIGHT = 680, 260
LEFT, RIGHT, TOP, BOTTOM = 76, 12, 12, 40
POINTS_MAX = 600
"""More would not be visible."""
NINES_MAX = 5.0


class Line(NamedTuple):
    """Points in the units of the axes; None interrupts the line. `kind` is the class of its colour."""

    kind: str
    points: Sequence[tuple[float, float | None]]
    is_faint: bool = False


class Axis(NamedTuple):
    title: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    is_logarithmic: bool = False

    def place(self, value: float) -> float:
        """Returns where a value is between the ends of the axis, from 0 to 1."""
        if self.is_logarithmic:
            return math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def linear(title: str, highest: float, text: Callable[[float], str], ticks: int = 5) -> Axis:
    """An axis from 0 up to a round number."""
    step = _round_step(max(highest, 1e-9) / ticks)
    count = max(math.ceil(highest / step - 1e-9), 1)
    return Axis(title, 0.0, count * step, [(i * step, text(i * step)) for i in range(count + 1)])


def timeline(seconds: float) -> Axis:
    """An axis that ends where the run does."""
    rounded = linear("seconds", seconds, lambda value: f"{value:,.10g}", 8)
    end = max(seconds, 1e-9)
    return Axis("seconds", 0.0, end, [tick for tick in rounded.ticks if tick[0] <= end])


def logarithmic(title: str, lowest: float, highest: float, text: Callable[[float], str]) -> Axis:
    """An axis between powers of ten, or between 1, 2 and 5 times these if there are few."""
    lowest = max(lowest, 1e-3)
    highest = max(highest, lowest * 1.01)
    first, last = math.floor(math.log10(lowest)), math.ceil(math.log10(highest))
    steps = (1,) if last - first > 3 else (1, 2, 5)
    values = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    low = max(value for value in values if value <= lowest * 1.0001)
    high = min(value for value in values if value >= highest * 0.9999)
    return Axis(title, low, high, [(v, text(v)) for v in values if low <= v <= high], is_logarithmic=True)


def percentiles() -> Axis:
    """Each nine more takes the same room."""
    shown = (0, 50, 90, 99, 99.9, 99.99)
    ticks = [(-math.log10(1 - percent / 100), f"{percent:g}") for percent in shown]
    return Axis("percentile", 0.0, NINES_MAX, ticks)


def percentile_points(histogram: Histogram) -> list[tuple[float, float | None]]:
    """Where each percentile is on that axis, and its latency in microseconds."""
    found: list[tuple[float, float | None]] = []
    total, below = histogram.count, 0
    for highest, values in histogram.buckets():
        below += values
        left = 1 - below / total
        nines = min(-math.log10(left), NINES_MAX) if left > 0 else min(math.log10(total), NINES_MAX)
        found.append((max(nines, found[-1][0] if found else 0.0), min(highest, histogram.highest) / 1000))
    return found


def thinned(values: Sequence[float | None], interval: float) -> list[tuple[float, float | None]]:
    """Returns the averages of neighbours, so that there are not more points than can be seen."""
    each = max(-(-len(values) // POINTS_MAX), 1)
    found: list[tuple[float, float | None]] = []
    for start in range(0, len(values), each):
        known = [value for value in values[start : start + each] if value is not None]
        middle = (start + min(each, len(values) - start) / 2) * interval
        found.append((middle, sum(known) / len(known) if known else None))
    return found


def plot(title: str, across: Axis, up: Axis, lines: Sequence[Line]) -> str:
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">']
    for value, text in up.ticks:
        y = _y(up, value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>')
    for value, text in across.ticks:
        x = _x(across, value)
        parts.append(
            f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM + 4}"/>'
        )
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 17}" text-anchor="middle">{escape(text)}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 4}" text-anchor="middle">{escape(across.title)}</text>')
    parts += [_path(line, across, up) for line in lines]
    return "".join([*parts, "</svg>"])


def _path(line: Line, across: Axis, up: Axis) -> str:
    commands, is_open = [], False
    for x, y in line.points:
        if y is None:
            is_open = False
            continue
        commands.append(f"{'L' if is_open else 'M'}{_x(across, x):.1f},{_y(up, y):.1f}")
        is_open = True
    return f'<path class="{line.kind}{" faint" if line.is_faint else ""}" d="{"".join(commands)}"/>'


def _x(axis: Axis, value: float) -> float:
    return LEFT + axis.place(value) * (WIDTH - LEFT - RIGHT)


def _y(axis: Axis, value: float) -> float:
    return HEIGHT - BOTTOM - axis.place(value) * (HEIGHT - TOP - BOTTOM)


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= rough * 0.9999)
