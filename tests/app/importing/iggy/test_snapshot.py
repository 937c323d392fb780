"""A snapshot of Iggy's catalogue, built as its serializer writes it, has the state before the journal begins."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.app.importing.iggy.support.made import PASSWORD_HASH, Modern, numbered, xxh
from tests.app.importing.iggy.support.record import folder_at
from tests.app.importing.iggy.support.running import imported
from whippet.app.importing.iggy.report import Refused

NO_STATS = [0, 0, 0]
UNLIMITED = 2**64 - 1
SEGMENT_SIZE = (1 << 20).to_bytes(8, "little")
ROOT = [0, "chief", PASSWORD_HASH, "active", 1, [[True] * 10, None], {}]
BOB = [1, "bob", PASSWORD_HASH, "inactive", 2, [[False] * 10, {4: [[False] * 6, None]}], {}]


def text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def with_map_keys(fields: list[Any]) -> bytes:
    """The options of a topic are a map whose keys are arrays, which the encoder has no Python type for but a tuple."""
    return msgspec.msgpack.encode(fields)


def snapshot(**changed: Any) -> bytes:
    options = {("string", text(b"segment_size")): [["uint64", text(SEGMENT_SIZE)], True]}
    options[("string", text(b"enforce_fsync"))] = [["bool", text(b"\0")], False]
    partition = [0, 1, 5, 1, 0, 0]
    topic = [
        3,
        "orders",
        5,
        UNLIMITED,
        "gzip",
        5 << 30,
        NO_STATS,
        [partition],
        [[2, [2, 1, "billing", []]]],
        3,
        options,
    ]
    streams = [[[4, [4, "shop", 5, NO_STATS, [[3, topic]], {}]]], 7]
    flags = [True, False, False, False, False, False]
    users = [
        [[0, ROOT], [1, [*BOB[:5], [[False] * 10, {4: [*flags, {3: [True, False, False, False]}]}], {}]]],
        [[1, [["token", [1, "token", "a" * 64, None]]]]],
        [[], [], [], [], [], []],
    ]
    fields = {"version": 3, "created": 9, "sequence": 10, "users": users, "streams": streams, "clients": None, "by": 6}
    payload = with_map_keys(list((fields | changed).values()))
    return payload + (0x49534E50).to_bytes(4, "little") + xxh(payload).to_bytes(16, "little")


@pytest.fixture
def folder(tmp_path: Path) -> Modern:
    made = Modern(tmp_path / "iggy", first_op=11)
    (made.root / "metadata/snapshot.bin").write_bytes(snapshot())
    made.segment(made.partition(4, 3, 0), [numbered(0, 3)])
    return made


def test_the_journal_continues_after_the_snapshot(folder: Modern, tmp_path: Path) -> None:
    folder.stream("new")
    report = imported(folder.root, tmp_path / "data")
    found = folder_at(tmp_path / "data")
    assert {name: stream.id for name, stream in found.streams.items()} == {"shop": 4, "new": 0}
    topic = found.topics["shop", "orders"]
    assert (topic.id, topic.compression_algorithm, topic.max_topic_size) == (3, 2, 5 << 30)
    assert (topic.options.segment_size, topic.options.enforce_fsync) == (1 << 20, None)
    assert {group.id: group.name for group in found.groups["shop", "orders"].values()} == {2: "billing"}
    assert len(found.partitions["shop", "orders", 0].messages) == 3
    assert {name: user.id for name, user in found.users.items()} == {"chief": 0, "bob": 1}
    bob = found.users["bob"]
    assert bob.permissions is not None
    assert bob.permissions.streams[4].manage_stream
    assert bob.permissions.streams[4].topics[3].manage_topic
    assert bob.status == 2
    assert [token.name for token in found.tokens] == ["token"]
    assert report.lost == []


def test_a_missing_part_of_the_journal_is_reported(tmp_path: Path) -> None:
    made = Modern(tmp_path / "iggy", first_op=12)
    (made.root / "metadata/snapshot.bin").write_bytes(snapshot())
    report = imported(made.root, tmp_path / "data")
    assert "entry 11 is missing" in report.lost[0]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (snapshot()[:-21] + b"?" + snapshot()[-20:], "its checksum is wrong"),
        (snapshot(version=4), "format version 4 is not supported"),
        (snapshot(streams=[[[4, "no stream"]], 0]), "cannot be understood"),
        (b"\xc1garbage", "cannot be understood"),
    ],
)
def test_a_snapshot_that_cannot_be_used_refuses_the_import(
    folder: Modern, tmp_path: Path, content: bytes, sentence: str
) -> None:
    (folder.root / "metadata/snapshot.bin").write_bytes(content)
    with pytest.raises(Refused, match=sentence):
        imported(folder.root, tmp_path / "data")
