"""Reading a log whose files were changed behind its back, on a simulated disk: what is served, reported and touched."""

from __future__ import annotations

import errno
from collections.abc import Callable

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
from tests.storage.support.segments import PARTITION, START_TIME, Opened, append, open_log, read_log, stamped
from whippet.storage import batch as batches
from whippet.storage.errors import ReadFailed
from whippet.storage.fetched import Fetched
from whippet.storage.files import read_all, write_all
from whippet.storage.index import Index, decode, encode
from whippet.storage.log import Log
from whippet.storage.long_reads import Extent, Located
from whippet.storage.producers import Producer, Record
from whippet.storage.segment import Damage

ROOM = 1 << 30
LOG_0 = f"{FOLDER}/{log_name(0)}"


@pytest.fixture
def disk() -> SimulatedDisk:
    return traced_disk()


def four_segments(disk: SimulatedDisk, *, index_bytes: float = float("inf")) -> Opened:
    """They begin at 0, 3, 6 and 9; the last one has one batch."""
    filled(disk, 10, 3 * BATCH_BYTES).close()
    opened = open_log(FOLDER, files=disk, segment_bytes=3 * BATCH_BYTES, index_bytes=index_bytes)
    assert starts(opened.log) == [0, 3, 6, 9]
    done(disk)
    return opened


def overwrite(disk: SimulatedDisk, path: str, content: bytes, position: int = 0) -> None:
    handle = disk.open_for_writing(path)
    write_all(disk, handle, [content], position)
    disk.close(handle)


def truncate(disk: SimulatedDisk, path: str, size: int) -> None:
    handle = disk.open_for_writing(path)
    disk.truncate(handle, size)
    disk.close(handle)


Read = Callable[[Log, int, int, int, int], Fetched | Located]
both = pytest.mark.parametrize("read", [Log.read, Log.locate], ids=["read", "locate"])


# --------------------------------------------------------------------------------------------------------- what is read


@both
@pytest.mark.parametrize(
    ("count", "room", "end"), [(3, ROOM, 10), (9, 3 * BATCH_BYTES, 10), (9, ROOM, 3)], ids=["count", "room", "end"]
)
def test_a_read_that_is_complete_touches_no_further_segment(
    disk: SimulatedDisk, read: Read, count: int, room: int, end: int
) -> None:
    opened = four_segments(disk, index_bytes=0)
    found = read(opened.log, 0, count, room, end)
    assert (found.messages, found.next_offset) == (3, 3)
    assert {name for _, name in done(disk, "open_for_reading")} == {index_name(0), log_name(0)}
    opened.close()


def test_whole_batches_in_a_row_are_one_buffer_for_each_segment(disk: SimulatedDisk) -> None:
    opened = four_segments(disk)
    for room in (ROOM, 9 * BATCH_BYTES):
        assert [len(buffer) for buffer in opened.log.read(0, 9, room, 10).buffers] == [3 * BATCH_BYTES] * 3
    for count, room in ((5, ROOM), (9, 5 * BATCH_BYTES)):
        assert opened.log.locate(1, count, room, 10).extents == [
            Extent(b"", LOG_0, BATCH_BYTES, 2 * BATCH_BYTES),
            Extent(b"", f"{FOLDER}/{log_name(3)}", 0, 3 * BATCH_BYTES),
        ]
    opened.close()


def test_a_batch_that_is_cut_is_an_extent_of_its_own(disk: SimulatedDisk) -> None:
    opened = open_log(FOLDER, files=disk)
    for _ in range(4):
        append(opened.log, [10, 10, 10])
    size = opened.log.size_bytes // 4
    assert [len(buffer) for buffer in opened.log.read(1, 9, ROOM, 12).buffers] == [256, 2 * 58, 2 * size, 256, 58]
    assert [len(buffer) for buffer in opened.log.read(1, 1, ROOM, 12).buffers] == [256, 58]
    found = opened.log.locate(1, 9, ROOM, 12).extents
    assert [(len(extent.head), extent.position, extent.length) for extent in found] == [
        (256, 256 + 58, 2 * 58),
        (0, size, 2 * size),
        (256, 3 * size + 256, 58),
    ]
    opened.close()


