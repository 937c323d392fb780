"""Damage of every kind to a data folder is found by a check, named, and repaired from the archive.

`mirrored` has a folder with an archive of all of it, so afterwards every byte must be what it was.
"""

from __future__ import annotations

import errno
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage.archive.support.archives import archived
from tests.storage.support.damages import (
    DAMAGES,
    KINDS,
    Damaging,
    a_changed_batch,
    garbled,
    half,
    with_more_after,
    with_more_inside,
    zeros,
)
from tests.storage.support.documents import content as content_of
from tests.storage.support.packed import usually
from tests.storage.support.repairs import (
    PARTITION,
    Mirrored,
    everything,
    findings,
    flipped,
    mirrored,
)
from tests.storage.support.world import opened, texts
from tests.support.sizes import sized
from whippet.storage import producer_file
from whippet.storage.errors import UnsupportedFormat
from whippet.storage.files import Files
from whippet.storage.offsets import Kind
from whippet.storage.partition_check import Part
from whippet.storage.producers import Producer, Record

NOT_REPAIRABLE = ("archive_claims.json",)
SET_ASIDE = ("numbers.json",)


@pytest.mark.parametrize("way", usually("plain", "zstd, encrypted"))
@sized("step", 61, long=13)
async def test_a_changed_byte_of_any_file_is_found_named_and_repaired(tmp_path: Path, way: str, step: int) -> None:
    folder = await mirrored(tmp_path, way)
    assert folder.damage() == []
    assert findings(folder.repair()) == []
    count = 0
    for name, content in sorted(folder.before.items()):
        for position in range(0, len(content), step):
            mask = 1 << (position * 5 + len(name)) % 8
            (folder.data / name).write_bytes(flipped(content, position, mask))
            where = f"{name}, byte {position}, mask {mask}"
            try:
                found = folder.damage()
                assert any(each.file == str(folder.data / name) for each in found), (where, found)
            except UnsupportedFormat as error:
                assert name == "FORMAT", where
                assert str(error).startswith(str(folder.data / name)), where
            outcomes = folder.repair()
            assert any(each.damage.file == str(folder.data / name) for each in findings(outcomes)), where
            if name in NOT_REPAIRABLE:
                assert not all(each.repaired for each in findings(outcomes)), where
            else:
                assert all(each.repaired for each in findings(outcomes)), (where, outcomes)
                assert folder.damage() == [], where
                expected = {key: value for key, value in folder.before.items() if key not in SET_ASIDE}
                after = {key: value for key, value in folder.files().items() if key not in SET_ASIDE}
                assert after == expected, where
            folder.reset()
            count += 1
    assert count > 100


# ------------------------------------------------------------------------------------------------ other kinds of damage


def restored(folder: Mirrored) -> None:
    """Whatever was damaged: it was found, all of it is repaired, and every byte is what it was."""
    assert folder.damage()
    dry = findings(folder.repair(dry_run=True))
    assert dry
    assert all(each.repaired for each in dry), dry
    assert folder.kept_aside() == []
    outcomes = findings(folder.repair())
    assert all(each.repaired for each in outcomes), outcomes
    assert folder.damage() == []
    assert folder.files() == folder.before
    assert findings(folder.repair()) == []


@pytest.mark.parametrize("way", usually("plain", "zstd, encrypted"))
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_every_log_that_is_damaged_is_repaired(tmp_path: Path, way: str, kind: Damaging) -> None:
    folder = await mirrored(tmp_path, way)
    assert len(folder.logs()) > 2  # compressed, the messages fill fewer segments
    for log in folder.logs():
        original = log.read_bytes()
        kind(log)
        what_it_was = log.read_bytes() if log.exists() else b""
        restored(folder)
        if 0 < len(what_it_was) != len(original) // 2:
            assert folder.kept_aside(), log
        folder.reset()
    assert await folder.readable() == folder.messages


