"""What a careless hand or a bad disk does to a data folder: the store opens, serves what is whole and never anything
else, goes on appending, throws nothing away, and says which file it is about.

What is always checked is in `reopened` (support/folders.py); a test says what was done, what that costs, and what is
reported.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.support.folders import (
    BATCH_BYTES,
    BATCH_MESSAGES,
    CONSUMED,
    MESSAGES,
    SEGMENT_BYTES,
    SEGMENT_MESSAGES,
    SEGMENTS,
    Spoilt,
    assert_goes_on,
    assert_kept,
    look,
    make,
    options_of,
    pieces_of,
    reopened,
)
from tests.storage.support.segments import open_log, payload_of, read_log, stamped, tree
from whippet.storage.errors import StoreLocked, UnsupportedFormat
from whippet.storage.offsets import encode
from whippet.storage.store import Store

LAST = SEGMENTS - 1
LAST_START = LAST * SEGMENT_MESSAGES
GARBAGE = random.Random(5).randbytes(5000)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("made") / "data").root


@pytest.fixture
def spoilt(made: Path, tmp_path: Path) -> Spoilt:
    return Spoilt(Path(shutil.copytree(made, tmp_path / "data")))


def segment(number: int) -> range:
    """The offsets of a segment."""
    return range(number * SEGMENT_MESSAGES, min((number + 1) * SEGMENT_MESSAGES, MESSAGES))


def batch(segment_number: int, number: int) -> range:
    """The offsets of a batch of a segment."""
    first = segment_number * SEGMENT_MESSAGES + number * BATCH_MESSAGES
    return range(first, first + BATCH_MESSAGES)


def test_a_folder_that_nobody_touched_is_opened_without_a_word(spoilt: Spoilt) -> None:
    seen = reopened(spoilt)
    assert seen.reports == []
    assert seen.appended_at[0] == MESSAGES
    assert seen.offset == CONSUMED


# ------------------------------------------------------------------------------------------------------------- indexes


@pytest.mark.parametrize("number", range(SEGMENTS))
@pytest.mark.parametrize("content", [None, b"", GARBAGE, bytes(4096)], ids=["missing", "empty", "garbage", "zeros"])
def test_an_index_may_be_missing_or_garbage(spoilt: Spoilt, number: int, content: bytes | None) -> None:
    if content is None:
        spoilt.index(number).unlink()
    else:
        spoilt.index(number).write_bytes(content)
    seen = reopened(spoilt)
    assert seen.reports == []
    assert seen.appended_at[0] == MESSAGES


def test_all_indexes_may_be_missing(spoilt: Spoilt) -> None:
    spoilt.remove_indexes()
    assert reopened(spoilt).reports == []


@pytest.mark.parametrize("number", range(SEGMENTS))
def test_a_folder_in_the_place_of_an_index_costs_only_the_index(spoilt: Spoilt, number: int) -> None:
    spoilt.index(number).unlink()
    spoilt.index(number).mkdir()
    (spoilt.index(number) / "note").write_bytes(b"mine")
    seen = reopened(spoilt)
    assert seen.says(spoilt.index(number))


def test_the_index_of_another_segment_is_not_believed(spoilt: Spoilt) -> None:
    shutil.copy(spoilt.index(2), spoilt.index(1))
    assert reopened(spoilt).reports == []


# --------------------------------------------------------------------------------------------------------- whole files


@pytest.mark.parametrize("number", range(SEGMENTS))
def test_a_log_that_is_missing_while_its_index_is_there_is_reported(spoilt: Spoilt, number: int) -> None:
    spoilt.log(number).unlink()
    seen = reopened(spoilt, lost=segment(number))
    assert seen.says(spoilt.log(number), "missing")
    assert seen.appended_at[0] == MESSAGES


@pytest.mark.parametrize("number", range(1, LAST))
def test_a_segment_that_is_missing_with_its_index_is_reported(spoilt: Spoilt, number: int) -> None:
    spoilt.log(number).unlink()
    spoilt.index(number).unlink()
    seen = reopened(spoilt, lost=segment(number))
    assert seen.says(spoilt.log(number - 1), f"{SEGMENT_MESSAGES} messages from offset {number * SEGMENT_MESSAGES}")


def test_all_logs_may_be_missing_and_no_offset_is_given_again(spoilt: Spoilt) -> None:
    for number in range(SEGMENTS):
        spoilt.log(number).unlink()
    seen = reopened(spoilt, lost=range(MESSAGES))
    assert seen.appended_at[0] == MESSAGES
    assert all(seen.says(spoilt.log(number)) for number in range(SEGMENTS))


@pytest.mark.parametrize("indexed", [True, False], ids=["with its index", "without index"])
@pytest.mark.parametrize("number", range(SEGMENTS))
def test_a_log_of_zero_bytes_costs_its_own_messages(spoilt: Spoilt, number: int, indexed: bool) -> None:
    spoilt.log(number).write_bytes(b"")
    if not indexed:
        spoilt.index(number).unlink()
    seen = reopened(spoilt, lost=segment(number))
    if indexed or number < LAST:
        assert seen.says(spoilt.log(number), f"{len(segment(number))} messages")
        assert seen.appended_at[0] == MESSAGES
    else:
        # Nothing is left that could tell; as after a crash just after the segment was begun.
        assert seen.reports == [
            f"{spoilt.offset_file}: offset {CONSUMED} is after the newest message, {LAST_START - 1} counts"
        ]
        assert seen.appended_at[0] == LAST_START


@pytest.mark.parametrize("checked", [False, True], ids=["found when read", "found at the start"])
def test_a_truncated_segment_serves_its_whole_batches(spoilt: Spoilt, checked: bool) -> None:
    os.truncate(spoilt.log(1), 2 * BATCH_BYTES + 100)
    seen = reopened(spoilt, lost=[*batch(1, 2), *batch(1, 3)], validate_checksum=checked)
    assert seen.says(spoilt.log(1), f"position {2 * BATCH_BYTES}", "6 messages from offset 18")


@pytest.mark.parametrize("checked", [False, True], ids=["found when read", "found at the start"])
@pytest.mark.parametrize("indexed", [True, False], ids=["with index", "without index"])
@pytest.mark.parametrize("number", [0, 1, LAST - 1])
def test_a_closed_segment_with_a_flipped_bit_serves_the_other_batches(
    spoilt: Spoilt, number: int, indexed: bool, checked: bool
) -> None:
    at = SEGMENT_BYTES // 2 + 300
    old = spoilt.log(number).read_bytes()[at]
    spoilt.overwrite(number, at, bytes([old ^ 16]))
    if not indexed:
        spoilt.remove_indexes()
    seen = reopened(spoilt, lost=batch(number, 2), validate_checksum=checked)
    assert seen.says(spoilt.log(number), f"position {2 * BATCH_BYTES}", "3 messages from offset")


@pytest.mark.parametrize("number", [0, 1, LAST])
def test_a_segment_whose_front_is_zeroed_serves_the_rest(spoilt: Spoilt, number: int) -> None:
    spoilt.overwrite(number, 0, bytes(100))
    seen = reopened(spoilt, lost=batch(number, 0))
    assert seen.says(spoilt.log(number), "position 0")


@pytest.mark.parametrize("number", [0, 1, LAST])
def test_a_duplicated_batch_is_served_once(spoilt: Spoilt, number: int) -> None:
    position, content = pieces_of(spoilt.log(number))[0]
    old = spoilt.log(number).read_bytes()
    spoilt.log(number).write_bytes(old[: position + len(content)] + content + old[position + len(content) :])
    seen = reopened(spoilt)
    assert seen.says(spoilt.log(number), f"position {len(content)}")


def test_a_batch_duplicated_at_the_end_is_served_once_and_set_aside(spoilt: Spoilt) -> None:
    content = pieces_of(spoilt.log(LAST))[0][1]
    spoilt.log(LAST).write_bytes(spoilt.log(LAST).read_bytes() + content)
    seen = reopened(spoilt)
    assert seen.says(spoilt.log(LAST), "kept in")
    assert seen.appended_at[0] == MESSAGES


@pytest.mark.parametrize("number", [0, 1])
def test_of_two_swapped_batches_the_later_one_is_served(spoilt: Spoilt, number: int) -> None:
    found = [content for _, content in pieces_of(spoilt.log(number))]
    found[1], found[2] = found[2], found[1]
    spoilt.log(number).write_bytes(b"".join(found))
    seen = reopened(spoilt, lost=batch(number, 1))
    assert seen.says(spoilt.log(number), f"offset {batch(number, 1)[0]}")


@pytest.mark.parametrize("number", [0, 1, LAST])
def test_the_log_of_another_partition_is_not_served(spoilt: Spoilt, number: int) -> None:
    shutil.copy(spoilt.log(number, partition=1), spoilt.log(number))
    seen = reopened(spoilt, lost=segment(number))
    assert seen.says(spoilt.log(number), "no batch of partition 0")
    assert seen.appended_at[0] == MESSAGES


@pytest.mark.parametrize("number", [1, LAST])
def test_the_log_of_another_segment_is_not_served_twice(spoilt: Spoilt, number: int) -> None:
    shutil.copy(spoilt.log(0), spoilt.log(number))
    seen = reopened(spoilt, lost=segment(number))
    assert seen.says(spoilt.log(number), "a batch with offset 0")


@pytest.mark.parametrize("content", [GARBAGE, b"hello\n"], ids=["garbage", "a line"])
@pytest.mark.parametrize("number", range(SEGMENTS))
def test_a_log_of_garbage_costs_its_own_messages(spoilt: Spoilt, number: int, content: bytes) -> None:
    spoilt.log(number).write_bytes(content)
    seen = reopened(spoilt, lost=segment(number))
    assert seen.says(spoilt.log(number))
    assert seen.appended_at[0] == MESSAGES


# --------------------------------------------------------------------------------------------------- what is not ours


def test_unknown_files_and_folders_are_left_alone(spoilt: Spoilt) -> None:
    folder = spoilt.partition()
    for name in ("note.txt", ".hidden", "core", "backup.tar", "x.log.new"):
        (folder / name).write_bytes(b"mine")
    (folder / "sub").mkdir()
    (folder / "sub" / f"{0:020}.log").write_bytes(b"mine")
    os.symlink("/nowhere", folder / "dangling")
    assert reopened(spoilt).reports == []


@pytest.mark.parametrize(
    "name",
    ["0.log", "000.log", f"{0:021}.log", f"{2**64:020}.log", f"{2**64 - 1:020}.log", "٠" * 20 + ".log", f"{1:020}.LOG"],
)
def test_a_file_that_is_named_almost_like_a_log_is_left_alone_and_named(spoilt: Spoilt, name: str) -> None:
    shutil.copy(spoilt.log(0), spoilt.partition() / name)
    seen = reopened(spoilt)
    assert seen.says(name, "left alone")
    assert seen.appended_at[0] == MESSAGES


def test_a_folder_with_the_name_of_a_log_is_set_aside(spoilt: Spoilt) -> None:
    path = spoilt.log(0)
    spoilt.index(0).unlink()
    path.unlink()
    path.mkdir()
    (path / "note").write_bytes(b"mine")
    seen = reopened(spoilt, lost=segment(0))
    assert seen.says(path, "folder")


def test_a_folder_with_the_name_of_the_next_log_does_not_stop_appending(spoilt: Spoilt) -> None:
    path = spoilt.partition() / f"{(LAST + 1) * SEGMENT_MESSAGES:020}.log"
    path.mkdir()
    (path / "note").write_bytes(b"mine")
    seen = reopened(spoilt)
    assert seen.says(path, "folder")


def test_an_empty_partition_with_a_folder_for_a_log_can_be_appended_to(spoilt: Spoilt) -> None:
    for path in spoilt.partition().iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    spoilt.log(0).mkdir()
    seen = reopened(spoilt, lost=range(MESSAGES))
    assert seen.says(spoilt.log(0), "folder")
    assert seen.appended_at[0] == 0


@pytest.mark.parametrize("start", [MESSAGES + 100, 10**15])
def test_a_segment_from_the_future_moves_the_partition_on_and_is_reported(spoilt: Spoilt, start: int) -> None:
    (spoilt.partition() / f"{start:020}.log").write_bytes(b"")
    seen = reopened(spoilt)
    assert seen.appended_at[0] == start
    assert seen.says(spoilt.log(LAST), f"{start - MESSAGES} messages from offset {MESSAGES}")


def test_a_copied_log_under_a_future_name_is_not_served(spoilt: Spoilt) -> None:
    start = MESSAGES + 100
    shutil.copy(spoilt.log(0), spoilt.partition() / f"{start:020}.log")
    seen = reopened(spoilt)
    assert seen.says(f"{start:020}.log", "kept in")
    assert seen.appended_at[0] == start


# ------------------------------------------------------------------------------------------------------------- the end


@pytest.mark.parametrize("indexed", [True, False], ids=["with index", "without index"])
@pytest.mark.parametrize(
    "tail",
    [bytes(1), bytes(255), bytes(4096), bytes(3_000_000), random.Random(6).randbytes(1 << 20), b"\xff" * 10_000],
    ids=["a zero", "few zeros", "a page of zeros", "many zeros", "a megabyte of noise", "ones"],
)
def test_what_follows_the_last_batch_is_set_aside(spoilt: Spoilt, tail: bytes, indexed: bool) -> None:
    with spoilt.log(LAST).open("ab") as file:
        size = file.tell()
        file.write(tail)
    if not indexed:
        spoilt.remove_indexes()
    seen = reopened(spoilt)
    assert seen.says(spoilt.log(LAST), f"{len(tail)} bytes at position {size}", "kept in")
    assert seen.appended_at[0] == MESSAGES
    assert [kept.read_bytes() for kept in (spoilt.partition() / "damaged").iterdir()] == [tail]


def nested(offset: int, after: int) -> bytes:
    """A batch whose second message holds whole batches of the same partition with later offsets."""
    inner = b"".join(stamped([5, 6], offset + later, partition=0, salt="false") for later in (3, 5, 7, 40))
    return stamped(
        [], offset, partition=0, payloads=[payload_of(offset, 25), b"before" + inner + b"-" * after, b"third"]
    )


@pytest.mark.parametrize("after", [0, 1, 700])
def test_batches_inside_the_payload_of_a_torn_batch_are_never_served(spoilt: Spoilt, after: int) -> None:
    """Cut at many bytes; also filled up with zeros as ext4 does after a power cut."""
    log = spoilt.log(LAST)
    whole = log.read_bytes()
    content = nested(MESSAGES, after)
    spoilt.remove_indexes()
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
    assert reopened(spoilt).says(log, "kept in")


@pytest.mark.parametrize("after", [0, 1, 700])
def test_batches_inside_the_payload_of_a_damaged_batch_are_never_served(spoilt: Spoilt, after: int) -> None:
    """A bit flipped at many bytes, with another batch after it and without."""
    chance = random.Random(after)
    log = spoilt.log(LAST)
    whole = log.read_bytes()
    content = nested(MESSAGES, after)
    next_one = stamped([9], MESSAGES + 3, partition=0)
    folder = log.parent.parent / "alone"
    folder.mkdir()
    for position in range(after % 5, len(content), 5):
        damaged = bytearray(content)
        damaged[position] ^= 1 << chance.randrange(8)
        for following in (b"", next_one):
            shutil.rmtree(folder)
            folder.mkdir()
            (folder / log.name).write_bytes(whole + damaged + following)
            opened = open_log(folder, partition=0)
            wanted = list(segment(LAST)) + ([MESSAGES + 3] if following else [])
            assert [offset for offset, _ in read_log(opened.log, LAST_START)] == wanted, position
            opened.abandon()
    shutil.rmtree(folder)


@pytest.mark.parametrize("checked", [False, True], ids=["found when read", "found at the start"])
@pytest.mark.parametrize("indexed", [True, False], ids=["with index", "without index"])
def test_a_page_of_zeros_in_a_closed_segment_is_served_around(tmp_path: Path, indexed: bool, checked: bool) -> None:
    """A bad sector: 4 KiB in the middle of a segment of many batches."""
    spoilt = make(tmp_path / "data")
    for path in spoilt.partition().iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    parts = [stamped([25] * 3, base, partition=0) for base in range(0, 300, 3)]
    spoilt.log(0).write_bytes(b"".join(parts))
    (spoilt.partition() / f"{300:020}.log").write_bytes(stamped([25] * 3, 300, partition=0))
    if indexed:
        look(spoilt.root)
    at = 4096 * 3
    spoilt.overwrite(0, at, bytes(4096))
    first, last = at // BATCH_BYTES, (at + 4095) // BATCH_BYTES
    lost = range(3 * first, 3 * (last + 1))
    before = tree(spoilt.root)
    seen = look(spoilt.root, validate_checksum=checked)
    assert_kept(before, tree(spoilt.root))
    assert seen.offsets()[: 303 - len(lost)] == [offset for offset in range(303) if offset not in lost]
    assert seen.messages[0][: lost[0]] == [(offset, payload_of(offset, 25)) for offset in range(lost[0])]
    assert seen.says(spoilt.log(0), f"position {first * BATCH_BYTES}", f"{len(lost)} messages from offset {lost[0]}")
    assert_goes_on(spoilt, seen, validate_checksum=checked)


def test_damage_is_served_around_when_no_new_index_can_be_written(spoilt: Spoilt) -> None:
    """The old index, which knows the damaged batch as a good one, stays; nothing is served by it unchecked."""
    spoilt.overwrite(1, BATCH_BYTES + 300, b"\xff\xff")
    (spoilt.index(1).with_name(spoilt.index(1).name + ".new")).mkdir()
    seen = reopened(spoilt, lost=batch(1, 1))
    assert seen.says(spoilt.log(1), "3 messages")
    assert seen.says(spoilt.index(1), "could not be written")


def test_damage_in_the_segment_before_an_empty_one_is_reported(spoilt: Spoilt) -> None:
    spoilt.log(LAST).write_bytes(b"")
    spoilt.remove_indexes()
    spoilt.overwrite(LAST - 1, SEGMENT_BYTES - 10, b"\xff\xff")
    seen = reopened(spoilt, lost=[*batch(LAST - 1, 3), *segment(LAST)])
    assert seen.says(spoilt.log(LAST - 1), "3 messages from offset 45")


# ----------------------------------------------------------------------------------------------------------- documents


def test_a_partition_folder_that_is_missing_is_not_served_and_not_made_up(spoilt: Spoilt) -> None:
    shutil.rmtree(spoilt.partition())
    seen = look(spoilt.root)
    assert 0 not in seen.messages
    assert seen.says(spoilt.partition(), "missing")
    assert not spoilt.partition().exists()
    assert_goes_on(spoilt, seen)


def test_a_partition_folder_that_is_missing_is_made_anew_if_asked_for(spoilt: Spoilt) -> None:
    shutil.rmtree(spoilt.partition())
    seen = reopened(spoilt, lost=range(MESSAGES), recreate_missing_state=True)
    assert seen.says(spoilt.partition(), "recreated")
    assert seen.appended_at[0] == 0


def test_a_file_in_the_place_of_a_partition_folder_is_left_alone(spoilt: Spoilt) -> None:
    shutil.rmtree(spoilt.partition())
    spoilt.partition().write_bytes(b"mine")
    before = tree(spoilt.root)
    seen = look(spoilt.root)
    assert_kept(before, tree(spoilt.root))
    assert 0 not in seen.messages
    assert seen.says(spoilt.partition())


def test_unknown_things_among_the_streams_are_left_alone_and_named(spoilt: Spoilt) -> None:
    for above in (spoilt.root / "streams", spoilt.stream / "topics", spoilt.topic / "partitions"):
        (above / "00").mkdir()
        (above / "x").write_bytes(b"mine")
        (above / "4294967296").mkdir()
    seen = reopened(spoilt)
    assert all(
        seen.says(f"{above}/{name}", "left alone")
        for above in (spoilt.root / "streams", spoilt.stream / "topics", spoilt.topic / "partitions")
        for name in ("00", "x", "4294967296")
    )


DOCUMENTS = ["stream.json", "topics/0/topic.json"]
CONTENTS = {
    "missing": None,
    "empty": b"",
    "garbage": GARBAGE,
    "no utf-8": b'{"id": 0, "name": "\xff\xfe", "created_at": 1, "partitions_count": 2}',
    "half": b'{"id": 0, "name": "str',
    "a list": b"[]",
    "wrong types": b'{"id": 0, "name": 5, "created_at": 1, "partitions_count": 2}',
    "no name": b'{"id": 0, "created_at": 1, "partitions_count": 2}',
    "a folder": "folder",
    "deep": b"[" * 100_000,
}


def spoil(path: Path, content: bytes | str | None) -> None:
    path.unlink()
    if isinstance(content, str):
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
@pytest.mark.parametrize("document", DOCUMENTS)
def test_without_its_document_a_stream_or_topic_is_not_served_and_not_touched(
    spoilt: Spoilt, document: str, content: bytes | str | None
) -> None:
    spoil(spoilt.stream / document, content)
    before = tree(spoilt.root)
    seen = look(spoilt.root)
    assert seen.messages == {}
    assert seen.says(spoilt.stream / document, "recreate_missing_state")
    assert tree(spoilt.root) | {"LOCK": b""} == before | {"LOCK": b""}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
@pytest.mark.parametrize("document", DOCUMENTS)
def test_without_its_document_a_stream_or_topic_is_served_if_asked_for(
    spoilt: Spoilt, document: str, content: bytes | str | None
) -> None:
    spoil(spoilt.stream / document, content)
    seen = reopened(spoilt, recreate_missing_state=True)
    assert seen.says(spoilt.stream / document, "recreated as")
    assert seen.appended_at[0] == MESSAGES
    assert look(spoilt.root).appended_at[0] == MESSAGES + 2 * BATCH_MESSAGES


def test_a_document_that_is_spoilt_twice_is_kept_twice(spoilt: Spoilt) -> None:
    for content in (b"first", b"second"):
        (spoilt.stream / "stream.json").write_bytes(content)
        look(spoilt.root, recreate_missing_state=True)
    kept = [path.read_bytes() for path in spoilt.stream.glob("stream.json.damaged*")]
    assert sorted(kept) == [b"first", b"second"]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_folder_says_which_id_counts(spoilt: Spoilt, document: str) -> None:
    path = spoilt.stream / document
    path.write_text(json.dumps(json.loads(path.read_text()) | {"id": 5}))
    seen = reopened(spoilt)
    assert seen.says(path, "id 5")


def test_a_stream_that_was_copied_by_hand_is_served_beside_the_first_under_another_name(spoilt: Spoilt) -> None:
    shutil.copytree(spoilt.stream, spoilt.root / "streams/1")
    seen = look(spoilt.root)
    assert seen.offsets() == list(range(MESSAGES))
    assert sorted(name for name in seen.names if name.startswith("stream")) == ["stream", "stream-found"]
    assert seen.says(spoilt.root / "streams/1/stream.json", "stream-found")


@pytest.mark.parametrize("count", [-1, 2**20 + 1, 10**12, 2**70])
def test_an_impossible_number_of_partitions_is_refused_not_tried(spoilt: Spoilt, count: int) -> None:
    path = spoilt.topic / "topic.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"partitions_count": count}))
    assert look(spoilt.root).says(path, "cannot be decoded")
    assert reopened(spoilt, recreate_missing_state=True).says(path, "recreated as")


def test_many_missing_partitions_are_told_in_one_line(spoilt: Spoilt) -> None:
    path = spoilt.topic / "topic.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"partitions_count": 1_000_000}))
    seen = reopened(spoilt)
    assert len(seen.reports) == 1
    assert seen.says("999998", spoilt.partition(2))


def test_fewer_partitions_in_the_document_than_folders_leave_the_folders_alone(spoilt: Spoilt) -> None:
    path = spoilt.topic / "topic.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"partitions_count": 1}))
    before = tree(spoilt.root)
    seen = look(spoilt.root)
    assert_kept(before, tree(spoilt.root))
    assert 1 not in seen.messages
    assert seen.says(spoilt.partition(1), "left alone")


def test_a_partition_that_the_document_both_counts_and_removes_is_not_removed(spoilt: Spoilt) -> None:
    path = spoilt.topic / "topic.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"removing": [0]}))
    seen = reopened(spoilt)
    assert seen.says(path, "removing")


@pytest.mark.parametrize("folder", ["users", "tokens"])
def test_a_folder_in_the_place_of_a_user_or_token_is_left_alone(spoilt: Spoilt, folder: str) -> None:
    (spoilt.root / folder / "1.json").mkdir()
    assert reopened(spoilt).says(spoilt.root / folder / "1.json")


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_a_spoilt_group_costs_only_itself(spoilt: Spoilt, content: bytes | str | None) -> None:
    path = spoilt.topic / "groups/3.json"
    path.parent.mkdir()
    path.write_bytes(b"")
    spoil(path, content)
    seen = reopened(spoilt)
    assert seen.says(path) or content is None


# -------------------------------------------------------------------------------------------------------- FORMAT, LOCK


@pytest.mark.parametrize(
    "content",
    [None, b"", GARBAGE, b"{}", b"[1]", b'{"whippet_store": "1"}', b'{"whippet_store": 2, "id": "x", "created_at": 1}'],
    ids=["missing", "empty", "garbage", "an empty object", "a list", "wrong types", "newer"],
)
def test_a_folder_of_another_format_is_refused_in_one_line_and_not_touched(
    spoilt: Spoilt, content: bytes | None
) -> None:
    path = spoilt.root / "FORMAT"
    spoil(path, content)
    before = tree(spoilt.root)
    with pytest.raises(UnsupportedFormat) as refused:
        look(spoilt.root)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert tree(spoilt.root) | {"LOCK": b""} == before | {"LOCK": b""}


def test_a_folder_in_the_place_of_format_is_refused_in_one_line(spoilt: Spoilt) -> None:
    (spoilt.root / "FORMAT").unlink()
    (spoilt.root / "FORMAT").mkdir()
    with pytest.raises(UnsupportedFormat) as refused:
        look(spoilt.root)
    assert "FORMAT" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_missing_format_is_made_up_if_asked_for(spoilt: Spoilt) -> None:
    (spoilt.root / "FORMAT").unlink()
    seen = reopened(spoilt, recreate_missing_state=True)
    assert seen.says(spoilt.root / "FORMAT", "recreated")


async def test_a_folder_that_is_open_elsewhere_is_refused_in_one_line(spoilt: Spoilt) -> None:
    store = await Store.open(options_of(spoilt.root))
    with pytest.raises(StoreLocked) as refused:
        await Store.open(options_of(spoilt.root))
    assert str(spoilt.root) in str(refused.value)
    assert "\n" not in str(refused.value)
    await store.close()
    assert (await asyncio.to_thread(reopened, spoilt)).reports == []


# ------------------------------------------------------------------------------------------------------ stored offsets


@pytest.mark.parametrize(
    "content",
    [b"", b"x", GARBAGE, bytes(48), encode(1, 5)[:23], "folder"],
    ids=["empty", "a byte", "garbage", "zeros", "torn", "a folder"],
)
def test_a_stored_offset_that_cannot_be_read_is_reported_and_ignored(spoilt: Spoilt, content: bytes | str) -> None:
    spoil(spoilt.offset_file, content)
    seen = reopened(spoilt)
    assert seen.says(spoilt.offset_file)
    assert seen.offset is None


def test_a_stored_offset_whose_newest_place_is_torn_is_the_one_before_it(spoilt: Spoilt) -> None:
    newest, older = encode(8, 20), encode(7, 10)
    spoilt.offset_file.write_bytes(newest[:10] + b"torn" + newest[14:] + older)
    assert reopened(spoilt).offset == 10


def test_a_stored_offset_after_the_newest_message_is_lowered_for_good(spoilt: Spoilt) -> None:
    """Else it would rise again with the messages that come, and their readers would never get them."""
    spoilt.offset_file.write_bytes(bytes(24) + encode(1, 10**6))
    seen = reopened(spoilt)
    assert seen.offset == MESSAGES - 1
    assert seen.says(spoilt.offset_file, "1000000")
    assert look(spoilt.root).offset == MESSAGES - 1


def test_the_stored_offsets_of_a_partition_that_lost_everything_do_not_come_back(spoilt: Spoilt) -> None:
    for path in [*spoilt.partition().glob("*.log"), *spoilt.partition().glob("*.index")]:
        path.unlink()
    seen = reopened(spoilt, lost=range(MESSAGES))
    assert seen.offset is None
    for _ in range(30):
        look(spoilt.root)
    assert look(spoilt.root).offset is None


def test_an_unknown_name_among_the_stored_offsets_is_left_alone(spoilt: Spoilt) -> None:
    for name in ("07", "x", "4294967296"):
        (spoilt.offset_file.parent / name).write_bytes(encode(1, 1))
    (spoilt.offset_file.parent / "99").mkdir()
    seen = reopened(spoilt)
    assert seen.offset == CONSUMED
    assert all(seen.says(spoilt.offset_file.parent / name) for name in ("07", "x", "4294967296", "99"))


# ------------------------------------------------------------------------------------------- deletions that were noted


@pytest.mark.parametrize(
    "content",
    [b"", GARBAGE, b"[]", b'{"purge": 1}', b'{"delete_before": "x"}', b'{"purge": "\xff"}', b'{"delete_before": -5}'],
    ids=["empty", "garbage", "a list", "a number", "text", "no utf-8", "negative"],
)
def test_a_note_of_a_deletion_that_cannot_be_read_deletes_nothing(spoilt: Spoilt, content: bytes) -> None:
    path = spoilt.partition() / "intent.json"
    path.write_bytes(content)
    seen = reopened(spoilt)
    assert seen.says(path, "cannot be read")
    assert [kept.read_bytes() for kept in (spoilt.partition() / "damaged").iterdir()] == [content]


def test_every_note_that_cannot_be_read_is_kept(spoilt: Spoilt) -> None:
    for content in (b"first", b"second"):
        (spoilt.partition() / "intent.json").write_bytes(content)
        look(spoilt.root)
    kept = sorted(path.read_bytes() for path in (spoilt.partition() / "damaged").iterdir())
    assert kept == [b"first", b"second"]


def test_a_noted_deletion_deletes_only_whole_segments_before_it(spoilt: Spoilt) -> None:
    (spoilt.partition() / "intent.json").write_bytes(b'{"delete_before": %d}' % (2 * SEGMENT_MESSAGES + 1))
    seen = look(spoilt.root)
    assert seen.offsets() == list(range(2 * SEGMENT_MESSAGES, MESSAGES))
    assert seen.reports == []
    assert_goes_on(spoilt, seen)


# --------------------------------------------------------------------------------------------------------- permissions


@pytest.fixture
def modes(tmp_path: Path) -> Iterator[list[Path]]:
    """Paths whose permissions a test took; they are given back, so that the folder can be removed."""
    probe = tmp_path / "probe"
    probe.touch(mode=0)
    if os.access(probe, os.R_OK):
        pytest.skip(
            "root may read and write everything; run the tests as another user, or under "
            "setpriv --bounding-set=-dac_override,-dac_read_search"
        )
    paths: list[Path] = []
    yield paths
    for path in paths:
        path.chmod(stat.S_IRWXU)


@pytest.mark.parametrize("checked", [False, True], ids=["read on demand", "read at the start"])
@pytest.mark.parametrize("indexed", [True, False], ids=["with index", "without index"])
async def test_an_unreadable_closed_segment_costs_only_its_own_messages(
    spoilt: Spoilt, modes: list[Path], indexed: bool, checked: bool
) -> None:
    modes.append(spoilt.log(1))
    spoilt.log(1).chmod(0)
    if not indexed:
        spoilt.remove_indexes()

    store = await Store.open(options_of(spoilt.root, validate_checksum=checked))
    partition = store.partition(0, 0, 0)
    assert partition is not None, store.unavailable
    assert (await partition.read(2 * SEGMENT_MESSAGES, 100)).messages == MESSAGES - 2 * SEGMENT_MESSAGES
    with pytest.raises(Exception, match="cannot be read: Permission denied"):
        await partition.read(SEGMENT_MESSAGES, 1)
    await store.close()


@pytest.mark.parametrize("mode", [0, stat.S_IRUSR], ids=["unreadable", "read-only"])
def test_a_last_segment_that_cannot_be_written_makes_only_its_partition_unavailable(
    spoilt: Spoilt, modes: list[Path], mode: int
) -> None:
    modes.append(spoilt.log(LAST))
    spoilt.log(LAST).chmod(mode)
    seen = look(spoilt.root)
    assert list(seen.messages) == [1]
    assert "Permission denied" in seen.unavailable[0]
    assert str(spoilt.log(LAST)) in seen.unavailable[0]
    spoilt.log(LAST).chmod(stat.S_IRWXU)
    assert look(spoilt.root).offsets() == list(range(MESSAGES))


@pytest.mark.parametrize("number", range(SEGMENTS))
def test_an_unreadable_index_is_made_anew(spoilt: Spoilt, modes: list[Path], number: int) -> None:
    spoilt.index(number).chmod(0)
    modes.append(spoilt.index(number))
    seen = look(spoilt.root)
    assert seen.offsets() == list(range(MESSAGES))
    assert seen.reports == []
    assert look(spoilt.root).offsets() == list(range(MESSAGES + BATCH_MESSAGES))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_an_unreadable_document_is_not_made_up(spoilt: Spoilt, modes: list[Path], document: str) -> None:
    modes.append(spoilt.stream / document)
    (spoilt.stream / document).chmod(0)
    seen = look(spoilt.root, recreate_missing_state=True)
    assert seen.messages == {}
    assert seen.says(spoilt.stream / document, "Permission denied")


def test_an_unreadable_stored_offset_is_reported_and_ignored(spoilt: Spoilt, modes: list[Path]) -> None:
    modes.append(spoilt.offset_file)
    spoilt.offset_file.chmod(0)
    seen = look(spoilt.root)
    assert seen.offset is None
    assert seen.says(spoilt.offset_file)


# ------------------------------------------------------------------------------------------- partitions without files


async def test_a_topic_with_a_partition_that_cannot_be_opened_can_be_used_and_removed(spoilt: Spoilt) -> None:
    """A loop of links is something that no permission of root's opens."""
    spoilt.log(LAST).unlink()
    os.symlink(spoilt.log(LAST).name, spoilt.log(LAST))
    for path in spoilt.partition().glob("*"):
        if path != spoilt.log(LAST):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    store = await Store.open(options_of(spoilt.root))
    assert [place.partition for place in store.unavailable] == [0]
    assert await store.retain(0, 0, expiry_us=None, max_bytes=SEGMENT_BYTES) > 0
    await store.purge_topic(0, 0)
    await store.remove_topic(0, 0)
    assert store.unavailable == {}
    await store.close()
