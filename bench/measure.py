"""Measurements: contenders that take turns on the same warm disk, and the rows of figures made from their results.

Noise on a shared machine only makes things slower, and it comes and goes. So a yardstick and what is compared with it
run in alternating rounds, each short enough that the kernel does not start to write pages back, and the best round of
each counts. A first round is discarded: fresh memory makes the first pass over the page cache slow.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from gc import disable, enable
from typing import Literal, NamedTuple

import msgspec

Contender = Callable[[], Awaitable[float]]
"""Does one round of the work and returns its rate per second: more is better."""


class Target(NamedTuple):
    """What a figure must reach."""

    of: Literal["value", "ratio"]
    sign: Literal[">=", "<"]
    limit: float

    def met(self, value: float, ratio: float | None) -> bool:
        found = value if self.of == "value" else ratio
        if found is None:
            return False
        return found >= self.limit if self.sign == ">=" else found < self.limit

    def __str__(self) -> str:
        return f"{self.sign} {self.limit:,.10g}{' x yardstick' if self.of == 'ratio' else ''}"


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the report. `ratio` compares the speed with that of the yardstick, so more is better for times,
    too."""

    name: str
    value: float
    unit: str
    yardstick: float | None = None
    ratio: float | None = None
    target: str | None = None
    met: bool | None = None
    note: str = ""


class Row(NamedTuple):
    """How a figure is made from a race: whose result it is, and which result is the yardstick."""

    name: str
    of: str
    against: str | None = None
    target: Target | None = None
    note: str = ""


class Scale(NamedTuple):
    """The amount of work in a run."""

    rounds: int
    round_bytes: int
    """Written or read by one contender in one round."""
    singles: int
    """Appends of one message in one round."""
    syncs: int
    partitions: int
    segments: int
    """Partitions of the store that is opened, and segments per partition."""
    messages: int
    """Messages among which others are looked up."""
    lookups: int


FULL = Scale(5, 96 << 20, 30_000, 300, 1000, 10, 5_000_000, 20_000)
QUICK = Scale(2, 8 << 20, 2_000, 40, 40, 10, 200_000, 2_000)


class Bench(NamedTuple):
    """What every measure is given: a folder of its own on the disk to measure, the amount of work, and the number of
    shards."""

    folder: str
    scale: Scale
    shards: int


@contextmanager
def undisturbed() -> Iterator[None]:
    """Disables the garbage collector, whose pauses depend on what ran before."""
    disable()
    try:
        yield
    finally:
        enable()


async def race(contenders: Mapping[str, Contender], rounds: int) -> dict[str, float]:
    """Returns the best rate of each contender; all run once in every round."""
    best = dict.fromkeys(contenders, 0.0)
    for number in range(rounds + 1):
        for name, contender in contenders.items():
            with undisturbed():
                rate = await contender()
            if number:
                best[name] = max(best[name], rate)
    return best


def rates(rows: Sequence[Row], found: Mapping[str, float], unit: str) -> list[Figure]:
    """Makes figures from rates per second."""
    return [figure(row, found[row.of], None if row.against is None else found[row.against], unit) for row in rows]


def times(rows: Sequence[Row], found: Mapping[str, float], unit: str, units_per_second: float) -> list[Figure]:
    """Makes figures from rates, shown as the time for one operation."""
    figures = []
    for row in rows:
        yardstick = None if row.against is None else units_per_second / found[row.against]
        figures.append(figure(row, units_per_second / found[row.of], yardstick, unit, less_is_better=True))
    return figures


def figure(row: Row, value: float, yardstick: float | None, unit: str, *, less_is_better: bool = False) -> Figure:
    ratio = None
    if yardstick is not None:
        ratio = yardstick / value if less_is_better else value / yardstick
    return Figure(
        name=row.name,
        value=value,
        unit=unit,
        yardstick=yardstick,
        ratio=ratio,
        target=None if row.target is None else str(row.target),
        met=None if row.target is None else row.target.met(value, ratio),
        note=row.note,
    )