def test_nothing_empty_is_sent_between_a_batch_that_is_cut_and_one_after_a_gap(disk: SimulatedDisk) -> None:
    opened = open_log(FOLDER, files=disk)
    for _ in range(3):
        append(opened.log, [10] * 3)
    size = opened.log.size_bytes // 3
    opened.abandon()
    overwrite(disk, LOG_0, b"?", size + 300)
    opened = open_log(FOLDER, files=disk)
    assert [len(buffer) for buffer in opened.log.read(1, 9, ROOM, 9).buffers] == [256, 2 * 58, size]
    opened.close()


def test_a_packed_batch_between_plain_ones_is_an_extent_of_its_own(disk: SimulatedDisk) -> None:
    opened = open_log(FOLDER, files=disk, way="zstd")
    for size in (10, 9000, 10):
        append(opened.log, [size])
    index = opened.log.segments[0].index
    assert index is not None
    assert [index.is_packed(i) for i in range(3)] == [False, True, False]
    found = opened.log.locate(0, 9, ROOM, 3).extents
    assert [(extent.position, extent.length, extent.unpacked) for extent in found] == [
        (index.position(0), index.length(0), None),
        (index.position(1), index.stored_length(1), index.length(1)),
        (index.position(2), index.length(2), None),
    ]
    opened.close()


def test_a_batch_that_is_cut_is_located_only_if_all_of_it_is_left(disk: SimulatedDisk) -> None:
    opened = open_log(FOLDER, files=disk)
    for _ in range(2):
        append(opened.log, [10] * 3)
    truncate(disk, LOG_0, opened.log.size_bytes - 1)
    found = opened.log.locate(4, 1, ROOM, 6)
    assert (found.messages, found.next_offset, [damage.offset for damage in opened.damage]) == (0, 6, [3])
    opened.abandon()


def test_batches_that_were_written_here_are_located_without_reading_them(disk: SimulatedDisk) -> None:
    opened = open_log(FOLDER, files=disk, segment_bytes=3 * BATCH_BYTES)
    assert write(opened.log, 0, 0) is None
    done(disk)
    assert opened.log.locate(0, 2, ROOM, 2).messages == 2
    assert done(disk, "read") == []
    opened.close()


def test_batches_that_were_checked_once_are_located_without_reading_them(disk: SimulatedDisk) -> None:
    opened = four_segments(disk)
    for reads in (1, 0):
        assert opened.log.locate(0, 1, ROOM, 10).messages == 1
        assert done(disk, "read").count(("read", log_name(0))) == reads
    overwrite(disk, LOG_0, b"?", BATCH_BYTES + 300)
    found = opened.log.locate(0, 3, ROOM, 10)
    assert (found.messages, found.next_offset, len(opened.damage)) == (3, 4, 1)
    opened.close()


def test_a_read_before_the_first_message_begins_with_it(disk: SimulatedDisk) -> None:
    opened = four_segments(disk)
    assert opened.log.trim(6) == 2
    assert opened.log.read(0, 2, ROOM, 10).next_offset == 8
    assert opened.log.locate(2, 2, ROOM, 10).next_offset == 8
    opened.close()


# ------------------------------------------------------------------------------------------------------- changed files


def test_a_log_that_lost_its_end_while_it_was_open_serves_the_rest_and_is_reported(disk: SimulatedDisk) -> None:
    opened = open_log(FOLDER, files=disk)
    assert write(opened.log, 0, 0, 0) is None
    truncate(disk, LOG_0, 2 * BATCH_BYTES)
    found = opened.log.read(0, 9, ROOM, 3)
    assert (found.messages, opened.log.batches, opened.log.segments[0].log_bytes) == (2, 2, 3 * BATCH_BYTES)
    reason = "the file ends before the next segment begins"
    assert opened.damage == [Damage(LOG_0, 2 * BATCH_BYTES, 0, 2, 3, reason)]
    found = opened.log.read(2, 9, ROOM, 3)
    assert (found.messages, found.next_offset) == (0, 3)
    opened.abandon()


@both
def test_damage_and_bytes_that_were_added_to_a_closed_segment_are_counted(disk: SimulatedDisk, read: Read) -> None:
    opened = four_segments(disk, index_bytes=0)
    log = opened.log
    assert (log.batches, log.size_bytes) == (10, 10 * BATCH_BYTES)
    overwrite(disk, LOG_0, b"?", BATCH_BYTES + 300)
    overwrite(disk, LOG_0, b"added", 3 * BATCH_BYTES)
    assert read(log, 0, 10, ROOM, 10).messages == 9
    assert (log.batches, log.size_bytes) == (9, 10 * BATCH_BYTES + 5)
    assert [(damage.position, damage.length, damage.offset) for damage in opened.damage] == [
        (BATCH_BYTES, BATCH_BYTES, 1),
        (3 * BATCH_BYTES, 5, 3),
    ]
    assert log.segments[0].index is None, "there is no room for it"
    assert read(log, 0, 10, ROOM, 10).messages == 9
    assert len(opened.damage) == 2
    opened.close()


