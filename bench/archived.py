"""A store with an archiver, for the benchmarks of the archive, and how much work they do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from whippet.bench.store_setup import BenchStore
from whippet.storage.archive.archiver import Archiver
from whippet.storage.files import Files
from whippet.storage.options import ArchiveOptions, StoreOptions
from whippet.storage.store import Store


class Scale(NamedTuple):
    """The amount of work in a run."""

    rounds: int
    windows: int
    window_s: float
    """How often and for how long messages are sent while they are archived."""
    read_bytes: int
    """In the archive, to be read, restored and checked."""
    partitions: int
    """Taken over together."""


FULL = Scale(5, 2, 60.0, 256 << 20, 10_000)
QUICK = Scale(1, 1, 0.2, 8 << 20, 50)


class Bench(NamedTuple):
    """The conditions of every measure: a folder of its own on the disk to measure, the amount of work, and the number
    of shards."""

    folder: str
    scale: Scale
    shards: int


@asynccontextmanager
async def archived(
    data: str, archive: str, shards: int, *, interval_s: float = 1e6, files: Files | None = None, **options: Any
) -> AsyncIterator[tuple[BenchStore, Archiver]]:
    """A store whose archiver runs at an interval; as good as never, unless a measure says so. Nothing is archived at
    the end."""
    files = files or Files()
    chosen = {"saver_interval_s": None, "tail_bytes_max": 32 << 20, **options}
    store = await Store.open(StoreOptions(path=data, shards=shards, **chosen), files=files)
    try:
        archiver = Archiver(store, ArchiveOptions(path=archive, interval_s=interval_s), files)
        await archiver.start()
        try:
            yield BenchStore(store), archiver
        finally:
            archiver.refused = True
            await archiver.stop(seconds=60)
    finally:
        await store.close()
