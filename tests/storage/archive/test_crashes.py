"""The process ends at each operation on the archive in turn. Nothing is lost, nothing appears twice, and nothing is
deleted locally unless the archive has it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.storage.archive.support.archives import Dying, archived, restore
from tests.storage.support.world import offsets, opened, sized, with_topic
from whippet.storage.archive.archiver import Archiver
from whippet.storage.options import StoreOptions
from whippet.storage.store import Store
from whippet.storage.survey import survey


async def work(store: Store, archiver: Archiver, rounds: int) -> None:
    """Appends, archives, deletes what may be deleted, and appends again."""
    (partition,) = await with_topic(store)
    for _ in range(rounds):
        for _ in range(4):
            await partition.append(sized(1, 100))
        await archiver.round()
        await store.retain(0, 0, expiry_us=0, max_bytes=None)


async def restored_offsets(tmp_path: Path, target: str) -> tuple[list[int], int]:
    """What a server has that was started from the archive, and its next offset."""
    restore(tmp_path, target)
    (found,) = survey(StoreOptions(path=str(tmp_path / target)))
    assert found.damage == []
    async with opened(tmp_path / target) as store:
        (partition,) = await with_topic(store)
        read = await partition.read(0, found.messages) if found.messages else None
        return ([] if read is None else offsets(read)), partition.appended


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_crash_at_any_operation_loses_nothing_and_stores_nothing_twice(tmp_path: Path, when: str) -> None:
    number = 0
    while True:
        folder = tmp_path / str(number)
        folder.mkdir()
        archive = Dying(folder / "archive", when)
        async with archived(folder, archive, protects_expired=True, segment_bytes=512) as (store, archiver):
            await work(store, archiver, 2)
            archive.die_at(number)
            await work(store, archiver, 2)
            (partition,) = await with_topic(store)
            first_local, end = partition.first_offset, partition.appended
        kept, next_offset = await restored_offsets(folder, "from the archive")
        assert kept == list(range(len(kept)))
        assert len(kept) >= max(first_local, 8), "what was deleted locally is in the archive"
        assert next_offset >= end, "no offset is given out twice"
        async with archived(folder, protects_expired=True, segment_bytes=512) as (store, archiver):
            assert await archiver.round()
        kept, _ = await restored_offsets(folder, "from the repaired archive")
        assert kept == list(range(end))
        shutil.rmtree(folder)
        if not archive.is_dead:
            break
        number += 1
    assert number > 15
