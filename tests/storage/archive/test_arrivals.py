"""A server that has taken an archive over serves at once, and its partitions come when they are needed."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest

from tests.storage.archive.support.archives import Dying, Flaky, archived, archiver_of, restore, unavailable
from tests.storage.support.world import offsets, opened, sized, with_topic
from whippet.storage import document_check
from whippet.storage.archive.archiver import Archiver
from whippet.storage.archive.documents import ROUND, Manifest, decode, encode, manifest_name
from whippet.storage.archive.objects import Found, LocalObjects, Objects
from whippet.storage.backup import Backup
from whippet.storage.errors import (
    ArchiveUnavailable,
    BackupFailed,
    PartitionClosed,
    PartitionFailed,
    ReadFailed,
    UnsupportedFormat,
    WriteFailed,
)
from whippet.storage.files import Files
from whippet.storage.layout import TAKEOVER_FILE, Layout, PartitionId
from whippet.storage.offsets import Kind
from whippet.storage.options import ArchiveOptions, StoreOptions
from whippet.storage.producers import Producer
from whippet.storage.store import Store

PARTITIONS = 3
PRODUCER = Producer(b"sender", 1, 1)


async def lose(folder: Path) -> None:
    """A server whose archive has 4 messages in each partition, and which was lost."""
    async with archived(folder) as (store, archiver):
        for partition in await with_topic(store, partitions=PARTITIONS):
            await partition.append(sized(3, 10))
            await partition.append_once(sized(1, 10), PRODUCER)
            await partition.store_offset(Kind.CONSUMER, 7, 2)
        assert await archiver.round()


@contextlib.asynccontextmanager
async def successor(folder: Path, archive: Objects | None = None) -> AsyncIterator[tuple[Store, Archiver]]:
    """A server that continues in `folder/restored`. Nothing comes in the background before a test says so."""
    async with opened(folder / "restored") as store:
        archiver = archiver_of(store, archive or Flaky(folder / "archive"), interval_s=1e6)
        await archiver.start()
        try:
            yield store, archiver
        finally:
            archiver.refused = True
            await archiver.stop(seconds=10)


def take_over(folder: Path, archive: Objects | None = None) -> None:
    restore(folder, objects=archive, take_over=True, downloads=False)


def manifest(folder: Path, partition: int) -> Manifest:
    path = folder / "archive" / manifest_name(PartitionId(0, 0, partition))
    return decode(path.read_bytes(), Manifest, str(path))


async def test_taking_over_reads_no_manifest_and_shows_where_partitions_begin_and_end(tmp_path: Path) -> None:
    await lose(tmp_path)
    archive = Flaky(tmp_path / "archive")
    read: list[str] = []
    get = archive.get

    def noted(name: str) -> Found | None:
        read.append(name)
        return get(name)

    archive.get = noted  # type: ignore[method-assign]
    take_over(tmp_path, archive)
    async with successor(tmp_path, archive) as (store, _):
        for partition in await with_topic(store, partitions=PARTITIONS):
            assert partition.coming is not None
            assert partition.first_offset == 0
            assert partition.messages_count == 4
            assert partition.appended > 4
    assert not [name for name in read if name.endswith("manifest.json")]


async def test_a_partition_comes_when_it_is_read_and_the_others_do_not(tmp_path: Path) -> None:
    await lose(tmp_path)
    take_over(tmp_path)
    async with successor(tmp_path) as (store, archiver):
        first, second, _ = await with_topic(store, partitions=PARTITIONS)
        assert offsets(await second.read(0, 4)) == [0, 1, 2, 3]
        assert (first.coming is None, second.coming is None) == (False, True)
        owner = archiver._claimed.ownership.owner  # type: ignore[union-attr]
        assert manifest(tmp_path, 1).generation == owner.generation > manifest(tmp_path, 0).generation


async def test_whatever_needs_a_partition_waits_until_it_has_come(tmp_path: Path) -> None:
    await lose(tmp_path)
    take_over(tmp_path)
    async with successor(tmp_path) as (store, _):
        first, second, third = await with_topic(store, partitions=PARTITIONS)
        start = first.appended
        appended = await asyncio.gather(*(first.append(sized(1, 10)) for _ in range(3)))
        assert [one.base_offset for one in appended] == [start, start + 1, start + 2]
        await second.store_offset(Kind.CONSUMER, 8, 3)
        assert (second.offset_of(Kind.CONSUMER, 7), second.offset_of(Kind.CONSUMER, 8)) == (2, 3)
        repeated = await third.append_once(sized(1, 10), PRODUCER)
        assert (repeated.repeated, repeated.base_offset) == (True, 3)


async def test_a_purge_of_a_partition_that_has_not_come_leaves_nothing(tmp_path: Path) -> None:
    await lose(tmp_path)
    take_over(tmp_path)
    async with successor(tmp_path) as (store, archiver):
        first, *_ = await with_topic(store, partitions=PARTITIONS)
        await first.purge()
        assert (first.first_offset, first.appended, first.history) == (0, 0, None)
        assert await archiver.round()
    assert manifest(tmp_path, 0).pieces == ()


async def test_all_come_in_the_background_and_the_list_is_removed(tmp_path: Path) -> None:
    await lose(tmp_path)
    take_over(tmp_path)
    async with successor(tmp_path) as (store, archiver):
        assert (tmp_path / "restored" / TAKEOVER_FILE).exists()
        assert await archiver.arrivals.bring_all()
        assert not (tmp_path / "restored" / TAKEOVER_FILE).exists()
        assert all(partition.coming is None for partition in store.partitions.values())
    async with opened(tmp_path / "restored") as store:
        assert [one.local_first_offset for one in await with_topic(store, partitions=PARTITIONS)] == [4, 4, 4]


async def test_a_restart_in_the_middle_continues(tmp_path: Path) -> None:
    await lose(tmp_path)
    take_over(tmp_path)
    async with successor(tmp_path) as (store, _):
        first, *_ = await with_topic(store, partitions=PARTITIONS)
        kept = (await first.append(sized(1, 10))).base_offset
    assert (tmp_path / "restored" / TAKEOVER_FILE).exists()
    async with successor(tmp_path) as (store, archiver):
        first, second, _ = await with_topic(store, partitions=PARTITIONS)
        assert first.coming is None
        assert offsets(await first.read(0, 4)) == [0, 1, 2, 3]
        assert offsets(await first.read(kept, 4)) == [kept]
        assert offsets(await second.read(0, 4)) == [0, 1, 2, 3]
        assert await archiver.round()
        assert all(partition.coming is None for partition in store.partitions.values())


async def test_an_archive_that_cannot_be_reached_is_an_error_and_then_it_comes(tmp_path: Path) -> None:
    await lose(tmp_path)
    take_over(tmp_path)
    archive = Flaky(tmp_path / "archive")
    async with successor(tmp_path, archive) as (store, _):
        first, *_ = await with_topic(store, partitions=PARTITIONS)
        archive.before = unavailable
        for attempt in (first.read(0, 1), first.append(sized(1, 10)), first.store_offset(Kind.CONSUMER, 7, 1)):
            with pytest.raises(ArchiveUnavailable):
                await attempt
        archive.before = lambda _: None
        assert offsets(await first.read(0, 4)) == [0, 1, 2, 3]


async def test_a_defect_reaches_whoever_waits(tmp_path: Path) -> None:
    await lose(tmp_path)
    take_over(tmp_path)
    archive = Flaky(tmp_path / "archive")
    async with successor(tmp_path, archive) as (store, _):
        first, *_ = await with_topic(store, partitions=PARTITIONS)

        def defect(_: str) -> None:
            raise ZeroDivisionError

        archive.before = defect
        with pytest.raises(PartitionFailed):
            await first.read(0, 1)


async def test_without_an_archiver_the_error_says_what_is_needed(tmp_path: Path) -> None:
    await lose(tmp_path)
    take_over(tmp_path)
    async with opened(tmp_path / "restored") as store:
        first, *_ = await with_topic(store, partitions=PARTITIONS)
        with pytest.raises(ArchiveUnavailable, match=r"only in the archive .*/archive, .*archiver\.enabled"):
            await first.read(0, 1)


async def test_a_topic_whose_partitions_have_not_come_can_be_removed_and_created_again(tmp_path: Path) -> None:
    await lose(tmp_path)
    take_over(tmp_path)
    async with successor(tmp_path) as (store, archiver):
        first, *_ = await with_topic(store, partitions=PARTITIONS)
        document = store.streams[0].topics[0].document
        await store.remove_topic(0, 0)
        with pytest.raises(PartitionClosed):
            await first.read(0, 1)
        await store.create_topic(0, document)
        assert await archiver.arrivals.bring_all()
        again = store.partitions[PartitionId(0, 0, 0)]
        assert (again.appended, again.coming) == (0, None)


async def test_a_topic_can_be_removed_while_its_partitions_are_on_their_way(tmp_path: Path) -> None:
    await lose(tmp_path)
    take_over(tmp_path)
    archive = Flaky(tmp_path / "archive")
    begun, go = threading.Event(), threading.Event()

    def hold(_: str) -> None:
        begun.set()
        go.wait()

    async with successor(tmp_path, archive) as (store, _):
        first, second, _ = await with_topic(store, partitions=PARTITIONS)
        archive.before = hold
        reading = asyncio.ensure_future(first.read(0, 4))
        await asyncio.to_thread(begun.wait)
        removing = asyncio.ensure_future(store.remove_topic(0, 0))
        await asyncio.sleep(0)
        too_late = asyncio.ensure_future(second.read(0, 4))
        await asyncio.sleep(0)
        go.set()
        await removing
        for each in (reading, too_late):
            with contextlib.suppress(PartitionClosed, WriteFailed, ReadFailed):
                await each
        assert not store.partitions
    async with opened(tmp_path / "restored") as store:
        assert store.problems == []
        assert not store.streams[0].topics


async def test_nothing_is_deleted_by_age_before_it_has_come(tmp_path: Path) -> None:
    await lose(tmp_path)
    take_over(tmp_path)
    async with successor(tmp_path) as (store, archiver):
        await store.retain(0, 0, expiry_us=0, max_bytes=1)
        await archiver.retain_locally(0, 0, time_us=0, max_bytes=1)
        assert len(store.awaited) == PARTITIONS
        assert all(partition.coming is not None for partition in store.partitions.values())


async def test_the_log_begins_after_what_the_manifest_says_if_that_is_more_than_the_list(tmp_path: Path) -> None:
    await lose(tmp_path)
    take_over(tmp_path)
    far = 2**50
    changed = msgspec.structs.replace(manifest(tmp_path, 0), next_offset=far)
    (tmp_path / "archive" / manifest_name(PartitionId(0, 0, 0))).write_bytes(encode(changed))
    async with successor(tmp_path) as (store, _):
        first, *_ = await with_topic(store, partitions=PARTITIONS)
        assert (await first.append(sized(1, 10))).base_offset == far


async def test_an_archive_whose_round_has_no_list_is_taken_over_by_its_manifests(tmp_path: Path) -> None:
    await lose(tmp_path)
    (tmp_path / "archive" / ROUND).unlink()
    take_over(tmp_path)
    async with successor(tmp_path) as (store, _):
        for partition in await with_topic(store, partitions=PARTITIONS):
            assert partition.messages_count == 4
            assert partition.appended > 2**24


async def test_a_server_that_has_not_noticed_cannot_replace_round_catalogue_or_manifest(tmp_path: Path) -> None:
    async with archived(tmp_path) as (store, old):
        for partition in await with_topic(store, partitions=PARTITIONS):
            await partition.append(sized(3, 10))
        assert await old.round()
        take_over(tmp_path)
        async with successor(tmp_path) as (new_store, new):
            assert await new.arrivals.bring_all()
            before = {path: path.read_bytes() for path in (tmp_path / "archive").rglob("*.json")}
            for partition in await with_topic(store, partitions=PARTITIONS):
                await partition.append(sized(3, 10))
            with patch("whippet.storage.archive.ownership.require"):
                assert not await old.round()
            assert old.refused
            assert {path: path.read_bytes() for path in (tmp_path / "archive").rglob("*.json")} == before
            assert len(new_store.partitions) == PARTITIONS
            assert await new.round()


async def test_the_round_of_a_server_that_has_not_noticed_is_refused(tmp_path: Path) -> None:
    """It had nothing to archive, so only the round tells. Its list would give out offsets again."""
    async with archived(tmp_path) as (store, old):
        await with_topic(store, partitions=PARTITIONS)
        assert await old.round()
        take_over(tmp_path)
        taken = (tmp_path / "archive" / ROUND).read_bytes()
        with patch("whippet.storage.archive.ownership.require"):
            assert not await old.round()
        assert (tmp_path / "archive" / ROUND).read_bytes() == taken


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_crash_at_any_operation_of_a_takeover_loses_nothing_and_reuses_no_offset(
    tmp_path: Path, when: str
) -> None:
    number, died = 0, True
    while died:
        folder = tmp_path / str(number)
        folder.mkdir()
        await lose(folder)
        archive = Dying(folder / "archive", when)
        archive.die_at(number)
        given_out = [4] * PARTITIONS
        try:
            take_over(folder, archive)
            async with successor(folder, archive) as (store, archiver):
                for i, partition in enumerate(await with_topic(store, partitions=PARTITIONS)):
                    with contextlib.suppress(ArchiveUnavailable):
                        given_out[i] = (await partition.append(sized(1, 10))).base_offset + 1
                await archiver.arrivals.bring_all()
        except ArchiveUnavailable:
            pass
        died = archive.is_dead
        if not (folder / "restored" / "FORMAT").exists():
            take_over(folder)
        async with successor(folder) as (store, archiver):
            assert await archiver.arrivals.bring_all()
            for partition, before in zip(await with_topic(store, partitions=PARTITIONS), given_out, strict=True):
                assert offsets(await partition.read(0, 4)) == [0, 1, 2, 3]
                assert partition.offset_of(Kind.CONSUMER, 7) == 2
                assert (await partition.append(sized(1, 10))).base_offset >= before
            assert await archiver.round()
        number += 1
    assert number > 10


class Stopping(Files):
    """Stops to change anything once nothing is left, like a process that ends there."""

    def __init__(self) -> None:
        self.left = 1_000_000

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.EIO, "the process has ended")

    def open_for_writing(self, path: str) -> int:
        self._count()
        return super().open_for_writing(path)

    def rename(self, source: str, target: str) -> None:
        self._count()
        super().rename(source, target)

    def sync_folder(self, path: str) -> None:
        self._count()
        super().sync_folder(path)

    def make_folder(self, path: str) -> None:
        self._count()
        super().make_folder(path)


async def test_an_arrival_that_stops_at_any_change_of_the_disk_is_completed_by_the_next_server(tmp_path: Path) -> None:
    number, stopped = 0, True
    while stopped:
        folder = tmp_path / str(number)
        folder.mkdir()
        await lose(folder)
        take_over(folder)
        files = Stopping()
        async with opened(folder / "restored") as store:
            archiver = Archiver(store, ArchiveOptions(interval_s=1e6), files, Flaky(folder / "archive"))
            await archiver.start()
            files.left = number
            first, *_ = await with_topic(store, partitions=PARTITIONS)
            with contextlib.suppress(PartitionFailed, ReadFailed):
                await first.read(0, 4)
            stopped = files.left < 0
            archiver.refused = True
            await archiver.stop(seconds=10)
        async with successor(folder) as (store, archiver):
            assert await archiver.arrivals.bring_all()
            for partition in await with_topic(store, partitions=PARTITIONS):
                assert offsets(await partition.read(0, 4)) == [0, 1, 2, 3]
                assert partition.offset_of(Kind.CONSUMER, 7) == 2
        number += 1
    assert number > 8


async def test_a_backup_of_a_folder_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    await lose(tmp_path)
    take_over(tmp_path)
    source, target = (Layout(StoreOptions(path=str(tmp_path / name))) for name in ("restored", "copy"))
    with pytest.raises(BackupFailed, match="3 partitions are still only in the archive"):
        Backup(source, target, Files()).run()


async def test_a_list_that_cannot_be_decoded_is_refused(tmp_path: Path) -> None:
    await lose(tmp_path)
    take_over(tmp_path)
    (tmp_path / "restored" / TAKEOVER_FILE).write_bytes(b"{")
    with pytest.raises(UnsupportedFormat, match=TAKEOVER_FILE):
        async with opened(tmp_path / "restored"):
            pass


async def test_partitions_that_have_not_come_are_no_damage_unless_their_list_is(tmp_path: Path) -> None:
    await lose(tmp_path)
    take_over(tmp_path)
    layout = Layout(StoreOptions(path=str(tmp_path / "restored")))
    assert document_check.check(Files(), layout, None).found == []
    path = tmp_path / "restored" / TAKEOVER_FILE
    path.write_bytes(path.read_bytes().replace(b"[0,0,1,", b"[0,0,2,"))
    found = document_check.check(Files(), layout, None).found
    assert [one.damage.file for one in found] == [
        str(path),
        *(layout.partition(PartitionId(0, 0, i)) for i in range(3)),
    ]


async def test_two_takeovers_after_each_other_leave_out_the_offsets_of_both(tmp_path: Path) -> None:
    """The first successor is lost before it has archived anything."""
    await lose(tmp_path)
    take_over(tmp_path)
    async with successor(tmp_path) as (store, _):
        first, *_ = await with_topic(store, partitions=PARTITIONS)
        given_out = (await first.append(sized(1, 10))).base_offset
    restore(tmp_path, "third", take_over=True, downloads=False)
    async with opened(tmp_path / "third") as store:
        archiver = archiver_of(store, LocalObjects(str(tmp_path / "archive"), Files()), interval_s=1e6)
        await archiver.start()
        first, *_ = await with_topic(store, partitions=PARTITIONS)
        assert (await first.append(sized(1, 10))).base_offset > given_out
        assert offsets(await first.read(0, 4)) == [0, 1, 2, 3]
        archiver.refused = True
        await archiver.stop(seconds=10)
