"""A partition: what is appended is read, at the level that was promised, whatever else goes on."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.storage.support.world import (
    SlowDisk,
    offsets,
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
from whippet.storage.batch import HEADER_BYTES, Message, build
from whippet.storage.errors import BatchFault, InvalidBatch, InvalidOffset, PartitionClosed, WriteFailed
from whippet.storage.files import Buffer, Files
from whippet.storage.log_reader import Fetched
from whippet.storage.offsets import Kind
from whippet.storage.options import Durability
from whippet.storage.partition import Partition
from whippet.storage.shard import WriteItem

CONSUMER, GROUP = Kind.CONSUMER, Kind.GROUP
MEMORY, WRITTEN, SYNCED = Durability

BUFFERED: dict[str, Any] = {"durability": MEMORY, "messages_required_to_save": 1000, "bytes_required_to_save": 1 << 20}
"""Level MEMORY, and nothing is written unless somebody asks for it."""


def progress(partition: Partition) -> tuple[int, int, int]:
    return partition.appended, partition.written, partition.synced


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


async def test_a_bad_batch_is_refused_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async with partition_in(tmp_path) as partition:
        bad = texts("a", "b")
        bad[-1] ^= 1
        with pytest.raises(InvalidBatch) as refused:
            await partition.append(bad)
        assert (refused.value.fault, refused.value.message) == (BatchFault.FRAME_CHECKSUM, 1)
        assert progress(partition) == (0, 0, 0)
        assert (await partition.append(texts("c"))).base_offset == 0


async def test_a_batch_over_a_limit_is_refused_with_the_name_of_the_setting(
    tmp_path: Path,
) -> None:
    async with partition_in(tmp_path, payload_bytes_max=10) as partition:
        await partition.append(sized(1, 10))
        with pytest.raises(InvalidBatch, match=r"system\.limits\.payload_bytes = 10"):
            await partition.append(sized(1, 11))


@pytest.mark.parametrize("steps", [(0, -5, 3, -1, 10), (-1, -1, -1, -1, -1)])
async def test_no_message_gets_an_earlier_time_when_the_clock_goes_backwards(
    tmp_path: Path, steps: Sequence[int]
) -> None:
    clock = Clock()
    times = []
    for step in steps:  # every one in a new start of the store
        async with partition_in(tmp_path, clock=clock) as partition:
            times.append((await partition.append(texts("a"))).timestamp)
            clock.now += step
            times.append((await partition.append(texts("b"))).timestamp)
    assert times == sorted(times)
    async with partition_in(tmp_path, clock=clock) as partition:
        assert [message.timestamp for message in stored(await partition.read(0, 99))] == times


async def test_times_do_not_go_back_after_a_restart_with_an_empty_last_segment(tmp_path: Path) -> None:
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


# -------------------------------------------------------------------------------------------------------------- reading


class Filled:
    """A partition with batches of every shape in it, and a plain list of what it holds."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.model: list[tuple[int, int, bytes]] = []
        """offset, timestamp, payload"""

    async def fill(self, clock: Clock, shapes: Sequence[Sequence[int]]) -> None:
        for shape in shapes:
            clock.now += 10
            base = len(self.model)
            parts = [b"%d." % (base + i) + b"x" * size for i, size in enumerate(shape)]
            await self.partition.append(texts(*parts))
            self.model += [(base + i, clock.now, part) for i, part in enumerate(parts)]

    def expected(self, offset: int, count: int) -> list[tuple[int, int, bytes]]:
        return [message for message in self.model if message[0] >= offset][:count]


def found(fetched: Fetched) -> list[tuple[int, int, bytes]]:
    return [(message.offset, message.timestamp, message.payload) for message in stored(fetched)]


