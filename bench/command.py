"""Code that the benchmark commands share: their options, the loop over the selected measures, and the output of
figures."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, NamedTuple, Protocol, TypeVar

import click
import typer
import uvloop

from whippet.bench import report
from whippet.bench.measure import Figure
from whippet.bench.processes import ChildFailed

AsJson = Annotated[bool, typer.Option("--json", help="print a JSON list of the figures and nothing else")]
Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="NAME,...", help="measure only these; an unknown name lists all that exist"),
]
Rounds = Annotated[int | None, typer.Option(min=1, help="rounds, the best of which counts")]
Path = Annotated[str, typer.Option(help="a folder on the disk to measure")]
Quick = Annotated[bool, typer.Option("--quick", help="much less work: shows that it runs, not how fast it is")]


@dataclass(frozen=True)
class Given:
    """The command line of a benchmark. `shards`, `wire` and `partitions` are options of some subjects."""

    as_json: bool
    only: list[str] | None
    rounds: int | None
    path: str
    quick: bool
    shards: int = 2
    wire: str = "classic"
    partitions: int | None = None


class Scale(Protocol):
    """How much work a run does: a named tuple."""

    @property
    def rounds(self) -> int: ...


S = TypeVar("S", bound=Scale)
B = TypeVar("B")


class Measure(NamedTuple, Generic[B]):
    """An entry in the table of measures: its name on the command line, and the function that runs it."""

    name: str
    run: Callable[[B], Coroutine[None, None, list[Figure]]]


@dataclass(frozen=True)
class Subject(Generic[S, B]):
    """Something that `whippet bench` can measure."""

    name: str
    measures: Sequence[Measure[B]]
    full: S
    quick: S
    bench: Callable[[Given, str, S], AbstractAsyncContextManager[B]]
    """Creates what measures are given, from the command line, a folder on the disk to measure, and the amount of
    work."""
    failures: tuple[type[Exception], ...] = ()
    """Exceptions that are reported in one line, besides those of the system and of child processes."""
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """More names for the command line, each for several measures."""

    def run(
        self,
        as_json: AsJson = False,
        only: Only = None,
        rounds: Rounds = None,
        path: Path = ".",
        quick: Quick = False,
    ) -> int:
        """The command line of a subject without options of its own."""
        return self.measure(Given(as_json, only, rounds, path, quick))

    def measure(self, given: Given) -> int:
        only = self._selected(given)
        expected: tuple[type[Exception], ...] = (OSError, ChildFailed, *self.failures)
        try:
            with tempfile.TemporaryDirectory(prefix="whippet-bench-", dir=given.path) as folder:
                figures = uvloop.run(self._figures(given, only, os.path.abspath(folder)))
        except expected as error:
            print(f"whippet bench {self.name}: {error}", file=sys.stderr)
            return 1
        print(report.as_json(figures) if given.as_json else report.as_table(figures))
        return 0

    def _selected(self, given: Given) -> set[str]:
        names = [*(measure.name for measure in self.measures), *self.groups]
        wanted = [name for part in given.only or () for name in part.split(",")]
        for name in wanted:
            if name not in names:
                raise click.BadParameter(f"{name!r} is none of {', '.join(names)}", param_hint="--only")
        return {name for chosen in wanted for name in self.groups.get(chosen, (chosen,))}

    async def _figures(self, given: Given, only: set[str], folder: str) -> list[Figure]:
        scale: Any = self.quick if given.quick else self.full
        if given.rounds:
            scale = scale._replace(rounds=given.rounds)
        figures: list[Figure] = []
        async with self.bench(given, folder, scale) as bench:
            for measure in self.measures:
                if not only or measure.name in only:
                    print(f"measuring {measure.name} ...", file=sys.stderr)
                    figures += await measure.run(bench)
        return figures
