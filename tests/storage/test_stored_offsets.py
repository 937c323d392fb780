"""Stored offsets: they survive restarts, and never point after the newest message."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path

import pytest

from tests.storage.support.disk import SimulatedDisk
from tests.storage.support.partitions import BUFFERED, CONSUMER, GROUP, SYNCED
from tests.storage.support.world import opened, partition_in, texts, with_topic
from tests.support.running import run
from whippet.storage.errors import InvalidOffset
from whippet.storage.options import Durability


@pytest.mark.parametrize("level", Durability)
async def test_a_stored_offset_is_known_after_a_restart(tmp_path: Path, level: Durability) -> None:
    options = {**BUFFERED, "durability": level, "respects_consumers": "all"}
    async with partition_in(tmp_path, **options) as partition:
        await partition.append(texts("a", "b", "c"))
        await partition.store_offset(CONSUMER, 1, 2)
        await partition.store_offset(GROUP, 1, 0)
        await partition.store_offset(CONSUMER, 1, 1)
        assert (partition.offset_of(CONSUMER, 1), partition.offset_of(GROUP, 1)) == (1, 0)
        assert partition.offset_of(CONSUMER, 2) is None
        assert partition.slowest_reader == (GROUP, 1, 0)
        assert await partition.delete_offset(GROUP, 1)
        assert not await partition.delete_offset(GROUP, 1)
        assert not await partition.delete_offset(GROUP, 2)
        assert partition.slowest_reader == (CONSUMER, 1, 1)
    async with partition_in(tmp_path, **options) as partition:
        assert (partition.offset_of(CONSUMER, 1), partition.offset_of(GROUP, 1)) == (1, None)


async def test_an_offset_acknowledged_from_memory_is_written_by_the_saver(tmp_path: Path) -> None:
    async with opened(tmp_path, **BUFFERED) as store:
        (partition,) = await with_topic(store)
        await partition.append(texts("a"))
        await store.save()
        needed = [partition.needs_saver]
        await partition.store_offset(CONSUMER, 1, 0)
        needed.append(partition.needs_saver)
        await store.save()
        assert [*needed, partition.needs_saver] == [False, True, False]
        assert list((tmp_path / "streams/0/topics/0/partitions/0/offsets/consumers").iterdir())


@pytest.mark.parametrize("level", Durability)
def test_a_power_failure_after_a_clean_stop_takes_no_message_and_no_stored_offset(level: Durability) -> None:
    async def life(disk: SimulatedDisk) -> None:
        async with opened("/data", files=disk, **{**BUFFERED, "durability": level}) as store:
            (partition,) = await with_topic(store)
            await partition.append(texts("a", "b", "c"))
            await partition.store_offset(CONSUMER, 1, 2)
            await partition.store_offset(GROUP, 1, 0)

    async def found(disk: SimulatedDisk) -> tuple[int, int | None, int | None]:
        async with opened("/data", files=disk) as store:
            (partition,) = await with_topic(store)
            return partition.appended, partition.offset_of(CONSUMER, 1), partition.offset_of(GROUP, 1)

    disk = SimulatedDisk()
    run(life(disk))
    for seed in range(10):
        assert run(found(disk.power_cut(random.Random(seed)))) == (3, 2, 0)


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
    """A crash may lose messages that the consumer has already read. It has not read the new ones in their place."""

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


async def test_a_stored_offset_is_deleted_if_no_message_is_left(tmp_path: Path) -> None:
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


async def test_many_offsets_can_be_stored_at_once(tmp_path: Path) -> None:
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
