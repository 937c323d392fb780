"""Epochs: a reader that remembers an offset and its epoch never takes another message for the next one."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.storage.support.world import opened, partition_in, texts, with_topic
from whippet.storage.errors import StorageError
from whippet.storage.files import Files


async def test_a_purge_changes_the_epochs_for_good_and_more_partitions_have_their_own(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await with_topic(store, 2)
        await store.purge_topic(0, 0, 70)
        await store.create_partitions(0, 0, 2, 80)
        assert [each.epoch for each in store.partitions_of(0, 0)] == [70, 70, 80, 80]
    async with opened(tmp_path) as store:
        assert [each.epoch for each in store.partitions_of(0, 0)] == [70, 70, 80, 80]
        await store.purge_topic(0, 0, 90)
        await store.remove_partitions(0, 0, 3)
        await store.create_partitions(0, 0, 1, 95)
        assert [each.epoch for each in store.partitions_of(0, 0)] == [90, 95]
    async with opened(tmp_path) as store:
        assert [each.epoch for each in store.partitions_of(0, 0)] == [90, 95]


async def test_a_folder_from_before_epochs_has_the_incarnations(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await with_topic(store)
    path = next(tmp_path.rglob("topic.json"))
    document = json.loads(path.read_text())
    for name in ("epochs", "incarnations", "xxh3"):
        document.pop(name)
    path.write_text(json.dumps(document))
    async with opened(tmp_path) as store:
        (partition,) = store.partitions_of(0, 0)
        before = partition.epoch
        await store.purge_topic(0, 0)
        assert partition.epoch > before


async def test_a_purge_of_one_partition_alone_changes_its_epoch(tmp_path: Path) -> None:
    async with partition_in(tmp_path) as partition:
        before = partition.epoch
        await partition.purge()
        assert partition.epoch != before


class Dying(Files):
    """Nothing reaches the disk any more after a number of changes."""

    left = 1_000_000

    def _change(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


def _counted(name: str) -> Any:
    plain = getattr(Files, name)

    def change(self: Dying, *arguments: Any) -> Any:
        self._change()
        return plain(self, *arguments)

    return change


for _name in ("open_for_writing", "write", "truncate", "sync", "sync_folder", "rename", "remove", "make_folder"):
    setattr(Dying, _name, _counted(_name))


@pytest.mark.parametrize("changes", range(0, 40, 2))
async def test_wherever_a_purge_is_cut_off_other_messages_have_another_epoch(tmp_path: Path, changes: int) -> None:
    disk = Dying()
    with contextlib.suppress(StorageError, OSError):
        async with opened(tmp_path, files=disk) as store:
            partitions = await with_topic(store, 2)
            for partition in partitions:
                await partition.append(texts("a", "b"))
                await partition.flush(sync=True)
            before = [partition.epoch for partition in partitions]
            disk.left = changes
            await store.purge_topic(0, 0, 70)
    async with opened(tmp_path) as store:
        for partition, epoch in zip(store.partitions_of(0, 0), before, strict=True):
            assert partition.readable == 2 or partition.epoch == 70
            assert partition.epoch in (epoch, 70)
