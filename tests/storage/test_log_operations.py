"""The file operations of a log, on a simulated disk: what is written together, synced, reserved, renamed and closed."""

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
from tests.storage.support.segments import START_TIME, append, messages_in, open_log, read_log
from tests.storage.support.ways import WAYS
from whippet.storage import batch as batches
from whippet.storage.files import BUFFERS_PER_WRITE
from whippet.storage.log import Log, LogState
from whippet.storage.producers import Producer, Record
from whippet.storage.segment import Damage


@pytest.fixture
def disk() -> SimulatedDisk:
    return traced_disk()


# -------------------------------------------------------------------------------------------------------------- writing


def test_batches_of_the_same_or_rising_times_are_written_with_one_call(disk: SimulatedDisk) -> None:
    opened = open_log(FOLDER, files=disk)
    done(disk)
    assert write(opened.log, 10, 10, 12) is None
    assert write(opened.log, 12) is None
    assert done(disk, "write") == [("write", log_name(0))] * 2
    assert starts(opened.log) == [0]
    opened.close()


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_batch_that_is_older_than_the_one_before_it_begins_a_segment(
    disk: SimulatedDisk, together: bool, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack_everything(monkeypatch)
    opened = open_log(FOLDER, files=disk, way=way)
    times = (10, 12, 11, 11, 5, 20)
    if together:
        assert write(opened.log, *times) is None
    else:
        for time in times:
            assert write(opened.log, time) is None
    assert starts(opened.log) == [0, 2, 4]
    assert [offset for offset, _ in read_log(opened.log)] == list(range(6))
    opened.close()


@pytest.mark.parametrize(("size", "expected"), [(2 * BATCH_BYTES, [0, 2, 4]), (2 * BATCH_BYTES + 1, [0, 3])])
def test_a_segment_ends_with_the_batch_that_reaches_its_size_exactly(
    disk: SimulatedDisk, size: int, expected: list[int]
) -> None:
    opened = open_log(FOLDER, files=disk, segment_bytes=size)
    assert write(opened.log, 0, 0, 0, 0) is None
    assert starts(opened.log) == expected
    opened.close()


def test_blocks_are_reserved_once_for_each_segment_and_those_that_are_left_are_freed(disk: SimulatedDisk) -> None:
    opened = open_log(FOLDER, files=disk, segment_bytes=3 * BATCH_BYTES, preallocates=True)
    done(disk)
    for _ in range(4):
        assert write(opened.log, 0) is None
    assert [one for one in done(disk, "reserve", "truncate") if one[1].endswith(".log")] == [
        ("reserve", log_name(0)),
        ("truncate", log_name(0)),
        ("reserve", log_name(3)),
    ]
    opened.close()


def test_no_blocks_are_reserved_unless_that_is_configured(disk: SimulatedDisk) -> None:
    opened = open_log(FOLDER, files=disk, segment_bytes=3 * BATCH_BYTES)
    for _ in range(4):
        assert write(opened.log, 0) is None
    assert [one for one in done(disk, "reserve", "truncate") if one[1].endswith(".log")] == []
    opened.close()


def test_a_segment_that_cannot_be_closed_is_reported_once_and_grows_until_it_can(disk: SimulatedDisk) -> None:
    opened = open_log(FOLDER, files=disk, segment_bytes=2 * BATCH_BYTES)
    disk.refuse = lambda act, path: (
        errno.EIO if act == "open_for_writing" and path.endswith(".log") and not path.endswith(log_name(0)) else None
    )
    for _ in range(4):
        assert write(opened.log, 0) is None
    assert starts(opened.log) == [0]
    (damage,) = opened.damage
    assert damage == Damage(f"{FOLDER}/{log_name(0)}", 2 * BATCH_BYTES, 0, 2, 2, damage.reason)
    assert "cannot be closed yet" in damage.reason
    disk.refuse = lambda act, path: None
    assert write(opened.log, 0) is None
    assert starts(opened.log) == [0, 5]
    disk.refuse = refusing("open_for_writing", log_name(7))
    assert write(opened.log, 0, 0) is None
    assert len(opened.damage) == 2
    disk.refuse = lambda act, path: None
    assert [offset for offset, _ in read_log(opened.log)] == list(range(7))
    opened.close()


def test_a_log_that_cannot_be_opened_refuses_the_batch_and_whatever_was_to_follow_it(disk: SimulatedDisk) -> None:
    opened = filled(disk, 1)
    disk.refuse = refusing("open_for_writing", ".log")
    before = opened.log.generation
    error = write(opened.log, 0)
    assert error is not None
    assert error.errno == errno.EIO
    assert opened.log.generation > before
    assert opened.log.state == LogState(first_offset=0, segments=1, size_bytes=BATCH_BYTES, batches=1)
    disk.refuse = lambda act, path: None
    assert write(opened.log, 0) is None
    assert len(read_log(opened.log)) == 2
    opened.close()


def test_a_part_of_a_batch_that_cannot_be_cut_off_is_reported(disk: SimulatedDisk) -> None:
    opened = open_log(FOLDER, files=disk)
    assert write(opened.log, 0) is None
    path = f"{FOLDER}/{log_name(0)}"
    disk.refuse = lambda act, asked: errno.EIO if act in ("write", "truncate") and asked == path else None
    assert write(opened.log, 0) is not None
    (damage,) = opened.damage
    assert damage == Damage(path, BATCH_BYTES, 0, 1, 1, damage.reason)
    assert "could not be cut off" in damage.reason
    disk.refuse = lambda act, path: None
    opened.close()


def test_an_index_that_cannot_be_written_when_a_segment_closes_is_reported_and_kept(disk: SimulatedDisk) -> None:
    opened = open_log(FOLDER, files=disk, segment_bytes=2 * BATCH_BYTES, index_bytes=0)
    disk.refuse = refusing("rename", ".index")
    assert write(opened.log, 0, 0, 0) is None
    (damage,) = opened.damage
    assert damage == Damage(f"{FOLDER}/{index_name(0)}", 0, 0, 0, 0, damage.reason)
    assert opened.log.segments[0].index is not None
    disk.refuse = lambda act, path: None
    assert write(opened.log, 0) is None
    assert opened.log.segments[1].index is None, "this one is in its file, and there is no room for it"
    assert len(read_log(opened.log)) == 4
    opened.close()


def test_batches_after_those_that_are_trusted_without_a_check_are_read(disk: SimulatedDisk) -> None:
    """The log was closed, and is so large that only its end is checked again when it is opened."""
    before = open_log(FOLDER, files=disk, segment_bytes=1 << 30)
    for _ in range(5):
        append(before.log, [400_000])
    before.close()
    opened = open_log(FOLDER, files=disk, segment_bytes=1 << 30)
    assert opened.log.segments[-1].checked == bytearray((0, 0, 0, 1, 1))
    assert write(opened.log, 9) is None
    assert opened.log.segments[-1].checked == bytearray((0, 0, 0, 1, 1, 1))
    assert read_on_loop(opened.log, 5) == [5]
    assert read(opened.log, 0, 9) == list(range(6))
    opened.close()


# -------------------------------------------------------------------------------------------------------------- syncing


def test_a_sync_reaches_the_files_that_were_written_and_the_folder_if_it_has_a_new_name(disk: SimulatedDisk) -> None:
    opened = filled(disk, 1, 3 * BATCH_BYTES)
    log = opened.log
    assert log.unsynced_bytes == 0
    log.sync()
    assert done(disk, "sync", "sync_folder") == []
    assert (log.unsynced_bytes, log.unsynced_files()) == (0, [])
    assert write(log, 0) is None
    assert (log.unsynced_bytes, log.unsynced_files()) == (BATCH_BYTES, [f"{FOLDER}/{log_name(0)}"])
    assert log.state == LogState(first_offset=0, segments=1, size_bytes=2 * BATCH_BYTES, batches=2)
    assert log.segments[0].batches == 2
    log.sync()
    assert done(disk, "sync", "sync_folder") == [("sync", log_name(0))]
    assert (log.unsynced_bytes, log.unsynced_files()) == (0, [])
    assert write(log, 0, 0) is None
    assert log.unsynced_files() == [f"{FOLDER}/{log_name(0)}", f"{FOLDER}/{log_name(3)}"]
    log.sync()
    assert done(disk, "sync", "sync_folder") == [
        ("sync", log_name(0)),
        ("sync", log_name(3)),
        ("sync_folder", "d"),
    ]
    log.sync()
    assert done(disk, "sync", "sync_folder") == []
    opened.close()


def test_a_rewrite_after_a_failed_sync_leaves_an_empty_segment_alone(disk: SimulatedDisk) -> None:
    opened = filled(disk, 6, 3 * BATCH_BYTES)
    assert starts(opened.log) == [0, 3, 6]
    opened.log.rewrite_unsynced(4)
    assert done(disk, "write", "sync", "sync_folder") == [
        ("write", log_name(3)),
        ("sync", log_name(3)),
        ("sync_folder", "d"),
    ]
    opened.close()


def test_a_rewrite_after_a_failed_sync_leaves_an_empty_file_of_numbered_sends_empty(disk: SimulatedDisk) -> None:
    disk.close(disk.open_for_writing(f"{FOLDER}/producers"))
    opened = filled(disk, 1)
    assert opened.log.load_records() == []
    opened.log.rewrite_unsynced(0)
    assert disk.exists(f"{FOLDER}/producers")
    opened.close()


def test_a_closed_segment_stays_open_only_until_it_is_synced(disk: SimulatedDisk) -> None:
    opened = open_log(FOLDER, files=disk, segment_bytes=2 * BATCH_BYTES)
    assert write(opened.log, 0, 0, 0) is None
    assert len(read_log(opened.log)) == 3
    assert sorted(disk.open_handles) == [f"{FOLDER}/{log_name(0)}", f"{FOLDER}/{log_name(2)}"]
    opened.log.sync()
    assert disk.open_handles == [f"{FOLDER}/{log_name(2)}"]
    opened.close()
    assert disk.open_handles == []


# -------------------------------------------------------------------------------------------------------------- closing


def test_closing_writes_an_index_only_if_the_log_has_grown(disk: SimulatedDisk) -> None:
    opened = open_log(FOLDER, files=disk)
    opened.close()
    assert done(disk, "rename") == []
    opened = filled(disk, 2)
    opened.close()
    assert done(disk, "rename") == []
    opened = open_log(FOLDER, files=disk)
    assert write(opened.log, 0) is None
    done(disk)
    opened.close()
    assert done(disk, "rename") == [("rename", index_name(0))]


def test_closing_syncs_what_was_written_and_closes_every_file_and_index(disk: SimulatedDisk) -> None:
    opened = filled(disk, 4, 3 * BATCH_BYTES)
    log = opened.log
    record = Record(Producer(b"p", 1, 1), 4, 1, START_TIME, 0)
    assert log.write([entry(4)], [record], sync=False) is None
    assert len(read_log(log)) == 5
    assert log.segments[0].index is not None
    done(disk)
    log.close()
    assert done(disk, "sync", "sync_folder") == [
        ("sync", "producers"),
        ("sync_folder", "d"),
        ("sync", log_name(3)),
    ]
    assert disk.open_handles == []
    assert log.segments[0].index is None


def test_the_loop_does_not_write_to_a_segment_after_which_another_begins(disk: SimulatedDisk) -> None:
    opened = open_log(FOLDER, files=disk)
    assert write(opened.log, 0) is None
    opened.log.begin_segment(10)
    assert not opened.log.write_on_loop([entry(10)], BATCH_BYTES)
    assert write(opened.log, 0) is None
    assert [offset for offset, _ in read_log(opened.log)] == [0, 10]
    opened.close()


def test_a_segment_that_begins_after_a_gap_is_synced_with_its_name(disk: SimulatedDisk) -> None:
    opened = filled(disk, 2)
    log = opened.log
    assert write(log, 0) is None
    log.sync()
    done(disk)
    log.begin_segment(10)
    assert disk.exists(f"{FOLDER}/{log_name(10)}")
    assert (starts(log), log.next_offset, log.state.segments) == ([0, 10], 10, 2)
    log.sync()
    assert done(disk, "sync", "sync_folder") == [("sync", log_name(10)), ("sync_folder", "d")]
    assert write(log, 0) is None
    assert [offset for offset, _ in read_log(log)] == [0, 1, 2, 10]
    opened.close()


# ------------------------------------------------------------------------------------------- what the event loop may do


def read(log: Log, offset: int, count: int = 1) -> list[int]:
    return [found for found, _ in messages_in(log.read(offset, count, 1 << 30, log.next_offset))]


def read_on_loop(log: Log, offset: int, count: int = 1) -> list[int] | None:
    found = log.read_on_loop(offset, count, 1 << 30, log.next_offset)
    return None if found is None else [offset for offset, _ in messages_in(found)]


def open_logs(disk: SimulatedDisk) -> list[int]:
    return sorted(int(path.rpartition("/")[2].removesuffix(".log")) for path in disk.open_handles)


def test_a_file_is_closed_by_a_read_that_continues_after_its_end(disk: SimulatedDisk) -> None:
    opened = filled(disk, 9, 3 * BATCH_BYTES)
    assert read(opened.log, 1) == [1]
    assert open_logs(disk) == [0]
    assert read(opened.log, 2, 3) == [2, 3, 4]
    assert open_logs(disk) == [3]
    opened.close()


def test_a_file_that_the_loop_read_to_its_end_is_closed_by_a_read_of_another(disk: SimulatedDisk) -> None:
    opened = filled(disk, 9, 3 * BATCH_BYTES)
    assert read(opened.log, 1) == [1]
    assert read_on_loop(opened.log, 2) == [2]
    assert open_logs(disk) == [0]
    assert read(opened.log, 3) == [3]
    assert open_logs(disk) == [3]
    opened.close()


def test_a_file_that_was_not_read_to_its_end_stays_open(disk: SimulatedDisk) -> None:
    opened = filled(disk, 9, 3 * BATCH_BYTES)
    log = opened.log
    assert read(log, 0) == [0]
    assert read_on_loop(log, 1) == [1]
    assert write(log, 0) is None
    assert read_on_loop(log, 9) == [9], "the end of another one"
    assert read(log, 3) == [3]
    assert open_logs(disk) == [0, 3, 9]
    assert read(log, 6) == [6]
    assert open_logs(disk) == [0, 3, 6, 9]
    opened.close()


def test_the_loop_goes_on_reading_a_segment_that_the_shard_reads_as_well(disk: SimulatedDisk) -> None:
    opened = filled(disk, 9, 3 * BATCH_BYTES)
    assert read(opened.log, 1) == [1]
    assert read_on_loop(opened.log, 2) == [2]
    assert read(opened.log, 0) == [0]
    assert read_on_loop(opened.log, 1) == [1]
    opened.close()


def test_the_loop_reads_no_batch_that_is_not_known_to_be_good(disk: SimulatedDisk) -> None:
    """The index of a closed segment was dropped, and with it what is known, and was loaded again for something else."""
    opened = filled(disk, 9, 3 * BATCH_BYTES)
    log = opened.log
    assert read(log, 0) == [0]
    log._indexes.drop(log.segments[0])
    assert read_on_loop(log, 0) is None
    assert log.first_timestamp(log.segments[0]) == START_TIME
    assert read_on_loop(log, 0) is None
    assert read(log, 0) == [0]
    assert read_on_loop(log, 0) == [0]
    opened.close()


@pytest.mark.parametrize(("size", "is_read"), [(256 << 10, True), ((256 << 10) + 2, False)])
def test_the_loop_reads_exactly_as_much_as_the_limit(disk: SimulatedDisk, size: int, is_read: bool) -> None:
    opened = open_log(FOLDER, files=disk)
    for _ in range(3):
        append(opened.log, [size // 2 - batches.HEADER_BYTES - batches.FRAME_BYTES])
    assert opened.log.segments[0].log_bytes == size // 2 * 3
    assert (read_on_loop(opened.log, 1, 2) is not None) is is_read
    opened.close()


@pytest.mark.parametrize(
    ("count", "is_written"), [(1, True), (BUFFERS_PER_WRITE, True), (BUFFERS_PER_WRITE + 1, False)]
)
def test_the_loop_writes_as_many_batches_as_one_call_takes(disk: SimulatedDisk, count: int, is_written: bool) -> None:
    opened = open_log(FOLDER, files=disk)
    assert write(opened.log, 0) is None
    entries = [entry(1 + i) for i in range(count)]
    assert opened.log.write_on_loop(entries, count * BATCH_BYTES) is is_written
    assert opened.log.next_offset == (1 + count if is_written else 1)
    assert opened.log.write([] if is_written else entries, [], sync=False) is None
    assert len(read_log(opened.log)) == 1 + count
    opened.close()


@pytest.mark.parametrize(("time", "is_written"), [(9, False), (10, True), (11, True)])
def test_the_loop_leaves_a_batch_that_is_older_than_the_last_one_to_the_shard(
    disk: SimulatedDisk, time: int, is_written: bool
) -> None:
    opened = open_log(FOLDER, files=disk)
    assert write(opened.log, 10) is None
    assert opened.log.write_on_loop([entry(1, time)], BATCH_BYTES) is is_written
    opened.close()


def test_the_loop_leaves_packed_batches_to_the_shard(disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    pack_everything(monkeypatch)
    opened = open_log(FOLDER, files=disk, way="zstd")
    assert write(opened.log, 0, 0) is None
    assert opened.log.segments[0].log_bytes < 2 * BATCH_BYTES
    assert read_on_loop(opened.log, 0) is None
    assert read(opened.log, 0, 2) == [0, 1]
    assert not opened.log.write_on_loop([entry(2)], BATCH_BYTES)
    opened.close()


@pytest.mark.parametrize("error", [OSError(errno.EIO, "a failure"), ValueError("a defect")])
def test_after_a_failure_on_the_loop_nothing_is_written_until_the_shard_has_reported_it(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    opened = open_log(FOLDER, files=disk)
    assert write(opened.log, 0) is None

    def fail(*_: object) -> int:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(disk, "write", fail)
        assert not opened.log.write_on_loop([entry(1)], BATCH_BYTES)
    assert not opened.log.write_on_loop([entry(1)], BATCH_BYTES)
    if isinstance(error, OSError):
        assert write(opened.log, 0) is error
    else:
        with pytest.raises(ValueError, match="a defect"):
            write(opened.log, 0)
    assert opened.log.next_offset == 1
    assert write(opened.log, 0) is None
    assert len(read_log(opened.log)) == 2
    opened.close()


def test_the_loop_writes_nothing_while_records_are_in_doubt(disk: SimulatedDisk) -> None:
    opened = open_log(FOLDER, files=disk)
    assert write(opened.log, 0) is None
    disk.refuse = refusing("sync", "producers")
    record = Record(Producer(b"p", 1, 1), 1, 1, START_TIME, 0)
    assert opened.log.write([entry(1)], [record], sync=True) is not None
    disk.refuse = lambda act, path: None
    assert not opened.log.write_on_loop([entry(1)], BATCH_BYTES)
    assert write(opened.log, 0) is None
    assert opened.log.write_on_loop([entry(2)], BATCH_BYTES)
    opened.close()


@pytest.mark.parametrize(("room", "is_written"), [(0, False), (1, True)])
def test_the_loop_leaves_the_batch_that_closes_a_segment_to_the_shard(
    disk: SimulatedDisk, room: int, is_written: bool
) -> None:
    opened = open_log(FOLDER, files=disk, segment_bytes=2 * BATCH_BYTES + room)
    assert write(opened.log, 0) is None
    assert opened.log.write_on_loop([entry(1)], BATCH_BYTES) is is_written
    opened.close()


# ------------------------------------------------------------------------------------------------------------ producers


def test_the_records_of_batches_that_were_written_stay_when_later_ones_fail(disk: SimulatedDisk) -> None:
    opened = open_log(FOLDER, files=disk)
    record = Record(Producer(b"p", 1, 1), 0, 1, START_TIME, batches.header(entry(0).batch).checksum)
    assert opened.log.write([entry(0)], [record], sync=False) is None
    disk.refuse = refusing("write", ".log")
    assert write(opened.log, 0) is not None
    later = Record(Producer(b"p", 1, 2), 1, 1, START_TIME, 0)
    assert opened.log.write([entry(1)], [later], sync=False) is not None
    disk.refuse = lambda act, path: None
    assert write(opened.log, 0) is None
    opened.close()
    again = open_log(FOLDER, files=disk)
    assert again.log.load_records() == [record]
    again.close()
