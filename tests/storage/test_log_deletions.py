"""Deletions from a log, on a simulated disk: the order of their operations, and what they leave when one fails."""

from __future__ import annotations

import errno

import pytest

from tests.storage.support.disk import SimulatedDisk
from tests.storage.support.operations import (
    BATCH_BYTES,
    FOLDER,
    done,
    entry,
    filled,
    index_name,
    log_name,
    refusing,
    starts,
    traced_disk,
    write,
)
from tests.storage.support.packed import pack_everything
from tests.storage.support.segments import START_TIME, Opened, append, open_log, read_log
from whippet.storage.files import read_all
from whippet.storage.log import LogState
from whippet.storage.producer_file import RECORD
from whippet.storage.producers import Producer, Record

CHANGES = ("remove", "rename", "sync", "sync_folder")


@pytest.fixture
def disk() -> SimulatedDisk:
    return traced_disk()


def four_segments(disk: SimulatedDisk) -> Opened:
    """They begin at 0, 3, 6 and 9; the last one has one batch."""
    opened = filled(disk, 10, 3 * BATCH_BYTES)
    assert starts(opened.log) == [0, 3, 6, 9]
    return opened


def names(disk: SimulatedDisk) -> set[str]:
    return {item.name for item in disk.list(FOLDER)}


def test_one_segment_is_deleted_without_an_intent(disk: SimulatedDisk) -> None:
    opened = four_segments(disk)
    assert opened.log.trim(3) == 1
    assert done(disk, *CHANGES) == [("remove", index_name(0)), ("remove", log_name(0)), ("sync_folder", "d")]
    assert opened.log.state == LogState(first_offset=3, segments=3, size_bytes=7 * BATCH_BYTES, batches=7)
    assert opened.log.trim(3) == 0
    assert done(disk, *CHANGES) == []
    opened.log.sync()
    assert done(disk, *CHANGES) == []
    opened.close()


def test_several_segments_are_deleted_after_their_deletion_is_recorded(disk: SimulatedDisk) -> None:
    opened = four_segments(disk)
    assert opened.log.trim(6) == 2
    assert done(disk, *CHANGES) == [
        ("sync", "intent.json.new"),
        ("rename", "intent.json"),
        ("sync_folder", "d"),
        ("remove", index_name(0)),
        ("remove", log_name(0)),
        ("remove", index_name(3)),
        ("remove", log_name(3)),
        ("sync_folder", "d"),
        ("remove", "intent.json"),
        ("sync_folder", "d"),
    ]
    assert opened.log.state == LogState(first_offset=6, segments=2, size_bytes=4 * BATCH_BYTES, batches=4)
    opened.close()


def test_names_that_were_synced_before_a_deletion_are_not_synced_again(disk: SimulatedDisk) -> None:
    opened = open_log(FOLDER, files=disk, segment_bytes=BATCH_BYTES)
    assert write(opened.log, 0, 0, 0) is None
    assert opened.log.trim(2) == 2
    done(disk)
    opened.log.sync()
    assert done(disk, *CHANGES) == [("sync", log_name(2)), ("sync", log_name(3))]
    opened.close()


def test_the_name_of_the_last_segment_is_synced_before_earlier_ones_are_deleted(disk: SimulatedDisk) -> None:
    """Only that name tells where the partition continues."""
    opened = open_log(FOLDER, files=disk, segment_bytes=3 * BATCH_BYTES)
    assert write(opened.log, 0, 0, 0) is None
    done(disk)
    assert opened.log.trim(0) == 0
    assert done(disk, *CHANGES) == []
    assert opened.log.trim(3) == 1
    assert done(disk, *CHANGES) == [
        ("sync_folder", "d"),
        ("remove", index_name(0)),
        ("remove", log_name(0)),
        ("sync_folder", "d"),
    ]
    opened.close()


