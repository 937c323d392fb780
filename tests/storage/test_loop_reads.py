"""Small reads that the event loop makes itself, from what the operating system has in memory."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.storage.support.world import offsets, opened, partition_in, payloads, settled, sized, texts, with_topic
from tests.support.clocks import Clock
from whippet.storage.files import Buffer, Files
from whippet.storage.handles import Handles, Loan
from whippet.storage.log import LOOP_READ_BYTES_MAX
from whippet.storage.partition import Partition
from whippet.storage.shard import Shard

LOG = "streams/0/topics/0/partitions/0/00000000000000000000.log"


class Warm(Files):
    """Has everything in memory, on file systems that cannot tell as well."""

    def read_cached(self, handle: int, length: int, position: int) -> Buffer | None:
        content = self.read(handle, length, position)
        return content if len(content) == length else None


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The calls that a shard has run."""
    found: list[Any] = []
    call = Shard.call

    def counted(self: Shard, function: Callable[[], Any], **options: Any) -> Any:
        found.append(function)
        return call(self, function, **options)

    monkeypatch.setattr(Shard, "call", counted)
    yield found


async def filled(partition: Partition, messages: int = 30) -> None:
    for number in range(messages):
        await partition.append(texts(f"{number}"))


async def test_a_few_messages_of_the_last_segment_are_read_without_the_shard(tmp_path: Path, calls: list[Any]) -> None:
    async with partition_in(tmp_path, files=Warm(), tail_bytes_max=0) as partition:
        await filled(partition)
        calls.clear()
        assert payloads(await partition.read(7, 3)) == [b"7", b"8", b"9"]
        assert payloads(await partition.read(29, 9)) == [b"29"]
        assert payloads(await partition.read(0, 1, room=1)) == [b"0"]
        assert not calls


async def test_what_is_not_in_memory_is_left_to_the_shard(tmp_path: Path, calls: list[Any]) -> None:
    class Cold(Files):
        def read_cached(self, handle: int, length: int, position: int) -> Buffer | None:
            return None

    async with partition_in(tmp_path, files=Cold(), tail_bytes_max=0) as partition:
        await filled(partition)
        calls.clear()
        assert payloads(await partition.read(7, 3)) == [b"7", b"8", b"9"]
        assert len(calls) == 1


async def test_large_reads_and_segments_that_are_not_open_are_left_to_the_shard(
    tmp_path: Path, calls: list[Any]
) -> None:
    async with partition_in(tmp_path, files=Warm(), tail_bytes_max=0, segment_bytes=600_000) as partition:
        for _ in range(7):
            await partition.append(sized(1, 100_000))
        await partition.append(texts("last"))
        await partition.append(texts("last"))
        assert (await partition.closed_segments())[-1].next_offset == 6
        for offset, count, through_shard in (
            (6, 1, False),
            (6, 9, False),
            (0, 1, True),
            (1, 2, False),
            (5, 4, False),
            (0, 3, True),
        ):
            calls.clear()
            assert offsets(await partition.read(offset, count)) == list(range(offset, min(offset + count, 9)))
            assert bool(calls) is through_shard, (offset, count)
    assert LOOP_READ_BYTES_MAX < 300_000
    async with partition_in(tmp_path / "other", files=Warm(), tail_bytes_max=0) as partition:
        for _ in range(3):
            await partition.append(sized(1, 100_000))
        for count, through_shard in ((2, False), (3, True)):
            calls.clear()
            assert len(offsets(await partition.read(0, count))) == count
            assert bool(calls) is through_shard


async def test_a_segment_that_was_only_read_is_read_without_the_shard_from_the_second_time_on(
    tmp_path: Path, calls: list[Any]
) -> None:
    async with partition_in(tmp_path, segment_bytes=4000) as partition:
        await filled(partition)
    async with opened(tmp_path, files=Warm(), tail_bytes_max=0) as store:
        (partition,) = await with_topic(store)
        first, second = (segment.next_offset for segment in (await partition.closed_segments())[:2])
        assert 2 < first < second - 2
        for offset, through_shard in (
            (0, True),
            (0, False),
            (first - 1, False),
            (first, True),
            (first, False),
            (1, True),
            (1, False),
            (29, True),
            (29, False),
        ):
            calls.clear()
            assert payloads(await partition.read(offset, 1)) == [str(offset).encode()]
            assert bool(calls) is through_shard, offset
        await partition.append(texts("30"))
        await partition.append(texts("31"))
        calls.clear()
        assert payloads(await partition.read(28, 9)) == [b"28", b"29", b"30", b"31"]
        assert not calls


