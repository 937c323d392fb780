"""Purges and trims, while everything else continues."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from tests.storage.support.partitions import BUFFERED, CONSUMER, GROUP, progress
from tests.storage.support.world import (
    SlowDisk,
    offsets,
    opened,
    partition_in,
    payloads,
    settled,
    sized,
    stored,
    texts,
    with_topic,
)
from tests.support.clocks import NOON, Clock
from whippet.storage.errors import InvalidOffset, PartitionFailed, WriteFailed
from whippet.storage.files import Files
from whippet.storage.options import Durability


@pytest.mark.parametrize("level", Durability)
async def test_a_purged_partition_starts_over_at_offset_0(tmp_path: Path, level: Durability) -> None:
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
async def test_appends_flushes_reads_and_commits_continue_during_purges(tmp_path: Path, level: Durability) -> None:
    options = {**BUFFERED, "durability": level, "segment_bytes": 2000, "tail_bytes_max": 3000}
    options |= {"partition_unflushed_bytes_max": 4000, "unflushed_bytes_max": 6000}
    async with opened(tmp_path, shards=2, **options) as store:
        (partition,) = await with_topic(store)
        going = True

        async def pause() -> None:
            # An event loop that never idles gives threads a turn by chance only, on some machines once in seconds.
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


async def test_a_commit_is_refused_if_a_purge_comes_before_it(tmp_path: Path) -> None:
    """It refers to a deleted message. If it were stored, it would hide the first messages after the purge."""

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
        assert partition.slowest_reader is None


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


class Sticky(Files):
    """Removes no log while it is stuck."""

    stuck = False

    def remove(self, path: str) -> None:
        if self.stuck and path.endswith(".log"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().remove(path)


async def test_an_interrupted_purge_is_finished_by_reopening_the_partition(tmp_path: Path) -> None:
    disk = Sticky()
    async with opened(tmp_path, files=disk) as store:
        (partition,) = await with_topic(store)
        await partition.append(texts("a", "b"))
        await partition.store_offset(CONSUMER, 1, 1)
        disk.stuck = True
        with pytest.raises(WriteFailed):
            await partition.purge()
        with pytest.raises(PartitionFailed, match=r"a purge was interrupted \(Input/output error\); reopen it"):
            await partition.append(texts("refused"))
        disk.stuck = False
        await store.reopen(partition)
        assert progress(partition) == (0, 0, 0)
        assert partition.offset_of(CONSUMER, 1) is None
        assert (await partition.append(texts("new"))).base_offset == 0
        assert payloads(await partition.read(0, 9)) == [b"new"]


async def test_a_purge_wakes_waiting_readers(tmp_path: Path) -> None:
    """The offset that they wait for may be far away now."""

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


async def test_readers_continue_without_an_error_during_a_trim(tmp_path: Path) -> None:
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


async def test_what_is_appended_between_the_call_of_a_purge_and_its_beginning_is_written_and_purged(
    tmp_path: Path,
) -> None:
    async with partition_in(tmp_path, loop_append_bytes_max=0) as partition:
        await partition.append(texts("a"))
        purge = asyncio.create_task(partition.purge())
        append = asyncio.create_task(partition.append(texts("b")))
        commit = asyncio.create_task(partition.store_offset(CONSUMER, 1, 0))
        await asyncio.gather(purge, append, commit)
        assert append.result().base_offset == 1
        assert (partition.appended, partition.offset_of(CONSUMER, 1)) == (0, None)
        assert (await partition.append(texts("c"))).base_offset == 0


async def test_purges_that_begin_together_come_one_after_the_other(tmp_path: Path) -> None:
    async with partition_in(tmp_path) as partition:
        await partition.append(texts("a"))
        await asyncio.gather(*(partition.purge() for _ in range(3)))
        assert (partition.emptied, partition.appended) == (3, 0)
        assert (await partition.append(texts("b"))).base_offset == 0
