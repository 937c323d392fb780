"""`whippet bench archive`: measures what archiving costs, and how fast an archive is read, restored, checked and taken
over. The archives are in folders on the disk to measure; one is read over HTTP, too."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import typer

from whippet.app.memory_tuning import keep_freed_memory
from whippet.bench import archive_copies, archive_reads, archiving, takeovers
from whippet.bench.archived import FULL, QUICK, Bench, Scale
from whippet.bench.command import AsJson, Given, Measure, Only, Path, Quick, Rounds, Subject
from whippet.storage.errors import StorageError

MEASURES = (
    Measure("hot-path", archiving.hot_path),
    Measure("read", archive_reads.reads),
    Measure("takeover", takeovers.takeovers),
    Measure("copies", archive_copies.copies),
)


@asynccontextmanager
async def _bench(given: Given, folder: str, scale: Scale) -> AsyncIterator[Bench]:
    keep_freed_memory()
    yield Bench(folder, scale._replace(partitions=given.partitions or scale.partitions), given.shards)


SUBJECT = Subject("archive", MEASURES, FULL, QUICK, _bench, failures=(StorageError,))


def run(
    as_json: AsJson = False,
    only: Only = None,
    rounds: Rounds = None,
    path: Path = ".",
    quick: Quick = False,
    shards: Annotated[int, typer.Option(min=1, help="threads that own files")] = 2,
    partitions: Annotated[
        int | None, typer.Option(min=1, help=f"partitions that are taken over; {FULL.partitions:,} by default")
    ] = None,
) -> int:
    return SUBJECT.measure(Given(as_json, only, rounds, path, quick, shards=shards, partitions=partitions))
