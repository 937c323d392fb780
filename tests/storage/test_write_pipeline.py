"""Batches on their way to the disk: what an append waits for at each level, and when they are written."""

from __future__ import annotations

import asyncio
import gc
import threading
from pathlib import Path

import pytest

from tests.storage.support.bad_syncs import BadSyncs
from tests.storage.support.partitions import BUFFERED, CONSUMER, MEMORY, SYNCED, WRITTEN, progress
from tests.storage.support.world import (
    SlowDisk,
    offsets,
    opened,
    partition_in,
    payloads,
    reached,
    settled,
    sized,
    texts,
    with_topic,
)
from tests.support.running import HANGS_S
from whippet.storage.errors import InvalidOffset, PartitionFailed, WriteFailed
from whippet.storage.files import Files
from whippet.storage.options import Durability
from whippet.storage.partition import Partition
from whippet.storage.shard import WriteItem
from whippet.storage.tail import OBJECT_BYTES
from whippet.storage.write_pipeline import WritePipeline

# -------------------------------------------------------------------------------------------------------- level: memory


async def test_messages_at_level_memory_are_readable_before_they_are_written(tmp_path: Path) -> None:
    async with partition_in(tmp_path, **BUFFERED) as partition:
        assert (await partition.append(texts("a"))).durability is MEMORY
        await settled()
        assert progress(partition) == (1, 0, 0)
        assert payloads(await partition.read(0, 1)) == [b"a"]
        assert partition.unflushed_bytes == partition.size_bytes == len(texts("a"))


async def test_messages_at_level_memory_are_written_once_enough_are_buffered(tmp_path: Path) -> None:
    async with partition_in(tmp_path, **{**BUFFERED, "messages_required_to_save": 5}) as partition:
        await partition.append(texts("a", "b"))
        await partition.append(texts("c", "d"))
        await settled()
        assert progress(partition) == (4, 0, 0)
        await partition.append(texts("e"))
        await partition.until(4, WRITTEN)
        assert progress(partition) == (5, 5, 0)
        await partition.append(texts("f"))
        await settled()
        assert partition.written == 5


async def test_messages_at_level_memory_are_written_once_enough_bytes_are_buffered(tmp_path: Path) -> None:
    size = len(sized(1, 100))
    async with partition_in(tmp_path, **{**BUFFERED, "bytes_required_to_save": 3 * size}) as partition:
        await partition.append(sized(1, 100))
        await partition.append(sized(1, 99))
        await settled()
        assert partition.written == 0
        await partition.append(sized(1, 101))
        await partition.until(2, WRITTEN)
        assert partition.written == 3


async def test_after_a_purge_as_many_bytes_are_buffered_as_before(tmp_path: Path) -> None:
    size = len(sized(1, 100))
    async with partition_in(tmp_path, **{**BUFFERED, "bytes_required_to_save": 3 * size}) as partition:
        for _ in range(2):
            for payload_bytes in (100, 100, 99):
                await partition.append(sized(1, payload_bytes))
            await settled()
            assert progress(partition) == (3, 0, 0)
            await partition.purge()


@pytest.mark.parametrize(("sync", "level", "reached_"), [(False, WRITTEN, (2, 2, 0)), (True, SYNCED, (2, 2, 2))])
async def test_a_flush_writes_messages_at_level_memory_and_syncs_them_if_requested(
    tmp_path: Path, sync: bool, level: Durability, reached_: tuple[int, int, int]
) -> None:
    async with partition_in(tmp_path, **BUFFERED) as partition:
        await partition.append(texts("a", "b"))
        assert await partition.flush(sync=sync) is level
        assert progress(partition) == reached_
        assert await partition.flush(sync=True) is SYNCED
        assert progress(partition) == (2, 2, 2)


@pytest.mark.parametrize(("syncs", "reached_"), [(False, (1, 1, 0)), (True, (1, 1, 1))])
async def test_the_saver_writes_messages_at_level_memory_and_syncs_them_if_configured(
    tmp_path: Path, syncs: bool, reached_: tuple[int, int, int]
) -> None:
    async with opened(tmp_path, saver_syncs=syncs, **BUFFERED) as store:
        partitions = await with_topic(store, 3)
        for partition in partitions[:2]:
            await partition.append(texts("a"))
        await store.save()
        assert [progress(partition) for partition in partitions] == [reached_, reached_, (0, 0, 0)]
        assert not partitions[2].needs_saver


