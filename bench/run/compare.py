"""`whippet bench compare`: the verdict on two sets of results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whippet.app.cli.remote.failures import Failure, UsageFailure
from whippet.app.cli.remote.framework import Local
from whippet.app.cli.remote.output import Row

if TYPE_CHECKING:
    from whippet.bench.run.comparison import Change
    from whippet.bench.run.result import BenchResult

Before = Annotated[str, typer.Argument(metavar="A", help="a result or a folder with several: before a change")]
After = Annotated[str, typer.Argument(metavar="B", help="the same, after it")]
FailIfSlower = Annotated[
    float | None,
    typer.Option(
        "--fail-if-slower", metavar="PERCENT", min=0, help="exit with 1 if something is certainly slower, by so much"
    ),
]
Anyway = Annotated[bool, typer.Option("--anyway", help="compare runs with different settings")]


class Compared(Row, frozen=True):
    """A measure before and after."""

    identity = "verdict"
    measure: str
    before: float
    after: float
    unit: str
    slower_percent: float
    """Negative if it is faster."""
    between: str
    verdict: str
    note: str


def run(
    on: Local, before: Before, after: After, fail_if_slower: FailIfSlower = None, anyway: Anyway = False
) -> list[Compared]:
    """With two or more runs on both sides, a difference counts if it is larger than the noise between runs explains:
    95 of 100 comparisons of equals show none in any measure. With a single run on one side, only
    throughput and average latency are compared, by how they change during the run. Five runs on each side, taken in
    turn, make a good comparison: machines change with time."""
    from whippet.bench.run.comparison import Outcome, compare, differing_settings  # noqa: PLC0415 -- not for --help

    old, new = _results(before), _results(after)
    differing = differing_settings(old, new)
    if differing and not anyway:
        raise UsageFailure(f"the runs differ in more than what is compared ({'; '.join(differing)}): --anyway does it")
    for sentence in differing:
        on.note(f"the runs differ in {sentence}")
    for path, results in ((before, old), (after, new)):
        for result in results:
            _warn(on, f"run {result.run} in {path}", result)
    changes = compare(old, new)
    if not changes:
        raise UsageFailure("the runs have nothing in common that could be compared")
    compared = [_row(change) for change in changes]
    slower = [
        f"{change.measure} by {change.slower_percent:.1f} %"
        for change in changes
        if fail_if_slower is not None and change.outcome is Outcome.SLOWER and change.slower_percent >= fail_if_slower
    ]
    if slower:
        on.show(compared)
        raise Failure(f"slower: {', '.join(slower)}")
    return compared


def _warn(on: Local, name: str, result: BenchResult) -> None:
    if result.verification is not None and not result.verification.is_good:
        on.note(f"{name} failed its verification: {'; '.join(result.verification.problems)}")
    if result.client.is_limit:
        on.note(f"{name} was limited by its client: a faster server would not show")


def _row(change: Change) -> Compared:
    between = (
        "" if change.at_least_percent is None else f"{change.at_least_percent:+.1f} to {change.at_most_percent:+.1f} %"
    )
    return Compared(
        change.measure,
        change.before,
        change.after,
        change.unit,
        change.slower_percent,
        between,
        change.outcome.value,
        change.note,
    )


def _results(name: str) -> list[BenchResult]:
    from whippet.bench.run.result import Unreadable, read  # noqa: PLC0415

    path = Path(name)
    files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
    if not files:
        raise UsageFailure(f"{name} has no results: `whippet bench run KIND --output-dir {name}` writes some")
    found = []
    for file in files:
        try:
            found.append(read(file.read_bytes()))
        except Unreadable as error:
            raise UsageFailure(f"{file}: {error}") from None
    return found
