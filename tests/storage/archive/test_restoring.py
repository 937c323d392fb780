"""A data folder from an archive: complete, up to a time, after failures, and never mixed with anything else."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.storage.archive.support.archives import Crash, Flaky, archived, restore
from tests.storage.support.documents import replace_text
from tests.storage.support.numbered_sends import by
from tests.storage.support.ways import WAYS
from tests.storage.support.world import offsets, opened, sized, texts, with_topic
from tests.support.clocks import NOON
from whippet.storage.archive.checking import survey as check_archive
from whippet.storage.archive.restoring import MARKER, MESSAGES_PER_SECOND_MAX
from whippet.storage.documents import GroupDocument, StreamDocument, TopicDocument
from whippet.storage.errors import ArchiveDamaged, ArchiveUnavailable, RestoreRefused
from whippet.storage.files import Buffer, Files
from whippet.storage.offsets import Kind
from whippet.storage.options import StoreOptions
from whippet.storage.partition import Partition
from whippet.storage.survey import survey

SECOND = 1_000_000


class Clock:
    """Shows the time that the test sets."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> int:
        return self.now


async def fill(partition: Partition, batches: int = 8) -> None:
    for _ in range(batches):
        await partition.append(sized(1, 100))


async def archive_of(tmp_path: Path, batches: int = 8) -> None:
    """Three segments, of which the last is in two pieces."""
    async with archived(tmp_path, segment_bytes=1024) as (store, archiver):
        (partition,) = await with_topic(store)
        await fill(partition, batches - 1)
        await partition.store_offset(Kind.CONSUMER, 7, 3)
        await store.write_group(0, 0, GroupDocument(id=4, name="readers", created_at=1))
        await store.write_user(1, b'{"id": 1}')
        await store.write_token(2, b'{"id": 2}')
        await store.reserve_numbers(77)
        assert await archiver.round()
        await fill(partition, 1)
        assert await archiver.round()


async def test_everything_is_restored(tmp_path: Path) -> None:
    await archive_of(tmp_path)
    found = restore(tmp_path)
    assert (found.partitions, found.messages) == (1, 8)
    async with opened(tmp_path / "restored") as store, opened(tmp_path / "data") as original:
        (partition,), (before,) = await with_topic(store), await with_topic(original)
        assert store.problems == []
        assert list(store.damage) == []
        old, new = await before.read(0, 8), await partition.read(0, 8)
        assert b"".join(new.buffers) == b"".join(old.buffers)
        assert partition.offset_of(Kind.CONSUMER, 7) == 3
        assert store.streams[0].topics[0].groups[4].name == "readers"
        assert (store.users, store.tokens) == ({1: b'{"id": 1}'}, {2: b'{"id": 2}'})
        assert (store.numbers_reserved, store.identity) == (77, original.identity)
        assert partition.messages_count == 8


async def test_a_restored_folder_has_no_damage(tmp_path: Path) -> None:
    await archive_of(tmp_path)
    restore(tmp_path)
    (found,) = survey(StoreOptions(path=str(tmp_path / "restored")))
    assert (found.messages, found.damage) == (8, [])


async def test_offsets_that_may_have_been_given_out_are_left_out(tmp_path: Path) -> None:
    clock = Clock()
    async with archived(tmp_path, clock=clock) as (store, archiver):
        (partition,) = await with_topic(store)
        await fill(partition)
        assert await archiver.round()
    clock.now += 100 * SECOND
    found = restore(tmp_path, clock=clock)
    assert (found.archived_at, found.complete) == (NOON, False)
    for _ in range(2):
        async with opened(tmp_path / "restored", clock=clock) as store:
            (partition,) = await with_topic(store)
            assert partition.appended >= 8 + 100 * MESSAGES_PER_SECOND_MAX
            assert list(store.damage) == []
            assert partition.offset_of(Kind.CONSUMER, 7) is None
            assert offsets(await partition.read(0, 8)) == list(range(8))
            assert partition.messages_count == 8
    async with opened(tmp_path / "restored", clock=clock) as store:
        (partition,) = await with_topic(store)
        first = partition.appended
        await fill(partition, 2)
        assert partition.messages_count == 10
        assert offsets(await partition.read(8, 10)) == [first, first + 1]
        assert await store.delete_segments(partition.place, 2) == 2
        assert (partition.first_offset, partition.messages_count) == (first, 2)
    (checked,) = survey(StoreOptions(path=str(tmp_path / "restored")))
    assert checked.damage == []