async def test_the_saver_runs_at_its_interval(tmp_path: Path) -> None:
    async with opened(tmp_path, saver_interval_s=0.001, **BUFFERED) as store:
        (partition,) = await with_topic(store)
        await partition.append(texts("a"))
        await partition.until(0, SYNCED)
        assert progress(partition) == (1, 1, 1)


async def test_closing_keeps_everything_at_level_memory(tmp_path: Path) -> None:
    async with partition_in(tmp_path, **BUFFERED) as partition:
        await partition.append(texts("a", "b"))
        await partition.store_offset(CONSUMER, 1, 1)
    async with partition_in(tmp_path, **BUFFERED) as partition:
        assert progress(partition) == (2, 2, 2)
        assert payloads(await partition.read(0, 9)) == [b"a", b"b"]
        assert partition.offset_of(CONSUMER, 1) == 1


async def test_an_append_may_request_more_than_level_memory(tmp_path: Path) -> None:
    async with partition_in(tmp_path, **BUFFERED) as partition:
        await partition.append(texts("a"))
        assert (await partition.append(texts("b"), WRITTEN)).durability is WRITTEN
        assert progress(partition) == (2, 2, 0)
        assert (await partition.append(texts("c"), SYNCED)).durability is SYNCED
        assert progress(partition) == (3, 3, 3)


# ------------------------------------------------------------------------------------------- levels: written and synced


@pytest.mark.parametrize(("level", "reached_"), [(WRITTEN, (2, 2, 0)), (SYNCED, (2, 2, 2))])
async def test_an_append_returns_once_its_level_is_reached(
    tmp_path: Path, level: Durability, reached_: tuple[int, int, int]
) -> None:
    async with partition_in(tmp_path, durability=level) as partition:
        answer = await partition.append(texts("a", "b"))
        assert answer.durability is level
        assert progress(partition) == reached_
        assert partition.readable == 2
        # An append cannot have less than the level of the partition.
        assert (await partition.append(texts("c"), MEMORY)).durability is level


async def test_an_append_at_level_written_is_synced_if_requested(tmp_path: Path) -> None:
    async with partition_in(tmp_path) as partition:
        await partition.append(texts("a"))
        assert progress(partition) == (1, 1, 0)
        await partition.append(texts("b"), SYNCED)
        assert progress(partition) == (2, 2, 2)
        assert await partition.flush() is WRITTEN
        assert await partition.flush(sync=True) is SYNCED


async def test_messages_at_level_written_are_not_readable_before_they_are_written(tmp_path: Path) -> None:
    disk = SlowDisk()
    async with partition_in(tmp_path, files=disk) as partition:
        await partition.append(texts("a"))
        disk.stop()
        second = asyncio.create_task(partition.append(texts("b")))
        await reached(disk.reached)
        await settled()
        assert progress(partition) == (2, 1, 0)
        assert payloads(await partition.read(0, 9)) == [b"a"]
        assert offsets(await partition.read_last(1)) == [0]
        with pytest.raises(InvalidOffset):
            await partition.store_offset(CONSUMER, 1, 1)
        disk.go()
        await second
        assert payloads(await partition.read(0, 9)) == [b"a", b"b"]


@pytest.mark.parametrize("level", [WRITTEN, SYNCED])
async def test_a_batch_before_a_refused_one_is_synced_if_that_was_promised(tmp_path: Path, level: Durability) -> None:
    """The first batch is whole on the disk when the second fails. It must be synced before it is reported as synced."""

    disk = BadSyncs()
    async with partition_in(tmp_path, files=disk, durability=level) as partition:
        first, second = texts("a"), texts("b")
        disk.room, disk.syncs = len(first) + 10, 0
        one = asyncio.create_task(partition.append(first, SYNCED))
        two = asyncio.create_task(partition.append(second, SYNCED))
        answers = await asyncio.gather(one, two, return_exceptions=True)
        assert isinstance(answers[1], WriteFailed)
        assert not isinstance(answers[0], BaseException)
        assert partition.synced == 1
        assert disk.syncs == 1
        disk.room = None
        assert (await partition.append(texts("c"), SYNCED)).base_offset == 1
        assert payloads(await partition.read(0, 9)) == [b"a", b"c"]


