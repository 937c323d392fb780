"""Measures how long a start with many partitions takes, and how much memory idle partitions cost.

Both are measured in a fresh process: `python -m whippet.bench.opening FOLDER SHARDS` opens the store there and prints
the result.
"""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence

import msgspec
import uvloop

from whippet.app.memory_tuning import keep_freed_memory
from whippet.bench import disk_yardstick
from whippet.bench.measure import Bench, Figure, Row, Scale, Target, figure
from whippet.bench.store_setup import Shape, Unsynced, new_folder, open_store
from whippet.storage.options import StoreOptions
from whippet.storage.partition import Partition
from whippet.storage.store import Store

TINY = Shape(1, 100)
ROUNDS_MAX = 3
FAST = Target("value", "<", 3.0)
SMALL = Target("value", "<", 20.0)


class Opened(msgspec.Struct, frozen=True):
    """What the child process measured."""

    seconds: float
    growth_bytes: int
    partitions: int


async def opening(bench: Bench) -> list[Figure]:
    scale = bench.scale
    batch = TINY.build()
    with new_folder(bench) as path:
        # A segment holds two batches; nothing needs to survive a power failure.
        roll = len(batch) + 1
        async with open_store(bench, path, files=Unsynced(), segment_bytes=roll, catalog_syncs=False) as bench_store:
            await _fill(await bench_store.topic(scale.partitions), batch, 2 * scale.segments - 1)
        rounds = [
            (disk_yardstick.walking(path), _open(path, bench.shards)) for _ in range(min(scale.rounds, ROUNDS_MAX))
        ]
    assert all(opened.partitions == scale.partitions for _, opened in rounds)
    walked = min(seconds for seconds, _ in rounds)
    return _figures(scale, [opened for _, opened in rounds], walked)


async def _fill(partitions: Sequence[Partition], batch: bytearray, batches: int) -> None:
    turns = iter(partitions)

    async def fill() -> None:
        for partition in turns:
            for _ in range(batches):
                await partition.append(bytearray(batch))

    await asyncio.gather(*(fill() for _ in range(32)))


def _figures(scale: Scale, opened: Sequence[Opened], walked: float) -> list[Figure]:
    what = f"{scale.partitions:,} partitions"
    walk = "the yardstick lists every folder and reads the last two files in it"
    growth = f"growth of the resident memory of a fresh process over {what}"
    start = Row(f"open a store of {what} x {scale.segments} segments", "", target=FAST, note=walk)
    idle = Row("memory of an idle partition", "", target=SMALL, note=growth)
    idle_bytes = min(one.growth_bytes for one in opened) / scale.partitions
    return [
        figure(start, min(one.seconds for one in opened), walked, "s", less_is_better=True),
        figure(idle, idle_bytes / 1024, None, "KiB"),
    ]


# ------------------------------------------------------------------------------------------------------------- memory


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def resident_memory(_: Bench) -> list[Figure]:
    """Must be the last of the measures: it reports the whole run."""
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return [
        Figure(name="resident memory, most", value=peak_bytes / 2**20, unit="MiB", note="of this whole run"),
        Figure(name="resident memory, now", value=resident_bytes() / 2**20, unit="MiB"),
    ]


# -------------------------------------------------------------------------------------------------- the child process


def _open(path: str, shards: int) -> Opened:
    command = [sys.executable, "-m", "whippet.bench.opening", path, str(shards)]
    shown = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    return msgspec.json.decode(shown, type=Opened)


async def _see(path: str, shards: int) -> Opened:
    before = resident_bytes()
    start = time.perf_counter()
    store = await Store.open(StoreOptions(path=path, shards=shards, saver_interval_s=None))
    seconds = time.perf_counter() - start
    seen = Opened(seconds, resident_bytes() - before, len(store.partitions))
    await store.close()
    return seen


if __name__ == "__main__":
    keep_freed_memory()
    print(msgspec.json.encode(uvloop.run(_see(sys.argv[1], int(sys.argv[2])))).decode())