def test_a_deletion_that_could_not_be_synced_is_synced_by_the_next_one(disk: SimulatedDisk) -> None:
    opened = four_segments(disk)
    disk.refuse = refusing("sync_folder", FOLDER)
    with pytest.raises(OSError, match="Input/output error"):
        opened.log.trim(3)
    disk.refuse = lambda act, path: None
    done(disk)
    assert opened.log.trim(6) == 1
    assert done(disk, *CHANGES) == [
        ("sync_folder", "d"),
        ("remove", index_name(3)),
        ("remove", log_name(3)),
        ("sync_folder", "d"),
    ]
    opened.close()


def test_a_deletion_that_could_not_be_recorded_deletes_nothing_at_the_next_start(disk: SimulatedDisk) -> None:
    opened = four_segments(disk)
    disk.refuse = refusing("sync_folder", FOLDER)
    with pytest.raises(OSError, match="Input/output error"):
        opened.log.trim(6)
    disk.refuse = lambda act, path: None
    assert "intent.json" not in names(disk)
    opened.close()
    again = open_log(FOLDER, files=disk)
    assert len(read_log(again.log)) == 10
    again.close()


def test_on_a_full_disk_segments_are_deleted_one_by_one(disk: SimulatedDisk) -> None:
    opened = four_segments(disk)
    disk.refuse = lambda act, path: errno.ENOSPC if act == "write" else None
    assert opened.log.trim(6) == 2
    assert done(disk, *CHANGES)[-6:] == [
        ("remove", index_name(0)),
        ("remove", log_name(0)),
        ("sync_folder", "d"),
        ("remove", index_name(3)),
        ("remove", log_name(3)),
        ("sync_folder", "d"),
    ]
    disk.refuse = lambda act, path: None
    opened.close()


def test_records_that_were_removed_are_synced_before_batches_are_deleted_that_disprove_them(
    disk: SimulatedDisk,
) -> None:
    opened = four_segments(disk)
    disk.refuse = refusing("write", ".log")
    record = Record(Producer(b"p", 1, 1), 10, 1, START_TIME, 0)
    assert opened.log.write([entry(10)], [record], sync=False) is not None
    disk.refuse = lambda act, path: None
    done(disk)
    assert opened.log.trim(3) == 1
    assert done(disk, "sync", "remove") == [
        ("sync", "producers"),
        ("remove", index_name(0)),
        ("remove", log_name(0)),
    ]
    opened.close()


def test_a_deletion_ends_only_the_loan_of_a_segment_that_it_deletes(disk: SimulatedDisk) -> None:
    opened = four_segments(disk)
    log = opened.log
    for offset, is_left in ((4, True), (4, False)):
        assert log.read(offset, 1, 1 << 20, 10).messages == 1
        assert log.read_on_loop(offset, 1, 1 << 20, 10) is not None
        first = log.segments[0]
        assert log.trim(first.next_offset) == 1
        assert first.index is None
        assert (log.read_on_loop(offset, 1, 1 << 20, 10) is not None) is is_left
    opened.close()
    assert disk.open_handles == []


# --------------------------------------------------------------------------------------------------------------- purges


def test_a_purge_leaves_an_empty_log_as_a_new_one(disk: SimulatedDisk) -> None:
    opened = four_segments(disk)
    log = opened.log
    record = Record(Producer(b"p", 1, 1), 10, 1, START_TIME, 0)
    assert log.write([entry(10)], [record], sync=False) is None
    log.purge()
    assert names(disk) == {log_name(0)}
    assert disk.open_handles == []
    assert log.state == LogState(first_offset=0, segments=1, size_bytes=0, batches=0)
    assert (log.unsynced_bytes, log.unsynced_files()) == (0, [])
    # A record that is wrong counts only if its batch is known to have been synced.
    wrong = Record(Producer(b"p", 1, 1), 0, 1, START_TIME, 0)
    assert log.write([entry(0)], [wrong], sync=False) is None
    assert (disk.exists(f"{FOLDER}/producers"), len(read_log(log))) == (True, 1)
    opened.abandon()
    assert len(read_all(disk, f"{FOLDER}/producers")) == RECORD.size
    again = open_log(FOLDER, files=disk)
    assert again.log.load_records() == []
    assert again.damage == []
    again.close()


