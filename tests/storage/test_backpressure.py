"""Appends that wait for room: in order, without stopping others, and refused when there will be none."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.storage.support.bad_syncs import BadSyncs
from tests.storage.support.partitions import BUFFERED, progress
from tests.storage.support.world import (
    SlowDisk,
    opened,
    partition_in,
    payloads,
    reached,
    settled,
    sized,
    texts,
    with_topic,
)
from whippet.storage.errors import PartitionClosed, WriteFailed


async def test_appends_to_a_full_partition_wait_for_a_slow_disk_and_continue_in_order(
    tmp_path: Path,
) -> None:
    disk = SlowDisk()
    whole = len(sized(1, 1000))
    limit = 3 * whole
    async with partition_in(tmp_path, files=disk, partition_unflushed_bytes_max=limit) as partition:
        disk.stop()
        appends = []
        for i in range(40):
            appends.append(asyncio.create_task(partition.append(sized(1, 1000, b"%2d" % i))))
            await settled()
            assert partition.unflushed_bytes <= limit
        assert partition.appended == 3
        assert not any(task.done() for task in appends)
        disk.go()
        answers = await asyncio.gather(*appends)
        assert [answer.base_offset for answer in answers] == list(range(40))
        assert [payload[:2] for payload in payloads(await partition.read(0, 99))] == [b"%2d" % i for i in range(40)]


async def test_waiting_appends_are_not_overtaken(tmp_path: Path) -> None:
    """A connection that sends without waiting for responses relies on the order of its requests."""

    disk = SlowDisk()
    whole = len(sized(1, 1000))
    async with partition_in(tmp_path, files=disk, partition_unflushed_bytes_max=2 * whole) as partition:
        disk.stop()
        appends = [asyncio.create_task(partition.append(sized(1, 1000))) for _ in range(8)]
        await settled()
        disk.go()
        while partition.appended < 8:
            # It comes in the same turn of the loop in which room becomes available.
            appends.append(asyncio.create_task(partition.append(sized(1, 1000))))
            await asyncio.sleep(0)
        answers = await asyncio.gather(*appends)
        assert [answer.base_offset for answer in answers] == list(range(len(appends)))


async def test_one_whose_batch_was_written_does_not_overtake_those_that_wait_with_its_next(tmp_path: Path) -> None:
    disk = SlowDisk()
    whole = len(sized(1, 1000))
    async with partition_in(tmp_path, files=disk, partition_unflushed_bytes_max=2 * whole) as partition:

        async def append_twice() -> list[int]:
            return [(await partition.append(sized(1, 1000))).base_offset for _ in range(2)]

        disk.stop()
        busy = [asyncio.create_task(append_twice()) for _ in range(2)]
        await settled()
        waiting = [asyncio.create_task(partition.append(sized(1, 1000))) for _ in range(3)]
        await settled()
        disk.go()
        assert [answer.base_offset for answer in await asyncio.gather(*waiting)] == [2, 3, 4]
        assert await asyncio.gather(*busy) == [[0, 5], [1, 6]]


async def test_appends_to_a_full_store_wait_for_a_slow_disk_and_continue_in_order(
    tmp_path: Path,
) -> None:
    disk = SlowDisk()
    whole = len(sized(1, 1000))
    async with opened(tmp_path, files=disk, unflushed_bytes_max=4 * whole) as store:
        partitions = await with_topic(store, 2)
        disk.stop()
        appends = []
        for _ in range(12):
            for partition in partitions:
                appends.append(asyncio.create_task(partition.append(sized(1, 1000))))
                await settled()
                assert sum(p.unflushed_bytes for p in partitions) <= 4 * whole
        disk.go()
        answers = await asyncio.gather(*appends)
        assert [answer.base_offset for answer in answers[::2]] == list(range(12))
        assert [answer.base_offset for answer in answers[1::2]] == list(range(12))


async def test_a_full_partition_does_not_stop_the_others(tmp_path: Path) -> None:
    disk = SlowDisk()
    whole = len(sized(1, 1000))
    async with opened(tmp_path, files=disk, partition_unflushed_bytes_max=whole, shards=2) as store:
        partitions = await with_topic(store, 8)
        slow = partitions[0]
        other = next(p for p in partitions if p._pipeline._shard is not slow._pipeline._shard)
        disk.stop("partitions/0/")
        waiting = [asyncio.create_task(slow.append(sized(1, 1000))) for _ in range(5)]
        await reached(disk.reached)
        for i in range(20):
            assert (await other.append(sized(1, 1000))).base_offset == i
        assert not any(task.done() for task in waiting)
        disk.go()
        assert [answer.base_offset for answer in await asyncio.gather(*waiting)] == list(range(5))


async def test_cancelling_appends_that_wait_for_room_does_no_harm(tmp_path: Path) -> None:
    disk = SlowDisk()
    whole = len(sized(1, 1000))
    for options in ({"partition_unflushed_bytes_max": whole}, {"unflushed_bytes_max": whole}):
        async with partition_in(tmp_path / next(iter(options)), files=disk, **options) as partition:
            disk.stop()
            appends = [asyncio.create_task(partition.append(sized(1, 1000))) for _ in range(6)]
            await reached(disk.reached)
            await settled()
            for task in appends[1:4]:
                task.cancel()
            await settled()
            disk.go()
            answers = await asyncio.gather(*appends, return_exceptions=True)
            left = [answer.base_offset for answer in answers if not isinstance(answer, BaseException)]
            assert left == [0, 1, 2]
            assert all(isinstance(answer, asyncio.CancelledError) for answer in answers[1:4])
            assert (await partition.append(texts("more"))).base_offset == 3


async def test_a_store_full_of_buffered_messages_writes_them_to_make_room(
    tmp_path: Path,
) -> None:
    """Nothing else would write at the level memory: appends would have to wait for the saver."""

    whole = len(sized(1, 1000))
    async with opened(tmp_path, unflushed_bytes_max=4 * whole, **BUFFERED) as store:
        partitions = await with_topic(store, 3)
        for i in range(20):
            for partition in partitions:
                assert (await partition.append(sized(1, 1000))).base_offset == i


async def test_a_full_partition_at_level_memory_writes_to_make_room(tmp_path: Path) -> None:
    whole = len(sized(1, 1000))
    async with partition_in(tmp_path, partition_unflushed_bytes_max=2 * whole, **BUFFERED) as partition:
        for i in range(20):
            assert (await partition.append(sized(1, 1000))).base_offset == i


async def test_an_append_that_waits_for_room_is_refused_if_the_partition_is_removed(
    tmp_path: Path,
) -> None:
    disk = SlowDisk()
    whole = len(sized(1, 1000))
    for limit in ("partition_unflushed_bytes_max", "unflushed_bytes_max"):
        options: dict[str, Any] = {"shards": 2, limit: whole}
        async with opened(tmp_path / limit, files=disk, **options) as store:
            (partition,) = await with_topic(store)
            disk.stop()
            appends = [asyncio.create_task(partition.append(sized(1, 1000))) for _ in range(3)]
            await reached(disk.reached)
            await settled()
            removing = asyncio.create_task(store.remove_topic(0, 0))
            await settled()
            disk.go()
            await removing
            answers = await asyncio.gather(*appends, return_exceptions=True)
            # Those that found room before it was closed were written; the others get an error.
            refused = [isinstance(answer, PartitionClosed) for answer in answers]
            assert refused == sorted(refused)
            written = [answer.base_offset for answer in answers if not isinstance(answer, BaseException)]
            assert written == list(range(len(written)))


async def test_an_append_that_waits_for_room_is_refused_if_the_disk_is_full(tmp_path: Path) -> None:
    disk = BadSyncs()
    whole = len(sized(1, 1000))
    async with partition_in(tmp_path, files=disk, partition_unflushed_bytes_max=2 * whole, **BUFFERED) as partition:
        disk.room = 0
        for _ in range(2):
            await partition.append(sized(1, 1000))
        with pytest.raises(WriteFailed, match="No space left"):
            await partition.append(sized(1, 1000))
        assert progress(partition) == (2, 0, 0)
        disk.room = None


async def test_a_stop_that_loses_messages_acknowledged_from_memory_says_how_many(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = BadSyncs()
    with pytest.raises(WriteFailed, match="No space left"):
        async with partition_in(tmp_path, files=disk, **BUFFERED) as partition:
            await partition.append(texts("a"))
            await partition.flush()
            await partition.append(texts("b", "c"))
            disk.room = 0
    assert "2 acknowledged messages from memory could not be written" in caplog.text
    async with partition_in(tmp_path) as partition:
        assert payloads(await partition.read(0, 9)) == [b"a"]