async def test_damage_in_a_closed_segment_is_found_whoever_reads_it(tmp_path: Path) -> None:
    async with partition_in(tmp_path, segment_bytes=4000) as partition:
        await filled(partition)
    content = bytearray((tmp_path / LOG).read_bytes())
    content[3 * len(texts("3")) + 300] ^= 1
    (tmp_path / LOG).write_bytes(content)
    async with opened(tmp_path, files=Warm(), tail_bytes_max=0) as store:
        (partition,) = await with_topic(store)
        for offset in range(3):
            assert payloads(await partition.read(offset, 1)) == [str(offset).encode()]
        assert not store.damage
        assert payloads(await partition.read(3, 2)) == [b"4", b"5"]
        assert len(store.damage) == 1


@pytest.mark.parametrize("act", ["purge", "trim", "evict", "forget the index"])
async def test_a_closed_segment_that_is_gone_or_not_open_is_not_read_on_the_loop(tmp_path: Path, act: str) -> None:
    async with partition_in(tmp_path, segment_bytes=4000) as partition:
        await filled(partition)
    async with opened(tmp_path, files=Warm(), tail_bytes_max=0, open_files_max=2) as store:
        (partition,) = await with_topic(store)
        await partition.read(0, 1)
        await partition.read(0, 1)
        pipeline = partition._pipeline
        assert pipeline.read_on_loop(0, 1, 10_000, 30) is not None
        (shard,) = store.shards
        if act == "purge":
            await partition.purge()
            assert (await partition.append(texts("new"))).base_offset == 0
            assert payloads(await partition.read(0, 1)) == [b"new"]
        elif act == "trim":
            assert await partition.trim(partition.appended)
            assert pipeline.read_on_loop(0, 1, 10_000, 30) is None
        else:
            if act == "evict":
                for name in "ab":
                    shard.handles.writing(f"{tmp_path}/{name}")
            else:
                segment = pipeline.log.segments[0]
                shard.indexes.drop(segment)
                assert segment.index is None
            assert pipeline.read_on_loop(0, 1, 10_000, 30) is None
            assert payloads(await partition.read(0, 2)) == [b"0", b"1"]


async def test_a_segment_that_was_read_to_its_end_before_a_purge_has_no_effect_after_it(tmp_path: Path) -> None:
    async with partition_in(tmp_path, segment_bytes=4000) as partition:
        await filled(partition)
    async with opened(tmp_path, files=Warm(), tail_bytes_max=0) as store:
        (partition,) = await with_topic(store)
        (first, *_) = await partition.closed_segments()
        for offset in range(first.next_offset):
            await partition.read(offset, 1)
        await partition.purge()
        await filled(partition, 2)
        await partition.flush(sync=True)
        # It ends the loan of the last segment for writing, and this begins it again.
        await filled(partition, 2)
        await partition.flush(sync=True)
        await partition._pipeline.call(lambda: partition._pipeline.log.read(0, 1, 10_000, 4))
        await filled(partition, 2)
        assert len(offsets(await partition.read(0, 99))) == 6


def test_a_loan_ends_before_its_handle_is_closed(tmp_path: Path) -> None:
    class Watched(Files):
        def close(self, handle: int) -> None:
            assert loan is None or loan.read_cached(self, 1, 0) is None
            super().close(handle)

    files, loan = Warm(), None
    watched = Watched()
    path = f"{tmp_path}/file"
    (tmp_path / "file").write_bytes(b"content")
    handles = Handles(watched, 2)
    assert handles.lend_for_reading(path) is None
    handles.reading(path)
    loan = handles.lend_for_reading(path)
    assert loan is not None
    assert handles.lend_for_reading(path) is loan
    assert loan.read_cached(files, 4, 3) == b"tent"
    # Opening it for writing closes the handle for reading.
    handles.writing(path)
    assert loan.read_cached(files, 4, 3) is None
    loan = handles.lend_for_reading(path)
    assert loan is not None
    assert loan.read_cached(files, 4, 3) == b"tent"
    handles.close()
    assert loan.read_cached(files, 4, 3) is None


def test_a_loan_that_is_about_to_end_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    files = Warm()
    handle = files.open_for_reading(f"{tmp_path}/file")
    loan = Loan(handle)
    with loan._lock:
        assert loan.read_cached(files, 4, 0) is None
    assert loan.read_cached(files, 4, 0) == b"cont"
    files.close(handle)


async def test_while_the_shard_has_work_for_the_partition_it_reads_as_well(tmp_path: Path, calls: list[Any]) -> None:
    going = threading.Event()
    async with partition_in(tmp_path, files=Warm(), tail_bytes_max=0) as partition:
        await filled(partition)
        first = partition._pipeline.call(going.wait)
        calls.clear()
        meanwhile = partition._pipeline.read_on_loop(0, 1, 10_000, 30)
        going.set()
        await first
        assert meanwhile is None
        assert partition._pipeline.read_on_loop(0, 1, 10_000, 30) is not None


