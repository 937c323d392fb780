"""The archiver beside a running store: what it uploads, what it records, and what it lets retention delete."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import msgspec
import pytest

from tests.storage.archive.support.archives import Flaky, archived, archiver_of, restore, unavailable
from tests.storage.support.world import offsets, opened, payloads, settled, sized, texts, with_topic
from tests.support.running import HANGS_S
from whippet.storage.archive.archiver import Archiver
from whippet.storage.archive.documents import CATALOGUE, ROUND, Catalogue, Manifest, manifest_name
from whippet.storage.archive.objects import Objects
from whippet.storage.document_checksums import with_checksum, without_checksum
from whippet.storage.documents import TopicDocument
from whippet.storage.errors import ArchiveBehind
from whippet.storage.files import Files
from whippet.storage.layout import PartitionId
from whippet.storage.offsets import Kind
from whippet.storage.options import ArchiveOptions
from whippet.storage.partition import Partition

PLACE = PartitionId(0, 0, 0)
SPOILED = (lambda content: content[:-1], lambda content: 2 * content, lambda content: b"!" + content[1:])
"""Truncated, duplicated and changed on the way."""


def manifest(objects: Objects, place: PartitionId = PLACE) -> Manifest:
    found = objects.get(manifest_name(place))
    assert found is not None
    return msgspec.json.decode(found.content, type=Manifest)


def objects_in(objects: Objects) -> set[str]:
    return {item.name.rpartition("/")[2] for item in objects.list("streams/") if not item.name.endswith(".json")}


def named(found: Manifest) -> set[str]:
    return {blob.name for piece in found.pieces for blob in (piece.log, piece.index)}


async def fill(partition: Partition, batches: int = 8) -> None:
    """Segments of 1 KiB get three of these batches."""
    for _ in range(batches):
        await partition.append(sized(1, 100))


async def test_closed_and_open_segments_are_archived_as_they_are(tmp_path: Path) -> None:
    async with archived(tmp_path, segment_bytes=1024) as (store, archiver):
        (partition,) = await with_topic(store)
        await fill(partition)
        assert await archiver.round()
        folder = tmp_path / "archive/streams/0/topics/0/partitions/0"
        found = manifest(archiver.objects)
        assert [piece.start for piece in found.pieces] == [0, 3, 6]
        assert (found.pieces[-1].next, found.next_offset) == (8, 8)
        for piece in found.pieces:
            log = (tmp_path / f"data/streams/0/topics/0/partitions/0/{piece.start:020}.log").read_bytes()
            assert (folder / piece.log.name).read_bytes() == log
        index = (tmp_path / f"data/streams/0/topics/0/partitions/0/{0:020}.index").read_bytes()
        assert (folder / found.pieces[0].index.name).read_bytes() == index
        assert archiver.waiting_messages == 0


async def test_a_round_without_changes_uploads_nothing(tmp_path: Path) -> None:
    archive = Flaky(tmp_path / "archive")
    async with archived(tmp_path, archive) as (store, archiver):
        (partition,) = await with_topic(store)
        await fill(partition)
        assert await archiver.round()
        archive.done.clear()
        assert await archiver.round()
        assert archive.done == [f"replace {ROUND}"]


async def test_an_open_segment_grows_in_the_archive_and_replaced_pieces_are_removed(tmp_path: Path) -> None:
    async with archived(tmp_path) as (store, archiver):
        (partition,) = await with_topic(store)
        for _ in range(21):
            await fill(partition, 1)
            assert await archiver.round()
        found = manifest(archiver.objects)
        assert [piece.first for piece in found.pieces] == [0, 16, 20]
        assert objects_in(archiver.objects) == named(found)


async def test_stored_offsets_and_the_catalogue_are_archived(tmp_path: Path) -> None:
    async with archived(tmp_path) as (store, archiver):
        (partition,) = await with_topic(store)
        await fill(partition)
        await store.write_user(1, b'{"id": 1}')
        assert await archiver.round()
        await partition.store_offset(Kind.CONSUMER, 7, 3)
        await partition.store_offset(Kind.GROUP, 1, 5)
        assert await archiver.round()
        assert set(manifest(archiver.objects).offsets) == {"consumers/7", "groups/1"}
        found = archiver.objects.get(CATALOGUE)
        assert found is not None
        catalogue = msgspec.json.decode(found.content, type=Catalogue)
        assert catalogue.users == {"1.json": with_checksum(b'{"id": 1}')}
        assert [stream.document.name for stream in catalogue.streams] == ["s"]


async def test_after_a_failure_what_the_archive_has_does_not_count_as_waiting(tmp_path: Path) -> None:
    archive = Flaky(tmp_path / "archive")
    async with archived(tmp_path, archive) as (store, archiver):
        (partition,) = await with_topic(store)
        await fill(partition, 8)
        assert await archiver.round()
        before = partition.disk_bytes
        await fill(partition, 1)
        archive.before = unavailable
        for _ in range(2):
            assert not await archiver.round()
            assert (archiver.waiting_messages, archiver.waiting_bytes) == (1, partition.disk_bytes - before)
        await partition.purge()
        assert (archiver.waiting_messages, archiver.waiting_bytes) == (0, 0)
        await fill(partition, 3)
        assert (archiver.waiting_messages, archiver.waiting_bytes) == (3, partition.disk_bytes)
        archive.before = lambda _: None
        assert await archiver.round()
        assert (archiver.waiting_messages, archiver.waiting_bytes) == (0, 0)


async def test_a_failure_is_shown_and_producers_do_not_notice(tmp_path: Path) -> None:
    archive = Flaky(tmp_path / "archive")
    async with archived(tmp_path, archive) as (store, archiver):
        (partition,) = await with_topic(store)
        archive.before = unavailable
        await fill(partition)
        assert not await archiver.round()
        assert "the test wants it" in str(archiver.problem)
        assert archiver.failures == 1
        assert archiver.waiting_messages == 8
        await fill(partition)
        archive.before = lambda operation: None
        assert await archiver.round()
        assert archiver.problem is None
        assert archiver.waiting_messages == 0


async def test_what_comes_back_different_is_not_recorded(tmp_path: Path) -> None:
    archive = Flaky(tmp_path / "archive")
    async with archived(tmp_path, archive) as (store, archiver):
        (partition,) = await with_topic(store)
        await fill(partition)
        for spoil in SPOILED:
            archive.spoil = lambda name, content, spoil=spoil: spoil(content) if name.endswith(".log") else content  # type: ignore[misc]
            assert not await archiver.round()
            assert "was uploaded with" in str(archiver.problem)
            assert archive.get(manifest_name(PLACE)) is None
        archive.spoil = lambda name, content: content
        assert await archiver.round()
        assert manifest(archive).next_offset == 8


async def test_retention_waits_for_the_archive(tmp_path: Path) -> None:
    archive = Flaky(tmp_path / "archive")
    async with archived(tmp_path, archive, protects_expired=True, segment_bytes=1024) as (store, archiver):
        (partition,) = await with_topic(store)
        await fill(partition)
        assert await store.retain(0, 0, expiry_us=0, max_bytes=None) == 0
        assert await store.delete_segments(partition.place, 1) == 0
        archive.before = unavailable
        assert not await archiver.round()
        assert await store.retain(0, 0, expiry_us=0, max_bytes=None) == 0
        archive.before = lambda operation: None
        assert await archiver.round()
        assert await store.delete_segments(partition.place, 1) == 1
        assert await store.retain(0, 0, expiry_us=0, max_bytes=None) == 1
        assert partition.first_offset == 6
        await fill(partition)
        assert await archiver.round()
        assert [piece.start for piece in manifest(archive).pieces][:2] == [0, 3]


async def test_retention_does_not_wait_unless_it_is_asked_to(tmp_path: Path) -> None:
    async with archived(tmp_path, segment_bytes=1024) as (store, archiver):
        (partition,) = await with_topic(store)
        await fill(partition)
        assert await store.retain(0, 0, expiry_us=0, max_bytes=None) == 2
        assert await archiver.round()
        assert [piece.start for piece in manifest(archiver.objects).pieces] == [6]


async def test_a_purge_removes_everything_from_the_archive(tmp_path: Path) -> None:
    async with archived(tmp_path) as (store, archiver):
        (partition,) = await with_topic(store)
        await fill(partition)
        assert await archiver.round()
        await partition.purge()
        await partition.append(texts("new"))
        assert await archiver.round()
        found = manifest(archiver.objects)
        assert (found.epoch, found.next_offset) == (1, 1)
        assert objects_in(archiver.objects) == named(found)


async def test_a_purge_that_the_archiver_did_not_see_sets_the_old_history_aside(tmp_path: Path) -> None:
    async with archived(tmp_path) as (store, archiver):
        (partition,) = await with_topic(store)
        await fill(partition)
        assert await archiver.round()
        old = manifest(archiver.objects)
    async with opened(tmp_path / "data") as store:
        (partition,) = await with_topic(store)
        await partition.purge()
        await partition.append(texts("new"))
    async with archived(tmp_path) as (store, archiver):
        assert await archiver.round()
        found = manifest(archiver.objects)
        assert (found.epoch, found.next_offset) == (1, 1)
        kept = archiver.objects.get("streams/0/topics/0/partitions/0/manifest.0.json")
        assert kept is not None
        assert msgspec.json.decode(kept.content, type=Manifest) == old
        assert objects_in(archiver.objects) == named(found) | named(old)
    async with archived(tmp_path) as (store, archiver):
        await fill((await with_topic(store))[0])
        assert await archiver.round()
        assert objects_in(archiver.objects) == named(manifest(archiver.objects)) | named(old)


async def test_a_log_with_another_first_batch_is_another_history(tmp_path: Path) -> None:
    async with archived(tmp_path) as (store, archiver):
        (partition,) = await with_topic(store)
        await fill(partition, 1)
        assert await archiver.round()
    async with opened(tmp_path / "data") as store:
        (partition,) = await with_topic(store)
        await partition.purge()
        await partition.append(sized(1, 100, b"other"))
        await fill(partition)
    async with archived(tmp_path) as (store, archiver):
        assert await archiver.round()
        assert manifest(archiver.objects).epoch == 1
        restore(tmp_path)
        async with opened(tmp_path / "restored") as restored:
            (partition,) = await with_topic(restored)
            assert payloads(await partition.read(0, 1)) == [(b"other" * 20)[:100]]


async def test_a_removed_topic_leaves_the_archive(tmp_path: Path) -> None:
    async with archived(tmp_path) as (store, archiver):
        (partition,) = await with_topic(store)
        await fill(partition)
        assert await archiver.round()
        await store.remove_topic(0, 0)
        assert await archiver.round()
        assert list(archiver.objects.list("streams/")) == []


async def test_a_topic_that_is_created_again_has_a_history_of_its_own(tmp_path: Path) -> None:
    async with archived(tmp_path) as (store, archiver):
        (partition,) = await with_topic(store)
        await fill(partition)
        assert await archiver.round()
        await store.remove_topic(0, 0)
        again = TopicDocument(id=0, name="t", created_at=2, partitions_count=1, incarnations=(9,))
        await store.create_topic(0, again)
        (partition,) = store.partitions_of(0, 0)
        await partition.append(texts("new"))
        assert await archiver.round()
        found = manifest(archiver.objects)
        assert (found.incarnation, found.next_offset) == (9, 1)
        assert objects_in(archiver.objects) == named(found)


async def test_a_restarted_server_continues_where_it_was(tmp_path: Path) -> None:
    for number in range(3):
        archive = Flaky(tmp_path / "archive")
        async with archived(tmp_path, archive, segment_bytes=1024) as (store, archiver):
            (partition,) = await with_topic(store)
            await fill(partition, 3)
            assert await archiver.round()
            uploads = [each for each in archive.done if each.startswith("put") and each.endswith(".log")]
            assert len(uploads) == 1
            assert manifest(archive).generation == number
    assert [piece.start for piece in manifest(archive).pieces] == [0, 3, 6]


async def test_objects_that_no_manifest_names_are_removed_by_the_next_server(tmp_path: Path) -> None:
    stray = "streams/0/topics/0/partitions/0/00000000000000000009.0-99.0.0.log"
    async with archived(tmp_path) as (store, archiver):
        (partition,) = await with_topic(store)
        await fill(partition)
        assert await archiver.round()
        archiver.objects.put(stray, b"left by a crash")
        archiver.objects.put("streams/0/topics/0/partitions/0/notes.txt", b"not ours")
        unfinished = tmp_path / f"archive/{stray}#1"
        unfinished.write_bytes(b"half of it")
    archive = Flaky(tmp_path / "archive")
    archive.hidden = {stray}
    async with archived(tmp_path, archive) as (store, archiver):
        await fill((await with_topic(store))[0])
        assert await archiver.round()
        assert archive.size(stray) is not None, "a listing that lags removes nothing by mistake"
    async with archived(tmp_path) as (store, archiver):
        await fill((await with_topic(store))[0])
        assert await archiver.round()
        assert archiver.objects.size(stray) is None
        assert not unfinished.exists()
        assert archiver.objects.size("streams/0/topics/0/partitions/0/notes.txt") is not None


async def test_an_old_server_that_comes_back_overwrites_nothing(tmp_path: Path) -> None:
    async with archived(tmp_path) as (store, archiver):
        (partition,) = await with_topic(store)
        await fill(partition)
        assert await archiver.round()
        restore(tmp_path, take_over=True)
        before = {item.name: archiver.objects.digest(item.name) for item in archiver.objects.list("")}
        await fill(partition)
        assert not await archiver.round()
        assert archiver.refused
        assert "claimed by another server" in str(archiver.problem)
        assert {item.name: archiver.objects.digest(item.name) for item in archiver.objects.list("")} == before
        await fill(partition)


async def test_a_round_that_was_under_way_when_another_server_took_over_records_nothing(tmp_path: Path) -> None:
    archive = Flaky(tmp_path / "archive")
    async with archived(tmp_path, archive) as (store, archiver):
        (partition,) = await with_topic(store)
        await fill(partition)
        assert await archiver.round()
        await fill(partition)

        def take_over(operation: str) -> None:
            if operation == f"replace {manifest_name(PLACE)}":
                restore(tmp_path, take_over=True)

        archive.before = take_over
        assert not await archiver.round()
        assert archiver.refused
        archive.before = lambda operation: None
    found = manifest(archive)
    assert found.next_offset == 8
    assert found.generation == 1


async def test_a_record_whose_response_is_lost_is_found_again(tmp_path: Path) -> None:
    archive = Flaky(tmp_path / "archive")
    async with archived(tmp_path, archive) as (store, archiver):
        (partition,) = await with_topic(store)
        await fill(partition)
        archive.after = lambda operation: unavailable(operation) if operation.startswith("replace streams") else None
        assert not await archiver.round()
        archive.after = lambda operation: None
        await fill(partition)
        assert await archiver.round()
        assert manifest(archive).next_offset == 16
    restore(tmp_path)
    async with opened(tmp_path / "restored") as store:
        (partition,) = await with_topic(store)
        assert offsets(await partition.read(0, 16)) == list(range(16))


async def test_an_archive_that_is_out_of_reach_does_not_prevent_a_start(tmp_path: Path) -> None:
    archive = Flaky(tmp_path / "archive")
    archive.before = unavailable
    async with archived(tmp_path, archive) as (store, archiver):
        (partition,) = await with_topic(store)
        await fill(partition)
        assert archiver.problem is not None
        assert not await archiver.round()
        archive.before = lambda operation: None
        assert await archiver.round()
        assert manifest(archive).next_offset == 8


async def test_the_event_loop_goes_on_while_an_upload_takes_long(tmp_path: Path) -> None:
    archive = Flaky(tmp_path / "archive")
    begun, going = threading.Event(), threading.Event()

    def wait(operation: str) -> None:
        if operation.endswith(".log"):
            begun.set()
            assert going.wait(HANGS_S)

    async with archived(tmp_path, archive) as (store, archiver):
        (partition,) = await with_topic(store)
        await fill(partition)
        archive.before = wait
        running = asyncio.create_task(archiver.round())
        assert await asyncio.to_thread(begun.wait, HANGS_S)
        await fill(partition)
        await settled()
        assert not running.done()
        going.set()
        assert await running
        assert manifest(archive).next_offset == 8
        assert archiver.waiting_messages == 8


async def test_a_graceful_stop_archives_everything_and_records_that(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as store:
        archive = Flaky(tmp_path / "archive")
        archiver = archiver_of(store, archive, interval_s=1e6)
        await archiver.start()
        (partition,) = await with_topic(store)
        await fill(partition)
        await archiver.stop(seconds=HANGS_S)
    found = restore(tmp_path)
    assert (found.messages, found.complete) == (8, True)


async def test_the_archiver_runs_by_itself_at_its_interval(tmp_path: Path) -> None:
    archive = Flaky(tmp_path / "archive")
    done = threading.Event()
    archive.after = lambda operation: done.set() if operation == f"replace {ROUND}" else None
    async with opened(tmp_path / "data") as store:
        await fill((await with_topic(store))[0])
        archiver = archiver_of(store, archive, interval_s=0.01)
        await archiver.start()
        assert await asyncio.to_thread(done.wait, HANGS_S)
        await archiver.stop(seconds=HANGS_S)
        assert manifest(archive).next_offset == 8


async def test_messages_are_refused_while_too_much_waits_for_the_archive_if_there_is_a_limit(tmp_path: Path) -> None:
    options = ArchiveOptions(path=str(tmp_path / "archive"), local_limit_bytes=1000, interval_s=1e6)
    async with opened(tmp_path / "data", archive=options, segment_bytes=1024) as store:
        archive = Flaky(tmp_path / "archive")
        archiver = Archiver(store, options, Files(), archive)
        await archiver.start()
        (partition,) = await with_topic(store)
        await fill(partition, 2)
        archiver.apply_limit(1000)
        await fill(partition, 1)
        archiver.apply_limit(1000)
        with pytest.raises(ArchiveBehind, match=r"1212 bytes .*local_limit is 1000 bytes"):
            await fill(partition, 1)
        assert await archiver.round()
        archiver.apply_limit(1000)
        await fill(partition, 1)
        archiver.apply_limit(1000)
        assert archiver.waiting_bytes == 404
        assert await archiver.round()
        assert archiver.waiting_bytes == 0
        await store.delete_segments(partition.place, 1)
        assert archiver.waiting_bytes == 0
        archiver.refused = True
        await archiver.stop(seconds=HANGS_S)


async def test_a_write_of_its_own_that_arrives_late_does_not_stop_the_archiver(tmp_path: Path) -> None:
    archive = Flaky(tmp_path / "archive")
    async with archived(tmp_path, archive) as (store, archiver):
        (partition,) = await with_topic(store)
        for name in (manifest_name(PLACE), CATALOGUE):
            await fill(partition, 1)
            await store.write_user(1, f'{{"id": 1, "name": "{name}"}}'.encode())

            def arrive(operation: str, name: str = name) -> None:
                found = archive.get(name)
                if operation == f"replace {name}" and found is not None:
                    archive.before = lambda operation: None
                    archive.put(name, with_checksum(without_checksum(found.content)[0] + b" "))

            assert await archiver.round()
            await fill(partition, 1)
            await store.write_user(1, b"{}")
            archive.before = arrive
            assert not await archiver.round()
            assert "written late" in str(archiver.problem)
            assert not archiver.refused
            assert await archiver.round()
    restore(tmp_path)
    async with opened(tmp_path / "restored") as store:
        (partition,) = await with_topic(store)
        assert offsets(await partition.read(0, 4)) == [0, 1, 2, 3]
        assert store.users == {1: b"{}"}


async def test_nothing_counts_as_archived_after_a_purge_or_for_a_topic_that_is_created_again(tmp_path: Path) -> None:
    async with archived(tmp_path, protects_expired=True, segment_bytes=1024) as (store, archiver):
        (partition,) = await with_topic(store)
        await fill(partition)
        assert await archiver.round()
        assert archiver.covered(PLACE) == 6
        await partition.purge()
        await fill(partition)
        assert archiver.covered(PLACE) == 0
        assert await store.retain(0, 0, expiry_us=0, max_bytes=None) == 0
        assert await archiver.round()
        assert archiver.covered(PLACE) == 6
        await store.remove_topic(0, 0)
        assert archiver.covered(PLACE) == 0
        await store.create_topic(0, TopicDocument(id=0, name="t", created_at=2, partitions_count=1, incarnations=(9,)))
        (partition,) = store.partitions_of(0, 0)
        await fill(partition)
        assert archiver.covered(PLACE) == 0
        assert await store.retain(0, 0, expiry_us=0, max_bytes=None) == 0
