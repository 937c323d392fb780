"""Measures reads from the store: from the memory tail, from a warm file, and after a restart."""

from __future__ import annotations

import asyncio
import time

from whippet.bench import disk_yardstick
from whippet.bench.appends import KB_1, append_all
from whippet.bench.measure import Bench, Contender, Figure, Row, Target, race, rates
from whippet.bench.store_setup import BenchStore, log_path, new_folder, new_store, open_store
from whippet.storage.partition import Partition

ENOUGH = Target("ratio", ">=", 0.7)

TAIL_ROWS = (
    Row("read 1,000 x 1 KB from the tail, 8 in flight", "8 in flight", "pread", ENOUGH),
    Row("read 1,000 x 1 KB from the tail, 1 in flight", "1 in flight", "pread", ENOUGH),
)
FILE_ROWS = (
    Row("read 1,000 x 1 KB from a warm file, 8 in flight", "8 in flight", "pread", ENOUGH),
    Row("read 1,000 x 1 KB from a warm file, 1 in flight", "1 in flight", "pread"),
)
FIRST_ROW = Row(
    "read 1,000 x 1 KB after opening, first pass", "first", "pread", note="every batch is checked once, by checksum"
)


def reading(partition: Partition, messages: int, in_flight: int) -> Contender:
    """Measures messages per second over the whole partition; each buffer is released as soon as its length is known."""

    async def contender() -> float:
        turns = iter(range(0, partition.readable, messages))

        async def read() -> None:
            for offset in turns:
                found = await partition.read(offset, messages)
                assert found.messages == messages

        start = time.perf_counter()
        await asyncio.gather(*(read() for _ in range(in_flight)))
        return partition.readable / (time.perf_counter() - start)

    return contender


def _contenders(bench_store: BenchStore, batch_bytes: int) -> dict[str, Contender]:
    (partition,) = bench_store.partitions()
    path = log_path(bench_store.store.options.path, partition)
    return {
        "pread": disk_yardstick.reading(path, batch_bytes, partition.readable),
        "8 in flight": reading(partition, KB_1.messages, 8),
        "1 in flight": reading(partition, KB_1.messages, 1),
    }


async def _fill(bench: Bench, bench_store: BenchStore) -> int:
    """Appends one round's worth to one partition, and returns the length of a batch."""
    batches = KB_1.copies(bench.scale.round_bytes)
    await append_all(await bench_store.topic(), batches, 8)
    return len(batches[0])


async def from_tail(bench: Bench) -> list[Figure]:
    async with new_store(bench, tail_bytes_max=2 * bench.scale.round_bytes) as bench_store:
        contenders = _contenders(bench_store, await _fill(bench, bench_store))
        return rates(TAIL_ROWS, await race(contenders, bench.scale.rounds), "msg/s")


async def from_file(bench: Bench) -> list[Figure]:
    """Opens the store again before it is read, so that nothing is in memory and nothing has been checked."""
    with new_folder(bench) as path:
        async with open_store(bench, path) as bench_store:
            batch_bytes = await _fill(bench, bench_store)
        async with open_store(bench, path, tail_bytes_max=0) as bench_store:
            contenders = _contenders(bench_store, batch_bytes)
            await contenders["pread"]()
            first = {"first": await contenders["8 in flight"]()}
            found = first | await race(contenders, bench.scale.rounds)
            return rates((*FILE_ROWS, FIRST_ROW), found, "msg/s")
