"""Missing, damaged and contradictory documents of the catalogue, and folders that do not match them."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.storage.support.damaged import DOCUMENTS, GARBAGE, damage_file
from tests.storage.support.documents import change
from tests.storage.support.folders import (
    BATCH_MESSAGES,
    MESSAGES,
    DamagedFolder,
    assert_continues,
    assert_kept,
    look,
    reopened,
)
from tests.storage.support.segments import tree


def test_a_missing_partition_folder_is_neither_served_nor_recreated(damaged: DamagedFolder) -> None:
    shutil.rmtree(damaged.partition())
    seen = look(damaged.root)
    assert 0 not in seen.messages
    assert seen.says(damaged.partition(), "missing")
    assert not damaged.partition().exists()
    assert_continues(damaged, seen)


def test_a_missing_partition_folder_is_recreated_if_configured(damaged: DamagedFolder) -> None:
    shutil.rmtree(damaged.partition())
    seen = reopened(damaged, lost=range(MESSAGES), recreate_missing_state=True)
    assert seen.says(damaged.partition(), "recreated")
    assert seen.appended_at[0] == 0


def test_a_file_in_the_place_of_a_partition_folder_is_left_alone(damaged: DamagedFolder) -> None:
    shutil.rmtree(damaged.partition())
    damaged.partition().write_bytes(b"mine")
    before = tree(damaged.root)
    seen = look(damaged.root)
    assert_kept(before, tree(damaged.root))
    assert 0 not in seen.messages
    assert seen.says(damaged.partition())


def test_unknown_files_among_the_streams_are_left_alone_and_reported(damaged: DamagedFolder) -> None:
    for above in (damaged.root / "streams", damaged.stream / "topics", damaged.topic / "partitions"):
        (above / "00").mkdir()
        (above / "x").write_bytes(b"mine")
        (above / "4294967296").mkdir()
    seen = reopened(damaged)
    assert all(
        seen.says(f"{above}/{name}", "left alone")
        for above in (damaged.root / "streams", damaged.stream / "topics", damaged.topic / "partitions")
        for name in ("00", "x", "4294967296")
    )


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


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
@pytest.mark.parametrize("document", DOCUMENTS)
def test_without_its_document_a_stream_or_topic_is_not_served_and_not_touched(
    damaged: DamagedFolder, document: str, content: bytes | str | None
) -> None:
    damage_file(damaged.stream / document, content)
    before = tree(damaged.root)
    seen = look(damaged.root)
    assert seen.messages == {}
    assert seen.says(damaged.stream / document, "recreate_missing_state")
    assert tree(damaged.root) | {"LOCK": b""} == before | {"LOCK": b""}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
@pytest.mark.parametrize("document", DOCUMENTS)
def test_without_its_document_a_stream_or_topic_is_served_if_configured(
    damaged: DamagedFolder, document: str, content: bytes | str | None
) -> None:
    damage_file(damaged.stream / document, content)
    seen = reopened(damaged, recreate_missing_state=True)
    assert seen.says(damaged.stream / document, "recreated as")
    assert seen.appended_at[0] == MESSAGES
    assert look(damaged.root).appended_at[0] == MESSAGES + 2 * BATCH_MESSAGES


def test_a_document_that_is_damaged_twice_is_kept_twice(damaged: DamagedFolder) -> None:
    for content in (b"first", b"second"):
        (damaged.stream / "stream.json").write_bytes(content)
        look(damaged.root, recreate_missing_state=True)
    kept = [path.read_bytes() for path in damaged.stream.glob("stream.json.damaged*")]
    assert sorted(kept) == [b"first", b"second"]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_id_in_the_folder_name_takes_precedence(damaged: DamagedFolder, document: str) -> None:
    path = damaged.stream / document
    path.write_text(json.dumps(json.loads(path.read_text()) | {"id": 5}))
    seen = reopened(damaged)
    assert seen.says(path, "id 5")


def test_a_stream_copied_by_hand_is_served_under_another_name(damaged: DamagedFolder) -> None:
    shutil.copytree(damaged.stream, damaged.root / "streams/1")
    seen = look(damaged.root)
    assert seen.offsets() == list(range(MESSAGES))
    assert sorted(name for name in seen.names if name.startswith("stream")) == ["stream", "stream-found"]
    assert seen.says(damaged.root / "streams/1/stream.json", "stream-found")


@pytest.mark.parametrize("count", [-1, 2**20 + 1, 10**12, 2**70])
def test_an_impossible_number_of_partitions_is_refused_not_tried(damaged: DamagedFolder, count: int) -> None:
    path = damaged.topic / "topic.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"partitions_count": count}))
    assert look(damaged.root).says(path, "cannot be decoded")
    assert reopened(damaged, recreate_missing_state=True).says(path, "recreated as")


def test_many_missing_partitions_are_reported_in_one_line(damaged: DamagedFolder) -> None:
    path = damaged.topic / "topic.json"
    change(path, partitions_count=1_000_000)
    seen = reopened(damaged)
    assert len(seen.reports) == 1
    assert seen.says("999998", damaged.partition(2))


def test_fewer_partitions_in_the_document_than_folders_leave_the_folders_alone(damaged: DamagedFolder) -> None:
    path = damaged.topic / "topic.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"partitions_count": 1}))
    before = tree(damaged.root)
    seen = look(damaged.root)
    assert_kept(before, tree(damaged.root))
    assert 1 not in seen.messages
    assert seen.says(damaged.partition(1), "left alone")


def test_a_partition_both_counted_and_named_in_removing_is_not_removed(damaged: DamagedFolder) -> None:
    path = damaged.topic / "topic.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"removing": [0]}))
    seen = reopened(damaged)
    assert seen.says(path, "removing")


@pytest.mark.parametrize("folder", ["users", "tokens"])
def test_a_folder_in_the_place_of_a_user_or_token_is_left_alone(damaged: DamagedFolder, folder: str) -> None:
    (damaged.root / folder / "1.json").mkdir()
    assert reopened(damaged).says(damaged.root / folder / "1.json")


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_a_damaged_group_affects_nothing_else(damaged: DamagedFolder, content: bytes | str | None) -> None:
    path = damaged.topic / "groups/3.json"
    path.parent.mkdir()
    path.write_bytes(b"")
    damage_file(path, content)
    seen = reopened(damaged)
    assert seen.says(path) or content is None