@pytest.mark.parametrize("downloads", [True, False])
async def test_messages_of_a_removed_topic_are_not_those_of_its_successor(tmp_path: Path, downloads: bool) -> None:
    """The machine is lost after the catalogue was archived and before the partition was."""
    archive = Flaky(tmp_path / "archive")
    async with archived(tmp_path, archive) as (store, archiver):
        (partition,) = await with_topic(store)
        await fill(partition)
        assert await archiver.round()
        await store.remove_topic(0, 0)
        again = TopicDocument(id=0, name="again", created_at=2, partitions_count=1, incarnations=(9,))
        await store.create_topic(0, again)

        def lost(operation: str) -> None:
            if "/partitions/" in operation:
                raise ArchiveUnavailable(operation)

        archive.before = lost
        assert not await archiver.round()
        archive.before = lambda _: None
        assert (tmp_path / "archive" / "streams/0/topics/0/partitions/0/manifest.json").exists()
    found = restore(tmp_path, take_over=not downloads, downloads=downloads)
    assert (found.partitions, found.messages) == (1, 0)
    if downloads:
        async with opened(tmp_path / "restored") as store:
            (partition,) = await with_topic(store)
            assert store.streams[0].topics[0].document.name == "again"
            assert (partition.messages_count, partition.appended > 0) == (0, True)
            await fill(partition, 1)
            assert offsets(await partition.read(0, 9)) == [partition.appended - 1]


async def test_what_was_left_out_stays_so_in_the_next_archive(tmp_path: Path) -> None:
    await archive_of(tmp_path)
    restore(tmp_path, "data2", take_over=True)
    shutil.rmtree(tmp_path / "data")
    (tmp_path / "data2").rename(tmp_path / "data")
    async with archived(tmp_path) as (store, archiver):
        (partition,) = await with_topic(store)
        await fill(partition, 2)
        appended = partition.appended
        assert await archiver.round()
    restore(tmp_path)
    async with opened(tmp_path / "restored") as store:
        (partition,) = await with_topic(store)
        assert list(store.damage) == []
        assert partition.appended > appended
        assert partition.messages_count == 10
        assert len(offsets(await partition.read(0, 8))) == 8
        assert offsets(await partition.read(8, 2)) == [appended - 2, appended - 1]


async def test_a_time_limits_what_is_restored(tmp_path: Path) -> None:
    clock = Clock()
    async with archived(tmp_path, clock=clock, segment_bytes=1024) as (store, archiver):
        (partition,) = await with_topic(store)
        for _ in range(8):
            clock.now += SECOND
            await fill(partition, 1)
        assert await archiver.round()
    for seconds, messages in ((0, 0), (1, 1), (3, 3), (5, 5), (8, 8), (99, 8)):
        found = restore(tmp_path, f"after {seconds}", clock=clock, to=NOON + seconds * SECOND)
        assert found.messages == messages
        async with opened(tmp_path / f"after {seconds}", clock=clock) as store:
            (partition,) = await with_topic(store)
            assert list(store.damage) == []
            assert partition.messages_count == messages
            assert partition.appended > 8
            if messages:
                assert offsets(await partition.read(0, messages)) == list(range(messages))


KEYS: dict[str, dict[str, Any]] = {"plain": {}, "encrypted": WAYS["encrypted"]}