# ------------------------------------------------------------------------------------------------- what failures leave


class Unsynced(Files):
    """A disk whose syncs fail."""

    failure: Exception | None = None

    def sync(self, handle: int) -> None:
        if self.failure is not None:
            raise self.failure
        super().sync(handle)


@pytest.mark.parametrize("append", [False, True], ids=["a flush", "an append"])
@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (OSError(5, "Input/output error"), r"\(Input/output error\)"),
        (OSError("it has no number"), r"\(OSError\('it has no number'\)\)"),
        (ZeroDivisionError("a defect"), r"ZeroDivisionError\('a defect'\)|a defect"),
    ],
)
async def test_a_failed_sync_is_reported_with_its_reason(
    tmp_path: Path, failure: Exception, reason: str, append: bool
) -> None:
    disk = Unsynced()
    async with opened(tmp_path, files=disk) as store:
        (partition,) = await with_topic(store)
        await partition.append(texts("a"))
        disk.failure = failure
        with pytest.raises(PartitionFailed if append or isinstance(failure, OSError) else type(failure), match=reason):
            await (partition.append(texts("b"), SYNCED) if append else partition.flush(sync=True))
        disk.failure = None
        await store.save()
        assert partition.failed is None


async def test_after_a_failed_sync_the_saver_is_needed_until_offsets_are_synced_as_well(tmp_path: Path) -> None:
    disk = Unsynced()
    async with opened(tmp_path, files=disk) as store:
        (partition,) = await with_topic(store)
        await partition.append(texts("a"))
        await partition.store_offset(CONSUMER, 1, 0)
        disk.failure = OSError(5, "Input/output error")
        with pytest.raises(PartitionFailed):
            await partition.flush(sync=True)
        disk.failure = None
        await store.reopen(partition)
        assert (progress(partition), partition.segments_count) == ((1, 1, 1), 1)
        assert partition.needs_saver
        await store.save()
        assert not partition.needs_saver


async def test_what_is_kept_in_memory_while_a_partition_is_reopened_counts_once(tmp_path: Path) -> None:
    disk = Unsynced()
    async with opened(tmp_path, files=disk, **BUFFERED) as store:
        (partition,) = await with_topic(store)
        (shard,) = store.shards
        await partition.append(texts("a"))
        going = threading.Event()
        first = shard.call(lambda: going.wait(HANGS_S))
        flush = asyncio.create_task(partition.flush(sync=True))
        await settled()
        await partition.append(texts("b"))
        disk.failure = OSError(5, "Input/output error")
        going.set()
        with pytest.raises(PartitionFailed):
            await flush
        assert await first
        assert progress(partition) == (2, 1, 0)
        disk.failure = None
        await store.reopen(partition)
        assert progress(partition) == (2, 1, 1)
        assert partition.unflushed_bytes == store.unflushed_bytes == len(texts("b"))
        assert payloads(await partition.read(0, 9)) == [b"a", b"b"]
        # It is written without waiting for the saver.
        await settled()
        await partition.closed_segments()
        assert progress(partition) == (2, 2, 1)
        assert partition.unflushed_bytes == store.unflushed_bytes == 0
        assert store.tail_bytes == len(texts("b")) + OBJECT_BYTES


async def test_an_offset_stored_before_a_partition_failed_is_written_when_it_is_reopened(tmp_path: Path) -> None:
    disk = Unsynced()
    async with opened(tmp_path, files=disk, **BUFFERED) as store:
        (partition,) = await with_topic(store)
        (shard,) = store.shards
        await partition.append(texts("a"))
        going = threading.Event()
        first = shard.call(lambda: going.wait(HANGS_S))
        flush = asyncio.create_task(partition.flush(sync=True))
        await settled()
        await partition.store_offset(CONSUMER, 1, 0)
        disk.failure = OSError(5, "Input/output error")
        going.set()
        with pytest.raises(PartitionFailed):
            await flush
        assert await first
        disk.failure = None
        await store.reopen(partition)
        await settled()
        await partition.closed_segments()
        assert (tmp_path / "streams/0/topics/0/partitions/0/offsets/consumers/1").exists()


