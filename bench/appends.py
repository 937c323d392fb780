"""Measures appends to the store: large batches, single messages, several partitions, and with syncs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import msgspec

from whippet.bench import disk_yardstick
from whippet.bench.measure import Bench, Contender, Figure, Row, Target, race, rates
from whippet.bench.store_setup import BenchStore, Shape, new_store
from whippet.storage.options import Durability
from whippet.storage.partition import Partition

KB_1 = Shape(1000, 1024)
BYTES_100 = Shape(1000, 100)
ONE = Shape(1, 100)

HALF_OF_THAT = Target("value", ">=", 1_250_000)
IS_UNIFORM = "the yardstick is the uniform figure"
IS_ONE_PARTITION = "the yardstick is one partition, as many in flight"

KB_1_ROWS = (
    Row("append 1,000 x 1 KB, 8 in flight", "8 in flight", "writev", Target("ratio", ">=", 0.6)),
    Row("append 1,000 x 1 KB, 1 in flight", "1 in flight", "writev"),
    Row("append 1,000 x 1 KB, mixed sizes", "mixed", "8 in flight", note=IS_UNIFORM),
)
BYTES_100_ROWS = (
    Row("append 1,000 x 100 B, 8 in flight", "8 in flight", "writev", Target("value", ">=", 2_500_000)),
    Row("append 1,000 x 100 B, 1 in flight", "1 in flight", "writev"),
    Row("append 1,000 x 100 B, mixed sizes", "mixed", "8 in flight", HALF_OF_THAT, IS_UNIFORM),
)
PARTITION_ROWS = tuple(
    Row(f"8 partitions, {n} in flight", f"8 x {n}", f"1 x {n}", Target("ratio", ">=", 0.9), IS_ONE_PARTITION)
    for n in (8, 16)
)
SINGLE_ROWS = (
    Row("append one 100 B, memory, 1 waiting", "memory 1", "writev", Target("value", ">=", 60_000)),
    Row("append one 100 B, memory, 64 waiting", "memory 64", "writev"),
    Row("append one 100 B, written, 64 waiting", "written 64", "writev", Target("value", ">=", 30_000)),
    Row("append one 100 B, written, 1 waiting", "written 1", "writev", Target("value", ">=", 150_000)),
)
SYNCED_ROWS = (
    Row("append one 100 B, synced, 1 waiting", "synced 1", "writev + fdatasync"),
    Row("append one 100 B, synced, 64 waiting", "synced 64", "synced 1", Target("ratio", ">=", 10)),
)


async def append_all(partitions: Sequence[Partition], batches: Sequence[bytearray], in_flight: int) -> float:
    """Returns the seconds until all batches are appended, round-robin, and flushed."""
    turns = iter(range(len(batches)))

    async def append() -> None:
        for i in turns:
            await partitions[i % len(partitions)].append(batches[i])

    start = time.perf_counter()
    await asyncio.gather(*(append() for _ in range(in_flight)))
    await asyncio.gather(*(partition.flush() for partition in partitions))
    return time.perf_counter() - start


def appending(
    bench_store: BenchStore, shape: Shape, batches: Sequence[bytearray], in_flight: int, partitions: int = 1
) -> Contender:
    """Measures messages per second into a new topic, which is removed afterwards."""

    async def contender() -> float:
        seconds = await append_all(await bench_store.topic(partitions), batches, in_flight)
        await bench_store.remove_topic()
        return len(batches) * shape.messages / seconds

    return contender


async def _large(bench: Bench, shape: Shape, rows: Sequence[Row]) -> list[Figure]:
    uniform = shape.copies(bench.scale.round_bytes // 2)
    mixed = shape._replace(mixed=True)
    mixed_batches = mixed.copies(bench.scale.round_bytes // 2)
    async with new_store(bench) as bench_store:
        contenders = {
            "writev": disk_yardstick.writing(bench.folder, uniform, len(uniform) * shape.messages),
            "8 in flight": appending(bench_store, shape, uniform, 8),
            "1 in flight": appending(bench_store, shape, uniform, 1),
            "mixed": appending(bench_store, mixed, mixed_batches, 8),
        }
        return rates(rows, await race(contenders, bench.scale.rounds), "msg/s")


async def large_messages(bench: Bench) -> list[Figure]:
    return await _large(bench, KB_1, KB_1_ROWS)


async def small_messages(bench: Bench) -> list[Figure]:
    return await _large(bench, BYTES_100, BYTES_100_ROWS)


async def partitions(bench: Bench) -> list[Figure]:
    batches = KB_1.copies(bench.scale.round_bytes)
    async with new_store(bench) as bench_store:
        contenders = {
            f"{count} x {in_flight}": appending(bench_store, KB_1, batches, in_flight, count)
            for in_flight in (8, 16)
            for count in (1, 8)
        }
        return rates(PARTITION_ROWS, await race(contenders, bench.scale.rounds), "msg/s")


async def single_messages(bench: Bench) -> list[Figure]:
    built = ONE.build()
    batches = [bytearray(built) for _ in range(bench.scale.singles)]
    buffering = {"durability": Durability.MEMORY, "messages_required_to_save": 1_000_000}
    async with new_store(bench) as written, new_store(bench, **buffering) as memory:
        contenders = {
            "writev": disk_yardstick.writing(bench.folder, batches, len(batches)),
            "memory 1": appending(memory, ONE, batches, 1),
            "memory 64": appending(memory, ONE, batches, 64),
            "written 64": appending(written, ONE, batches, 64),
            "written 1": appending(written, ONE, batches, 1),
        }
        return rates(SINGLE_ROWS, await race(contenders, bench.scale.rounds), "msg/s")


async def synced_messages(bench: Bench) -> list[Figure]:
    built = ONE.build()
    few = [bytearray(built) for _ in range(bench.scale.syncs)]
    many = [bytearray(built) for _ in range(bench.scale.syncs * 32)]
    async with new_store(bench, durability=Durability.SYNCED) as bench_store:
        contenders = {
            "writev + fdatasync": disk_yardstick.writing(bench.folder, few, len(few), sync=True),
            "synced 1": appending(bench_store, ONE, few, 1),
            "synced 64": appending(bench_store, ONE, many, 64),
        }
        before = _syncs(bench_store)
        figures = rates(SYNCED_ROWS, await race(contenders, bench.scale.rounds), "msg/s")
        rounds = bench.scale.rounds + 1
        shared = (_syncs(bench_store) - before) / rounds - len(few)
    note = f"the yardstick is one waiting; {shared:,.0f} syncs for {len(many):,} appends"
    return [figures[0], msgspec.structs.replace(figures[1], note=note)]


def _syncs(bench_store: BenchStore) -> int:
    return sum(shard.syncs for shard in bench_store.store.shards)