async def test_while_the_shard_has_batches_of_the_partition_to_write_it_reads_as_well(tmp_path: Path) -> None:
    going = threading.Event()
    async with partition_in(tmp_path, files=Warm(), tail_bytes_max=0, loop_append_bytes_max=0) as partition:
        await filled(partition)
        first = partition._pipeline._shard.call(going.wait)
        append = asyncio.create_task(partition.append(texts("x")))
        await settled()
        meanwhile = partition._pipeline.read_on_loop(0, 1, 10_000, 30)
        going.set()
        await asyncio.gather(first, append)
        assert meanwhile is None
        assert partition._pipeline.read_on_loop(0, 1, 10_000, 30) is not None


async def test_damage_that_the_loop_meets_is_reported_and_the_messages_around_it_are_served(tmp_path: Path) -> None:
    async with partition_in(tmp_path) as partition:
        await filled(partition, 10)
    content = bytearray((tmp_path / LOG).read_bytes())
    size = len(content) // 10
    content[4 * size + 300] ^= 1
    (tmp_path / LOG).write_bytes(content)
    async with opened(tmp_path, files=Warm(), tail_bytes_max=0) as store:
        (partition,) = await with_topic(store)
        await partition.append(texts("10"))
        assert payloads(await partition.read(3, 1)) == [b"3"]
        assert payloads(await partition.read(4, 2)) == [b"5", b"6"]
        assert len(store.damage) == 1


@pytest.mark.parametrize("seed", range(4))
async def test_the_loop_reads_what_the_shard_reads(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    async with partition_in(tmp_path, files=Warm(), tail_bytes_max=0, segment_bytes=40_000) as partition:
        for _ in range(120):
            await partition.append(sized(chance.choice((1, 1, 2, 20)), chance.choice((1, 30, 300))))
        log = partition._pipeline.log
        end, compared = partition.readable, 0
        for _ in range(400):
            offset, count = chance.randrange(end), chance.choice((1, 2, 7, 100))
            room, until = chance.choice((1, 400, 3000, 1 << 20)), chance.choice((end, chance.randint(offset + 1, end)))
            found = log.read_on_loop(offset, count, room, until)
            if found is None:
                continue
            compared += 1
            expected = await partition._pipeline.call(lambda: log.read(offset, count, room, until))  # noqa: B023
            assert (b"".join(found.buffers), *found[1:]) == (b"".join(expected.buffers), *expected[1:])
        assert compared > 20


def test_a_cached_read_is_whole_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    files = Files()
    # Files of tests may be in a tmpfs, which cannot tell what is in memory.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        handle = files.open_for_writing(f"{folder}/file")
        try:
            files.write(handle, (b"0123456789",), 0)
            known = files.read_cached(handle, 4, 3)
            if known is None:
                pytest.skip("the file system of /var/tmp cannot tell what is in memory")
            assert bytes(known) == b"3456"
            assert files.read_cached(handle, 8, 3) is None

            def refuse(*_: object) -> int:
                raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

            monkeypatch.setattr(os, "preadv", refuse)
            assert files.read_cached(handle, 4, 3) is None
        finally:
            files.close(handle)


async def test_a_time_in_the_last_segment_is_looked_up_without_the_shard(tmp_path: Path, calls: list[Any]) -> None:
    clock = Clock()
    async with partition_in(tmp_path, clock=clock, tail_bytes_max=0, segment_bytes=1200) as partition:
        began = clock.now
        for number in range(10):
            clock.now = began + 10 * number
            await partition.append(texts(f"{number}"))
        start = (await partition.closed_segments())[-1].next_offset
        assert 0 < start < 9
        for number in range(start, 10):
            for time, expected in ((began + 10 * number, number), (began + 10 * number + 1, number + 1)):
                calls.clear()
                assert await partition.offset_at(time) == expected
                # Whether the message before the first one of the segment is older is not known without its index.
                assert bool(calls) is (time == began + 10 * start)
        calls.clear()
        assert await partition.offset_at(began) == 0
        assert len(calls) == 1


async def test_a_time_in_the_only_segment_is_looked_up_without_the_shard(tmp_path: Path, calls: list[Any]) -> None:
    clock = Clock()
    async with partition_in(tmp_path, clock=clock, tail_bytes_max=0) as partition:
        assert await partition.offset_at(clock.now) == 0
        began = clock.now
        for number in range(4):
            clock.now = began + 10 * number
            await partition.append(texts(f"{number}"))
        calls.clear()
        assert [await partition.offset_at(began + time) for time in (-5, 0, 1, 10, 29, 30, 31)] == [0, 0, 1, 1, 3, 3, 4]
        assert not calls
        going = threading.Event()
        first = partition._pipeline.call(going.wait)
        assert partition._pipeline.offset_on_loop(began) is None
        going.set()
        await first
