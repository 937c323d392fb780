"""The file operations of a log, on a simulated disk: what is written together, synced, reserved, renamed and closed."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from tests.storage.support.disk import SimulatedDisk
from tests.storage.support.segments import START_TIME, Opened, open_log, read_log, stamped
from whippet.storage import batch as batches
from whippet.storage.log import Entry, Log
from whippet.storage.producers import Producer, Record
from whippet.storage.segment import Damage

FOLDER = "/d"
BATCH_BYTES = len(stamped([100], 0))


@pytest.fixture
def disk() -> SimulatedDisk:
    made = SimulatedDisk()
    made.make_folder(FOLDER)
    made.trace = []
    return made


def entry(offset: int, time: int = 0) -> Entry:
    """A batch of one message, which has `BATCH_BYTES`."""
    batch = bytearray(stamped([100], offset, timestamp=START_TIME + time - offset))
    return Entry(batch, offset, offset + 1, START_TIME + time, batches.frame_positions(batch))


def write(log: Log, *times: int) -> OSError | None:
    """Writes a batch of one message for each time, all together."""
    start = log.next_offset
    return log.write([entry(start + i, time) for i, time in enumerate(times)], [], sync=False)


def done(disk: SimulatedDisk, *acts: str) -> list[tuple[str, str]]:
    """The operations of these kinds since the last call: each with the name of its file."""
    assert disk.trace is not None
    named = [(one.act, one.path.rpartition("/")[2]) for one in disk.trace if one.act in acts]
    disk.trace.clear()
    return named


def log_name(start: int) -> str:
    return f"{start:020}.log"


def starts(log: Log) -> list[int]:
    return [segment.start_offset for segment in log.segments]


def refusing(act: str, ending: str) -> Callable[[str, str], int | None]:
    return lambda asked, path: errno.EIO if asked == act and path.endswith(ending) else None


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
def test_a_batch_that_is_older_than_the_one_before_it_begins_a_segment(disk: SimulatedDisk, together: bool) -> None:
    opened = open_log(FOLDER, files=disk)
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


# -------------------------------------------------------------------------------------------------------------- syncing


def filled(disk: SimulatedDisk, count: int, segment_bytes: int = 1 << 20) -> Opened:
    """A log that was written, closed and opened again."""
    before = open_log(FOLDER, files=disk, segment_bytes=segment_bytes)
    for _ in range(count):
        assert write(before.log, 0) is None
    before.close()
    found = open_log(FOLDER, files=disk, segment_bytes=segment_bytes)
    assert found.damage == []
    done(disk)
    return found


def test_a_sync_reaches_the_files_that_were_written_and_the_folder_if_it_has_a_new_name(disk: SimulatedDisk) -> None:
    opened = filled(disk, 1, 3 * BATCH_BYTES)
    log = opened.log
    log.sync()
    assert done(disk, "sync", "sync_folder") == []
    assert (log.unsynced_bytes, log.unsynced_files()) == (0, [])
    assert write(log, 0) is None
    assert (log.unsynced_bytes, log.unsynced_files()) == (BATCH_BYTES, [f"{FOLDER}/{log_name(0)}"])
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
    assert done(disk, "rename") == [("rename", "00000000000000000000.index")]


def test_a_segment_that_begins_after_a_gap_is_synced_with_its_name(disk: SimulatedDisk) -> None:
    opened = filled(disk, 2)
    log = opened.log
    assert write(log, 0) is None
    log.sync()
    done(disk)
    log.begin_segment(10)
    assert (starts(log), log.next_offset, log.state.segments) == ([0, 10], 10, 2)
    log.sync()
    assert done(disk, "sync", "sync_folder") == [("sync", log_name(10)), ("sync_folder", "d")]
    assert write(log, 0) is None
    assert [offset for offset, _ in read_log(log)] == [0, 1, 2, 10]
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
