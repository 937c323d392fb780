"""A partition: appending, waiting for messages, closing."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.storage.support.partitions import BUFFERED, CONSUMER, MEMORY, SYNCED, progress
from tests.storage.support.world import (
    SlowDisk,
    opened,
    partition_in,
    payloads,
    random_bytes,
    reached,
    settled,
    sized,
    split,
    stored,
    texts,
    with_topic,
)
from tests.support.clocks import NOON, Clock
from whippet.storage import batch as batches
from whippet.storage.batch import Message, build
from whippet.storage.errors import BatchFault, InvalidBatch, PartitionClosed, PartitionFailed
from whippet.storage.files import Files
from whippet.storage.options import Durability
from whippet.storage.partition import Partition

# ------------------------------------------------------------------------------------------------------------ appending


@pytest.mark.parametrize("level", Durability)
async def test_batches_get_offsets_without_a_gap_and_are_read_as_they_were_stored(
    tmp_path: Path, level: Durability
) -> None:
    clock = Clock()
    async with partition_in(tmp_path, durability=level, clock=clock) as partition:
        first = await partition.append(texts("a", "b"))
        clock.now += 5
        second = await partition.append(texts("c"))
        assert (first.base_offset, first.messages, first.next_offset, first.timestamp) == (0, 2, 2, NOON)
        assert (second.base_offset, second.messages, second.timestamp) == (2, 1, NOON + 5)
        assert first.durability is second.durability is level
        found = stored(await partition.read(0, 10))
        assert [(m.offset, m.timestamp, m.payload) for m in found] == [
            (0, NOON, b"a"),
            (1, NOON, b"b"),
            (2, NOON + 5, b"c"),
        ]


async def test_a_batch_is_stamped_with_its_partition(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        partitions = await with_topic(store, 3)
        for partition in partitions:
            await partition.append(texts("a"))
            (whole,) = split((await partition.read(0, 1)).buffers)
            assert batches.header(whole).partition_id == partition.place.partition
            batches.check(whole)


async def test_a_batch_may_be_checked_before_it_is_appended(tmp_path: Path) -> None:
    async with partition_in(tmp_path) as partition:
        batch = texts("a", "b")
        checked = partition.check(batch)
        assert checked == batches.check(batch)
        appended = await partition.append(batch, checked=checked)
        assert (appended.base_offset, appended.messages) == (0, 2)
        assert payloads(await partition.read(0, 9)) == [b"a", b"b"]


async def test_a_bad_batch_is_refused_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async with partition_in(tmp_path) as partition:
        bad = texts("a", "b")
        bad[-1] ^= 1
        with pytest.raises(InvalidBatch) as refused:
            await partition.append(bad)
        assert (refused.value.fault, refused.value.message) == (BatchFault.FRAME_CHECKSUM, 1)
        assert progress(partition) == (0, 0, 0)
        assert (await partition.append(texts("c"))).base_offset == 0


async def test_a_batch_that_exceeds_a_limit_is_refused_with_the_name_of_the_setting(
    tmp_path: Path,
) -> None:
    async with partition_in(tmp_path, payload_bytes_max=10) as partition:
        await partition.append(sized(1, 10))
        with pytest.raises(InvalidBatch, match=r"system\.limits\.payload_bytes = 10"):
            await partition.append(sized(1, 11))


async def test_a_batch_that_was_checked_may_have_the_size_of_the_limit_and_no_more(tmp_path: Path) -> None:
    async with partition_in(tmp_path, batch_bytes_max=len(sized(1, 10))) as partition:
        for size in (9, 10):
            batch = sized(1, size)
            await partition.append(batch, checked=batches.check(batch))
        batch = sized(1, 11)
        with pytest.raises(InvalidBatch, match=r"system\.limits\.batch_bytes = 314"):
            await partition.append(batch, checked=batches.check(batch))
        assert partition.appended == 2


@pytest.mark.parametrize("steps", [(0, -5, 3, -1, 10), (-1, -1, -1, -1, -1)])
async def test_no_message_gets_an_earlier_time_when_the_clock_goes_backwards(
    tmp_path: Path, steps: Sequence[int]
) -> None:
    clock = Clock()
    times = []
    for step in steps:  # each after a new start of the store
        async with partition_in(tmp_path, clock=clock) as partition:
            times.append((await partition.append(texts("a"))).timestamp)
            clock.now += step
            times.append((await partition.append(texts("b"))).timestamp)
    assert times == sorted(times)
    async with partition_in(tmp_path, clock=clock) as partition:
        assert [message.timestamp for message in stored(await partition.read(0, 99))] == times


async def test_times_do_not_fall_after_a_restart_with_an_empty_last_segment(tmp_path: Path) -> None:
    clock = Clock(NOON + 1000)
    async with partition_in(tmp_path, clock=clock, segment_bytes=1) as partition:
        await partition.append(texts("a"))
        assert partition.segments_count == 2
    clock.now = NOON
    async with partition_in(tmp_path, clock=clock, segment_bytes=1) as partition:
        assert partition.last_timestamp == NOON + 1000
        assert (await partition.append(texts("b"))).timestamp == NOON + 1000


async def test_a_cancelled_append_keeps_its_place_before_those_that_follow(tmp_path: Path) -> None:
    disk = SlowDisk()
    async with partition_in(tmp_path, files=disk) as partition:
        disk.stop()
        first = asyncio.create_task(partition.append(texts("a")))
        await reached(disk.reached)
        second = asyncio.create_task(partition.append(texts("b")))
        await settled()
        first.cancel()
        await settled()
        disk.go()
        assert (await second).base_offset == 1
        assert payloads(await partition.read(0, 9)) == [b"a", b"b"]


# -------------------------------------------------------------------------------------------------------------- waiting


@pytest.mark.parametrize("level", Durability)
async def test_a_waiting_reader_wakes_when_the_message_is_readable(tmp_path: Path, level: Durability) -> None:
    disk = SlowDisk()
    async with partition_in(tmp_path, files=disk, **{**BUFFERED, "durability": level}) as partition:
        waiting = asyncio.create_task(partition.until(1))
        await settled()
        disk.stop()
        appends = [asyncio.create_task(partition.append(texts("a")))]
        await settled()
        assert not waiting.done()
        appends.append(asyncio.create_task(partition.append(texts("b"))))
        await settled()
        assert waiting.done() is (level is MEMORY)
        disk.go()
        await waiting
        assert payloads(await partition.read(1, 1)) == [b"b"]
        await asyncio.gather(*appends)
        await partition.until(1)


async def test_cancelled_readers_leave_nothing_behind(tmp_path: Path) -> None:
    """Long polls on an idle partition end at their deadline, again and again."""

    def futures() -> int:
        gc.collect()
        return sum(isinstance(thing, asyncio.Future) for thing in gc.get_objects())

    async with partition_in(tmp_path) as partition:
        before = futures()
        for _ in range(50):
            waiting = [asyncio.create_task(partition.until(0)) for _ in range(3)]
            await settled()
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        del waiting, task
        assert futures() <= before + 20
        await partition.append(texts("a"))


async def test_a_waiting_reader_wakes_although_another_was_cancelled(tmp_path: Path) -> None:
    async with partition_in(tmp_path) as partition:
        first, second = (asyncio.create_task(partition.until(0)) for _ in range(2))
        await settled()
        first.cancel()
        await partition.append(texts("a"))
        await second
        assert first.cancelled()


@pytest.mark.parametrize("level", Durability)
async def test_a_coroutine_that_waits_for_a_durability_wakes_when_it_is_reached(
    tmp_path: Path, level: Durability
) -> None:
    async with partition_in(tmp_path, **BUFFERED) as partition:
        waiting = asyncio.create_task(partition.until(0, level))
        await settled()
        await partition.append(texts("a"))
        await settled()
        assert waiting.done() is (level is MEMORY)
        await partition.flush()
        await settled()
        assert waiting.done() is (level < SYNCED)
        await partition.flush(sync=True)
        await waiting


# -------------------------------------------------------------------------------------------------------------- closing

Act = Callable[[Partition], Any]

USES: dict[str, Act] = {
    "append": lambda partition: partition.append(texts("a")),
    "read": lambda partition: partition.read(0, 1),
    "read_long": lambda partition: partition.read_long(0, 1, 1000),
    "read_last": lambda partition: partition.read_last(1),
    "read_from_time": lambda partition: partition.read_from_time(0, 1),
    "offset_at": lambda partition: partition.offset_at(0),
    "until": lambda partition: partition.until(10),
    "readable_at": lambda partition: partition.readable_at(10),
    "flush": lambda partition: partition.flush(sync=True),
    "store_offset": lambda partition: partition.store_offset(CONSUMER, 1, 0),
    "delete_offset": lambda partition: partition.delete_offset(CONSUMER, 1),
    "trim": lambda partition: partition.trim(10),
    "closed_segments": lambda partition: partition.closed_segments(),
    "purge": lambda partition: partition.purge(),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
@pytest.mark.parametrize("removed", [False, True], ids=["the store is closed", "it is removed"])
async def test_a_closed_partition_refuses_every_use(tmp_path: Path, use: Act, removed: bool) -> None:
    async with opened(tmp_path) as store:
        (partition,) = await with_topic(store)
        await partition.append(texts("a"))
        await partition.store_offset(CONSUMER, 1, 0)
        if removed:
            await store.remove_topic(0, 0)
            with pytest.raises(PartitionClosed, match="it was removed"):
                await use(partition)
    with pytest.raises(PartitionClosed):
        await use(partition)


@pytest.mark.parametrize("removed", [False, True], ids=["the store is closed", "it is removed"])
@pytest.mark.parametrize("level", Durability)
async def test_closing_ends_all_waiting(tmp_path: Path, removed: bool, level: Durability) -> None:
    disk = SlowDisk()
    async with opened(tmp_path, files=disk, shards=2, **{**BUFFERED, "durability": level}) as store:
        (partition,) = await with_topic(store)
        await partition.append(texts("a"))
        disk.stop()
        waiting = [
            asyncio.create_task(act)
            for act in (
                partition.append(texts("b"), SYNCED),
                partition.append(texts("c")),
                partition.until(100),
                partition.until(2, SYNCED),
                partition.store_offset(CONSUMER, 1, 0),
                partition.flush(sync=True),
                partition.read(0, 10),
            )
        ]
        await settled()
        closing = asyncio.create_task(store.remove_topic(0, 0) if removed else store.close())
        await settled()
        disk.go()
        await closing
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(answers[2], PartitionClosed)
        for answer in answers:
            assert not isinstance(answer, BaseException) or isinstance(answer, PartitionClosed), answer


async def test_offsets_in_progress_do_not_recreate_the_files_of_a_removed_partition(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, shards=2) as store:
        partitions = await with_topic(store, 8)
        for partition in partitions:
            await partition.append(texts("a"))
        late: list[asyncio.Task[Any]] = []
        for partition in partitions:
            late.append(asyncio.create_task(partition.store_offset(CONSUMER, 1, 0)))
            late.append(asyncio.create_task(partition.append(texts("b"))))
        await asyncio.sleep(0)
        await store.remove_topic(0, 0)
        await asyncio.gather(*late, return_exceptions=True)
        assert not (tmp_path / "streams/0/topics/0").exists()


async def test_a_closed_store_has_everything_that_was_acknowledged(
    tmp_path: Path,
) -> None:
    for level in Durability:
        path = tmp_path / level.name
        options = {**BUFFERED, "durability": level}
        acknowledged = 0
        for _ in range(4):
            async with partition_in(path, segment_bytes=700, **options) as partition:
                assert partition.appended == acknowledged
                for i in range(5):
                    plain = [Message(b"%d" % (acknowledged + n)) for n in range(i + 1)]
                    answer = await partition.append(build(plain, NOON, random_bytes))
                    acknowledged = answer.next_offset
        async with partition_in(path, **options) as partition:
            found = [int(payload) for payload in payloads(await partition.read(0, 1000))]
            assert found == list(range(acknowledged))


class CountedSyncs(Files):
    synced = 0

    def sync(self, handle: int) -> None:
        self.synced += 1
        super().sync(handle)


async def test_a_partition_that_is_being_deleted_syncs_nothing_when_it_closes(tmp_path: Path) -> None:
    disk = CountedSyncs()
    # The store closes it once more.
    with contextlib.suppress(PartitionClosed):
        async with partition_in(tmp_path, files=disk, durability=Durability.MEMORY) as partition:
            await partition.append(texts("a message"))
            disk.synced = 0
            await partition.close(keep=False)
            assert disk.synced == 0


async def test_a_message_counts_as_64_bytes_plus_its_content_wherever_it_is(tmp_path: Path) -> None:
    async with partition_in(tmp_path, **BUFFERED) as partition:
        assert partition.message_bytes == 0
        for batch_count in (1, 2):
            await partition.append(sized(2, 10))
            assert partition.message_bytes == batch_count * 2 * (64 + 10)
        await partition.flush()
        assert partition.message_bytes == 4 * (64 + 10)
        await partition.append(build([Message(b"payload", user_headers=b"headers")], NOON, random_bytes))
        assert partition.message_bytes == 4 * (64 + 10) + 64 + 14


async def test_a_reader_that_no_longer_waits_leaves_nothing_behind(tmp_path: Path) -> None:
    async with partition_in(tmp_path) as partition:
        future = partition.readable_at(0)
        partition.stop_waiting(future)
        assert not partition._readers.waiting
        await partition.append(texts("a"))
        assert not future.done()


async def test_refusals_after_a_failure_keep_nothing_of_those_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are one exception, whose traceback would grow with each."""

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    async with opened(tmp_path) as store:
        (partition,) = await with_topic(store)
        await partition.append(texts("a"))
        with monkeypatch.context() as patched:
            patched.setattr(Files, "sync", fail)
            with pytest.raises(PartitionFailed):
                await partition.flush(sync=True)
        lengths = set()
        for _ in range(5):
            with pytest.raises(PartitionFailed) as info:
                await partition.append(texts("b"))
            lengths.add(len(info.traceback))
        assert len(lengths) == 1
        await store.save()
        assert partition.failed is None
