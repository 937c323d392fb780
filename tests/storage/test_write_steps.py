"""A partition that is far behind the disk is written in steps, each of which is reported when it is written."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.storage.support.numbered_sends import by
from tests.storage.support.partitions import SYNCED, WRITTEN, progress
from tests.storage.support.world import opened, partition_in, payloads, reached, settled, texts, with_topic
from tests.support.running import HANGS_S
from whippet.storage import shard, write_pipeline
from whippet.storage.appended import Appended
from whippet.storage.errors import WriteFailed
from whippet.storage.files import Buffer, Files
from whippet.storage.options import Durability
from whippet.storage.partition import Partition

BATCH = len(texts("0"))


@pytest.fixture(autouse=True)
def two_batches_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "STEP_BYTES", 2 * BATCH)


class CountedDisk(Files):
    """A disk on which each write to a log needs a permit."""

    def __init__(self) -> None:
        self.writes: list[tuple[str, int]] = []
        """The partition's folder, and how many batches."""
        self.fails_at = -1
        """The number of the write that fails."""
        self.permits = threading.Semaphore(0)
        self.reached = threading.Event()
        self._paths: dict[int, str] = {}
        self._writing = False

    def open_for_writing(self, path: str) -> int:
        handle = super().open_for_writing(path)
        self._paths[handle] = path
        return handle

    def write(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        path = self._paths.get(handle, "")
        if path.endswith(".log"):
            assert not self._writing, "two threads write at the same time"
            self._writing = True
            self.reached.set()
            assert self.permits.acquire(timeout=HANGS_S)
            self._writing = False
            self.writes.append((path.split("/")[-2], sum(map(len, buffers)) // BATCH))
            if len(self.writes) - 1 == self.fails_at:
                raise OSError(errno.EIO, "it fails once")
        return super().write(handle, buffers, position)

    def permit(self, writes: int) -> None:
        self.permits.release(writes)


async def _appending(
    disk: CountedDisk, partition: Partition, count: int, durability: Durability | None = None, *, numbered: bool = False
) -> list[asyncio.Task[Appended]]:
    """Appends that become work items of their own, all but the first after the disk has begun to write."""
    tasks = []
    for i in range(count):
        batch = texts(f"{i % 10}")
        append = (
            partition.append_once(batch, by(i + 1), durability) if numbered else partition.append(batch, durability)
        )
        tasks.append(asyncio.create_task(append))
        await settled()
        await reached(disk.reached)
    return tasks


async def test_each_step_is_reported_when_it_is_written(tmp_path: Path) -> None:
    disk = CountedDisk()
    async with partition_in(tmp_path, files=disk, loop_append_bytes_max=0) as partition:
        tasks = await _appending(disk, partition, 6)
        disk.permit(2)
        await asyncio.gather(*tasks[:3])
        await settled()
        assert not any(task.done() for task in tasks[3:])
        assert progress(partition) == (6, 3, 0)
        assert partition.unflushed_bytes == 3 * BATCH
        disk.permit(2)
        await asyncio.gather(*tasks)
        assert disk.writes == [("0", 1), ("0", 2), ("0", 2), ("0", 1)]
        assert payloads(await partition.read(0, 9)) == [b"0", b"1", b"2", b"3", b"4", b"5"]


async def test_the_loop_leaves_the_files_alone_until_the_last_step_is_written(tmp_path: Path) -> None:
    disk = CountedDisk()
    async with partition_in(tmp_path, files=disk) as partition:
        first = [asyncio.create_task(partition.append(texts(f"{i}"))) for i in range(5)]
        await reached(disk.reached)
        for step in range(1, 3):
            disk.permit(1)
            await asyncio.gather(*first[: 2 * step])
            assert partition.written == 2 * step
            late = asyncio.create_task(partition.append(texts(f"{4 + step}")))
            await settled()
            assert not late.done()
            first.append(late)
        disk.permit(9)
        await asyncio.gather(*first)
        assert payloads(await partition.read(0, 9)) == [b"%d" % i for i in range(7)]


async def test_a_step_makes_room_for_an_append_that_waits(tmp_path: Path) -> None:
    disk = CountedDisk()
    async with partition_in(
        tmp_path, files=disk, loop_append_bytes_max=0, partition_unflushed_bytes_max=5 * BATCH
    ) as partition:
        tasks = await _appending(disk, partition, 6)
        assert partition.appended == 5
        disk.permit(2)
        await asyncio.gather(*tasks[:3])
        await settled()
        assert partition.appended == 6
        disk.permit(9)
        await asyncio.gather(*tasks)


async def test_what_arrives_between_two_steps_comes_after_what_is_left(tmp_path: Path) -> None:
    disk = CountedDisk()
    async with partition_in(tmp_path, files=disk, loop_append_bytes_max=0) as partition:
        tasks = await _appending(disk, partition, 5)
        disk.permit(2)
        await asyncio.gather(*tasks[:3])
        late = asyncio.create_task(partition.append(texts("9")))
        await settled()
        size = partition._pipeline.call(lambda: partition._pipeline.log.size_bytes)
        disk.permit(9)
        assert await size == 6 * BATCH
        await asyncio.gather(*tasks, late)
        assert payloads(await partition.read(0, 9)) == [b"0", b"1", b"2", b"3", b"4", b"9"]


async def test_the_partitions_of_a_shard_take_turns(tmp_path: Path) -> None:
    disk = CountedDisk()
    async with opened(tmp_path, files=disk, loop_append_bytes_max=0) as store:
        busy, other = await with_topic(store, 2)
        tasks = await _appending(disk, busy, 6)
        tasks += await _appending(disk, other, 3)
        disk.permit(9)
        await asyncio.gather(*tasks)
        assert disk.writes == [("0", 1), ("0", 2), ("1", 2), ("0", 2), ("1", 1), ("0", 1)]


async def test_a_sync_is_not_put_off_by_steps(tmp_path: Path) -> None:
    disk = CountedDisk()
    async with partition_in(tmp_path, files=disk, loop_append_bytes_max=0) as partition:
        tasks = await _appending(disk, partition, 6)
        tasks += await _appending(disk, partition, 1, SYNCED)
        disk.permit(2)
        await asyncio.gather(*tasks)
        assert disk.writes == [("0", 1), ("0", 6)]
        assert progress(partition) == (7, 7, 7)


@pytest.mark.parametrize("numbered", [False, True])
async def test_after_a_step_that_fails_only_the_steps_before_it_are_there(tmp_path: Path, numbered: bool) -> None:
    disk = CountedDisk()
    async with partition_in(tmp_path, files=disk, loop_append_bytes_max=0) as partition:
        disk.fails_at = 2
        tasks = await _appending(disk, partition, 7, numbered=numbered)
        disk.permit(99)
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(answer, WriteFailed) for answer in answers] == [False] * 3 + [True] * 4
        assert progress(partition)[:2] == (3, 3)
        # A send that failed is not remembered: repeated, it is stored.
        for task in await _appending(disk, partition, 7, numbered=numbered):
            await task
        assert partition.written == (7 if numbered else 10)
        assert partition.unflushed_bytes == 0
        found = payloads(await partition.read(0, 99))
    assert found == [b"0", b"1", b"2", *([b"3", b"4", b"5", b"6"] if numbered else [b"%d" % i for i in range(7)])]
    async with partition_in(tmp_path) as partition:
        assert payloads(await partition.read(0, 99)) == found
        assert partition.durability is WRITTEN


async def test_the_loop_writes_again_after_a_step_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_pipeline, "SLOW_SECONDS", HANGS_S)
    disk = CountedDisk()
    async with opened(tmp_path, files=disk) as store:
        (partition,) = await with_topic(store)
        disk.fails_at = 1
        tasks = [asyncio.create_task(partition.append(texts(f"{i}"))) for i in range(5)]
        await reached(disk.reached)
        disk.permit(99)
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(answer, WriteFailed) for answer in answers] == [False] * 2 + [True] * 3
        for _ in range(3):
            await partition.append(texts("9"))
            await settled()
        assert store.shards[0].loop_writes > 0
        assert payloads(await partition.read(0, 9)) == [b"0", b"1", b"9", b"9", b"9"]
