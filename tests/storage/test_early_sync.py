"""Much is synced beside the shard's thread first, so that nobody waits for the disk meanwhile."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.storage.support.world import offsets, opened, texts, with_topic
from tests.support.running import HANGS_S
from whippet.storage import early_sync, write_pipeline
from whippet.storage.errors import PartitionClosed, PartitionFailed
from whippet.storage.files import Files
from whippet.storage.options import Durability
from whippet.storage.partition import Partition


class Beside(Files):
    """A disk whose syncs on other threads than the shard's wait until they may go on, and can fail."""

    def __init__(self) -> None:
        self.begun: asyncio.Event = asyncio.Event()
        self.going = threading.Event()
        self.failure = 0
        self.shard_failure = 0
        self.early = 0
        self._loop = asyncio.get_running_loop()

    def sync(self, handle: int) -> None:
        if not threading.current_thread().name.startswith("shard-"):
            self.early += 1
            self._loop.call_soon_threadsafe(self.begun.set)
            self.going.wait()
            if self.failure:
                raise OSError(self.failure, os.strerror(self.failure))
        elif self.shard_failure:
            raise OSError(self.shard_failure, os.strerror(self.shard_failure))
        super().sync(handle)


@pytest.fixture(autouse=True)
def _early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_sync, "EARLY_BYTES", 2 * len(texts("x")))


async def flushing(partition: Partition, disk: Beside) -> asyncio.Task[Durability]:
    """A flush that has begun its early sync."""
    task = asyncio.create_task(partition.flush(sync=True))
    await disk.begun.wait()
    return task


async def fill(partition: Partition, batches: int = 2) -> None:
    for _ in range(batches):
        await partition.append(texts("x"))


async def test_during_an_early_sync_the_partition_is_written_by_its_shard_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_pipeline, "SLOW_SECONDS", HANGS_S)
    disk = Beside()
    async with opened(tmp_path, files=disk, tail_bytes_max=0) as store:
        (partition,) = await with_topic(store)
        await fill(partition, 3)
        (shard,) = store.shards
        on_loop = shard.loop_writes
        flush = await flushing(partition, disk)
        await fill(partition)
        assert offsets(await partition.read(0, 9)) == [0, 1, 2, 3, 4]
        assert (shard.loop_writes, partition.synced) == (on_loop, 0)
        assert not flush.done()
        disk.going.set()
        assert await flush is Durability.SYNCED
        assert (partition.synced, disk.early) == (5, 1)
        await fill(partition)
        assert shard.loop_writes > on_loop


async def test_little_is_synced_by_the_shard_alone(tmp_path: Path) -> None:
    disk = Beside()
    disk.going.set()
    async with opened(tmp_path, files=disk) as store:
        (partition,) = await with_topic(store)
        for round_number in range(1, 4):
            await fill(partition, 1)
            await partition.flush(sync=True)
            assert partition.synced == round_number
        assert disk.early == 0


async def test_a_failed_early_sync_counts_as_a_failed_sync(tmp_path: Path) -> None:
    disk = Beside()
    disk.going.set()
    disk.failure = errno.EIO
    async with opened(tmp_path, files=disk) as store:
        (partition,) = await with_topic(store)
        await fill(partition)
        with pytest.raises(PartitionFailed, match="a sync failed"):
            await partition.flush(sync=True)
        assert partition.synced == 0
        with pytest.raises(PartitionFailed):
            await partition.append(texts("y"))
        disk.failure = 0
        await store.save()
        assert (partition.failed, partition.synced) == (None, 2)
        assert (await partition.append(texts("y"))).base_offset == 2


async def purge(partition: Partition) -> None:
    await partition.purge()


async def trim(partition: Partition) -> None:
    assert await partition.trim(partition.appended)


@pytest.mark.parametrize("act", [purge, trim])
@pytest.mark.parametrize("failure", [0, errno.EIO], ids=["well", "failing"])
async def test_files_may_be_deleted_during_an_early_sync(
    tmp_path: Path, act: Callable[[Partition], Awaitable[None]], failure: int
) -> None:
    disk = Beside()
    disk.failure = failure
    async with opened(tmp_path, files=disk, segment_bytes=600) as store:
        (partition,) = await with_topic(store)
        await fill(partition, 5)
        flush = await flushing(partition, disk)
        await act(partition)
        disk.going.set()
        if failure:
            with pytest.raises(PartitionFailed):
                await flush
            disk.failure = 0
            await store.save()
        else:
            assert await flush is Durability.SYNCED
        end = partition.appended
        assert (await partition.append(texts("y"))).base_offset == end


@pytest.mark.parametrize("failure", [0, errno.EIO], ids=["well", "failing"])
async def test_a_partition_may_be_removed_during_an_early_sync(
    tmp_path: Path, failure: int, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Beside()
    disk.failure = failure
    async with opened(tmp_path, files=disk) as store:
        (partition,) = await with_topic(store)
        await fill(partition, 5)
        flush = await flushing(partition, disk)
        await store.remove_stream(0)
        disk.going.set()
        with pytest.raises(PartitionClosed):
            await flush
    assert not list(tmp_path.rglob("*.log"))
    assert "a sync failed" not in caplog.text


async def test_an_early_sync_that_fails_after_its_partition_was_reopened_does_not_count(tmp_path: Path) -> None:
    disk = Beside()
    async with opened(tmp_path, files=disk) as store:
        (partition,) = await with_topic(store)
        await fill(partition, 5)
        flush = await flushing(partition, disk)
        disk.shard_failure = errno.EIO
        with pytest.raises(PartitionFailed):
            await partition.append(texts("y"), Durability.SYNCED)
        disk.shard_failure = 0
        await store.reopen(partition)
        disk.failure = errno.EIO
        disk.going.set()
        assert await flush is Durability.SYNCED
        assert partition.failed is None
        disk.failure = 0