async def test_a_flush_waits_while_a_failed_partition_is_reopened(tmp_path: Path) -> None:
    disk = Unsynced()
    async with opened(tmp_path, files=disk) as store:
        (partition,) = await with_topic(store)
        await partition.append(texts("a"))
        disk.failure = OSError(5, "Input/output error")
        with pytest.raises(PartitionFailed):
            await partition.flush(sync=True)
        disk.failure = None
        (shard,) = store.shards
        going = threading.Event()
        first = shard.call(lambda: going.wait(HANGS_S))
        reopening = asyncio.create_task(store.reopen(partition))
        await settled()
        flush = asyncio.create_task(partition.flush(sync=True))
        await settled()
        assert not flush.done()
        going.set()
        await asyncio.gather(first, reopening)
        assert await flush is SYNCED


# -------------------------------------------------------------------------------------------------------------- closing


async def test_a_removed_partition_does_not_stay_in_memory(tmp_path: Path) -> None:
    def partitions() -> int:
        gc.collect()
        return sum(isinstance(thing, Partition | WritePipeline) for thing in gc.get_objects())

    before = partitions()
    async with opened(tmp_path, **BUFFERED) as store:
        for partition in await with_topic(store, 3):
            await partition.append(texts("a"))
            await partition.store_offset(CONSUMER, 1, 0)
            await partition.flush()
            await partition.append(texts("b"))
        del partition
        assert partitions() == before + 2 * 3
        await store.remove_topic(0, 0)
        assert partitions() == before


class SlowSyncs(Files):
    """A disk whose syncs of logs wait while it is stopped."""

    def __init__(self) -> None:
        self.reached, self.going = threading.Event(), threading.Event()
        self.going.set()

    def stop(self) -> None:
        self.reached.clear()
        self.going.clear()

    def sync(self, handle: int) -> None:
        self.reached.set()
        assert self.going.wait(HANGS_S)
        super().sync(handle)


async def test_the_result_of_a_brief_call_does_not_wait_for_a_sync_that_follows_it(tmp_path: Path) -> None:
    disk = SlowSyncs()
    async with opened(tmp_path, files=disk) as store:
        (partition,) = await with_topic(store)
        await partition.append(texts("a"))
        disk.stop()
        (shard,) = store.shards
        began, going = threading.Event(), threading.Event()

        def hold() -> bool:
            began.set()
            return going.wait(HANGS_S)

        first = shard.call(hold)
        await reached(began)
        brief = shard.call(int, brief=True)
        flush = asyncio.create_task(partition.flush(sync=True))
        await settled()
        going.set()
        await reached(disk.reached)
        await settled()
        done = [first.done(), brief.done(), flush.done()]
        disk.going.set()
        assert await flush is SYNCED
        assert done == [True, True, False]


async def test_small_batches_of_one_turn_go_to_the_disk_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with partition_in(tmp_path, loop_append_bytes_max=0) as partition:
        orders: list[list[int]] = []
        write = partition._pipeline._shard.write

        def watched(order: WriteItem) -> None:
            orders.append([len(entry.batch) for entry in order.entries])
            write(order)

        monkeypatch.setattr(partition._pipeline._shard, "write", watched)
        small, large = sized(1, 96), sized(1, 256 * 1024 - 304)
        assert (len(small), len(large)) == (400, 256 * 1024)
        await asyncio.gather(*(partition.append(bytearray(small)) for _ in range(3)))
        assert orders == [[400, 400, 400]]
        orders.clear()
        await asyncio.gather(*(partition.append(bytearray(batch)) for batch in (small, large, small)))
        assert orders == [[400, 256 * 1024], [400]]
        orders.clear()
        await asyncio.gather(*(partition.append(bytearray(batch)) for batch in (large, small)))
        assert orders == [[256 * 1024], [400]]