@pytest.mark.parametrize("way", KEYS)
async def test_stored_offsets_never_exceed_what_is_restored_until_a_time(tmp_path: Path, way: str) -> None:
    clock = Clock()
    async with archived(tmp_path, clock=clock, **KEYS[way]) as (store, archiver):
        (partition,) = await with_topic(store)
        for _ in range(8):
            clock.now += SECOND
            await fill(partition, 1)
        for kind, identity, offset in ((Kind.CONSUMER, 1, 2), (Kind.CONSUMER, 2, 7), (Kind.EXTERNAL_GROUP, 3, 7)):
            await partition.store_offset(kind, identity, offset)
        assert await archiver.round()
    keyring = KEYS[way].get("keyring")
    found = restore(tmp_path, "five", clock=clock, to=NOON + 5 * SECOND, keyring=keyring)
    assert (found.offsets_lowered, found.offsets_unknown, found.catalogue_at) == (1, 0, NOON + 8 * SECOND)
    async with opened(tmp_path / "five", clock=clock, **KEYS[way]) as store:
        (partition,) = await with_topic(store)
        assert [partition.offset_of(Kind.CONSUMER, identity) for identity in (1, 2)] == [2, 4]
        assert partition.offset_of(Kind.EXTERNAL_GROUP, 3) == 7
        assert store.problems == []
    found = restore(tmp_path, "none", clock=clock, to=NOON, keyring=keyring)
    assert found.offsets_lowered == 2
    async with opened(tmp_path / "none", clock=clock, **KEYS[way]) as store:
        (partition,) = await with_topic(store)
        assert partition.offset_of(Kind.CONSUMER, 1) is None
    if keyring is not None:
        assert restore(tmp_path, "no key", clock=clock, to=NOON + 5 * SECOND).offsets_unknown == 2


async def test_what_was_created_later_is_not_in_the_state_of_a_time(tmp_path: Path) -> None:
    async with archived(tmp_path) as (store, archiver):
        await with_topic(store)
        await store.create_stream(StreamDocument(id=1, name="later", created_at=NOON + SECOND))
        await store.create_topic(0, TopicDocument(id=1, name="later", created_at=NOON + SECOND, partitions_count=1))
        await store.create_topic(0, TopicDocument(id=2, name="now", created_at=NOON, partitions_count=1))
        await store.write_group(0, 2, GroupDocument(id=1, name="later", created_at=NOON + SECOND))
        await store.write_group(0, 2, GroupDocument(id=2, name="now", created_at=NOON))
        assert await archiver.round()
    assert restore(tmp_path, to=NOON).partitions == 2
    async with opened(tmp_path / "restored") as store:
        assert (list(store.streams), list(store.streams[0].topics)) == ([0], [0, 2])
        assert list(store.streams[0].topics[2].groups) == [2]
        assert store.problems == []


async def test_results_of_numbered_sends_are_restored(tmp_path: Path) -> None:
    async with archived(tmp_path) as (store, archiver):
        (partition,) = await with_topic(store)
        first = await partition.append_once(texts("one"), by(0))
        assert await archiver.round()
    restore(tmp_path)
    async with opened(tmp_path / "restored") as store:
        (partition,) = await with_topic(store)
        again = await partition.append_once(texts("one"), by(0))
        assert again.repeated
        assert again.base_offset == first.base_offset


@pytest.mark.parametrize("name", ["FORMAT", "something"])
async def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path, name: str) -> None:
    await archive_of(tmp_path)
    (tmp_path / "restored").mkdir()
    (tmp_path / "restored" / name).write_bytes(b"mine")
    with pytest.raises(RestoreRefused):
        restore(tmp_path)
    assert [path.name for path in sorted((tmp_path / "restored").iterdir()) if path.name != "LOCK"] == [name]


async def test_what_is_not_an_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RestoreRefused, match="is not an archive"):
        restore(tmp_path)


@pytest.mark.parametrize("spoil", [lambda content: content[:-1], lambda content: b"!" + content[1:], None])
@pytest.mark.parametrize("kind", ["log", "index"])
async def test_a_damaged_object_is_named_and_the_folder_is_not_opened(
    tmp_path: Path, spoil: Callable[[bytes], bytes] | None, kind: str
) -> None:
    await archive_of(tmp_path)
    victim = min((tmp_path / "archive").rglob(f"*.{kind}"))
    if spoil is None:
        victim.unlink()
    else:
        victim.write_bytes(spoil(victim.read_bytes()))
    with pytest.raises(ArchiveDamaged, match=victim.name):
        restore(tmp_path)
    assert (tmp_path / "restored" / MARKER).exists()
    assert not (tmp_path / "restored/FORMAT").exists()


async def test_names_in_an_archive_cannot_lead_to_other_folders(tmp_path: Path) -> None:
    await archive_of(tmp_path)
    path = tmp_path / "archive/catalogue.json"
    replace_text(path, b'"1.json"', b'"../../1.json"')
    with pytest.raises(ArchiveDamaged, match="cannot be part of a data folder"):
        restore(tmp_path)
    assert not (tmp_path / "1.json").exists()


