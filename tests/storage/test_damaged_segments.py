"""Damaged logs and indexes: the readable messages are served, the rest is reported and nothing is thrown away."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from tests.storage.support.damaged import GARBAGE, LAST, segment
from tests.storage.support.folders import (
    BATCH_BYTES,
    BATCH_MESSAGES,
    CONSUMED,
    MESSAGES,
    SEGMENT_BYTES,
    SEGMENT_MESSAGES,
    SEGMENTS,
    DamagedFolder,
    assert_continues,
    assert_kept,
    look,
    make,
    pieces_of,
    reopened,
)
from tests.storage.support.segments import open_log, payload_of, read_log, stamped, tree

LAST_START = LAST * SEGMENT_MESSAGES


def batch(segment_number: int, number: int) -> range:
    """The offsets of a batch of a segment."""
    first = segment_number * SEGMENT_MESSAGES + number * BATCH_MESSAGES
    return range(first, first + BATCH_MESSAGES)


# -------------------------------------------------------------------------------------------------------------- indexes


@pytest.mark.parametrize("number", range(SEGMENTS))
@pytest.mark.parametrize("content", [None, b"", GARBAGE, bytes(4096)], ids=["missing", "empty", "garbage", "zeros"])
def test_an_index_may_be_missing_or_garbage(damaged: DamagedFolder, number: int, content: bytes | None) -> None:
    if content is None:
        damaged.index(number).unlink()
    else:
        damaged.index(number).write_bytes(content)
    seen = reopened(damaged)
    assert seen.reports == []
    assert seen.appended_at[0] == MESSAGES


def test_all_indexes_may_be_missing(damaged: DamagedFolder) -> None:
    damaged.remove_indexes()
    assert reopened(damaged).reports == []


@pytest.mark.parametrize("number", range(SEGMENTS))
def test_a_folder_in_the_place_of_an_index_loses_only_the_index(damaged: DamagedFolder, number: int) -> None:
    damaged.index(number).unlink()
    damaged.index(number).mkdir()
    (damaged.index(number) / "note").write_bytes(b"mine")
    seen = reopened(damaged)
    assert seen.says(damaged.index(number))


def test_the_index_of_another_segment_is_ignored(damaged: DamagedFolder) -> None:
    shutil.copy(damaged.index(2), damaged.index(1))
    assert reopened(damaged).reports == []


# ---------------------------------------------------------------------------------------------------------- whole files


@pytest.mark.parametrize("number", range(SEGMENTS))
def test_a_missing_log_whose_index_exists_is_reported(damaged: DamagedFolder, number: int) -> None:
    damaged.log(number).unlink()
    seen = reopened(damaged, lost=segment(number))
    assert seen.says(damaged.log(number), "missing")
    assert seen.appended_at[0] == MESSAGES


@pytest.mark.parametrize("number", range(1, LAST))
def test_a_segment_that_is_missing_with_its_index_is_reported(damaged: DamagedFolder, number: int) -> None:
    damaged.log(number).unlink()
    damaged.index(number).unlink()
    seen = reopened(damaged, lost=segment(number))
    assert seen.says(damaged.log(number - 1), f"{SEGMENT_MESSAGES} messages from offset {number * SEGMENT_MESSAGES}")


def test_all_logs_may_be_missing_and_no_offset_is_reused(damaged: DamagedFolder) -> None:
    for number in range(SEGMENTS):
        damaged.log(number).unlink()
    seen = reopened(damaged, lost=range(MESSAGES))
    assert seen.appended_at[0] == MESSAGES
    assert all(seen.says(damaged.log(number)) for number in range(SEGMENTS))


@pytest.mark.parametrize("indexed", [True, False], ids=["with its index", "without index"])
@pytest.mark.parametrize("number", range(SEGMENTS))
def test_an_empty_log_loses_only_its_own_messages(damaged: DamagedFolder, number: int, indexed: bool) -> None:
    damaged.log(number).write_bytes(b"")
    if not indexed:
        damaged.index(number).unlink()
    seen = reopened(damaged, lost=segment(number))
    if indexed or number < LAST:
        assert seen.says(damaged.log(number), f"{len(segment(number))} messages")
        assert seen.appended_at[0] == MESSAGES
    else:
        # Nothing is left that could tell, as after a crash right after the segment was created.
        assert seen.reports == [
            f"{damaged.offset_file}: offset {CONSUMED} is after the newest message, lowered to {LAST_START - 1}"
        ]
        assert seen.appended_at[0] == LAST_START


@pytest.mark.parametrize("checked", [False, True], ids=["found when read", "found at the start"])
def test_a_truncated_segment_serves_its_whole_batches(damaged: DamagedFolder, checked: bool) -> None:
    os.truncate(damaged.log(1), 2 * BATCH_BYTES + 100)
    seen = reopened(damaged, lost=[*batch(1, 2), *batch(1, 3)], validate_checksum=checked)
    assert seen.says(damaged.log(1), f"position {2 * BATCH_BYTES}", "6 messages from offset 18")


@pytest.mark.parametrize("checked", [False, True], ids=["found when read", "found at the start"])
@pytest.mark.parametrize("indexed", [True, False], ids=["with index", "without index"])
@pytest.mark.parametrize("number", [0, 1, LAST - 1])
def test_a_closed_segment_with_a_flipped_bit_serves_the_other_batches(
    damaged: DamagedFolder, number: int, indexed: bool, checked: bool
) -> None:
    at = SEGMENT_BYTES // 2 + 300
    old = damaged.log(number).read_bytes()[at]
    damaged.overwrite(number, at, bytes([old ^ 16]))
    if not indexed:
        damaged.remove_indexes()
    seen = reopened(damaged, lost=batch(number, 2), validate_checksum=checked)
    assert seen.says(damaged.log(number), f"position {2 * BATCH_BYTES}", "3 messages from offset")


@pytest.mark.parametrize("number", [0, 1, LAST])
def test_a_segment_whose_front_is_zeroed_serves_the_rest(damaged: DamagedFolder, number: int) -> None:
    damaged.overwrite(number, 0, bytes(100))
    seen = reopened(damaged, lost=batch(number, 0))
    assert seen.says(damaged.log(number), "position 0")


@pytest.mark.parametrize("number", [0, 1, LAST])
def test_a_duplicated_batch_is_served_once(damaged: DamagedFolder, number: int) -> None:
    position, content = pieces_of(damaged.log(number))[0]
    old = damaged.log(number).read_bytes()
    damaged.log(number).write_bytes(old[: position + len(content)] + content + old[position + len(content) :])
    seen = reopened(damaged)
    assert seen.says(damaged.log(number), f"position {len(content)}")


def test_a_batch_duplicated_at_the_end_is_served_once_and_set_aside(damaged: DamagedFolder) -> None:
    content = pieces_of(damaged.log(LAST))[0][1]
    damaged.log(LAST).write_bytes(damaged.log(LAST).read_bytes() + content)
    seen = reopened(damaged)
    assert seen.says(damaged.log(LAST), "kept in")
    assert seen.appended_at[0] == MESSAGES


@pytest.mark.parametrize("number", [0, 1])
def test_the_later_one_of_two_swapped_batches_is_served(damaged: DamagedFolder, number: int) -> None:
    found = [content for _, content in pieces_of(damaged.log(number))]
    found[1], found[2] = found[2], found[1]
    damaged.log(number).write_bytes(b"".join(found))
    seen = reopened(damaged, lost=batch(number, 1))
    assert seen.says(damaged.log(number), f"offset {batch(number, 1)[0]}")


@pytest.mark.parametrize("number", [0, 1, LAST])
def test_the_log_of_another_partition_is_not_served(damaged: DamagedFolder, number: int) -> None:
    shutil.copy(damaged.log(number, partition=1), damaged.log(number))
    seen = reopened(damaged, lost=segment(number))
    assert seen.says(damaged.log(number), "not a batch of partition 0")
    assert seen.appended_at[0] == MESSAGES


@pytest.mark.parametrize("number", [1, LAST])
def test_the_log_of_another_segment_is_not_served_twice(damaged: DamagedFolder, number: int) -> None:
    shutil.copy(damaged.log(0), damaged.log(number))
    seen = reopened(damaged, lost=segment(number))
    assert seen.says(damaged.log(number), "a batch with offset 0")


@pytest.mark.parametrize("content", [GARBAGE, b"hello\n"], ids=["garbage", "a line"])
@pytest.mark.parametrize("number", range(SEGMENTS))
def test_a_log_of_garbage_loses_only_its_own_messages(damaged: DamagedFolder, number: int, content: bytes) -> None:
    damaged.log(number).write_bytes(content)
    seen = reopened(damaged, lost=segment(number))
    assert seen.says(damaged.log(number))
    assert seen.appended_at[0] == MESSAGES


# -------------------------------------------------------------------------------------------------------------- the end


@pytest.mark.parametrize("indexed", [True, False], ids=["with index", "without index"])
@pytest.mark.parametrize(
    "tail",
    [bytes(1), bytes(255), bytes(4096), bytes(3_000_000), random.Random(6).randbytes(1 << 20), b"\xff" * 10_000],
    ids=["a zero", "few zeros", "a page of zeros", "many zeros", "a megabyte of noise", "ones"],
)
def test_bytes_after_the_last_batch_are_set_aside(damaged: DamagedFolder, tail: bytes, indexed: bool) -> None:
    with damaged.log(LAST).open("ab") as file:
        size = file.tell()
        file.write(tail)
    if not indexed:
        damaged.remove_indexes()
    seen = reopened(damaged)
    assert seen.says(damaged.log(LAST), f"{len(tail)} bytes at position {size}", "kept in")
    assert seen.appended_at[0] == MESSAGES
    assert [kept.read_bytes() for kept in (damaged.partition() / "damaged").iterdir()] == [tail]


def nested(offset: int, after: int) -> bytes:
    """A batch whose second message contains whole batches of the same partition with later offsets."""
    inner = b"".join(stamped([5, 6], offset + later, partition=0, salt="false") for later in (3, 5, 7, 40))
    return stamped(
        [], offset, partition=0, payloads=[payload_of(offset, 25), b"before" + inner + b"-" * after, b"third"]
    )


@pytest.mark.parametrize("after", [0, 1, 700])
def test_batches_inside_the_payload_of_a_torn_batch_are_never_served(damaged: DamagedFolder, after: int) -> None:
    """Cut off at many positions, also filled with zeros, as ext4 does after a power failure."""
    log = damaged.log(LAST)
    whole = log.read_bytes()
    content = nested(MESSAGES, after)
    damaged.remove_indexes()
    folder = log.parent.parent / "alone"
    folder.mkdir()
    for cut in range(after % 7, len(content), 7):
        for filler in (b"", bytes(len(content) - cut), bytes(5000)):
            shutil.rmtree(folder)
            folder.mkdir()
            (folder / log.name).write_bytes(whole + content[:cut] + filler)
            opened = open_log(folder, partition=0)
            assert [offset for offset, _ in read_log(opened.log, LAST_START)] == list(segment(LAST)), (cut, len(filler))
            opened.abandon()
    shutil.rmtree(folder)
    log.write_bytes(whole + content[:-1])
    assert reopened(damaged).says(log, "kept in")


@pytest.mark.parametrize("after", [0, 1, 700])
def test_batches_inside_the_payload_of_a_damaged_batch_are_never_served(damaged: DamagedFolder, after: int) -> None:
    """A bit flipped at many positions, with and without another batch after it."""
    chance = random.Random(after)
    log = damaged.log(LAST)
    whole = log.read_bytes()
    content = nested(MESSAGES, after)
    next_one = stamped([9], MESSAGES + 3, partition=0)
    folder = log.parent.parent / "alone"
    folder.mkdir()
    for position in range(after % 5, len(content), 5):
        changed = bytearray(content)
        changed[position] ^= 1 << chance.randrange(8)
        for following in (b"", next_one):
            shutil.rmtree(folder)
            folder.mkdir()
            (folder / log.name).write_bytes(whole + changed + following)
            opened = open_log(folder, partition=0)
            wanted = list(segment(LAST)) + ([MESSAGES + 3] if following else [])
            assert [offset for offset, _ in read_log(opened.log, LAST_START)] == wanted, position
            opened.abandon()
    shutil.rmtree(folder)


@pytest.mark.parametrize("checked", [False, True], ids=["found when read", "found at the start"])
@pytest.mark.parametrize("indexed", [True, False], ids=["with index", "without index"])
def test_everything_around_a_page_of_zeros_in_a_closed_segment_is_served(
    tmp_path: Path, indexed: bool, checked: bool
) -> None:
    """A bad sector: 4 KiB in the middle of a segment of many batches."""
    damaged = make(tmp_path / "data")
    for path in damaged.partition().iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    parts = [stamped([25] * 3, base, partition=0) for base in range(0, 300, 3)]
    damaged.log(0).write_bytes(b"".join(parts))
    (damaged.partition() / f"{300:020}.log").write_bytes(stamped([25] * 3, 300, partition=0))
    if indexed:
        look(damaged.root)
    at = 4096 * 3
    damaged.overwrite(0, at, bytes(4096))
    first, last = at // BATCH_BYTES, (at + 4095) // BATCH_BYTES
    lost = range(3 * first, 3 * (last + 1))
    before = tree(damaged.root)
    seen = look(damaged.root, validate_checksum=checked)
    assert_kept(before, tree(damaged.root))
    assert seen.offsets()[: 303 - len(lost)] == [offset for offset in range(303) if offset not in lost]
    assert seen.messages[0][: lost[0]] == [(offset, payload_of(offset, 25)) for offset in range(lost[0])]
    assert seen.says(damaged.log(0), f"position {first * BATCH_BYTES}", f"{len(lost)} messages from offset {lost[0]}")
    assert_continues(damaged, seen, validate_checksum=checked)


def test_everything_around_damage_is_served_even_if_no_new_index_can_be_written(damaged: DamagedFolder) -> None:
    """The old index, which has the damaged batch as a good one, stays. Nothing is served from it unchecked."""
    damaged.overwrite(1, BATCH_BYTES + 300, b"\xff\xff")
    (damaged.index(1).with_name(damaged.index(1).name + ".new")).mkdir()
    seen = reopened(damaged, lost=batch(1, 1))
    assert seen.says(damaged.log(1), "3 messages")
    assert seen.says(damaged.index(1), "could not be written")


def test_damage_in_the_segment_before_an_empty_one_is_reported(damaged: DamagedFolder) -> None:
    damaged.log(LAST).write_bytes(b"")
    damaged.remove_indexes()
    damaged.overwrite(LAST - 1, SEGMENT_BYTES - 10, b"\xff\xff")
    seen = reopened(damaged, lost=[*batch(LAST - 1, 3), *segment(LAST)])
    assert seen.says(damaged.log(LAST - 1), "3 messages from offset 45")