SHAPES = ((10, 20, 30), (5,), (7,) * 14, (400,), (1, 2), (9,) * 3, (50, 1) * 7, (3,))
LAYOUTS: dict[str, dict[str, Any]] = {
    "all in the tail": {},
    "all on the disk": {"tail_bytes_max": 0},
    "begins on the disk, continues in the tail": {"tail_bytes_max": 3000},
    "a segment for every batch, on the disk": {"tail_bytes_max": 0, "segment_bytes": 1},
    "small segments, half in the tail": {"tail_bytes_max": 3000, "segment_bytes": 1500},
    "no index in memory": {"tail_bytes_max": 0, "segment_bytes": 1500, "index_cache": "none"},
    "every index in memory": {"tail_bytes_max": 0, "segment_bytes": 1500, "index_cache": "all"},
    "two files open": {"tail_bytes_max": 0, "segment_bytes": 1, "open_files_max": 2},
    "in memory, not written": BUFFERED,
    "written and in memory": {**BUFFERED, "messages_required_to_save": 20, "tail_bytes_max": 0},
    "synced": {"durability": SYNCED, "tail_bytes_max": 0},
}

every_layout = pytest.mark.parametrize("options", LAYOUTS.values(), ids=LAYOUTS.keys())


@every_layout
@pytest.mark.parametrize("again", [False, True], ids=["as written", "after a restart"])
async def test_a_read_from_any_offset_returns_exactly_the_messages_asked_for(
    tmp_path: Path, options: dict[str, Any], again: bool
) -> None:
    async def look(filled: Filled) -> None:
        partition, end = filled.partition, len(filled.model)
        for offset in range(end + 2):
            for count in (0, 1, 2, 5, 17, 1000):
                assert found(await partition.read(offset, count)) == filled.expected(offset, count)
        for count in (0, 1, 2, 15, end - 1, end, end + 1):
            assert found(await partition.read_last(count)) == filled.expected(max(end - count, 0), count)
        for time in range(NOON, NOON + 10 * len(SHAPES) + 2, 5):
            start = next((offset for offset, at, _ in filled.model if at >= time), end)
            assert await partition.offset_at(time) == start
            assert found(await partition.read_from_time(time, 7)) == filled.expected(start, 7)

    clock = Clock()
    async with partition_in(tmp_path, clock=clock, **options) as partition:
        filled = Filled(partition)
        await filled.fill(clock, SHAPES)
        if not again:
            await look(filled)
    if again:
        async with partition_in(tmp_path, clock=clock, **options) as partition:
            filled.partition = partition
            await look(filled)