class Dying(Files):
    """Ends the process at a change, counted from 0."""

    def __init__(self, number: int) -> None:
        self.left = number

    def _count(self) -> None:
        self.left -= 1
        if self.left == -1:
            raise Crash

    def write(self, handle: int, buffers: list[Buffer], position: int) -> int:  # type: ignore[override]
        self._count()
        return super().write(handle, buffers, position)

    def rename(self, source: str, target: str) -> None:
        self._count()
        super().rename(source, target)
        self._count()

    def remove(self, path: str) -> None:
        self._count()
        super().remove(path)


async def test_a_crash_at_any_change_leaves_a_folder_that_restoring_completes(tmp_path: Path) -> None:
    await archive_of(tmp_path)
    number = 0
    while True:
        target = f"restored {number}"
        try:
            restore(tmp_path, target, files=Dying(number))
        except Crash:
            if not (tmp_path / target / "FORMAT").exists():
                restore(tmp_path, target)
        else:
            break
        (found,) = survey(StoreOptions(path=str(tmp_path / target)))
        assert (found.messages, found.damage) == (8, []), number
        shutil.rmtree(tmp_path / target)
        number += 3
    assert number > 30


async def test_a_restore_that_is_repeated_later_uses_the_newer_archive(tmp_path: Path) -> None:
    await archive_of(tmp_path)
    with pytest.raises(Crash):
        restore(tmp_path, files=Dying(40))
    async with archived(tmp_path, segment_bytes=1024) as (store, archiver):
        (partition,) = await with_topic(store)
        await fill(partition, 8)
        assert await archiver.round()
    restore(tmp_path)
    (found,) = survey(StoreOptions(path=str(tmp_path / "restored")))
    assert (found.messages, found.damage) == (16, [])


async def test_progress_is_reported(tmp_path: Path) -> None:
    async with archived(tmp_path) as (store, archiver):
        for partition in await with_topic(store, partitions=3):
            await fill(partition, 1)
        assert await archiver.round()
    seen: list[tuple[int, int]] = []
    restore(tmp_path, objects=Flaky(tmp_path / "archive"), on_progress=lambda each: seen.append(each[:2]))
    assert seen == [(1, 3), (2, 3), (3, 3)]


async def test_a_server_that_takes_over_serves_at_once_and_reads_from_the_archive(tmp_path: Path) -> None:
    await archive_of(tmp_path)
    archive = Flaky(tmp_path / "archive")
    found = restore(tmp_path, "data2", objects=archive, take_over=True, downloads=False)
    assert found.messages == 8
    assert not [each for each in archive.done if each.endswith((".log", ".index"))], "nothing was downloaded"
    shutil.rmtree(tmp_path / "data")
    (tmp_path / "data2").rename(tmp_path / "data")
    for more in (0, 2):
        async with archived(tmp_path, segment_bytes=1024) as (store, archiver):
            (partition,) = await with_topic(store)
            assert (store.problems, list(store.damage)) == ([], [])
            assert (partition.first_offset, partition.messages_count) == (0, 8 + more)
            assert partition.local_first_offset == 8
            assert offsets(await partition.read(0, 8)) == list(range(8))
            assert partition.offset_of(Kind.CONSUMER, 7) == 3
            await fill(partition, 2)
            assert len((await partition.read(0, 99)).buffers) > 1
            assert (await partition.read(0, 99)).messages == 10 + more
            assert await archiver.round()
    (checked,) = check_archive(Flaky(tmp_path / "archive"))
    assert (checked.messages, checked.damage) == (12, [])


async def test_a_take_over_that_is_repeated_leaves_out_as_much_as_the_first_attempt(tmp_path: Path) -> None:
    clock = Clock()
    async with archived(tmp_path, clock=clock) as (store, archiver):
        (partition,) = await with_topic(store)
        await fill(partition)
        assert await archiver.round()
    clock.now += 1000 * SECOND
    with pytest.raises(Crash):
        restore(tmp_path, clock=clock, take_over=True, downloads=False, files=Dying(12))
    restore(tmp_path, clock=clock, take_over=True, downloads=False)
    async with opened(tmp_path / "restored", clock=clock) as store:
        (partition,) = await with_topic(store)
        assert partition.appended >= 8 + 1000 * MESSAGES_PER_SECOND_MAX