def saved_by(opened: Opened) -> list[int]:
    return [segment.saved_bytes for segment in opened.log.segments]


@pytest.mark.parametrize("is_full", [False, True])
def test_what_packing_has_saved_is_counted_for_the_batches_that_are_left(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    pack_everything(monkeypatch)
    opened = open_log(FOLDER, files=disk, segment_bytes=600, way="zstd")
    log = opened.log
    for number in range(4):
        append(log, [1000 * (number + 1)] * 2)
        last = log.segments[-2] if not log.segments[-1].log_bytes else log.segments[-1]
        assert last.saved_bytes > 1000 * (number + 1)
    assert log.saved_bytes == sum(saved_by(opened)) > 10_000
    assert log.trim(log.segments[1].start_offset) == 1
    assert log.saved_bytes == sum(saved_by(opened))
    opened.close()
    opened = open_log(FOLDER, files=disk, segment_bytes=1 << 20, way="zstd")
    append(opened.log, [5000] * 2)
    assert opened.log.saved_bytes == sum(saved_by(opened))
    if is_full:
        disk.refuse = lambda act, path: errno.ENOSPC if act == "write" and "intent" in path else None
        with pytest.raises(OSError, match="No space left"):
            opened.log.purge()
        disk.refuse = lambda act, path: None
    else:
        opened.log.purge()
    assert (opened.log.saved_bytes, saved_by(opened)) == (0, [0])
    opened.close()


def test_offsets_that_were_left_out_are_not_counted_any_more_when_they_are_deleted(disk: SimulatedDisk) -> None:
    for name in (log_name(0), f"{0:020}.left_out", log_name(5)):
        disk.close(disk.open_for_writing(f"{FOLDER}/{name}"))
    opened = open_log(FOLDER, files=disk)
    assert opened.log.left_out == 5
    assert opened.log.trim(5) == 1
    assert opened.log.left_out == 0
    opened.close()


def test_a_purge_on_a_full_disk_deletes_messages_to_make_room_for_its_intent(disk: SimulatedDisk) -> None:
    opened = four_segments(disk)

    def is_full(act: str, path: str) -> int | None:
        if act != "write" or not any(item.size for item in disk.list(FOLDER) if item.name.endswith(".log")):
            return None
        return errno.ENOSPC

    disk.refuse = is_full
    opened.log.purge()
    disk.refuse = lambda act, path: None
    assert names(disk) == {log_name(0)}
    assert opened.log.state == LogState(first_offset=0, segments=1, size_bytes=0, batches=0)
    assert write(opened.log, 0) is None
    opened.close()


def test_a_purge_that_made_room_in_vain_leaves_an_empty_log_that_continues(disk: SimulatedDisk) -> None:
    opened = four_segments(disk)
    assert write(opened.log, 0) is None
    disk.refuse = lambda act, path: errno.ENOSPC if act == "write" and "intent" in path else None
    with pytest.raises(OSError, match="No space left"):
        opened.log.purge()
    disk.refuse = lambda act, path: None
    assert names(disk) == {log_name(9), "intent.json.new"}
    assert opened.log.state == LogState(first_offset=9, segments=1, size_bytes=0, batches=0)
    opened.abandon()
    again = open_log(FOLDER, files=disk)
    assert (again.damage, again.log.next_offset) == ([], 9)
    again.close()


def test_segments_whose_deletion_was_decided_do_not_come_back_after_a_purge_that_fails(disk: SimulatedDisk) -> None:
    opened = four_segments(disk)
    disk.refuse = refusing("remove", log_name(3))
    with pytest.raises(OSError, match="Input/output error"):
        opened.log.trim(9)
    disk.refuse = refusing("rename", "intent.json")
    with pytest.raises(OSError, match="Input/output error"):
        opened.log.purge()
    disk.refuse = lambda act, path: None
    assert {name for name in names(disk) if name.endswith(".log")} == {log_name(9)}
    opened.close()
