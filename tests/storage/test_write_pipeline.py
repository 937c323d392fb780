"""Batches on their way to the disk: what an append waits for at each level, when they are written, and backpressure."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

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
from whippet.storage.errors import InvalidOffset, PartitionClosed, PartitionFailed, WriteFailed
from whippet.storage.files import Buffer, Files
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


class BadSyncs(Files):
    """A disk that writes only some bytes of the next write, and then reports that it is full."""

    def __init__(self) -> None:
        self.room: int | None = None
        self.syncs = 0

    def write(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        if self.room is None:
            return super().write(handle, buffers, position)
        content = b"".join(buffers)[: self.room]
        if not content:
            raise OSError(28, "No space left on device")
        self.room -= len(content)
        return super().write(handle, [content], position)

    def sync(self, handle: int) -> None:
        self.syncs += 1
        super().sync(handle)


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


# --------------------------------------------------------------------------------------------------------- backpressure


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
