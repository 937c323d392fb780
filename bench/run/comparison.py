"""What changed between two sets of runs, and whether it is more than their noise.

With several runs on both sides, each run is a measurement. With a single run on one side, stretches of its time series
are: they show how much the speed varies within a run, and nothing of what differs from one run to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from whippet.bench.run.result import BenchResult, RoleResult
from whippet.bench.run.statistics import block_means, ratio_of

WRONG = 0.05
"""How probable it is that any measure of equals differs."""
BLOCKS = 20
BLOCKS_MIN = 10
POINTS_PER_BLOCK_MIN = 5
ALIKE = 1.01
"""A ratio of less than this is no difference that matters, however certain it is."""


HIDDEN_PERCENT = 10


class Outcome(StrEnum):
    FASTER = "faster"
    SLOWER = "slower"
    SAME = "no difference"
    UNKNOWN = "cannot tell"


class Change(msgspec.Struct, frozen=True):
    """A line of the comparison. `slower_percent` is negative for what is faster."""

    measure: str
    unit: str
    before: float
    after: float
    slower_percent: float
    outcome: Outcome
    at_least_percent: float | None
    at_most_percent: float | None
    note: str


class Measure(NamedTuple):
    name: str
    unit: str
    value: Callable[[RoleResult], float | None]
    series: Callable[[RoleResult], Sequence[float | None]] | None = None
    """The same over time, if the result has it."""
    more_is_better: bool = False


def _throughput(role: RoleResult) -> Sequence[float | None]:
    return [size / role.series.interval_s / 1e6 for size in role.series.bytes]


MEASURES = (
    Measure("throughput", "MB/s", lambda role: role.total.megabytes_s, _throughput, more_is_better=True),
    Measure("average latency", "us", lambda role: role.total.latency.average, lambda role: role.series.latency_us),
    Measure("p50 latency", "us", lambda role: role.total.latency.p50),
    Measure("p99 latency", "us", lambda role: role.total.latency.p99),
    Measure("p99.9 latency", "us", lambda role: role.total.latency.p99_9),
    Measure("p50 from send to receipt", "us", lambda role: getattr(role.total.end_to_end, "p50", None)),
    Measure("p99 from send to receipt", "us", lambda role: getattr(role.total.end_to_end, "p99", None)),
)


def compare(before: Sequence[BenchResult], after: Sequence[BenchResult]) -> list[Change]:
    found = []
    for role in _roles(before, after):
        sides = [[_role(result, role) for result in side] for side in (before, after)]
        for measure in MEASURES:
            values = [[measure.value(each) for each in side] for side in sides]
            known = [[value for value in side if value] for side in values]
            if all(known):
                found.append((role, measure, sides, known))
    # Many measures are as many occasions to be wrong by chance.
    return [_change(*each, confidence=1 - WRONG / len(found)) for each in found]


def _change(
    role: str, measure: Measure, sides: list[list[RoleResult]], known: list[list[float]], *, confidence: float
) -> Change:
    before, after = (sum(values) / len(values) for values in known)
    name = f"{role}: {measure.name}"
    percent = _slower((after / before), measure)
    samples, note = known, ""
    if min(map(len, known)) < 2:
        if measure.series is None:
            note = "one run shows nothing of how much this varies: compare several"
            return Change(name, measure.unit, before, after, percent, Outcome.UNKNOWN, None, None, note)
        samples = [[mean for each in side for mean in _blocks(measure.series(each))] for side in sides]
        note = "from stretches of the runs: what differs from run to run is not in it"
        if min(map(len, samples)) < BLOCKS_MIN:
            note = "the run is too short to tell how much it varies"
            return Change(name, measure.unit, before, after, percent, Outcome.UNKNOWN, None, None, note)
    interval = ratio_of(samples[0], samples[1], confidence)
    bounds = sorted((_slower(interval.low, measure), _slower(interval.high, measure)))
    percent = _slower(interval.ratio, measure)
    outcome = Outcome.SAME
    if not interval.contains_one and max(interval.ratio, 1 / interval.ratio) >= ALIKE:
        outcome = Outcome.SLOWER if percent > 0 else Outcome.FASTER
    hidden = max(map(abs, bounds))
    if outcome is Outcome.SAME and hidden > HIDDEN_PERCENT:
        note = "; ".join(each for each in (note, f"the noise could hide up to {hidden:.0f} %") if each)
    return Change(name, measure.unit, before, after, percent, outcome, bounds[0], bounds[1], note)


def _slower(ratio: float, measure: Measure) -> float:
    """By how many per cent the new one needs longer, or, of throughput, has less."""
    return (1 - ratio) * 100 if measure.more_is_better else (ratio - 1) * 100


def _blocks(series: Sequence[float | None]) -> list[float]:
    # The first and the last interval are not whole.
    inner = series[1:-1]
    return block_means(inner, BLOCKS) if len(inner) >= BLOCKS * POINTS_PER_BLOCK_MIN else []


def differing_settings(before: Sequence[BenchResult], after: Sequence[BenchResult]) -> list[str]:
    """Returns what is not the same in all runs, though it has an effect on the figures."""
    found = []
    settings = [msgspec.to_builtins(result.settings) for result in (*before, *after)]
    for name in settings[0]:
        values = list(dict.fromkeys(str(each[name]) for each in settings))
        if name not in UNIMPORTANT and len(values) > 1:
            found.append(f"{name.replace('_', ' ')}: {', '.join(values)}")
    for what, every in (
        ("machine of the load", [result.machine.host for result in (*before, *after)]),
        ("processor", [f"{result.machine.processor}, {result.machine.cores} cores" for result in (*before, *after)]),
    ):
        if len(set(every)) > 1:
            found.append(f"{what}: {', '.join(dict.fromkeys(every))}")
    return found


UNIMPORTANT = frozenset({"moving_average", "keep", "sampling_s"})


def _roles(before: Sequence[BenchResult], after: Sequence[BenchResult]) -> list[str]:
    """Those that all results have."""
    every = [[role.role for role in result.roles] for result in (*before, *after)]
    return [role for role in every[0] if all(role in each for each in every)]


def _role(result: BenchResult, name: str) -> RoleResult:
    return next(role for role in result.roles if role.role == name)
