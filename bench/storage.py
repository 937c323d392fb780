"""`whippet bench storage`: measures the store on this machine, each figure beside its yardstick.

The yardsticks write and read the same bytes with plain calls of the operating system, on the same disk, in the same run
(see measure.py). The store is used as in the server, in a process set up like the server's, without a network and
without a client.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import typer

from whippet.app.memory_tuning import keep_freed_memory
from whippet.bench import appends, checks, lookups, opening, packed, reads
from whippet.bench.command import AsJson, Given, Measure, Only, Path, Quick, Rounds, Subject
from whippet.bench.measure import FULL, QUICK, Bench, Scale

MEASURES = (
    Measure("append-1kb", appends.large_messages),
    Measure("append-100b", appends.small_messages),
    Measure("append-one", appends.single_messages),
    Measure("partitions", appends.partitions),
    Measure("synced", appends.synced_messages),
    Measure("read-tail", reads.from_tail),
    Measure("read-file", reads.from_file),
    Measure("packed", packed.packed),
    Measure("check", checks.checks),
    Measure("open", opening.opening),
    Measure("lookup", lookups.lookups),
    Measure("memory", opening.resident_memory),
)


@asynccontextmanager
async def _bench(given: Given, folder: str, scale: Scale) -> AsyncIterator[Bench]:
    keep_freed_memory()
    yield Bench(folder, scale, given.shards)


SUBJECT = Subject("storage", MEASURES, FULL, QUICK, _bench, groups={"small": ("append-one", "lookup")})


def run(
    as_json: AsJson = False,
    only: Only = None,
    rounds: Rounds = None,
    path: Path = ".",
    quick: Quick = False,
    shards: Annotated[int, typer.Option(min=1, help="threads that own files")] = 2,
) -> int:
    return SUBJECT.measure(Given(as_json, only, rounds, path, quick, shards=shards))