@pytest.mark.parametrize("way", usually("plain", "zstd, encrypted"))
@pytest.mark.parametrize("kind", KINDS[:-1], ids=lambda kind: kind.__name__)
async def test_every_index_that_is_damaged_is_built_anew_without_an_archive(
    tmp_path: Path, way: str, kind: Damaging
) -> None:
    folder = await mirrored(tmp_path, way)
    for path in folder.partition.glob("*.index"):
        kind(path)
    assert len(folder.damage()) == len(list(folder.partition.glob("*.index")))
    found = findings(folder.repair(archive=False))
    assert {each.how for each in found} == {"built anew from the log"}
    assert (folder.files(), folder.damage()) == (folder.before, [])


async def test_a_missing_log_is_described_by_its_index(tmp_path: Path) -> None:
    folder = await mirrored(tmp_path)
    first, second, *_ = folder.logs()
    first.unlink()
    (found,) = folder.damage()
    assert (found.file, found.position, found.length) == (str(first), 0, 0)
    assert (found.offset, found.next_offset) == (0, int(second.stem))


async def test_missing_indexes_are_no_damage_and_are_built_anew(tmp_path: Path) -> None:
    folder = await mirrored(tmp_path)
    first, *_ = sorted(folder.partition.glob("*.index"))
    first.unlink()
    assert folder.damage() == []
    (found,) = findings(folder.repair(archive=False))
    assert (found.damage.reason, found.repaired) == ("it is missing", True)
    assert folder.files() == folder.before


async def test_several_damages_at_once_are_all_repaired(tmp_path: Path) -> None:
    folder = await mirrored(tmp_path, "zstd, encrypted")
    first, second, third, *_, last = folder.logs()
    for position in (10, 300, len(first.read_bytes()) - 5):
        first.write_bytes(flipped(first.read_bytes(), position, 4))
    second.unlink()
    zeros(third)
    half(last)
    garbled(folder.partition / "offsets/consumers/7")
    garbled(folder.data / "streams/0/topics/1/topic.json")
    (folder.data / "users/1.json").unlink()
    found = folder.damage()
    assert {Path(each.file).name for each in found} >= {first.name, last.name, "7", "topic.json"}
    outcomes = folder.repair()
    assert all(each.repaired for each in findings(outcomes)), outcomes
    after = folder.files()
    assert {name for name, content in folder.before.items() if after.get(name) != content} == {"users/1.json"}
    assert [(each.stream_name, each.topic_name) for each in outcomes if each.place] == [("orders", "eu")]


@pytest.mark.parametrize("way", usually("plain", "zstd, encrypted"))
async def test_segments_that_were_swapped_are_put_back(tmp_path: Path, way: str) -> None:
    folder = await mirrored(tmp_path, way)
    logs = folder.logs()
    for one, other in ((logs[0], logs[1]), (logs[1], logs[-1]), (logs[0], logs[-1])):
        contents = one.read_bytes(), other.read_bytes()
        other.write_bytes(contents[0])
        one.write_bytes(contents[1])
        restored(folder)
        folder.reset()


@pytest.mark.parametrize("way", usually("plain", "zstd, encrypted"))
@pytest.mark.parametrize("source", ["streams/0/topics/0/partitions/1", "streams/0/topics/1/partitions/0"])
async def test_the_log_of_another_partition_is_replaced(tmp_path: Path, way: str, source: str) -> None:
    folder = await mirrored(tmp_path, way)
    for log in folder.logs():
        foreign = folder.data / source / log.name
        if foreign.exists():
            log.write_bytes(foreign.read_bytes())
            restored(folder)
            folder.reset()


@pytest.mark.parametrize("way", usually("plain", "zstd, encrypted"))
async def test_a_missing_partition_is_restored(tmp_path: Path, way: str) -> None:
    folder = await mirrored(tmp_path, way)
    shutil.rmtree(folder.partition)
    (found,) = folder.damage()
    assert (found.file, found.reason) == (str(folder.partition), "the folder is missing")
    assert [each.repaired for each in findings(folder.repair())] == [True]
    assert folder.damage() == []
    after = folder.files()
    assert all(after[name] == content for name, content in folder.before.items() if name.endswith(".log"))
    assert await folder.readable() == folder.messages


# ----------------------------------------------------------------------------------- what the archive does not know yet


