"""Measures how long it takes to find a message among millions by its offset or time."""

from __future__ import annotations

import random
import time
from array import array
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from itertools import count

from whippet.bench.appends import append_all
from whippet.bench.measure import Bench, Contender, Figure, Row, Target, race, times
from whippet.bench.store_setup import BenchStore, Shape, new_folder, open_store
from whippet.storage.files import Files
from whippet.storage.handles import Handles, IndexCache
from whippet.storage.index import Index
from whippet.storage.layout import Layout, PartitionId
from whippet.storage.log import Log
from whippet.storage.options import GIB, StoreOptions
from whippet.storage.recovery import recover

TINY = Shape(1000, 1)
FEW = 10
"""Messages per batch where batches are small, so that the index has many more entries."""
EVERY_US = 1000
"""The clock of the store advances by this much from batch to batch."""
HOPS_PER_LOOKUPS = 10
"""Lookups that cross threads are run this many times less often."""
FAST = Target("value", "<", 50.0)
FAST_HOP = Target("value", "<", 10.0)
IS_BISECT = "the yardstick is a bisect over an array of the offsets"

ROWS = (
    Row("look up an offset among {messages:,}", "offset", "bisect", FAST, IS_BISECT),
    Row("look up a time among {messages:,}", "time", "bisect", FAST, IS_BISECT),
    Row(f"look up an offset, {FEW} messages a batch", "small offset", "bisect", FAST, IS_BISECT),
    Row(f"look up a time, {FEW} messages a batch", "small time", "bisect", FAST, IS_BISECT),
    Row("look up a time, through the partition", "hop", "time", FAST_HOP, "the yardstick is without a partition"),
    Row("read one message at an offset, file", "read", "offset", FAST_HOP, "the same; reads and cuts its batch"),
)


async def lookups(bench: Bench) -> list[Figure]:
    messages = bench.scale.messages
    offsets = random.Random(1).sample(range(messages), bench.scale.lookups)
    with new_folder(bench) as path:
        async with open_store(bench, path, tail_bytes_max=0, clock=count(EVERY_US, EVERY_US).__next__) as bench_store:
            await _fill(bench_store, messages // TINY.messages)
        contenders = _in_process(path, offsets, messages)
        async with open_store(bench, path, tail_bytes_max=0) as bench_store:
            contenders |= _across_threads(bench_store, offsets[::HOPS_PER_LOOKUPS])
            found = await race(contenders, bench.scale.rounds)
    rows = [row._replace(name=row.name.format(messages=messages)) for row in ROWS]
    return times(rows, found, "us", 1e6)


async def _fill(bench_store: BenchStore, batches: int) -> None:
    """Reuses a few buffers: each is written before its turn comes again."""
    copies = [TINY.build() for _ in range(16)]
    await append_all(await bench_store.topic(), [copies[i % len(copies)] for i in range(batches)], 8)


def _in_process(path: str, offsets: Sequence[int], messages: int) -> dict[str, Contender]:
    log = _open_log(path)
    index = log.segments[-1].index
    assert index is not None
    small = _index_of_small_batches(messages)
    bases = array("Q", range(0, messages, TINY.messages))
    times = [_time_at(offset, TINY.messages) for offset in offsets]
    return {
        "bisect": _finding(lambda offset: bisect_right(bases, offset), offsets),
        "offset": _finding(index.holding, offsets),
        "time": _finding(log.offset_at, times),
        "small offset": _finding(small.holding, offsets),
        "small time": _finding(small.at_time, [_time_at(offset, FEW) for offset in offsets]),
    }


def _across_threads(bench_store: BenchStore, offsets: Sequence[int]) -> dict[str, Contender]:
    (partition,) = bench_store.partitions()
    return {
        "hop": _awaiting(partition.offset_at, [_time_at(offset, TINY.messages) for offset in offsets]),
        "read": _awaiting(lambda offset: partition.read(offset, 1), offsets),
    }


def _time_at(offset: int, batch_messages: int) -> int:
    return EVERY_US * (offset // batch_messages + 1)


def _open_log(path: str) -> Log:
    """What a shard uses for lookups, without the shard."""
    files = Files()
    folder = Layout(StoreOptions(path=path)).partition(PartitionId(0, 0, 0))
    segments = recover(files, folder, 0).segments
    return Log(files, Handles(files, 2), IndexCache(float("inf")), folder, 0, GIB, segments, lambda _: None)


def _index_of_small_batches(messages: int) -> Index:
    index = Index()
    for i in range(messages // FEW):
        index.add(i * FEW, i * 1000, EVERY_US * (i + 1), 1000, FEW)
    return index


def _finding(find: Callable[[int], object], keys: Sequence[int]) -> Contender:
    async def contender() -> float:
        start = time.perf_counter()
        for key in keys:
            find(key)
        return len(keys) / (time.perf_counter() - start)

    return contender


def _awaiting(find: Callable[[int], Awaitable[object]], keys: Sequence[int]) -> Contender:
    async def contender() -> float:
        start = time.perf_counter()
        for key in keys:
            await find(key)
        return len(keys) / (time.perf_counter() - start)

    return contender