WRONG = {
    "base offset": (1, 0, 0, 1),
    "count": (0, 0, 0, 2),
    "time": (0, 0, 1, 1),
}


@both
@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_an_index_that_differs_from_the_log_in_one_number_is_replaced(
    disk: SimulatedDisk, read: Read, change: tuple[int, int, int, int]
) -> None:
    opened = four_segments(disk, index_bytes=0)
    offset, position, time, count = change
    right, wrong = Index(), Index()
    for i in range(3):
        right.add(i, i * BATCH_BYTES, START_TIME, BATCH_BYTES, 1)
        if i < 2:
            wrong.add(i, i * BATCH_BYTES, START_TIME, BATCH_BYTES, 1)
    wrong.add(2 + offset, 2 * BATCH_BYTES + position, START_TIME + time, BATCH_BYTES, count)
    overwrite(disk, f"{FOLDER}/{index_name(0)}", encode(wrong, 0, 3 * BATCH_BYTES))
    assert read(opened.log, 2, 1, ROOM, 10).messages == 1
    assert opened.damage == []
    known = decode(read_all(disk, f"{FOLDER}/{index_name(0)}"), 0)
    assert known is not None
    assert known[0].words == right.words
    opened.close()


@both
def test_an_index_of_a_shorter_log_is_replaced(disk: SimulatedDisk, read: Read) -> None:
    opened = four_segments(disk, index_bytes=0)
    short = Index()
    short.add(0, 0, START_TIME, BATCH_BYTES, 1)
    path = f"{FOLDER}/{index_name(0)}"
    truncate(disk, path, 0)
    overwrite(disk, path, encode(short, 0, BATCH_BYTES))
    assert read(opened.log, 0, 9, ROOM, 10).messages == 9
    assert opened.damage == []
    opened.close()


def test_the_index_that_was_used_longest_ago_is_dropped_first(disk: SimulatedDisk) -> None:
    opened = four_segments(disk, index_bytes=200)
    for offset in (0, 3, 0, 6):
        assert opened.log.read(offset, 1, ROOM, 10).messages == 1
    assert [segment.index is not None for segment in opened.log.segments] == [True, False, True, True]
    opened.close()


@both
def test_a_batch_of_another_partition_is_not_served(disk: SimulatedDisk, read: Read) -> None:
    opened = four_segments(disk)
    foreign = stamped([100], 1, partition=PARTITION + 1, timestamp=START_TIME - 1)
    overwrite(disk, LOG_0, foreign, BATCH_BYTES)
    found = read(opened.log, 1, 1, ROOM, 10)
    assert (found.messages, found.next_offset) == (1, 3)
    (damage,) = opened.damage
    assert damage == Damage(LOG_0, BATCH_BYTES, BATCH_BYTES, 1, 2, f"not a batch of partition {PARTITION}")
    opened.close()


@both
def test_a_gap_before_the_next_segment_is_reported_once(disk: SimulatedDisk, read: Read) -> None:
    opened = four_segments(disk)
    assert opened.log.trim(3) == 1
    opened.close()
    overwrite(disk, LOG_0, bytes(entry(0).batch))
    index = Index()
    index.add(0, 0, START_TIME, BATCH_BYTES, 1)
    overwrite(disk, f"{FOLDER}/{index_name(0)}", encode(index, 0, BATCH_BYTES))
    opened = open_log(FOLDER, files=disk, segment_bytes=3 * BATCH_BYTES, index_bytes=0)
    assert opened.damage == []
    reason = "the file ends before the next segment begins"
    for _ in range(2):
        found = read(opened.log, 0, 2, ROOM, 10)
        assert (found.messages, found.next_offset) == (1, 1)
        assert opened.damage == [Damage(LOG_0, BATCH_BYTES, 0, 1, 3, reason)]
    # What is missing takes no room.
    found = read(opened.log, 1, 9, 2 * BATCH_BYTES, 10)
    assert (found.messages, found.next_offset) == (2, 5)
    lost = Record(Producer(b"p", 1, 1), 1, 1, START_TIME, batches.header(entry(1).batch).checksum)
    assert not opened.log._counts(lost, 0)
    opened.close()


