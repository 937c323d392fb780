"""Measures how long it takes from an empty data folder to the first message, if both the messages and the list of
thousands of partitions are in an archive.

That is what `whippet serve --from-archive` does between its start and its first client, without the start of the
interpreter and the listeners. It is measured in a fresh process: `python -m whippet.bench.takeovers FOLDER ARCHIVE
SHARDS` takes the archive over, and prints the result. Every round takes it over from the one before.
"""

from __future__ import annotations

import asyncio
import gc
import shutil
import subprocess
import sys
import time

import msgspec
import uvloop

from whippet.app import archiving
from whippet.app.memory_tuning import keep_freed_memory
from whippet.bench.archived import Bench, archived
from whippet.bench.measure import Figure, Row, Target, figure
from whippet.bench.store_setup import Shape, Unsynced
from whippet.storage.files import Files
from whippet.storage.options import ArchiveOptions, StoreOptions
from whippet.storage.store import Store

TINY = Shape(1, 100)
ROUNDS_MAX = 5
FAST = Target("value", "<", 1.0)


class TakenOver(msgspec.Struct, frozen=True):
    """The figures of the child process."""

    seconds: float
    arrived_seconds: float
    """Until all partitions were in the data folder."""
    partitions: int


async def takeovers(bench: Bench) -> list[Figure]:
    batch, count = TINY.build(), bench.scale.partitions
    data, archive = f"{bench.folder}/lost", f"{bench.folder}/takeovers"
    async with archived(data, archive, bench.shards, files=Unsynced(), catalog_syncs=False) as (store, archiver):
        for partition in await store.topic(count):
            await partition.append(bytearray(batch))
        await archiver.round()
    shutil.rmtree(data)
    found = [
        _in_a_process(f"{bench.folder}/successor{number}", archive, bench.shards)
        for number in range(min(bench.scale.rounds, ROUNDS_MAX))
    ]
    shutil.rmtree(archive)
    assert all(one.partitions == count for one in found)
    first = Row(
        f"first message after a takeover of {count:,} partitions", "", target=FAST, note="from an empty data folder"
    )
    rest = Row(f"all {count:,} partitions in the data folder", "", note="in the background, each claimed and synced")
    return [
        figure(first, min(one.seconds for one in found), None, "s"),
        figure(rest, min(one.arrived_seconds for one in found), None, "s"),
    ]


# -------------------------------------------------------------------------------------------------- the child process


def _in_a_process(path: str, archive: str, shards: int) -> TakenOver:
    command = [sys.executable, "-m", "whippet.bench.takeovers", path, archive, str(shards)]
    ran = subprocess.run(command, capture_output=True, check=True)
    shutil.rmtree(path)
    return msgspec.json.decode(ran.stdout, type=TakenOver)


async def _take_over(path: str, archive: str, shards: int) -> TakenOver:
    options = StoreOptions(
        path=path, shards=shards, saver_interval_s=None, archive=ArchiveOptions(path=archive, interval_s=1e6)
    )
    start = time.perf_counter()
    await asyncio.to_thread(archiving.restore_if_empty, options)
    store = await Store.open(options)
    try:
        async with archiving.running(store, options.archive, Files()) as archiver:
            assert archiver is not None
            last = list(store.partitions.values())[-1]
            found = await last.read(0, 1)
            seconds = time.perf_counter() - start
            assert found.messages == 1
            assert await archiver.arrivals.bring_all()
            arrived = time.perf_counter() - start
            count = len(store.partitions)
            archiver.refused = True
    finally:
        await store.close()
    return TakenOver(seconds, arrived, count)


if __name__ == "__main__":
    keep_freed_memory()
    gc.collect()
    print(msgspec.json.encode(uvloop.run(_take_over(sys.argv[1], sys.argv[2], int(sys.argv[3])))).decode())