async def test_messages_that_are_newer_than_the_archive_are_never_lost(tmp_path: Path) -> None:
    folder = await mirrored(tmp_path)
    async with opened(folder.data, segment_bytes=1 << 20) as store:
        first = next(iter(store.partitions_of(0, 0)))
        for i in range(4):
            await first.append(texts(f"newer {i}"))
        messages = await everything(first)
    last = folder.logs()[-1]
    size = len(last.read_bytes())
    for position in (20, 300):
        last.write_bytes(flipped(last.read_bytes(), position, 1))
    assert all(each.repaired for each in findings(folder.repair()))
    assert (folder.damage(), last.stat().st_size) == ([], size)
    assert await folder.readable() == messages
    with_more_inside(last)
    assert all(each.repaired for each in findings(folder.repair()))
    assert await folder.readable() == messages


async def test_what_the_archive_does_not_have_is_left_as_it_is_and_named(tmp_path: Path) -> None:
    folder = await mirrored(tmp_path)
    async with opened(folder.data, segment_bytes=1 << 20) as store:
        first = next(iter(store.partitions_of(0, 0)))
        at = len(await everything(first))
        for i in range(4):
            await first.append(texts(f"newer {i}"))
    last = folder.logs()[-1]
    content = last.read_bytes()
    spoilt = flipped(content, content.index(b"newer 1") + 2, 1)
    last.write_bytes(spoilt)
    (found,) = findings(folder.repair())
    assert (found.repaired, found.damage.offset, found.damage.next_offset) == (False, at + 1, at + 2)
    assert found.how.startswith("the archive does not have it; the server")
    assert last.read_bytes() == spoilt


async def test_damage_that_was_archived_cannot_be_repaired(tmp_path: Path) -> None:
    folder = await mirrored(tmp_path)
    a_changed_batch(folder)
    before = folder.logs()[0].read_bytes()
    for path in (tmp_path / "archive" / PARTITION).glob("0*.0-*.log"):
        if path.name.startswith(folder.logs()[0].stem):
            path.write_bytes(before)
    (outcome, _) = folder.repair()
    assert [each.repaired for each in outcome.findings] == [False]
    assert "the object has the checksum" in outcome.notes[0]
    assert folder.logs()[0].read_bytes() == before


async def test_a_whole_batch_of_a_damaged_object_is_used(tmp_path: Path) -> None:
    folder = await mirrored(tmp_path)
    first = folder.logs()[0]
    for path in (tmp_path / "archive" / PARTITION).glob(f"{first.stem}.0-*.log"):
        path.write_bytes(flipped(path.read_bytes(), path.stat().st_size - 1, 1))
    a_changed_batch(folder)
    outcomes = folder.repair()
    assert all(each.repaired for each in findings(outcomes))
    assert "the object has the checksum" in outcomes[0].notes[0]
    assert folder.files() == folder.before


async def test_a_damaged_catalogue_of_the_archive_is_noted_and_logs_are_repaired(tmp_path: Path) -> None:
    folder = await mirrored(tmp_path)
    catalogue = tmp_path / "archive/catalogue.json"
    catalogue.write_bytes(flipped(catalogue.read_bytes(), 400, 1))
    a_changed_batch(folder)
    first, others = folder.repair()
    assert [each.repaired for each in first.findings] == [True]
    assert any(str(catalogue) in note for note in others.notes)
    assert folder.files() == folder.before


async def test_a_damaged_manifest_is_noted_and_other_partitions_are_repaired(tmp_path: Path) -> None:
    folder = await mirrored(tmp_path)
    manifest = tmp_path / "archive" / PARTITION / "manifest.json"
    manifest.write_bytes(b"{")
    a_changed_batch(folder)
    other = min((folder.data / "streams/0/topics/0/partitions/1").glob("*.log"))
    zeros(other)
    outcomes = folder.repair()
    found = {each.damage.file: each.repaired for each in findings(outcomes)}
    assert found == {str(folder.logs()[0]): False, str(other): True}
    assert any(str(manifest) in note for note in outcomes[-1].notes)