@every_layout
async def test_a_read_with_little_room_fills_it_and_returns_at_least_one_message(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    clock = Clock()
    async with partition_in(tmp_path, clock=clock, **options) as partition:
        filled = Filled(partition)
        await filled.fill(clock, SHAPES)
        for room in (1, 256, 320, 400, 700, 1000, 5000):
            for start in range(0, len(filled.model), 3):
                offset = start
                while offset < len(filled.model):
                    fetched = await partition.read(offset, 9, room)
                    got = found(fetched)
                    assert got
                    assert got == filled.expected(offset, len(got))
                    size = sum(map(len, fetched.buffers))
                    assert size <= room or len(got) == 1
                    offset = fetched.next_offset


@every_layout
async def test_a_read_does_not_stop_while_there_is_room(tmp_path: Path, options: dict[str, Any]) -> None:
    """What comes next and was left out does not fit: neither its whole batch nor its first message alone."""

    clock = Clock()
    async with partition_in(tmp_path, clock=clock, **options) as partition:
        filled = Filled(partition)
        await filled.fill(clock, SHAPES)
        for room in range(300, 2600, 130):
            for offset in range(0, len(filled.model), 2):
                fetched = await partition.read(offset, 1000, room)
                after = fetched.next_offset
                if after < len(filled.model):
                    left = room - sum(map(len, fetched.buffers))
                    # The next message of the same batch needs no other header.
                    needs = 48 + len(filled.model[after][2])
                    same_batch = filled.model[after][1] == filled.model[after - 1][1]
                    assert left < needs + (0 if same_batch else HEADER_BYTES)


async def test_a_read_keeps_its_limit_though_more_is_asked_for(tmp_path: Path) -> None:
    async with partition_in(tmp_path, read_bytes_max=2000) as partition:
        for _ in range(10):
            await partition.append(sized(1, 500))
        assert offsets(await partition.read(0, 10)) == [0, 1]
        assert offsets(await partition.read(0, 10, 10**6)) == [0, 1]
        assert offsets(await partition.read(0, 10, 900)) == [0]


@pytest.mark.parametrize("options", [{}, {"tail_bytes_max": 0}], ids=["tail", "disk"])
async def test_a_read_of_an_empty_partition_is_empty(tmp_path: Path, options: dict[str, Any]) -> None:
    async with partition_in(tmp_path, **options) as partition:
        for fetched in (
            await partition.read(0, 10),
            await partition.read(5, 10),
            await partition.read_last(10),
            await partition.read_from_time(0, 10),
        ):
            assert (fetched.buffers, fetched.messages) == ([], 0)
        assert await partition.offset_at(NOON) == 0
        assert (partition.first_offset, partition.messages_count, partition.size_bytes) == (0, 0, 0)


async def test_whole_batches_are_read_as_the_bytes_that_were_stored(tmp_path: Path) -> None:
    for options in ({}, {"tail_bytes_max": 0}):
        async with partition_in(tmp_path / str(len(options)), clock=Clock(), **options) as partition:
            sent = [texts("a", "b"), sized(20, 30), texts("c")]
            for whole in sent:
                await partition.append(whole)
            assert b"".join((await partition.read(0, 100)).buffers) == b"".join(sent)
            log = tmp_path / str(len(options)) / "streams/0/topics/0/partitions/0/00000000000000000000.log"
            assert log.read_bytes() == b"".join(sent)


async def test_readers_beside_writers_see_no_gap(tmp_path: Path) -> None:
    async with partition_in(tmp_path, segment_bytes=3000, tail_bytes_max=2000) as partition:

        async def write(name: int) -> None:
            for i in range(30):
                await partition.append(texts(f"{name}-{i}", "x"))

        async def follow() -> list[bytes]:
            seen: list[bytes] = []
            while len(seen) < 240:
                await partition.until(len(seen))
                seen += payloads(await partition.read(len(seen), 7))
            return seen

        writing = asyncio.gather(*(write(name) for name in range(4)))
        _, first, second = await asyncio.gather(writing, follow(), follow())
        assert first == second
        for name in range(4):
            mine = [text for text in first if text.startswith(b"%d-" % name)]
            assert mine == [b"%d-%d" % (name, i) for i in range(30)]


# ---------------------------------------------------------------------------------------------------- level: memory


async def test_messages_at_level_memory_are_readable_before_they_are_written(tmp_path: Path) -> None:
    async with partition_in(tmp_path, **BUFFERED) as partition:
        assert (await partition.append(texts("a"))).durability is MEMORY
        await settled()
        assert progress(partition) == (1, 0, 0)
        assert payloads(await partition.read(0, 1)) == [b"a"]
        assert partition.unflushed_bytes == partition.size_bytes == len(texts("a"))


async def test_messages_at_level_memory_are_written_once_so_many_are_buffered(tmp_path: Path) -> None:
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


async def test_messages_at_level_memory_are_written_once_so_many_bytes_are_buffered(tmp_path: Path) -> None:
    size = len(sized(1, 100))
    async with partition_in(tmp_path, **{**BUFFERED, "bytes_required_to_save": 3 * size}) as partition:
        await partition.append(sized(1, 100))
        await partition.append(sized(1, 99))
        await settled()
        assert partition.written == 0
        await partition.append(sized(1, 101))
        await partition.until(2, WRITTEN)
        assert partition.written == 3


@pytest.mark.parametrize(("sync", "level", "reached_"), [(False, WRITTEN, (2, 2, 0)), (True, SYNCED, (2, 2, 2))])
async def test_a_flush_writes_messages_at_level_memory_and_syncs_them_if_asked(
    tmp_path: Path, sync: bool, level: Durability, reached_: tuple[int, int, int]
) -> None:
    async with partition_in(tmp_path, **BUFFERED) as partition:
        await partition.append(texts("a", "b"))
        assert await partition.flush(sync=sync) is level
        assert progress(partition) == reached_
        assert await partition.flush(sync=True) is SYNCED
        assert progress(partition) == (2, 2, 2)


@pytest.mark.parametrize(("syncs", "reached_"), [(False, (1, 1, 0)), (True, (1, 1, 1))])
async def test_the_saver_writes_messages_at_level_memory_and_syncs_them_if_told(
    tmp_path: Path, syncs: bool, reached_: tuple[int, int, int]
) -> None:
    async with opened(tmp_path, saver_syncs=syncs, **BUFFERED) as store:
        partitions = await with_topic(store, 3)
        for partition in partitions[:2]:
            await partition.append(texts("a"))
        await store.save()
        assert [progress(partition) for partition in partitions] == [reached_, reached_, (0, 0, 0)]
        assert not partitions[2].needs_saver


async def test_the_saver_writes_by_itself_once_its_period_is_over(tmp_path: Path) -> None:
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


async def test_an_append_may_ask_for_more_than_level_memory(tmp_path: Path) -> None:
    async with partition_in(tmp_path, **BUFFERED) as partition:
        await partition.append(texts("a"))
        assert (await partition.append(texts("b"), WRITTEN)).durability is WRITTEN
        assert progress(partition) == (2, 2, 0)
        assert (await partition.append(texts("c"), SYNCED)).durability is SYNCED
        assert progress(partition) == (3, 3, 3)


# ------------------------------------------------------------------------------------------- levels: written and synced


@pytest.mark.parametrize(("level", "reached_"), [(WRITTEN, (2, 2, 0)), (SYNCED, (2, 2, 2))])
async def test_an_append_is_answered_once_its_level_is_reached(
    tmp_path: Path, level: Durability, reached_: tuple[int, int, int]
) -> None:
    async with partition_in(tmp_path, durability=level) as partition:
        answer = await partition.append(texts("a", "b"))
        assert answer.durability is level
        assert progress(partition) == reached_
        assert partition.readable == 2
        # Less than the partition promises is not to be had.
        assert (await partition.append(texts("c"), MEMORY)).durability is level


async def test_an_append_at_level_written_is_synced_if_asked(tmp_path: Path) -> None:
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
    """A disk that writes only so many bytes of what comes next, then says that it is full."""

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
async def test_a_batch_before_one_that_the_disk_refuses_is_synced_if_that_was_promised(
    tmp_path: Path, level: Durability
) -> None:
    """The first batch is whole on the disk when the second fails: to be told that it is synced, it has to be."""

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


# ----------------------------------------------------------------------------------------------------------- waiting


@pytest.mark.parametrize("level", Durability)
async def test_a_waiting_reader_wakes_when_it_may_read(tmp_path: Path, level: Durability) -> None:
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
    """A long poll on an idle partition ends by its deadline, again and again."""

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


async def test_a_waiting_reader_wakes_though_another_was_cancelled(tmp_path: Path) -> None:
    async with partition_in(tmp_path) as partition:
        first, second = (asyncio.create_task(partition.until(0)) for _ in range(2))
        await settled()
        first.cancel()
        await partition.append(texts("a"))
        await second
        assert first.cancelled()


@pytest.mark.parametrize("level", Durability)
async def test_whoever_waits_for_a_durability_wakes_when_it_is_reached(tmp_path: Path, level: Durability) -> None:
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


# -------------------------------------------------------------------------------------------------------- back-pressure


async def test_appends_to_a_full_partition_wait_for_a_slow_disk_and_go_on_in_order(
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


async def test_appends_that_wait_are_not_overtaken(tmp_path: Path) -> None:
    """A connection that sends without waiting for answers relies on the order in which it was read."""

    disk = SlowDisk()
    whole = len(sized(1, 1000))
    async with partition_in(tmp_path, files=disk, partition_unflushed_bytes_max=2 * whole) as partition:
        disk.stop()
        appends = [asyncio.create_task(partition.append(sized(1, 1000))) for _ in range(8)]
        await settled()
        disk.go()
        while partition.appended < 8:
            # Comes in one turn of the loop with the news that there is room.
            appends.append(asyncio.create_task(partition.append(sized(1, 1000))))
            await asyncio.sleep(0)
        answers = await asyncio.gather(*appends)
        assert [answer.base_offset for answer in answers] == list(range(len(appends)))


async def test_appends_to_a_full_store_wait_for_a_slow_disk_and_go_on_in_order(
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
        other = next(p for p in partitions if p._shard is not slow._shard)
        disk.stop("partitions/0/")
        waiting = [asyncio.create_task(slow.append(sized(1, 1000))) for _ in range(5)]
        await reached(disk.reached)
        for i in range(20):
            assert (await other.append(sized(1, 1000))).base_offset == i
        assert not any(task.done() for task in waiting)
        disk.go()
        assert [answer.base_offset for answer in await asyncio.gather(*waiting)] == list(range(5))


async def test_appends_that_are_cancelled_while_they_wait_for_room_do_no_harm(tmp_path: Path) -> None:
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
            assert (await partition.append(texts("more"))).base_offset == 3


async def test_a_store_full_of_buffered_messages_writes_them_to_make_room(
    tmp_path: Path,
) -> None:
    """At level memory nobody else would: without that, appends would wait for the saver."""

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


async def test_an_append_that_waits_for_room_is_refused_when_the_partition_is_removed(
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
            # Those that found room before it was closed were written; the others are told.
            refused = [isinstance(answer, PartitionClosed) for answer in answers]
            assert refused == sorted(refused)
            written = [answer.base_offset for answer in answers if not isinstance(answer, BaseException)]
            assert written == list(range(len(written)))


# ----------------------------------------------------------------------------------------------------- consumer offsets


@pytest.mark.parametrize("level", Durability)
async def test_a_stored_offset_is_known_after_a_restart(tmp_path: Path, level: Durability) -> None:
    options = {**BUFFERED, "durability": level}
    async with partition_in(tmp_path, **options) as partition:
        await partition.append(texts("a", "b", "c"))
        await partition.store_offset(CONSUMER, 1, 2)
        await partition.store_offset(GROUP, 1, 0)
        await partition.store_offset(CONSUMER, 1, 1)
        assert (partition.offset_of(CONSUMER, 1), partition.offset_of(GROUP, 1)) == (1, 0)
        assert partition.offset_of(CONSUMER, 2) is None
        assert partition.lowest_consumer_offset == 0
        assert await partition.delete_offset(GROUP, 1)
        assert not await partition.delete_offset(GROUP, 1)
        assert not await partition.delete_offset(GROUP, 2)
        assert partition.lowest_consumer_offset == 1
    async with partition_in(tmp_path, **options) as partition:
        assert (partition.offset_of(CONSUMER, 1), partition.offset_of(GROUP, 1)) == (1, None)


@pytest.mark.parametrize("offset", [-1, 2, 3, 2**63])
async def test_an_offset_beyond_the_newest_message_is_refused(tmp_path: Path, offset: int) -> None:
    async with partition_in(tmp_path) as partition:
        with pytest.raises(InvalidOffset, match="the partition is empty"):
            await partition.store_offset(CONSUMER, 1, 0)
        await partition.append(texts("a", "b"))
        with pytest.raises(InvalidOffset, match=f"offset {offset} cannot be stored, the newest message has 1"):
            await partition.store_offset(CONSUMER, 1, offset)
        assert partition.offset_of(CONSUMER, 1) is None


async def test_a_stored_offset_beyond_the_end_is_lowered_at_the_start(tmp_path: Path) -> None:
    """Messages may be lost by a crash that their reader has already seen. New ones in their place it has not."""

    async with partition_in(tmp_path) as partition:
        await partition.append(texts("a"))
        await partition.append(texts("b", "c", "d"))
        await partition.store_offset(CONSUMER, 1, 3)
        await partition.store_offset(GROUP, 1, 0)
    folder = tmp_path / "streams/0/topics/0/partitions/0"
    log = folder / "00000000000000000000.log"
    log.write_bytes(log.read_bytes()[: len(texts("a")) + 20])
    log.with_suffix(".index").unlink()
    shutil.copytree(tmp_path, crash := tmp_path.with_name(tmp_path.name + "-crash"))
    async with partition_in(tmp_path) as partition:
        assert partition.appended == 1
        assert (partition.offset_of(CONSUMER, 1), partition.offset_of(GROUP, 1)) == (0, 0)
        await partition.append(texts("B", "C", "D"))
        shutil.copytree(tmp_path, crash, dirs_exist_ok=True)
    for path in (tmp_path, crash):
        async with partition_in(path) as partition:
            assert partition.appended == 4
            assert partition.offset_of(CONSUMER, 1) == 0


async def test_a_stored_offset_is_forgotten_when_no_message_is_left(tmp_path: Path) -> None:
    async with partition_in(tmp_path) as partition:
        await partition.append(texts("a"))
        await partition.store_offset(CONSUMER, 1, 0)
    folder = tmp_path / "streams/0/topics/0/partitions/0"
    (folder / "00000000000000000000.log").write_bytes(b"")
    (folder / "00000000000000000000.index").unlink()
    for _ in range(2):
        async with partition_in(tmp_path) as partition:
            assert partition.offset_of(CONSUMER, 1) is None
            await partition.append(texts("a"))


async def test_many_offsets_stored_at_once_are_all_answered(tmp_path: Path) -> None:
    async with partition_in(tmp_path) as partition:
        await partition.append(texts("a", "b"))
        await asyncio.gather(*(partition.store_offset(CONSUMER, i, i % 2) for i in range(100)))
    async with partition_in(tmp_path) as partition:
        assert [partition.offset_of(CONSUMER, i) for i in range(100)] == [0, 1] * 50


async def test_an_offset_deleted_before_it_was_written_is_not_stored_by_a_flush(
    tmp_path: Path,
) -> None:
    async with partition_in(tmp_path, **BUFFERED) as partition:
        await partition.append(texts("a"))
        await partition.store_offset(CONSUMER, 1, 0)
        await partition.delete_offset(CONSUMER, 1)
        assert await partition.flush(sync=True) is SYNCED


# ------------------------------------------------------------------------------------------------- purging and trimming


@pytest.mark.parametrize("level", Durability)
async def test_a_purged_partition_begins_again_at_offset_0(tmp_path: Path, level: Durability) -> None:
    options = {**BUFFERED, "durability": level, "segment_bytes": 1000}
    async with partition_in(tmp_path, **options) as partition:
        for _ in range(5):
            await partition.append(sized(3, 200))
        await partition.store_offset(CONSUMER, 1, 14)
        await partition.purge()
        assert progress(partition) == (0, 0, 0)
        assert (partition.size_bytes, partition.unflushed_bytes, partition.segments_count) == (0, 0, 1)
        assert partition.offset_of(CONSUMER, 1) is None
        assert (await partition.read(0, 9)).messages == 0
        assert (await partition.append(texts("new"))).base_offset == 0
        assert payloads(await partition.read(0, 9)) == [b"new"]
    async with partition_in(tmp_path, **options) as partition:
        assert payloads(await partition.read(0, 9)) == [b"new"]
        assert partition.offset_of(CONSUMER, 1) is None


@pytest.mark.parametrize("level", Durability)
async def test_appends_flushes_reads_and_offsets_go_on_beside_purges(tmp_path: Path, level: Durability) -> None:
    options = {**BUFFERED, "durability": level, "segment_bytes": 2000, "tail_bytes_max": 3000}
    options |= {"partition_unflushed_bytes_max": 4000, "unflushed_bytes_max": 6000}
    async with opened(tmp_path, shards=2, **options) as store:
        (partition,) = await with_topic(store)
        going = True

        async def pause() -> None:
            # A loop that never rests gives the threads a turn when luck has it, on some machines once in seconds.
            await asyncio.sleep(0.0002)

        async def append() -> int:
            done = 0
            while going:
                await partition.append(sized(2, 300))
                done += 1
                await pause()
            return done

        async def flush() -> None:
            while going:
                await partition.flush(sync=done_flushing())
                await pause()

        async def read() -> None:
            while going:
                found = stored(await partition.read(0, 50))
                assert [message.offset for message in found] == list(range(len(found)))
                await partition.read_last(5)
                await partition.read_from_time(NOON, 5)
                await pause()

        async def store_offsets() -> None:
            while going:
                with contextlib.suppress(InvalidOffset):
                    await partition.store_offset(CONSUMER, 1, partition.readable - 1)
                stored_offset = partition.offset_of(CONSUMER, 1)
                assert stored_offset is None or stored_offset < partition.readable
                await pause()

        flushes = iter(range(10**9))

        def done_flushing() -> bool:
            return next(flushes) % 3 == 0

        busy = [asyncio.create_task(work()) for work in (append, append, flush, read, read, store_offsets)]
        for _ in range(150):
            await partition.until(5)
            await partition.purge()
        going = False
        assert ((await asyncio.gather(*busy))[0] or 0) > 0


async def test_an_offset_is_refused_when_a_purge_comes_before_it(tmp_path: Path) -> None:
    """It names a message that is gone; kept, it would hide the first messages that come after the purge."""

    disk = SlowDisk()
    async with partition_in(tmp_path, files=disk) as partition:
        await partition.append(texts("a", "b"))
        await partition.store_offset(GROUP, 1, 1)
        disk.stop()
        last = asyncio.create_task(partition.append(texts("c")))
        await settled()
        purging = asyncio.create_task(partition.purge())
        await settled()
        storing = asyncio.create_task(partition.store_offset(CONSUMER, 1, 1))
        deleting = asyncio.create_task(partition.delete_offset(GROUP, 1))
        await settled()
        disk.go()
        await purging
        assert (await last).base_offset == 2
        with pytest.raises(InvalidOffset, match="the partition is empty"):
            await storing
        assert await deleting is False
        assert partition.lowest_consumer_offset is None


async def test_a_purge_that_is_cancelled_after_it_began_is_finished(
    tmp_path: Path,
) -> None:
    disk = SlowDisk()
    async with partition_in(tmp_path, files=disk) as partition:
        disk.stop()
        last = asyncio.create_task(partition.append(texts("a")))
        await settled()
        purging = asyncio.create_task(partition.purge())
        await settled()
        purging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await purging
        disk.go()
        assert (await last).base_offset == 0
        assert (await partition.append(texts("b"))).base_offset == 0
        assert payloads(await partition.read(0, 9)) == [b"b"]


async def test_a_purge_wakes_waiting_readers(tmp_path: Path) -> None:
    """The offset that they wait for may be a long way off now."""

    async with partition_in(tmp_path) as partition:
        await partition.append(texts("a", "b"))
        waiting = asyncio.create_task(partition.until(2))
        await settled()
        await partition.purge()
        await waiting


async def test_appends_that_wait_for_a_purge_come_after_it(tmp_path: Path) -> None:
    disk = SlowDisk()
    async with partition_in(tmp_path, files=disk) as partition:
        disk.stop()
        before = [asyncio.create_task(partition.append(texts(f"before {i}"))) for i in range(3)]
        await settled()
        purging = asyncio.create_task(partition.purge())
        await settled()
        after = [asyncio.create_task(partition.append(texts(f"after {i}"))) for i in range(3)]
        await settled()
        disk.go()
        await purging
        assert [answer.base_offset for answer in await asyncio.gather(*before)] == [0, 1, 2]
        assert [answer.base_offset for answer in await asyncio.gather(*after)] == [0, 1, 2]
        assert payloads(await partition.read(0, 9)) == [b"after 0", b"after 1", b"after 2"]


@pytest.mark.parametrize("options", [{}, {"tail_bytes_max": 0}], ids=["tail", "disk"])
async def test_a_trim_removes_closed_segments_and_the_rest_keeps_its_offsets(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    clock = Clock()
    async with partition_in(tmp_path, clock=clock, segment_bytes=1, **options) as partition:
        for i in range(6):
            clock.now += 10
            await partition.append(texts(f"{i}a", f"{i}b"))
        assert [segment.start_offset for segment in await partition.closed_segments()] == [0, 2, 4, 6, 8, 10]
        assert [s.last_timestamp for s in await partition.closed_segments()] == [NOON + 10 * i for i in range(1, 7)]
        assert await partition.trim(5) == 2
        assert (partition.first_offset, partition.segments_count, partition.messages_count) == (4, 5, 8)
        for offset in (0, 3, 4):
            assert offsets(await partition.read(offset, 3)) == [4, 5, 6]
        assert offsets(await partition.read_from_time(0, 2)) == [4, 5]
        assert offsets(await partition.read_last(99)) == list(range(4, 12))
        assert await partition.offset_at(0) == 4
        assert await partition.offset_at(NOON + 10) == 4
        assert await partition.trim(10**9) == 4
        assert (partition.first_offset, partition.appended, partition.messages_count) == (12, 12, 0)
        assert (await partition.read(0, 9)).messages == 0
        assert (await partition.append(texts("x"))).base_offset == 12
    async with partition_in(tmp_path, segment_bytes=1, **options) as partition:
        assert (partition.first_offset, partition.appended) == (12, 13)
        assert offsets(await partition.read(0, 9)) == [12]


async def test_readers_read_on_without_an_error_beside_a_trim(tmp_path: Path) -> None:
    async with partition_in(tmp_path, segment_bytes=1, tail_bytes_max=0, open_files_max=2) as partition:
        for _ in range(40):
            await partition.append(texts("a", "b"))

        async def read() -> int:
            offset = 0
            while offset < 80:
                found = offsets(fetched := await partition.read(offset, 3))
                assert found == list(range(found[0], found[0] + 3))[: len(found)]
                offset = fetched.next_offset
            return offset

        readers = [asyncio.create_task(read()) for _ in range(3)]
        for before in range(0, 80, 6):
            await partition.trim(before)
            await asyncio.sleep(0)
        assert await asyncio.gather(*readers) == [80, 80, 80]


# -------------------------------------------------------------------------------------------------------------- closing


Act = Callable[[Partition], Any]

USES: dict[str, Act] = {
    "append": lambda partition: partition.append(texts("a")),
    "read": lambda partition: partition.read(0, 1),
    "read_last": lambda partition: partition.read_last(1),
    "read_from_time": lambda partition: partition.read_from_time(0, 1),
    "offset_at": lambda partition: partition.offset_at(0),
    "until": lambda partition: partition.until(10),
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
async def test_closing_answers_all_who_wait(tmp_path: Path, removed: bool, level: Durability) -> None:
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


async def test_offsets_under_way_do_not_bring_a_removed_partition_back_to_the_disk(
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


async def test_a_store_that_was_closed_holds_all_that_was_acknowledged(
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


async def test_small_batches_of_one_turn_go_to_the_disk_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with partition_in(tmp_path) as partition:
        orders: list[list[int]] = []
        write = partition._shard.write

        def watched(order: WriteItem) -> None:
            orders.append([len(entry.batch) for entry in order.entries])
            write(order)

        monkeypatch.setattr(partition._shard, "write", watched)
        small, large = sized(1, 96), sized(1, 256 * 1024 - 304)
        assert (len(small), len(large)) == (400, 256 * 1024)
        await asyncio.gather(*(partition.append(bytearray(small)) for _ in range(3)))
        assert orders == [[400, 400, 400]]
        orders.clear()
        await asyncio.gather(*(partition.append(bytearray(batch)) for batch in (small, large, small)))
        assert orders == [[400, 256 * 1024], [400]]


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


async def test_a_message_counts_as_64_bytes_and_what_it_carries_wherever_it_is(tmp_path: Path) -> None:
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
        future = partition.awaited(0)
        partition.not_awaited(future)
        assert len(partition._readers) == 0
        await partition.append(texts("a"))
        assert not future.done()
