"""Measures what archiving costs those who send messages meanwhile."""

from __future__ import annotations

import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from whippet.bench import measure
from whippet.bench.appends import ONE
from whippet.bench.archived import Bench, archived
from whippet.bench.measure import Figure, Row, Target, rates, undisturbed
from whippet.bench.store_setup import BenchStore, new_store
from whippet.storage.partition import Partition

OFTEN_S = 1.0
CHEAP = Target("ratio", ">=", 0.95)
NOTE = "the yardstick is the same without an archive"


@asynccontextmanager
async def _without(bench: Bench) -> AsyncIterator[BenchStore]:
    async with new_store(measure.Bench(bench.folder, measure.QUICK, bench.shards)) as store:
        yield store


@asynccontextmanager
async def _at_an_interval(bench: Bench, seconds: float) -> AsyncIterator[BenchStore]:
    data, archive = f"{bench.folder}/sent", f"{bench.folder}/copies"
    try:
        async with archived(data, archive, bench.shards, interval_s=seconds) as (store, _):
            yield store
    finally:
        shutil.rmtree(data)
        shutil.rmtree(archive)


async def _rate(partition: Partition, seconds: float) -> float:
    """Returns the messages per second of a client that waits for each of them."""
    built, count = ONE.build(), 0
    start = time.perf_counter()
    end = start + seconds
    while time.perf_counter() < end:
        for _ in range(100):
            await partition.append(bytearray(built))
        count += 100
    return count / (time.perf_counter() - start)


async def hot_path(bench: Bench) -> list[Figure]:
    """A window is as long as the longer interval, so that each byte is archived once in it."""
    window = bench.scale.window_s
    ways = {"off": lambda: _without(bench)} | {
        f"{seconds:g} s": lambda seconds=seconds: _at_an_interval(bench, seconds) for seconds in (OFTEN_S, window)
    }
    best = dict.fromkeys(ways, 0.0)
    for _ in range(bench.scale.windows):
        for name, way in ways.items():
            async with way() as store:
                (partition,) = await store.topic()
                with undisturbed():
                    # One that begins later than the archiver, so that its rounds are in the window.
                    best[name] = max(best[name], await _rate(partition, window * 1.1))
    rows = [
        Row(f"append one 100 B, archived every {name}", name, "off", CHEAP if name != f"{OFTEN_S:g} s" else None, NOTE)
        for name in ways
        if name != "off"
    ]
    return rates(rows, best, "msg/s")
