"""A copy of a data folder while a server writes to it and deletes from it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage.support.numbered_sends import by
from tests.storage.support.world import offsets, opened, payloads, sized, texts, with_topic
from whippet.storage.backup import TRIES, Backup, Copied
from whippet.storage.documents import GroupDocument
from whippet.storage.errors import BackupFailed, UnsupportedFormat
from whippet.storage.files import Files
from whippet.storage.layout import Layout
from whippet.storage.offsets import Kind
from whippet.storage.options import StoreOptions
from whippet.storage.survey import survey


class Interfering(Files):
    """Lets a test act while a log is being copied."""

    def __init__(self, act: Callable[[str], None]) -> None:
        self._act = act

    def open_for_reading(self, path: str) -> int:
        handle = super().open_for_reading(path)
        if path.endswith(".log"):
            self._act(path)
        return handle


def backup(tmp_path: Path, files: Files | None = None) -> Copied:
    source, target = (Layout(StoreOptions(path=str(tmp_path / name))) for name in ("data", "copy"))
    return Backup(source, target, files or Files()).run()


async def test_everything_is_copied_from_a_running_server(tmp_path: Path) -> None:
    async with opened(tmp_path / "data", segment_bytes=1024) as store:
        partition, _ = await with_topic(store, partitions=2)
        await partition.append_once(texts("numbered"), by(0))
        for _ in range(7):
            await partition.append(sized(1, 100))
        await partition.store_offset(Kind.GROUP, 4, 3)
        await store.write_group(0, 0, GroupDocument(id=4, name="readers", created_at=1))
        await store.write_user(1, b'{"id": 1}')
        await store.write_token(2, b'{"id": 2}')
        await store.reserve_numbers(77)
        (tmp_path / "data/streams/0/topics/0/partitions/0/history.json").write_bytes(b'{"first_offset":0}')
        copied = backup(tmp_path)
        assert copied == (2, partition.size_bytes)
        assert (tmp_path / "copy/streams/0/topics/0/partitions/0/history.json").read_bytes() == b'{"first_offset":0}'
        old = b"".join((await partition.read(0, 8)).buffers)
        identity = store.identity
    async with opened(tmp_path / "copy", segment_bytes=1024) as store:
        partition, _ = await with_topic(store, partitions=2)
        assert (store.problems, list(store.damage)) == ([], [])
        assert b"".join((await partition.read(0, 8)).buffers) == old
        assert partition.offset_of(Kind.GROUP, 4) == 3
        assert (store.users, store.tokens) == ({1: b'{"id": 1}'}, {2: b'{"id": 2}'})
        assert (store.numbers_reserved, store.identity) == (77, identity)
        assert store.streams[0].topics[0].groups[4].name == "readers"
        assert (await partition.append_once(texts("numbered"), by(0))).repeated


async def test_a_batch_that_is_half_written_is_left_out(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as store:
        (partition,) = await with_topic(store)
        for _ in range(3):
            await partition.append(sized(1, 100))
        await partition.flush()
    log = tmp_path / f"data/streams/0/topics/0/partitions/0/{0:020}.log"
    log.write_bytes(log.read_bytes()[:-1])
    backup(tmp_path)
    (found,) = survey(StoreOptions(path=str(tmp_path / "copy")))
    assert (found.messages, found.damage) == (2, [])


async def test_segments_that_are_deleted_meanwhile_are_not_in_the_copy(tmp_path: Path) -> None:
    async with opened(tmp_path / "data", segment_bytes=1024) as store:
        (partition,) = await with_topic(store)
        for _ in range(8):
            await partition.append(sized(1, 100))
        loop, deleted = asyncio.get_running_loop(), 0

        def act(path: str) -> None:
            nonlocal deleted
            if path.endswith(f"{3:020}.log") and not deleted and "data" in path:
                deleted = asyncio.run_coroutine_threadsafe(store.delete_segments(partition.place, 1), loop).result()

        await asyncio.to_thread(backup, tmp_path, Interfering(act))
        assert deleted == 1
    (found,) = survey(StoreOptions(path=str(tmp_path / "copy")))
    assert (found.first_offset, found.messages, found.damage) == (3, 5, [])


@pytest.mark.parametrize("after", [1, 20])
async def test_a_purge_meanwhile_does_not_mix_two_histories(tmp_path: Path, after: int) -> None:
    async with opened(tmp_path / "data") as store:
        (partition,) = await with_topic(store)
        for _ in range(4):
            await partition.append(sized(1, 100, b"old"))
        loop, purged = asyncio.get_running_loop(), False

        async def purge() -> None:
            await partition.purge()
            for _ in range(after):
                await partition.append(sized(1, 100, b"new"))

        def act(path: str) -> None:
            nonlocal purged
            if not purged:
                purged = True
                asyncio.run_coroutine_threadsafe(purge(), loop).result()

        await asyncio.to_thread(backup, tmp_path, Interfering(act))
    async with opened(tmp_path / "copy") as store:
        (partition,) = await with_topic(store)
        assert list(store.damage) == []
        assert payloads(await partition.read(0, 99)) == [(b"new" * 34)[:100]] * after


async def test_what_is_appended_meanwhile_may_be_missing_but_nothing_before_it(tmp_path: Path) -> None:
    async with opened(tmp_path / "data", segment_bytes=1024) as store:
        (partition,) = await with_topic(store)
        for _ in range(8):
            await partition.append(sized(1, 100))
        loop = asyncio.get_running_loop()

        def act(path: str) -> None:
            asyncio.run_coroutine_threadsafe(partition.append(sized(1, 100)), loop).result()

        await asyncio.to_thread(backup, tmp_path, Interfering(act))
    async with opened(tmp_path / "copy") as store:
        (partition,) = await with_topic(store)
        found = offsets(await partition.read(0, 99))
        assert found == list(range(len(found)))
        assert len(found) >= 8


async def test_a_partition_that_never_holds_still_is_an_error(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as store:
        await with_topic(store)

    class Restless(Files):
        passes = 0

        def exists(self, path: str) -> bool:
            self.passes += path.endswith("/partitions/0/intent.json")
            return path.endswith("/partitions/0/intent.json") or super().exists(path)

    files = Restless()
    with pytest.raises(BackupFailed, match="deleted faster"):
        backup(tmp_path, files)
    assert files.passes == TRIES
    assert not (tmp_path / "copy/FORMAT").exists()


async def test_a_removed_topic_is_empty_in_the_copy(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as store:
        (partition,) = await with_topic(store)
        await partition.append(texts("a"))
        loop, removed = asyncio.get_running_loop(), False

        def act(path: str) -> None:
            nonlocal removed
            if not removed:
                removed = True
                asyncio.run_coroutine_threadsafe(store.remove_topic(0, 0), loop).result()

        await asyncio.to_thread(backup, tmp_path, Interfering(act))
    (found,) = survey(StoreOptions(path=str(tmp_path / "copy")))
    assert (found.messages, found.damage) == (0, [])


async def test_a_copy_needs_a_data_folder_and_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFormat):
        backup(tmp_path)
    async with opened(tmp_path / "data") as store:
        await with_topic(store)
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy/mine").write_bytes(b"")
    with pytest.raises(BackupFailed, match="mine"):
        backup(tmp_path)
