"""`whippet bench storage`: measures the store on this machine, each figure beside its yardstick.

The yardsticks are the same bytes through the plain calls of the operating system, on the same disk, in the same run
(see measure.py). What is measured is the store as the server uses it, in a process set up like the server's, without a
network and without a client.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence

import uvloop

from app.allocator import keep_freed_memory
from app.bench import appends, lookups, memory, opening, reads, report
from app.bench.measure import FULL, QUICK, Bench, Figure, Measure

MEASURES = (
    Measure("append-1kb", appends.large_messages),
    Measure("append-100b", appends.small_messages),
    Measure("append-one", appends.single_messages),
    Measure("partitions", appends.partitions),
    Measure("synced", appends.synced_messages),
    Measure("read-tail", reads.from_tail),
    Measure("read-file", reads.from_file),
    Measure("open", opening.opening),
    Measure("lookup", lookups.lookups),
    Measure("memory", memory.resident),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print a JSON list of the figures and nothing else")
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="NAME",
        choices=[measure.name for measure in MEASURES],
        help=f"measure only these: {', '.join(measure.name for measure in MEASURES)}",
    )
    parser.add_argument("--rounds", type=_positive, help=f"rounds, the best of which counts (default: {FULL.rounds})")
    parser.add_argument("--path", default=".", help="a folder on the disk to measure (default: the current folder)")
    parser.add_argument("--shards", type=_positive, default=2, help="threads that own files (default: 2)")
    parser.add_argument("--quick", action="store_true", help="much less work: shows that it runs, not how fast it is")


def run(arguments: argparse.Namespace) -> int:
    keep_freed_memory()
    chosen = [measure for measure in MEASURES if not arguments.only or measure.name in arguments.only]
    scale = QUICK if arguments.quick else FULL
    if arguments.rounds:
        scale = scale._replace(rounds=arguments.rounds)
    try:
        with tempfile.TemporaryDirectory(prefix="whippet-bench-", dir=arguments.path) as folder:
            bench = Bench(os.path.abspath(folder), scale, arguments.shards)
            figures = _run(chosen, bench)
    except OSError as error:
        print(f"whippet bench storage: {error}", file=sys.stderr)
        return 1
    print(report.as_json(figures) if arguments.json else report.as_table(figures))
    return 0


def _run(chosen: Sequence[Measure], bench: Bench) -> list[Figure]:
    figures: list[Figure] = []
    for measure in chosen:
        print(f"measuring {measure.name} ...", file=sys.stderr)
        figures += uvloop.run(measure.run(bench))
    return figures


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number
