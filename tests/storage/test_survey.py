"""The report of a survey on each partition of a data folder, to the byte, and that it changes nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.storage.support.disk import SimulatedDisk
from tests.storage.support.world import opened, sized, with_topic
from tests.support.open_files import count_open_files
from whippet.storage.errors import StoreLocked, SurveyFailed
from whippet.storage.layout import PartitionId
from whippet.storage.options import StoreOptions
from whippet.storage.producers import Producer
from whippet.storage.segment import Damage
from whippet.storage.survey import Surveyed, survey, survey_all

BATCH = sized(2, 100)
"""Four of them fill a segment."""


async def filled(path: Path) -> Path:
    """Returns the folder of a partition with nine batches, whose first segment was deleted."""
    async with opened(path, segment_bytes=4 * len(BATCH)) as store:
        partition = (await with_topic(store, 2))[1]
        for _ in range(9):
            await partition.append(bytearray(BATCH))
        assert await partition.trim(8) == 1
    return path / "streams/0/topics/0/partitions/1"


def surveyed(path: Path) -> list[Surveyed]:
    before = contents(path)
    open_before = count_open_files()
    found = list(survey(StoreOptions(path=str(path))))
    assert contents(path) == before
    assert count_open_files() <= open_before
    return found


def contents(path: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


def whole(**other: object) -> Surveyed:
    found = {
        "place": PartitionId(0, 0, 1),
        "segments": 2,
        "messages": 10,
        "first_offset": 8,
        "next_offset": 18,
        "size_bytes": 5 * len(BATCH),
        "damage": [],
        "stream_name": "s",
        "topic_name": "t",
    }
    return Surveyed(**(found | other))  # type: ignore[arg-type]


async def test_every_partition_is_described_and_everything_else_is_skipped(tmp_path: Path) -> None:
    folder = await filled(tmp_path)
    (folder.parent / "not a number").mkdir()
    (folder.parent / "7").write_bytes(b"no folder")
    (folder / "99999999999999999999.log").write_bytes(b"no name of a segment")
    (folder / "00000000000000000099.log").mkdir()
    empty = Surveyed(PartitionId(0, 0, 0), 1, 0, 0, 0, 0, [], "s", "t")
    assert surveyed(tmp_path) == [empty, whole()]
    (folder.parent / "2").mkdir()
    assert surveyed(tmp_path)[2] == Surveyed(PartitionId(0, 0, 2), 0, 0, 0, 0, 0, [], "s", "t")


async def test_bytes_after_the_last_batch_are_damage_without_lost_messages(tmp_path: Path) -> None:
    last = await filled(tmp_path) / "00000000000000000016.log"
    last.write_bytes(last.read_bytes() + b"half a batch")
    found = surveyed(tmp_path)[1]
    assert found == whole(size_bytes=5 * len(BATCH) + 12, damage=found.damage)
    (damage,) = found.damage
    assert (damage.file, damage.position, damage.length) == (str(last), len(BATCH), 12)
    assert (damage.offset, damage.next_offset, damage.kept_in) == (18, 18, None)


async def test_a_damaged_batch_of_a_closed_segment_loses_its_messages(tmp_path: Path) -> None:
    first = await filled(tmp_path) / "00000000000000000008.log"
    octets = bytearray(first.read_bytes())
    octets[2 * len(BATCH) - 1] ^= 1
    first.write_bytes(octets)
    found = surveyed(tmp_path)[1]
    assert found == whole(messages=8, damage=found.damage)
    (damage,) = found.damage
    assert (damage.file, damage.position, damage.length) == (str(first), len(BATCH), len(BATCH))
    assert (damage.offset, damage.next_offset) == (10, 12)


async def test_records_of_numbered_sends_are_checked_up_to_the_last_byte(tmp_path: Path) -> None:
    """An id of the greatest length ends where its record ends."""
    async with opened(tmp_path) as store:
        partition = (await with_topic(store))[0]
        await partition.append_once(bytearray(BATCH), Producer(b"p" * 64, 1, 1))
    file = tmp_path / "streams/0/topics/0/partitions/0/producers"
    size = file.stat().st_size
    assert surveyed(tmp_path)[0].damage == []
    file.write_bytes(file.read_bytes() + bytes(9))
    assert surveyed(tmp_path)[0].damage == []
    file.write_bytes(file.read_bytes() + b"half a record")
    reason = f"the bytes after position {size} are not a record"
    assert surveyed(tmp_path)[0].damage == [Damage(str(file), 0, 0, 0, 0, reason)]


async def test_a_folder_without_streams_has_no_partitions(tmp_path: Path) -> None:
    async with opened(tmp_path):
        pass
    (tmp_path / "streams").rmdir()
    assert surveyed(tmp_path) == []


async def test_a_survey_reads_only_from_the_disk_that_it_is_given() -> None:
    disk = SimulatedDisk()
    async with opened("/data", files=disk) as store:
        await (await with_topic(store))[0].append(bytearray(BATCH))
    (found,) = survey(StoreOptions(path="/data"), disk)
    assert (found.messages, found.size_bytes, found.damage) == (2, len(BATCH), [])
    assert disk.open_handles == []


async def test_a_folder_is_refused_while_a_server_has_it_open_and_kept_from_servers(tmp_path: Path) -> None:
    await filled(tmp_path)
    async with opened(tmp_path):
        with pytest.raises(StoreLocked):
            surveyed(tmp_path)
    looking = survey(StoreOptions(path=str(tmp_path)))
    next(looking)
    with pytest.raises(StoreLocked):
        async with opened(tmp_path):
            raise AssertionError
    looking.close()  # type: ignore[attr-defined]
    async with opened(tmp_path):
        pass


async def test_several_processes_find_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = await filled(tmp_path)
    (folder / "00000000000000000008.log").write_bytes(b"damaged")
    monkeypatch.setattr("whippet.storage.survey.TOGETHER_BYTES_MIN", 0)
    options = StoreOptions(path=str(tmp_path))
    assert list(survey_all(options, processes=2)) == list(survey_all(options))
    assert [bool(found.damage) for found in survey_all(options, processes=2)] == [False, True, False]


async def test_a_process_that_ends_early_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await filled(tmp_path)
    monkeypatch.setattr("whippet.storage.survey.TOGETHER_BYTES_MIN", 0)
    monkeypatch.setattr("whippet.storage.partition_check.check", lambda *_: os._exit(1))
    with pytest.raises(SurveyFailed, match="has ended early"):
        list(survey_all(StoreOptions(path=str(tmp_path)), processes=2))
    monkeypatch.undo()
    async with opened(tmp_path):
        pass