def test_damage_that_was_found_when_the_log_was_opened_is_not_reported_again(disk: SimulatedDisk) -> None:
    four_segments(disk).close()
    truncate(disk, LOG_0, 2 * BATCH_BYTES)
    opened = open_log(FOLDER, files=disk, segment_bytes=3 * BATCH_BYTES, index_bytes=0, check_all=True)
    assert len(opened.damage) == 1
    assert [segment.index for segment in opened.log.segments[:-1]] == [None] * 3, "there is no room for them"
    assert len(read_log(opened.log)) == 9
    assert len(opened.damage) == 1
    opened.close()


@both
def test_a_closed_segment_that_cannot_be_checked_is_an_error_that_names_it(disk: SimulatedDisk, read: Read) -> None:
    opened = four_segments(disk)
    disk.remove(f"{FOLDER}/{index_name(0)}")
    disk.refuse = lambda act, path: errno.EIO if path == LOG_0 else None
    with pytest.raises(ReadFailed, match=f"{LOG_0} cannot be read: Input/output error"):
        read(opened.log, 0, 1, ROOM, 10)
    disk.refuse = lambda act, path: None
    assert read(opened.log, 0, 1, ROOM, 10).messages == 1
    opened.close()


# ----------------------------------------------------------------------------------------------------- times, producers


def test_closed_segments_are_described_with_their_last_times_and_the_first_time_after_them(disk: SimulatedDisk) -> None:
    opened = open_log(FOLDER, files=disk, segment_bytes=2 * BATCH_BYTES)

    def described() -> tuple[list[tuple[int, int, int, int | None]], int]:
        closed, after = opened.log.closed_segments()
        return [(one.start_offset, one.log_bytes, one.next_offset, one.last_timestamp) for one in closed], after

    assert described() == ([], 0)
    assert write(opened.log, 10, 11) is None
    first = (0, 2 * BATCH_BYTES, 2, START_TIME + 11)
    assert described() == ([first], 0)
    assert write(opened.log, 20, 21, 30) is None
    second = (2, 2 * BATCH_BYTES, 4, START_TIME + 21)
    assert described() == ([first, second], START_TIME + 30)
    opened.close()
    opened = open_log(FOLDER, files=disk, segment_bytes=2 * BATCH_BYTES, index_bytes=0)
    assert described() == ([first, second], START_TIME + 30)
    opened.close()


def test_a_time_is_found_although_the_clock_was_ahead_and_a_segment_after_that_is_lost(disk: SimulatedDisk) -> None:
    opened = open_log(FOLDER, files=disk, segment_bytes=BATCH_BYTES)
    assert write(opened.log, 10, 1000, 15, 20, 30) is None
    assert starts(opened.log) == [0, 1, 2, 3, 4, 5]
    opened.close()
    overwrite(disk, f"{FOLDER}/{index_name(2)}", encode(Index(), 2, 0))
    truncate(disk, f"{FOLDER}/{index_name(2)}", len(encode(Index(), 2, 0)))
    truncate(disk, f"{FOLDER}/{log_name(2)}", 0)
    opened = open_log(FOLDER, files=disk, segment_bytes=BATCH_BYTES)
    closed, _ = opened.log.closed_segments()
    assert [one.last_timestamp and one.last_timestamp - START_TIME for one in closed] == [10, 1000, 0, 20, 30]
    found = [opened.log.offset_at(START_TIME + time) for time in (5, 10, 11, 17, 20, 21, 30, 31)]
    assert found == [0, 0, 1, 1, 1, 4, 4, 5]
    opened.close()


@pytest.mark.parametrize("size", [0, 255, 256])
def test_a_record_whose_batch_lost_its_header_does_not_count(disk: SimulatedDisk, size: int) -> None:
    opened = filled(disk, 1)
    record = Record(Producer(b"p", 1, 1), 0, 1, START_TIME, batches.header(entry(0).batch).checksum)
    assert opened.log._counts(record, 0)
    truncate(disk, LOG_0, size)
    assert opened.log._counts(record, 0) is (size == 256)
    disk.refuse = refusing("read", ".log")
    assert not opened.log._counts(record, 0)
    disk.refuse = lambda act, path: None
    opened.abandon()
