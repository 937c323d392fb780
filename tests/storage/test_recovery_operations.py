"""Opening the files of a partition on a simulated disk: what is reported, exactly, and the order of the operations."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

import pytest

from tests.storage.support.disk import SimulatedDisk
from tests.storage.support.operations import FOLDER, done, index_name, log_name, traced_disk
from tests.storage.support.packed import pack_everything
from tests.storage.support.segments import (
    PARTITION,
    START_TIME,
    Opened,
    Piece,
    append,
    joined,
    open_log,
    pieces,
    stamped,
)
from whippet.storage import recovery
from whippet.storage.files import read_all, write_all
from whippet.storage.index import Index, decode, encode
from whippet.storage.segment import Damage, Segment

KIB = 1 << 10


@pytest.fixture
def disk() -> SimulatedDisk:
    return traced_disk()


def put(disk: SimulatedDisk, name: str, content: bytes | bytearray) -> str:
    path = f"{FOLDER}/{name}"
    handle = disk.open_for_writing(path)
    write_all(disk, handle, [content] if content else [], 0)
    disk.close(handle)
    return path


def left_out_name(start: int) -> str:
    return f"{start:020}.left_out"


def index_of(found: Sequence[Piece], start: int = 0, log_bytes: int | None = None) -> bytes:
    index = Index()
    for one in found:
        index.add(one.base_offset, one.position, START_TIME + one.base_offset, len(one.content), one.count)
    end = found[-1].end if found else 0
    return encode(index, start, end if log_bytes is None else log_bytes)


def recovered(disk: SimulatedDisk, *, check_all: bool = False) -> recovery.Recovered:
    """Everything that was opened has to be closed."""
    assert disk.trace is not None
    disk.trace.clear()
    found = recovery.recover(disk, FOLDER, PARTITION, **({"check_all": True} if check_all else {}))
    assert disk.open_handles == []
    return found


def starts_in(found: recovery.Recovered) -> list[int]:
    return [segment.start_offset for segment in found.segments]


def test_an_empty_folder_begins_at_offset_0_with_a_log_whose_name_is_synced(disk: SimulatedDisk) -> None:
    found = recovered(disk)
    assert (starts_in(found), found.last_timestamp, found.damage) == ([0], 0, [])
    assert done(disk, "open_for_writing", "sync_folder") == [("open_for_writing", log_name(0)), ("sync_folder", "d")]
    again = recovered(disk)
    assert (starts_in(again), again.last_timestamp, again.damage) == ([0], 0, [])


def test_what_is_in_the_place_of_a_log_is_reported_with_its_name(disk: SimulatedDisk) -> None:
    whole = pieces([[9]])
    put(disk, log_name(0), joined(whole))
    odd = put(disk, "1.LOG", b"not the name of a segment")
    disk.make_folder(f"{FOLDER}/{log_name(7)}")
    put(disk, "notes.txt", b"not reported")
    found = recovered(disk)
    assert sorted(found.damage, key=lambda damage: damage.reason) == [
        Damage(
            f"{FOLDER}/{log_name(7)}",
            0,
            0,
            7,
            7,
            "a folder in the place of a file",
            f"{FOLDER}/damaged/{log_name(7)}",
        ),
        Damage(odd, 0, 0, 0, 0, "not the name of a segment; left alone"),
    ]
    assert starts_in(found) == [0]


def test_logs_of_which_only_the_index_is_left_are_missing_up_to_the_next(disk: SimulatedDisk) -> None:
    put(disk, index_name(0), b"")
    put(disk, index_name(5), b"")
    put(disk, log_name(10), stamped([9], 10))
    put(disk, index_name(12), b"it does not tell how many messages there were, but there was one")
    found = recovered(disk)
    assert found.damage == [
        Damage(f"{FOLDER}/{log_name(start)}", 0, 0, start, end, "the file is missing although its index exists")
        for start, end in ((0, 5), (5, 10), (12, 13))
    ]
    assert starts_in(found) == [10, 13]
    assert found.segments[0].next_offset == 13


@pytest.mark.parametrize(("messages", "after"), [(0, 4), (1, 5), (3, 7)])
def test_offsets_that_the_index_of_a_lost_log_names_are_not_given_out_again(
    disk: SimulatedDisk, messages: int, after: int
) -> None:
    lost = pieces([[9]] * messages, 4)
    put(disk, index_name(4), index_of(lost, 4))
    assert starts_in(recovered(disk)) == [after]
    assert ("sync_folder", "d") in done(disk, "sync_folder")


def test_an_index_of_no_messages_at_offset_0_takes_none(disk: SimulatedDisk) -> None:
    put(disk, index_name(0), index_of([]))
    assert starts_in(recovered(disk)) == [0]


FRONT = pieces([[9, 9], [30], [5] * 20])
REAR = pieces([[7, 8], [40]], FRONT[-1].next_offset)


def two_segments(disk: SimulatedDisk) -> None:
    put(disk, log_name(0), joined(FRONT))
    put(disk, index_name(0), index_of(FRONT))
    put(disk, log_name(REAR[0].base_offset), joined(REAR))


def test_batches_of_closed_segments_are_counted_without_reading_them(disk: SimulatedDisk) -> None:
    two_segments(disk)
    opened = open_log(FOLDER, files=disk)
    assert done(disk, "open_for_reading") == []
    assert (opened.log.batches, opened.log.state.batches) == (5, 5)
    assert [segment.batches for segment in opened.log.segments] == [3, 2]
    opened.abandon()


@pytest.mark.parametrize("indexed", [False, True])
def test_a_closed_segment_that_cannot_be_read_is_reported_and_the_others_are_served(
    disk: SimulatedDisk, indexed: bool
) -> None:
    two_segments(disk)
    path = f"{FOLDER}/{log_name(0)}"
    if not indexed:
        disk.remove(f"{FOLDER}/{index_name(0)}")
    disk.refuse = lambda act, asked: errno.EIO if asked == path else None
    found = recovered(disk, check_all=indexed)
    reason = "cannot be read: Input/output error"
    assert found.damage == [Damage(path, 0, len(joined(FRONT)), 0, FRONT[-1].next_offset, reason)]
    assert [segment.batches for segment in found.segments] == [3 if indexed else 0, 2]
    assert found.last_timestamp == START_TIME + REAR[-1].base_offset


def test_an_index_that_cannot_be_written_is_reported_and_kept_in_memory(disk: SimulatedDisk) -> None:
    two_segments(disk)
    disk.remove(f"{FOLDER}/{index_name(0)}")
    disk.refuse = lambda act, path: errno.EIO if act == "rename" else None
    found = recovered(disk)
    (damage,) = found.damage
    assert damage == Damage(f"{FOLDER}/{index_name(0)}", 0, 0, 0, 0, damage.reason)
    assert "the index could not be written" in damage.reason
    first = found.segments[0]
    assert (first.index_in_file, first.index is not None and len(first.index)) == (False, 3)
    disk.refuse = lambda act, path: None
    assert recovery.rebuild_closed(disk, FOLDER, first, PARTITION) == []
    assert (first.index_in_file, first.whole, first.end_checked) == (True, True, True)
    # After a power failure an index is complete or ignored.
    assert ("sync", f"{index_name(0)}.new") not in done(disk, "sync")


def test_the_time_of_the_newest_message_is_found_before_segments_without_any(disk: SimulatedDisk) -> None:
    two_segments(disk)
    end = REAR[-1].next_offset
    put(disk, log_name(end), b"")
    put(disk, log_name(end + 5), b"")
    found = recovered(disk)
    assert found.last_timestamp == START_TIME + REAR[-1].base_offset
    assert [segment.last_timestamp for segment in found.segments[1:]] == [found.last_timestamp, 0, 0]


def test_the_time_of_the_newest_message_is_not_taken_from_an_index_of_another_log(disk: SimulatedDisk) -> None:
    put(disk, log_name(0), joined(FRONT[:1]))
    put(disk, index_name(0), index_of(FRONT))
    put(disk, log_name(FRONT[-1].next_offset), b"")
    found = recovered(disk)
    assert found.last_timestamp == START_TIME + FRONT[0].base_offset
    assert [damage.offset for damage in found.damage] == [FRONT[0].next_offset]


def test_the_time_of_the_newest_message_is_not_taken_from_a_damaged_index(disk: SimulatedDisk) -> None:
    put(disk, log_name(0), joined(FRONT))
    put(disk, index_name(0), index_of(FRONT)[:-1] + b"?")
    put(disk, log_name(FRONT[-1].next_offset), b"")
    found = recovered(disk)
    assert (found.last_timestamp, found.damage) == (START_TIME + FRONT[-1].base_offset, [])


def test_a_torn_tail_is_cut_off_only_after_its_copy_is_synced(disk: SimulatedDisk) -> None:
    put(disk, log_name(0), joined(FRONT) + b"torn")
    (damage,) = recovered(disk).damage
    end = FRONT[-1].end
    assert damage.kept_in == f"{FOLDER}/damaged/{log_name(0)}@{end}"
    assert read_all(disk, damage.kept_in) == b"torn"
    assert done(disk, "write", "sync", "sync_folder", "truncate") == [
        ("write", f"{log_name(0)}@{end}"),
        ("sync", f"{log_name(0)}@{end}"),
        ("sync_folder", "damaged"),
        ("sync_folder", "d"),
        ("truncate", log_name(0)),
        ("sync", log_name(0)),
    ]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("kept", [0, 1])
def test_without_room_for_a_copy_the_tail_stays_and_a_new_segment_is_begun(
    disk: SimulatedDisk, number: int, kept: int
) -> None:
    """Unless that would have the name of the old one."""
    path = put(disk, log_name(0), joined(FRONT[:kept]) + b"torn")
    disk.refuse = lambda act, path: number if act == "write" and "damaged" in path else None
    if number == errno.EIO or not kept:
        with pytest.raises(OSError, match=os.strerror(number)) as failed:
            recovered(disk)
        assert failed.value.errno == number
        assert disk.open_handles == []
        return
    found = recovered(disk)
    next_offset, end = FRONT[0].next_offset, FRONT[0].end
    assert found.damage == [Damage(path, end, 4, next_offset, next_offset, found.damage[0].reason)]
    assert starts_in(found) == [0, next_offset]
    assert read_all(disk, path) == joined(FRONT[:1]) + b"torn"
    assert found.segments[0].log_bytes == end + 4


def test_an_index_of_other_bytes_of_the_same_length_gives_out_no_offset(disk: SimulatedDisk) -> None:
    put(disk, log_name(0), joined(FRONT))
    put(disk, index_name(0), index_of(pieces([[9]] * 60), log_bytes=FRONT[-1].end))
    found = recovered(disk)
    assert (starts_in(found), found.damage) == ([0], [])
    assert (found.segments[-1].next_offset, found.segments[-1].whole) == (FRONT[-1].next_offset, True)


def test_an_index_of_a_longer_log_that_gives_out_no_more_offsets_is_removed(disk: SimulatedDisk) -> None:
    """It must not describe what is appended from now on."""
    put(disk, log_name(0), joined(FRONT))
    put(disk, index_name(0), index_of(FRONT, log_bytes=FRONT[-1].end + 100))
    found = recovered(disk)
    assert (starts_in(found), found.damage) == ([0], [])
    assert not disk.exists(f"{FOLDER}/{index_name(0)}")
    assert done(disk, "remove", "sync_folder") == [("remove", index_name(0)), ("sync_folder", "d")]


def test_the_index_of_a_log_that_lost_its_end_describes_what_is_left(disk: SimulatedDisk) -> None:
    put(disk, log_name(0), joined(FRONT[:2]))
    put(disk, index_name(0), index_of(FRONT))
    found = recovered(disk)
    assert done(disk, "remove") == []
    assert starts_in(found) == [0, FRONT[-1].next_offset]
    known = decode(read_all(disk, f"{FOLDER}/{index_name(0)}"), 0)
    assert known is not None
    assert (len(known[0]), known[1]) == (2, FRONT[1].end)
    assert found.damage == [
        Damage(
            f"{FOLDER}/{log_name(0)}",
            FRONT[1].end,
            0,
            FRONT[1].next_offset,
            FRONT[2].next_offset,
            "the file ends before its index does",
        )
    ]


@pytest.mark.parametrize("check_all", [False, True])
def test_offsets_that_were_left_out_on_purpose_are_no_damage(disk: SimulatedDisk, check_all: bool) -> None:
    put(disk, log_name(0), b"")
    put(disk, log_name(4), joined(pieces([[9]], 4)))
    put(disk, left_out_name(0), b"")
    put(disk, left_out_name(4), b"")
    put(disk, log_name(5), b"")
    found = recovered(disk, check_all=check_all)
    assert (found.damage, [segment.left_out for segment in found.segments]) == ([], [True, False, False])
    assert [segment.batches for segment in found.segments] == [0, 1, 0]
    assert found.last_timestamp == START_TIME + 4
    first = found.segments[0]
    assert (first.index_in_file, first.last_timestamp, first.whole, first.end_checked) == (False, 0, True, True)
    disk.remove(f"{FOLDER}/{left_out_name(0)}")
    (damage,) = recovered(disk, check_all=check_all).damage
    assert (damage.file, damage.offset, damage.next_offset) == (f"{FOLDER}/{log_name(0)}", 0, 4)


def test_a_log_of_which_bytes_are_left_is_not_left_out(disk: SimulatedDisk) -> None:
    path = put(disk, log_name(0), b"garbage")
    put(disk, left_out_name(0), b"")
    put(disk, log_name(4), b"")
    segment = Segment(0, 7, 4)
    (damage,) = recovery.check_closed(disk, FOLDER, segment, PARTITION)
    assert damage == Damage(path, 0, 7, 0, 4, damage.reason)
    put(disk, log_name(8), b"")
    put(disk, left_out_name(4), b"")
    assert recovery.check_closed(disk, FOLDER, Segment(4, 0, 8), PARTITION) == []


def packed_segments(disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> Opened:
    """Two closed segments with an index of version 2, and an empty one."""
    pack_everything(monkeypatch)
    filling = open_log(FOLDER, files=disk, segment_bytes=1, way="zstd")
    for _ in range(2):
        append(filling.log, [5000])
    filling.close()
    return filling


def test_packed_batches_of_closed_segments_are_counted_by_the_start_of_their_indexes(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled = packed_segments(disk, monkeypatch)
    found = recovered(disk)
    assert ("open_for_reading", log_name(0)) not in done(disk, "open_for_reading")
    assert [segment.batches for segment in found.segments] == [1, 1, 0]
    saved = [segment.saved_bytes for segment in filled.log.segments]
    assert [segment.saved_bytes for segment in found.segments] == saved
    assert saved[0] > 1000


def test_an_index_of_packed_batches_that_is_damaged_or_unreadable_is_replaced(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed_segments(disk, monkeypatch)
    path = f"{FOLDER}/{index_name(0)}"
    good = read_all(disk, path)
    saved = [segment.saved_bytes for segment in recovered(disk).segments]
    put(disk, index_name(0), good[:20] + b"?" + good[21:])
    found = recovered(disk)
    assert (found.damage, [segment.saved_bytes for segment in found.segments]) == ([], saved)
    assert read_all(disk, path) == good
    for act in ("open_for_reading", "read"):
        disk.refuse = lambda asked, named, act=act: errno.EIO if (asked, named) == (act, path) else None  # type: ignore[misc]
        found = recovered(disk)
        assert (found.damage, [segment.saved_bytes for segment in found.segments]) == ([], saved)
    disk.refuse = lambda act, path: None


LARGE = pieces([[400 * KIB]] * 6)


@pytest.mark.parametrize("check_all", [False, True])
def test_damage_in_the_front_of_the_last_segment_is_found_if_everything_is_checked(
    disk: SimulatedDisk, check_all: bool
) -> None:
    content = bytearray(joined(LARGE))
    content[300] ^= 1
    path = put(disk, log_name(0), content)
    put(disk, index_name(0), index_of(LARGE))
    found = recovered(disk, check_all=check_all)
    assert [(damage.file, damage.offset, damage.next_offset) for damage in found.damage] == (
        [(path, 0, 1)] if check_all else []
    )
    assert found.segments[0].whole is check_all
    assert found.segments[0].batches == (5 if check_all else 6)


def test_an_index_of_a_large_log_that_does_not_match_it_is_not_trusted(disk: SimulatedDisk) -> None:
    put(disk, log_name(0), joined(LARGE))
    other = pieces([[400 * KIB - 100]] * 5 + [[400 * KIB + 500]])
    put(disk, index_name(0), index_of(other))
    found = recovered(disk)
    assert (found.damage, found.segments[0].whole, found.segments[0].batches) == ([], True, 6)


# --------------------------------------------------------------------------------------------------- recorded deletions


def test_the_intent_of_a_purge_is_removed_after_everything_that_it_deletes(disk: SimulatedDisk) -> None:
    two_segments(disk)
    put(disk, "producers", b"")
    disk.make_folder(f"{FOLDER}/offsets")
    disk.make_folder(f"{FOLDER}/{log_name(99)}")
    recovery.write_intent(disk, FOLDER, recovery.Intent(purge=True))
    assert disk.trace is not None
    disk.trace.clear()
    recovery.finish_intent(disk, FOLDER)
    assert done(disk, "remove", "remove_tree", "sync_folder", "open_for_writing") == [
        ("remove_tree", "offsets"),
        ("remove", "producers"),
        ("remove", index_name(0)),
        ("remove", log_name(0)),
        ("remove", log_name(REAR[0].base_offset)),
        ("open_for_writing", log_name(0)),
        ("sync_folder", "d"),
        ("remove", "intent.json"),
        ("sync_folder", "d"),
    ]
    assert disk.open_handles == []
    disk.trace.clear()
    recovery.finish_intent(disk, FOLDER)
    assert done(disk, "remove", "remove_tree", "sync_folder") == []


def test_an_intent_that_is_withdrawn_does_not_come_back(disk: SimulatedDisk) -> None:
    recovery.write_intent(disk, FOLDER, recovery.Intent(purge=True))
    done(disk)
    recovery.withdraw_intent(disk, FOLDER)
    assert done(disk, "remove", "sync_folder") == [("remove", "intent.json"), ("sync_folder", "d")]
    recovery.withdraw_intent(disk, FOLDER)
    assert done(disk, "remove", "sync_folder") == []


def test_an_intent_that_names_nothing_deletes_nothing(disk: SimulatedDisk) -> None:
    two_segments(disk)
    put(disk, "intent.json", b"{}")
    assert starts_in(recovered(disk)) == [0, REAR[0].base_offset]
    assert not disk.exists(f"{FOLDER}/intent.json")


def test_what_is_set_aside_under_a_name_that_is_taken_gets_the_next_number(disk: SimulatedDisk) -> None:
    kept = []
    for _ in range(4):
        put(disk, "file", b"x")
        kept.append(recovery.move_aside(disk, FOLDER, "file"))
    assert kept == [f"{FOLDER}/damaged/file{ending}" for ending in ("", ".1", ".2", ".3")]


@pytest.mark.parametrize(("before", "left"), [(1, [0, 2, 3]), (2, [2, 3]), (3, [3]), (9, [3])])
def test_a_recorded_deletion_leaves_the_segments_that_end_later_and_the_last_one(
    disk: SimulatedDisk, before: int, left: list[int]
) -> None:
    for start in (0, 2, 3):
        put(disk, log_name(start), b"")
        put(disk, index_name(start), b"")
    recovery.write_intent(disk, FOLDER, recovery.Intent(delete_before=before))
    recovery.finish_intent(disk, FOLDER)
    names = {f(start) for start in left for f in (log_name, index_name)}
    assert {item.name for item in disk.list(FOLDER)} == names