class Unreadable(Files):
    """A disk that cannot read one file any more."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._bad: set[int] = set()

    def open_for_reading(self, path: str) -> int:
        handle = super().open_for_reading(path)
        (self._bad.add if path == self._path else self._bad.discard)(handle)
        return handle

    def read(self, handle: int, length: int, position: int) -> bytes:
        if handle in self._bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().read(handle, length, position)

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        if source == self._path:
            self._path = target


async def test_a_log_that_cannot_be_read_is_replaced_if_the_archive_has_all_of_it(tmp_path: Path) -> None:
    folder = await mirrored(tmp_path)
    first, *_, last = folder.logs()
    outcomes = findings(folder.repair(Unreadable(first)))
    assert [(each.repaired, each.damage.reason) for each in outcomes] == [
        (True, f"cannot be read: {os.strerror(errno.EIO)}")
    ]
    assert folder.files() == folder.before
    (found,) = findings(folder.repair(Unreadable(last)))
    assert (found.repaired, folder.files()) == (False, folder.before)
    assert "copy the folder to another disk first" in found.how


async def test_messages_that_are_only_in_the_archive_on_purpose_stay_there(tmp_path: Path) -> None:
    folder = await mirrored(tmp_path)
    first, second, *_ = folder.logs()
    for path in (first, first.with_suffix(".index")):
        path.unlink()
    (folder.partition / "history.json").write_bytes(b'{"first_offset":0}\n')
    second.write_bytes(flipped(second.read_bytes(), 300, 1))
    assert [each.repaired for each in findings(folder.repair())] == [True]
    assert (first.exists(), folder.damage()) == (False, [])
    (folder.partition / "history.json").write_bytes(b"{")
    assert [each.repaired for each in findings(folder.repair())] == [True]
    assert content_of(folder.partition / "history.json") == {"first_offset": 0}


async def test_a_history_that_the_archive_has_set_aside_is_used(tmp_path: Path) -> None:
    folder = await mirrored(tmp_path)
    first = folder.logs()[0]
    original = first.read_bytes()
    first.write_bytes(flipped(original, 300, 1))
    at = tmp_path / "archive" / PARTITION
    (at / "manifest.json").rename(at / "manifest.0.json")
    assert all(each.repaired for each in findings(folder.repair()))
    assert folder.files() == folder.before


async def test_a_record_of_a_numbered_send_is_taken_from_an_older_copy(tmp_path: Path) -> None:
    folder = await mirrored(tmp_path)
    path = folder.partition / "producers"
    whole = path.read_bytes()
    newer = producer_file.encode(Record(Producer(b"new", 1, 2), 3, 1, 4, 5), 0)
    path.write_bytes(flipped(whole, 130, 1) + newer)
    assert [each.repaired for each in findings(folder.repair())] == [True]
    assert path.read_bytes() == whole + newer


async def test_an_offset_that_is_newer_than_the_archive_is_kept(tmp_path: Path) -> None:
    folder = await mirrored(tmp_path, "zstd, encrypted")
    async with opened(folder.data, **folder.options) as store:
        first = next(iter(store.partitions_of(0, 0)))
        await first.store_offset(Kind.CONSUMER, 7, 6)
        await first.store_offset(Kind.CONSUMER, 7, 8)
    path = folder.partition / "offsets/consumers/7"
    path.write_bytes(flipped(path.read_bytes(), 100, 1))
    (damage,) = folder.damage()
    assert damage.reason == "one of its two places is not valid, so the offset may be an older one"
    (found,) = findings(folder.repair())
    assert found.how.startswith("written anew")
    assert folder.damage() == []
    async with opened(folder.data, **folder.options) as store:
        assert next(iter(store.partitions_of(0, 0))).offset_of(Kind.CONSUMER, 7) in (6, 8)


# ------------------------------------------------------------------------------------------- what is intact but foreign


async def test_an_intact_log_of_another_topic_is_only_replaced_if_the_archive_is_trusted(tmp_path: Path) -> None:
    folder = await mirrored(tmp_path)
    source = folder.data / "streams/0/topics/1/partitions/0"
    for path in source.glob("0*"):
        (folder.partition / path.name).write_bytes(path.read_bytes())
    assert folder.damage() == []
    foreign = folder.files()
    (outcome, _) = folder.repair()
    assert outcome.findings == []
    assert "all of it is intact, but the archive has other messages there" in outcome.notes[0]
    assert folder.files() == foreign
    assert all(each.repaired for each in findings(folder.repair(trusts_archive=True)))
    assert folder.files() == folder.before


async def test_a_history_that_was_purged_is_not_brought_back(tmp_path: Path) -> None:
    folder = await mirrored(tmp_path)
    async with opened(folder.data) as store:
        first = next(iter(store.partitions_of(0, 0)))
        await first.purge()
        await first.append(texts("after the purge"))
    log = folder.logs()[0]
    with_more_after(log)
    folder.repair()
    async with opened(folder.data) as store:
        assert await everything(next(iter(store.partitions_of(0, 0)))) == [b"after the purge"]


async def test_damaged_objects_of_the_archive_are_uploaded_again(tmp_path: Path) -> None:
    folder = await mirrored(tmp_path, "zstd, encrypted")
    objects = [path for path in (tmp_path / "archive/streams").rglob("*") if path.is_file() and path.suffix != ".json"]
    before = {path: path.read_bytes() for path in objects}
    for number, path in enumerate(objects):
        if number % 2:
            path.unlink()
        else:
            path.write_bytes(flipped(before[path], len(before[path]) // 2, 1))
    assert all(each.repaired for each in findings(folder.repair(uploads=True, dry_run=True)))
    assert not any(path.exists() for path in objects[1::2])
    outcomes = findings(folder.repair(uploads=True))
    assert {each.damage.file for each in outcomes} == {str(path) for path in objects}
    assert all(each.repaired for each in outcomes), outcomes
    assert {path: path.read_bytes() for path in objects} == before
    assert (folder.files(), findings(folder.repair(uploads=True))) == (folder.before, [])


async def test_an_object_is_not_uploaded_from_a_log_that_is_damaged_too(tmp_path: Path) -> None:
    folder = await mirrored(tmp_path)
    log = folder.logs()[0]
    (copied,) = (tmp_path / "archive" / PARTITION).glob(f"{log.stem}.0-*.log")
    for path in (log, copied):
        path.write_bytes(flipped(path.read_bytes(), 300, 1))
    found = {each.damage.file: each.repaired for each in findings(folder.repair(uploads=True))}
    assert found == {str(log): False, str(copied): False}


# ------------------------------------------------------------------------------------------------------ without archive


@pytest.mark.parametrize("damage", DAMAGES[:-1], ids=lambda damage: damage.__name__)
async def test_without_an_archive_damage_is_described_and_nothing_but_indexes_changes(
    tmp_path: Path, damage: Callable[[Mirrored], None]
) -> None:
    folder = await mirrored(tmp_path)
    damage(folder)
    before = {name: content for name, content in folder.files().items() if not name.endswith(".index")}
    found = [each for each in findings(folder.repair(archive=False)) if each.part is not Part.INDEX]
    assert found
    assert not any(each.repaired for each in found)
    assert all(each.how.startswith("there is no archive to take it from; ") for each in found)
    after = {name: content for name, content in folder.files().items() if not name.endswith(".index")}
    assert after == before


# ------------------------------------------------------------------------------------------------------------ version 1


async def test_a_folder_of_version_1_is_repaired_once_it_has_an_archive(tmp_path: Path) -> None:
    with tarfile.open(Path(__file__).parent / "support/version_1.tar.gz") as archive:
        archive.extractall(tmp_path / "data", filter="data")
    async with archived(tmp_path) as (_, archiver):
        assert await archiver.round()
    folder = Mirrored(tmp_path, "plain")
    folder.before = folder.files()
    for log in folder.logs():
        content = log.read_bytes()
        for position in range(0, len(content), len(content) // 9):
            log.write_bytes(flipped(content, position, 1))
            restored(folder)
            folder.reset()


def test_a_folder_of_version_1_is_checked_and_its_indexes_are_built_anew(tmp_path: Path) -> None:
    with tarfile.open(Path(__file__).parent / "support/version_1.tar.gz") as archive:
        archive.extractall(tmp_path / "data", filter="data")
    folder = Mirrored(tmp_path, "plain")
    folder.before = folder.files()
    assert folder.damage() == []
    (index, *_) = folder.partition.glob("*.index")
    garbled(index)
    assert [each.file for each in folder.damage()] == [str(index)]
    assert all(each.repaired for each in findings(folder.repair(archive=False)))
    assert folder.files() == folder.before
