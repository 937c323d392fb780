"""Data folders after careless changes by hand or a failing disk: the store opens, serves what is readable and nothing
else, keeps appending, removes nothing, and names the file in its report.

`reopened` (support/folders.py) checks what always holds. A test states what was changed, what that loses, and what is
reported. Damaged segments and documents have files of their own.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.support.damaged import DOCUMENTS, GARBAGE, LAST, damage_file, segment
from tests.storage.support.folders import (
    BATCH_MESSAGES,
    CONSUMED,
    MESSAGES,
    SEGMENT_BYTES,
    SEGMENT_MESSAGES,
    SEGMENTS,
    DamagedFolder,
    assert_continues,
    look,
    options_of,
    reopened,
)
from tests.storage.support.segments import tree
from whippet.storage.errors import StoreLocked, UnsupportedFormat
from whippet.storage.offsets import encode
from whippet.storage.store import Store


def test_an_undamaged_folder_opens_without_a_report(damaged: DamagedFolder) -> None:
    seen = reopened(damaged)
    assert seen.reports == []
    assert seen.appended_at[0] == MESSAGES
    assert seen.offset == CONSUMED


# -------------------------------------------------------------------------------------------- unknown files and folders


def test_unknown_files_and_folders_are_left_alone(damaged: DamagedFolder) -> None:
    folder = damaged.partition()
    for name in ("note.txt", ".hidden", "core", "backup.tar", "x.log.new"):
        (folder / name).write_bytes(b"mine")
    (folder / "sub").mkdir()
    (folder / "sub" / f"{0:020}.log").write_bytes(b"mine")
    os.symlink("/nowhere", folder / "dangling")
    assert reopened(damaged).reports == []


@pytest.mark.parametrize(
    "name",
    ["0.log", "000.log", f"{0:021}.log", f"{2**64:020}.log", f"{2**64 - 1:020}.log", "٠" * 20 + ".log", f"{1:020}.LOG"],
)
def test_a_file_with_almost_the_name_of_a_log_is_left_alone_and_reported(damaged: DamagedFolder, name: str) -> None:
    shutil.copy(damaged.log(0), damaged.partition() / name)
    seen = reopened(damaged)
    assert seen.says(name, "left alone")
    assert seen.appended_at[0] == MESSAGES


def test_a_folder_with_the_name_of_a_log_is_set_aside(damaged: DamagedFolder) -> None:
    path = damaged.log(0)
    damaged.index(0).unlink()
    path.unlink()
    path.mkdir()
    (path / "note").write_bytes(b"mine")
    seen = reopened(damaged, lost=segment(0))
    assert seen.says(path, "folder")


def test_a_folder_with_the_name_of_the_next_log_does_not_stop_appending(damaged: DamagedFolder) -> None:
    path = damaged.partition() / f"{(LAST + 1) * SEGMENT_MESSAGES:020}.log"
    path.mkdir()
    (path / "note").write_bytes(b"mine")
    seen = reopened(damaged)
    assert seen.says(path, "folder")


def test_an_empty_partition_with_a_folder_for_a_log_can_be_appended_to(damaged: DamagedFolder) -> None:
    for path in damaged.partition().iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    damaged.log(0).mkdir()
    seen = reopened(damaged, lost=range(MESSAGES))
    assert seen.says(damaged.log(0), "folder")
    assert seen.appended_at[0] == 0


@pytest.mark.parametrize("start", [MESSAGES + 100, 10**15])
def test_a_segment_with_a_far_higher_offset_is_continued_and_reported(damaged: DamagedFolder, start: int) -> None:
    (damaged.partition() / f"{start:020}.log").write_bytes(b"")
    seen = reopened(damaged)
    assert seen.appended_at[0] == start
    assert seen.says(damaged.log(LAST), f"{start - MESSAGES} messages from offset {MESSAGES}")


def test_a_log_copied_to_a_higher_offset_is_not_served(damaged: DamagedFolder) -> None:
    start = MESSAGES + 100
    shutil.copy(damaged.log(0), damaged.partition() / f"{start:020}.log")
    seen = reopened(damaged)
    assert seen.says(f"{start:020}.log", "kept in")
    assert seen.appended_at[0] == start


# --------------------------------------------------------------------------------------------------------- FORMAT, LOCK


@pytest.mark.parametrize(
    "content",
    [None, b"", GARBAGE, b"{}", b"[1]", b'{"whippet_store": "1"}', b'{"whippet_store": 3, "id": "x", "created_at": 1}'],
    ids=["missing", "empty", "garbage", "an empty object", "a list", "wrong types", "newer"],
)
def test_a_folder_of_another_format_is_refused_in_one_line_and_not_touched(
    damaged: DamagedFolder, content: bytes | None
) -> None:
    path = damaged.root / "FORMAT"
    damage_file(path, content)
    before = tree(damaged.root)
    with pytest.raises(UnsupportedFormat) as refused:
        look(damaged.root)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert tree(damaged.root) | {"LOCK": b""} == before | {"LOCK": b""}


def test_a_folder_in_the_place_of_format_is_refused_in_one_line(damaged: DamagedFolder) -> None:
    (damaged.root / "FORMAT").unlink()
    (damaged.root / "FORMAT").mkdir()
    with pytest.raises(UnsupportedFormat) as refused:
        look(damaged.root)
    assert "FORMAT" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_missing_format_is_recreated_if_configured(damaged: DamagedFolder) -> None:
    (damaged.root / "FORMAT").unlink()
    seen = reopened(damaged, recreate_missing_state=True)
    assert seen.says(damaged.root / "FORMAT", "recreated")


async def test_a_folder_that_is_open_elsewhere_is_refused_in_one_line(damaged: DamagedFolder) -> None:
    store = await Store.open(options_of(damaged.root))
    with pytest.raises(StoreLocked) as refused:
        await Store.open(options_of(damaged.root))
    assert str(damaged.root) in str(refused.value)
    assert "\n" not in str(refused.value)
    await store.close()
    assert (await asyncio.to_thread(reopened, damaged)).reports == []


# ------------------------------------------------------------------------------------------------------- stored offsets


@pytest.mark.parametrize(
    "content",
    [b"", b"x", GARBAGE, bytes(48), encode(1, 5)[:23], "folder"],
    ids=["empty", "a byte", "garbage", "zeros", "torn", "a folder"],
)
def test_a_stored_offset_that_cannot_be_read_is_reported_and_ignored(
    damaged: DamagedFolder, content: bytes | str
) -> None:
    damage_file(damaged.offset_file, content)
    seen = reopened(damaged)
    assert seen.says(damaged.offset_file)
    assert seen.offset is None


def test_a_stored_offset_with_a_torn_newest_place_has_the_previous_value(damaged: DamagedFolder) -> None:
    newest, older = encode(8, 20), encode(7, 10)
    damaged.offset_file.write_bytes(newest[:10] + b"torn" + newest[14:] + older)
    assert reopened(damaged).offset == 10


def test_a_stored_offset_after_the_newest_message_is_lowered_permanently(damaged: DamagedFolder) -> None:
    """Otherwise it would be valid again once there are new messages, and the consumer would never get those."""
    damaged.offset_file.write_bytes(bytes(24) + encode(1, 10**6))
    seen = reopened(damaged)
    assert seen.offset == MESSAGES - 1
    assert seen.says(damaged.offset_file, "1000000")
    assert look(damaged.root).offset == MESSAGES - 1


def test_the_stored_offsets_of_a_partition_that_lost_everything_do_not_come_back(damaged: DamagedFolder) -> None:
    for path in [*damaged.partition().glob("*.log"), *damaged.partition().glob("*.index")]:
        path.unlink()
    seen = reopened(damaged, lost=range(MESSAGES))
    assert seen.offset is None
    for _ in range(30):
        look(damaged.root)
    assert look(damaged.root).offset is None


def test_an_unknown_name_among_the_stored_offsets_is_left_alone(damaged: DamagedFolder) -> None:
    for name in ("07", "x", "4294967296"):
        (damaged.offset_file.parent / name).write_bytes(encode(1, 1))
    (damaged.offset_file.parent / "99").mkdir()
    seen = reopened(damaged)
    assert seen.offset == CONSUMED
    assert all(seen.says(damaged.offset_file.parent / name) for name in ("07", "x", "4294967296", "99"))


# -------------------------------------------------------------------------------------------------------------- intents


@pytest.mark.parametrize(
    "content",
    [b"", GARBAGE, b"[]", b'{"purge": 1}', b'{"delete_before": "x"}', b'{"purge": "\xff"}', b'{"delete_before": -5}'],
    ids=["empty", "garbage", "a list", "a number", "text", "no utf-8", "negative"],
)
def test_an_intent_that_cannot_be_decoded_deletes_nothing(damaged: DamagedFolder, content: bytes) -> None:
    path = damaged.partition() / "intent.json"
    path.write_bytes(content)
    seen = reopened(damaged)
    assert seen.says(path, "cannot be decoded")
    assert [kept.read_bytes() for kept in (damaged.partition() / "damaged").iterdir()] == [content]


def test_every_intent_that_cannot_be_decoded_is_kept(damaged: DamagedFolder) -> None:
    for content in (b"first", b"second"):
        (damaged.partition() / "intent.json").write_bytes(content)
        look(damaged.root)
    kept = sorted(path.read_bytes() for path in (damaged.partition() / "damaged").iterdir())
    assert kept == [b"first", b"second"]


def test_an_intent_deletes_only_whole_segments_before_its_offset(damaged: DamagedFolder) -> None:
    (damaged.partition() / "intent.json").write_bytes(b'{"delete_before": %d}' % (2 * SEGMENT_MESSAGES + 1))
    seen = look(damaged.root)
    assert seen.offsets() == list(range(2 * SEGMENT_MESSAGES, MESSAGES))
    assert seen.reports == []
    assert_continues(damaged, seen)


# ---------------------------------------------------------------------------------------------------------- permissions


@pytest.fixture
def modes(tmp_path: Path) -> Iterator[list[Path]]:
    """Paths whose permissions a test changed. They are restored, so that the folder can be removed."""
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
async def test_an_unreadable_closed_segment_loses_only_its_own_messages(
    damaged: DamagedFolder, modes: list[Path], indexed: bool, checked: bool
) -> None:
    modes.append(damaged.log(1))
    damaged.log(1).chmod(0)
    if not indexed:
        damaged.remove_indexes()

    store = await Store.open(options_of(damaged.root, validate_checksum=checked))
    partition = store.partition(0, 0, 0)
    assert partition is not None, store.unavailable
    assert (await partition.read(2 * SEGMENT_MESSAGES, 100)).messages == MESSAGES - 2 * SEGMENT_MESSAGES
    with pytest.raises(Exception, match="cannot be read: Permission denied"):
        await partition.read(SEGMENT_MESSAGES, 1)
    await store.close()


@pytest.mark.parametrize("mode", [0, stat.S_IRUSR], ids=["unreadable", "read-only"])
def test_a_last_segment_that_cannot_be_written_makes_only_its_partition_unavailable(
    damaged: DamagedFolder, modes: list[Path], mode: int
) -> None:
    modes.append(damaged.log(LAST))
    damaged.log(LAST).chmod(mode)
    seen = look(damaged.root)
    assert list(seen.messages) == [1]
    assert "Permission denied" in seen.unavailable[0]
    assert str(damaged.log(LAST)) in seen.unavailable[0]
    damaged.log(LAST).chmod(stat.S_IRWXU)
    assert look(damaged.root).offsets() == list(range(MESSAGES))


@pytest.mark.parametrize("number", range(SEGMENTS))
def test_an_unreadable_index_is_rebuilt(damaged: DamagedFolder, modes: list[Path], number: int) -> None:
    damaged.index(number).chmod(0)
    modes.append(damaged.index(number))
    seen = look(damaged.root)
    assert seen.offsets() == list(range(MESSAGES))
    assert seen.reports == []
    assert look(damaged.root).offsets() == list(range(MESSAGES + BATCH_MESSAGES))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_an_unreadable_document_is_not_recreated(damaged: DamagedFolder, modes: list[Path], document: str) -> None:
    modes.append(damaged.stream / document)
    (damaged.stream / document).chmod(0)
    seen = look(damaged.root, recreate_missing_state=True)
    assert seen.messages == {}
    assert seen.says(damaged.stream / document, "Permission denied")


def test_an_unreadable_stored_offset_is_reported_and_ignored(damaged: DamagedFolder, modes: list[Path]) -> None:
    modes.append(damaged.offset_file)
    damaged.offset_file.chmod(0)
    seen = look(damaged.root)
    assert seen.offset is None
    assert seen.says(damaged.offset_file)


# --------------------------------------------------------------------------------------------- partitions without files


async def test_a_topic_with_a_partition_that_cannot_be_opened_can_be_used_and_removed(damaged: DamagedFolder) -> None:
    """Even root cannot open a loop of links."""
    damaged.log(LAST).unlink()
    os.symlink(damaged.log(LAST).name, damaged.log(LAST))
    for path in damaged.partition().glob("*"):
        if path != damaged.log(LAST):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    store = await Store.open(options_of(damaged.root))
    assert [place.partition for place in store.unavailable] == [0]
    assert await store.retain(0, 0, expiry_us=None, max_bytes=SEGMENT_BYTES) > 0
    await store.purge_topic(0, 0)
    await store.remove_topic(0, 0)
    assert store.unavailable == {}
    await store.close()
