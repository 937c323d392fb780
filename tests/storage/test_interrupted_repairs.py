"""Repairs that are killed or meet a full disk, and folders that are refused."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.storage.support.damages import DAMAGES, a_changed_batch, a_missing_folder, garbled
from tests.storage.support.repairs import (
    Dying,
    Killed,
    Mirrored,
    findings,
    mirrored,
)
from tests.storage.support.world import opened
from whippet.storage.errors import RepairRefused, StoreLocked, UnsupportedFormat
from whippet.storage.files import Buffer, Files
from whippet.storage.options import StoreOptions
from whippet.storage.repair import Repair
from whippet.storage.survey import survey


def readable_in(folder: Mirrored) -> int:
    return sum(found.messages for found in survey(folder.store_options()))


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
async def test_a_repair_that_is_killed_at_any_step_loses_nothing_and_can_be_repeated(
    tmp_path: Path, damage: Callable[[Mirrored], None]
) -> None:
    folder = await mirrored(tmp_path, "zstd, encrypted")
    steps = 0
    while True:
        damage(folder)
        there = readable_in(folder) if (folder.data / "FORMAT").exists() else 0
        files = Dying(steps)
        try:
            folder.repair(files)
        except Killed:
            pass
        else:
            break
        if (folder.data / "FORMAT").exists():
            assert readable_in(folder) >= there, steps
        assert all(each.repaired for each in findings(folder.repair())), steps
        assert folder.damage() == []
        after = {name: content for name, content in folder.files().items() if not name.startswith("staging/")}
        left_out = {name for name in after if name not in folder.before}
        assert {name: after.get(name) for name in folder.before} == folder.before or damage is a_missing_folder, steps
        assert not left_out or damage is a_missing_folder
        folder.reset()
        steps += 1
    assert steps > 2


class Full(Files):
    """A disk without room."""

    def write(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
async def test_on_a_full_disk_nothing_changes(tmp_path: Path, damage: Callable[[Mirrored], None]) -> None:
    folder = await mirrored(tmp_path)
    damage(folder)
    before = folder.files()
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        folder.repair(Full())
    after = folder.files()
    assert {name: after.get(name) for name in before} == before
    assert all(not content for name, content in after.items() if name not in before)
    assert all(each.repaired for each in findings(folder.repair()))
    assert folder.damage() == []


async def test_a_folder_that_a_server_has_open_is_refused(tmp_path: Path) -> None:
    folder = await mirrored(tmp_path)
    async with opened(folder.data):
        with pytest.raises(StoreLocked):
            folder.repair()


async def test_the_archive_of_another_folder_is_refused(tmp_path: Path) -> None:
    one, other = await mirrored(tmp_path / "one"), await mirrored(tmp_path / "other")
    a_changed_batch(one)
    (one.root / "archive").rename(one.root / "its own")
    (other.root / "archive").rename(one.root / "archive")
    with pytest.raises(RepairRefused, match="the archive of another data folder"):
        one.repair()
    (one.data / "FORMAT").unlink()
    with pytest.raises(RepairRefused, match="not certain"):
        one.repair()


@pytest.mark.parametrize("name", ["RESTORING", "placement.json"])
async def test_a_folder_that_another_tool_has_to_finish_is_refused(tmp_path: Path, name: str) -> None:
    folder = await mirrored(tmp_path)
    (folder.data / name).write_text("{}")
    with pytest.raises(RepairRefused):
        folder.repair()


async def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFormat, match="not a data folder"):
        list(Repair(StoreOptions(path=str(tmp_path)), Files(), None).run())
    assert list(tmp_path.iterdir()) == []


async def test_a_partition_whose_deletion_was_interrupted_is_not_touched(tmp_path: Path) -> None:
    folder = await mirrored(tmp_path)
    (folder.partition / "intent.json").write_text('{"purge":true}')
    garbled(folder.logs()[0])
    (outcome, _) = folder.repair()
    assert outcome.findings == []
    assert "a deletion was in progress" in outcome.notes[0]
