"""Code that the benchmark commands share: their options, the loop over the selected measures, and the output of
figures."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import uvloop

from whippet.bench import report
from whippet.bench.measure import Figure
from whippet.bench.processes import ChildFailed


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
    bench: Callable[[argparse.Namespace, str, S], AbstractAsyncContextManager[B]]
    """Creates what measures are given, from the command line, a folder on the disk to measure, and the amount of
    work."""
    failures: tuple[type[Exception], ...] = ()
    """Exceptions that are reported in one line, besides those of the system and of child processes."""
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """More names for the command line, each for several measures."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        names = [*(measure.name for measure in self.measures), *self.groups]
        add = parser.add_argument
        add("--json", action="store_true", help="print a JSON list of the figures and nothing else")
        add("--only", nargs="+", metavar="NAME", choices=names, help=f"measure only these: {', '.join(names)}")
        add("--rounds", type=positive, help=f"rounds, the best of which counts (default: {self.full.rounds})")
        add("--path", default=".", help="a folder on the disk to measure (default: the current folder)")
        add("--quick", action="store_true", help="much less work: shows that it runs, not how fast it is")

    def run(self, arguments: argparse.Namespace) -> int:
        expected: tuple[type[Exception], ...] = (OSError, ChildFailed, *self.failures)
        try:
            with tempfile.TemporaryDirectory(prefix="whippet-bench-", dir=arguments.path) as folder:
                figures = uvloop.run(self._figures(arguments, os.path.abspath(folder)))
        except expected as error:
            print(f"whippet bench {self.name}: {error}", file=sys.stderr)
            return 1
        print(report.as_json(figures) if arguments.json else report.as_table(figures))
        return 0

    async def _figures(self, arguments: argparse.Namespace, folder: str) -> list[Figure]:
        scale: Any = self.quick if arguments.quick else self.full
        if arguments.rounds:
            scale = scale._replace(rounds=arguments.rounds)
        figures: list[Figure] = []
        only = {name for chosen in arguments.only or () for name in self.groups.get(chosen, (chosen,))}
        async with self.bench(arguments, folder, scale) as bench:
            for measure in self.measures:
                if not only or measure.name in only:
                    print(f"measuring {measure.name} ...", file=sys.stderr)
                    figures += await measure.run(bench)
        return figures


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number
