"""Provides what the store's benchmarks need: batches as producers send them, and a separate store with one topic."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from typing import Any, NamedTuple

from whippet.bench.measure import Bench
from whippet.storage import batch as batches
from whippet.storage.batch import Message
from whippet.storage.documents import StreamDocument, TopicDocument
from whippet.storage.files import Files
from whippet.storage.layout import Layout, log_file
from whippet.storage.options import StoreOptions
from whippet.storage.partition import Partition
from whippet.storage.store import Store, now_us

_folder_numbers = count()


class Shape(NamedTuple):
    """A batch: this many messages of this many bytes, or of half to one and a half times as many if `mixed`."""

    messages: int
    payload: int
    mixed: bool = False

    def build(self) -> bytearray:
        sizes = random.Random(1)
        low, high = self.payload // 2, self.payload * 3 // 2
        payloads = (sizes.randint(low, high) if self.mixed else self.payload for _ in range(self.messages))
        return batches.build([Message(os.urandom(size)) for size in payloads], now_us(), os.urandom)

    def copies(self, round_bytes: int) -> list[bytearray]:
        """Returns as many batches as fill a round, each in memory of its own, as if from the network."""
        built = self.build()
        return [bytearray(built) for _ in range(max(round_bytes // len(built), 1))]


class Unsynced(Files):
    """Used to prepare what is measured later: nothing has to survive a power failure."""

    def sync(self, handle: int) -> None: ...

    def sync_folder(self, path: str) -> None: ...


class BenchStore:
    """An open store with one stream, in which topics are created and removed."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def topic(self, partitions: int = 1) -> list[Partition]:
        if not self.store.streams:
            await self.store.create_stream(StreamDocument(id=0, name="bench", created_at=1))
        document = TopicDocument(id=0, name="bench", created_at=1, partitions_count=partitions)
        await self.store.create_topic(0, document)
        return self.partitions()

    def partitions(self) -> list[Partition]:
        return list(self.store.partitions_of(0, 0))

    async def remove_topic(self) -> None:
        await self.store.remove_topic(0, 0)


@contextmanager
def new_folder(bench: Bench) -> Iterator[str]:
    path = f"{bench.folder}/{next(_folder_numbers)}"
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@asynccontextmanager
async def new_store(bench: Bench, **options: Any) -> AsyncIterator[BenchStore]:
    """Opens a store in a folder of its own, which is removed afterwards."""
    with new_folder(bench) as path:
        async with open_store(bench, path, **options) as bench_store:
            yield bench_store


@asynccontextmanager
async def open_store(
    bench: Bench, path: str, *, files: Files | None = None, clock: Callable[[], int] = now_us, **options: Any
) -> AsyncIterator[BenchStore]:
    defaults: dict[str, Any] = {"shards": bench.shards, "saver_interval_s": None, "tail_bytes_max": 32 << 20}
    store = await Store.open(StoreOptions(path=path, **{**defaults, **options}), files=files, clock=clock)
    try:
        yield BenchStore(store)
    finally:
        await store.close()


def log_path(path: str, partition: Partition) -> str:
    """Returns the first file of a partition, for a yardstick that reads the same bytes."""
    return log_file(Layout(StoreOptions(path=path)).partition(partition.place), partition.first_offset)
