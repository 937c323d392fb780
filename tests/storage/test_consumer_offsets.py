"""Stored offsets on their way to the files: acknowledged ones stay, whatever happens to other rounds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.storage.support.world import opened, partition_in, reached, settled, texts, with_topic
from tests.support.running import HANGS_S
from whippet.storage import consumer_offsets
from whippet.storage.errors import InvalidOffset, PartitionFailed, TooManyOffsets, WriteFailed
from whippet.storage.files import Buffer, Files
from whippet.storage.offsets import Kind
from whippet.storage.options import Durability
from whippet.storage.partition import Partition

CONSUMER = Kind.CONSUMER

UNAWAITED: dict[str, Any] = {"durability": Durability.MEMORY, "messages_required_to_save": 10, "saver_interval_s": None}
"""Offsets are acknowledged from memory, and there is no saver that writes them."""


class FailsOnce(Files):
    """A disk whose next write to an offset file waits for a signal and then fails."""

    def __init__(self) -> None:
        self.armed = False
        self.reached = threading.Event()
        self.going = threading.Event()
        self._paths: dict[int, str] = {}

    def open_for_writing(self, path: str) -> int:
        handle = super().open_for_writing(path)
        self._paths[handle] = path
        return handle

    def write(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        if self.armed and "/offsets/" in self._paths.get(handle, ""):
            self.armed = False
            self.reached.set()
            assert self.going.wait(HANGS_S)
            raise OSError(28, "No space left on device")
        return super().write(handle, buffers, position)


async def failing(disk: FailsOnce, partition: Partition, offset: int) -> asyncio.Task[None]:
    """A commit that has reached the disk and will fail."""
    disk.armed = True
    commit = asyncio.create_task(partition.store_offset(CONSUMER, 1, offset))
    await reached(disk.reached)
    return commit


@pytest.mark.parametrize("begun", [False, True])
async def test_an_acknowledged_offset_outlives_an_older_commit_that_failed(tmp_path: Path, begun: bool) -> None:
    disk = FailsOnce()
    async with opened(tmp_path, files=disk) as store:
        (partition,) = await with_topic(store)
        await partition.append(texts(*(b"x" for _ in range(100))))
        if begun:
            await partition.store_offset(CONSUMER, 1, 1)
        failed = await failing(disk, partition, 20)
        newer = asyncio.create_task(partition.store_offset(CONSUMER, 1, 90))
        await settled()
        disk.going.set()
        with pytest.raises(WriteFailed):
            await failed
        await newer
        assert partition.offset_of(CONSUMER, 1) == 90
    async with partition_in(tmp_path) as partition:
        assert partition.offset_of(CONSUMER, 1) == 90


async def test_a_deleted_offset_does_not_come_back_with_an_older_commit_that_failed(tmp_path: Path) -> None:
    disk = FailsOnce()
    async with opened(tmp_path, files=disk) as store:
        (partition,) = await with_topic(store)
        await partition.append(texts("a", "b"))
        failed = await failing(disk, partition, 1)
        deleted = asyncio.create_task(partition.delete_offset(CONSUMER, 1))
        await settled()
        disk.going.set()
        with pytest.raises(WriteFailed):
            await failed
        assert await deleted
    async with partition_in(tmp_path) as partition:
        assert partition.offset_of(CONSUMER, 1) is None


async def test_a_purged_partition_has_no_offset_of_a_commit_that_failed_before(tmp_path: Path) -> None:
    disk = FailsOnce()
    async with opened(tmp_path, files=disk) as store:
        (partition,) = await with_topic(store)
        await partition.append(texts("a", "b"))
        failed = await failing(disk, partition, 1)
        purged = asyncio.create_task(partition.purge())
        await settled()
        disk.going.set()
        with pytest.raises(WriteFailed):
            await failed
        await purged
        await partition.append(texts("c", "d"))
    async with partition_in(tmp_path) as partition:
        assert partition.offset_of(CONSUMER, 1) is None


async def test_a_commit_that_failed_is_written_with_the_next_round(tmp_path: Path) -> None:
    disk = FailsOnce()
    async with opened(tmp_path, files=disk) as store:
        (partition,) = await with_topic(store)
        await partition.append(texts("a", "b"))
        failed = await failing(disk, partition, 1)
        disk.going.set()
        with pytest.raises(WriteFailed):
            await failed
        await partition.store_offset(CONSUMER, 2, 0)
    async with partition_in(tmp_path) as partition:
        assert (partition.offset_of(CONSUMER, 1), partition.offset_of(CONSUMER, 2)) == (1, 0)


async def test_a_flush_fails_if_an_offset_acknowledged_from_memory_cannot_be_written(tmp_path: Path) -> None:
    disk = FailsOnce()
    disk.going.set()
    async with partition_in(tmp_path, files=disk, **UNAWAITED) as partition:
        await partition.append(texts("a"))
        await partition.flush()
        await partition.store_offset(CONSUMER, 1, 0)
        disk.armed = True
        with pytest.raises(WriteFailed):
            await partition.flush()
        await partition.flush()
        assert (tmp_path / "streams/0/topics/0/partitions/0/offsets/consumers/1").exists()


async def test_a_reader_has_the_name_under_which_it_stored_its_offset_until_that_is_deleted(tmp_path: Path) -> None:
    async with partition_in(tmp_path) as partition:

        def names() -> list[str | None]:
            return [partition.reader_name(CONSUMER, identity) for identity in (1, 2, 3)]

        await partition.append(texts("a", "b"))
        await partition.store_offset(CONSUMER, 1, 0, "billing")
        await partition.store_offset(CONSUMER, 2, 0)
        assert names() == ["billing", None, None]
        await partition.store_offset(CONSUMER, 1, 1)
        assert names() == ["billing", None, None]
        await partition.delete_offset(CONSUMER, 1)
        await partition.store_offset(CONSUMER, 2, 0, "archive")
        assert names() == [None, "archive", None]
        await partition.purge()
        assert names() == [None, None, None]


# --------------------------------------------------------------------------------------------------------------- limits


async def test_consumers_that_come_and_go_leave_nothing_in_memory(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        (partition,) = await with_topic(store)
        await partition.append(texts("a"))
        kept = partition._offsets
        for number in range(200):
            # At the same time, so that both are written in one round.
            await asyncio.gather(
                partition.store_offset(CONSUMER, number, 0, f"consumer {number}"),
                partition.delete_offset(CONSUMER, number),
            )
        sizes = [len(each) for each in (kept._stored, kept._names, kept._changed, kept.files._sequences)]
        assert sizes == [0] * 4
        assert kept._counts.total() == 0


async def test_changes_that_nobody_waits_for_do_not_accumulate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_offsets, "CHANGES_MAX", 20)
    async with partition_in(tmp_path, **UNAWAITED) as partition:
        await partition.append(texts("a"))
        await partition.flush()
        longest = 0
        for number in range(100):
            await partition.store_offset(CONSUMER, number, 0)
            await partition.delete_offset(CONSUMER, number)
            longest = max(longest, len(partition._offsets._changed))
            await asyncio.sleep(0)
        assert longest <= 2 * 20


async def test_changes_that_nobody_waits_for_are_written_once_they_are_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_offsets, "CHANGES_MAX", 5)
    async with partition_in(tmp_path, **UNAWAITED) as partition:

        async def files() -> int:
            await settled()
            await partition.closed_segments()  # The shard has executed what was posted before.
            return len(list((tmp_path / "streams/0/topics/0/partitions/0/offsets").rglob("?")))

        await partition.append(texts("a"))
        await partition.flush()
        for number in range(4):
            await partition.store_offset(CONSUMER, number, 0)
        assert await files() == 0
        await partition.store_offset(CONSUMER, 4, 0)
        assert await files() == 5


async def test_an_offset_beyond_the_limit_is_refused_at_once_and_later(tmp_path: Path) -> None:
    async with opened(tmp_path, consumer_offsets_max=2) as store:
        (partition,) = await with_topic(store)
        await partition.append(texts("a", "b"))
        commits = [partition.store_offset(CONSUMER, number, 0) for number in range(5)]
        found = await asyncio.gather(*commits, return_exceptions=True)
        assert [type(each) for each in found] == [type(None)] * 2 + [TooManyOffsets] * 3
        assert sorted(partition.readers(CONSUMER)) == [0, 1]
        await partition.store_offset(CONSUMER, 1, 1)
        await partition.store_offset(Kind.GROUP, 7, 1)
    async with opened(tmp_path, consumer_offsets_max=1) as store:
        (partition,) = store.partitions_of(0, 0)
        assert sorted(partition.readers(CONSUMER)) == [0, 1]
        await partition.store_offset(CONSUMER, 0, 1)
        await partition.delete_offset(CONSUMER, 1)
        with pytest.raises(TooManyOffsets, match=r"system\.partition\.consumer_offsets_max = 1"):
            await partition.store_offset(CONSUMER, 1, 1)


async def test_the_offset_of_an_external_group_is_kept_unchanged_and_does_not_stop_retention(tmp_path: Path) -> None:
    async with opened(tmp_path, respects_consumers="all") as store:
        (partition,) = await with_topic(store)
        await partition.store_offset(Kind.EXTERNAL_GROUP, 1, 1_000_000)
        assert partition.slowest_reader is None
        with pytest.raises(InvalidOffset):
            await partition.store_offset(Kind.EXTERNAL_GROUP, 1, -1)
    async with opened(tmp_path, respects_consumers="all") as store:
        (partition,) = store.partitions_of(0, 0)
        assert partition.offset_of(Kind.EXTERNAL_GROUP, 1) == 1_000_000
        assert partition.offset_of(Kind.GROUP, 1) is None
        assert partition.slowest_reader is None


class FailingSyncs(Files):
    """A disk whose next sync of a log fails."""

    failing = False

    def sync(self, handle: int) -> None:
        if self.failing:
            self.failing = False
            raise OSError(5, "I/O error")
        super().sync(handle)


async def test_offsets_in_an_empty_partition_outlive_that_it_is_reopened(tmp_path: Path) -> None:
    disk = FailingSyncs()
    async with opened(tmp_path, files=disk) as store:
        (partition,) = await with_topic(store)
        for offset in range(1, 4):
            await partition.store_offset(Kind.EXTERNAL_GROUP, 1, offset)
            disk.failing = True
            with pytest.raises(PartitionFailed):
                await partition.flush(sync=True)
            assert partition.needs_saver
            await store.save()
            assert (partition.failed, partition.emptied) == (None, 0)
            assert partition.offset_of(Kind.EXTERNAL_GROUP, 1) == offset
    async with opened(tmp_path) as store:
        (partition,) = store.partitions_of(0, 0)
        assert partition.offset_of(Kind.EXTERNAL_GROUP, 1) == 3
