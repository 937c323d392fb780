"""The log of commands of Iggy 0.7 and 0.8 is replayed completely."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.app.importing.iggy.support import made
from tests.app.importing.iggy.support.made import ALL_GLOBAL, Classic, name, named, numeric, sized, with_id
from whippet.app.access.permissions import GlobalPermissions, Permissions, StreamPermissions, TopicPermissions
from whippet.app.importing.iggy import state_log
from whippet.app.importing.iggy.catalogue import Catalogue
from whippet.app.importing.iggy.report import Report


@pytest.fixture
def folder(tmp_path: Path) -> Classic:
    return Classic(tmp_path / "iggy")


def replayed(folder: Classic) -> tuple[Catalogue, Report]:
    report = Report()
    return state_log.read(folder.state.read_bytes(), str(folder.state), None, False, report), report


def test_changes_of_streams_and_topics(folder: Classic) -> None:
    for number, text in enumerate(("a", "b", "c")):
        folder.stream(number, text)
    folder.topic("a", 0, "t", 3, expiry=7, size=9)
    folder.topic("a", 1, "gone")
    folder.record(303, named("a") + numeric(1))
    folder.record(203, named("b"))
    folder.record(204, numeric(2) + name("d"))
    folder.record(205, named("d"))
    folder.record(305, named("a") + named("t"))
    folder.record(402, named("a") + named("t") + struct.pack("<I", 4))
    folder.record(403, named("a") + named("t") + struct.pack("<I", 2))
    folder.record(304, numeric(0) + numeric(0) + struct.pack("<BQQB", 2, 11, 12, 1) + name("u"))
    folder.record(602, with_id(3, named("a") + named("u") + name("g")))
    folder.record(602, with_id(4, named("a") + named("u") + name("h")))
    folder.record(603, named("a") + named("u") + named("g"))
    catalogue, report = replayed(folder)
    assert {number: stream.name for number, stream in catalogue.streams.items()} == {0: "a", 2: "d"}
    (topic,) = catalogue.streams[0].topics.values()
    assert (topic.name, len(topic.partitions)) == ("u", 5)
    assert (topic.compression_algorithm, topic.message_expiry, topic.max_topic_size) == (2, 11, 12)
    assert {group.id: group.name for group in topic.groups.values()} == {4: "h"}
    assert report.lost == []


def test_changes_of_users(folder: Classic) -> None:
    of_topic = struct.pack("<I", 5) + b"\0\1\1\0" + b"\1" + struct.pack("<I", 6) + b"\0\0\0\1" + b"\0"
    of_streams = struct.pack("<I", 1) + b"\0\1\0\0\0\0" + b"\1" + of_topic + b"\1"
    of_streams += struct.pack("<I", 2) + b"\1\0\0\0\0\0" + b"\0" + b"\0"
    held = b"\0" * 8 + b"\1\0" + b"\1" + of_streams
    folder.record(33, with_id(1, made.user_request("alice", permissions=held)))
    folder.record(33, with_id(2, made.user_request("bob")))
    folder.record(33, with_id(3, made.user_request("gone")))
    folder.record(34, named("gone"))
    folder.record(35, named("bob") + b"\1" + name("robert") + b"\1\2")
    folder.record(36, named("robert") + b"\1" + sized(ALL_GLOBAL + b"\0"))
    folder.record(37, named("robert") + b"\0" + name("another hash"))
    folder.record(42, sized(b"hash") + sized(name("token") + struct.pack("<Q", 0)), user_id=2)
    folder.record(42, sized(b"other") + sized(name("other") + struct.pack("<Q", 0)), user_id=2)
    folder.record(43, name("other"), user_id=2)
    catalogue, report = replayed(folder)
    assert {number: user.name for number, user in catalogue.users.items()} == {0: "iggy", 1: "alice", 2: "robert"}
    alice, robert = catalogue.users[1], catalogue.users[2]
    topics = {5: TopicPermissions(read_topic=True, poll_messages=True), 6: TopicPermissions(send_messages=True)}
    assert alice.permissions == Permissions(
        GlobalPermissions(poll_messages=True),
        {1: StreamPermissions(read_stream=True, topics=topics), 2: StreamPermissions(manage_stream=True)},
    )
    assert (robert.is_active, robert.password_hash) == (False, "another hash")
    assert [(token.name, token.hash) for token in robert.tokens.values()] == [("token", "hash")]
    assert report.lost == []


def test_a_torn_end_is_reported_and_everything_before_it_counts(folder: Classic) -> None:
    folder.stream(0, "a")
    folder.stream(1, "b")
    content = folder.state.read_bytes()
    for cut in range(folder.starts[-1] + 1, len(content)):
        folder.state.write_bytes(content[:cut])
        catalogue, report = replayed(folder)
        assert [stream.name for stream in catalogue.streams.values()] == ["a"]
        assert f"the {cut - folder.starts[-1]} bytes from position {folder.starts[-1]} on" in report.lost[0]


def test_commands_after_a_damaged_one_count(folder: Classic) -> None:
    for number, text in enumerate(("a", "b", "c")):
        folder.stream(number, text)
    content = bytearray(folder.state.read_bytes())
    content[folder.starts[2] + 60] ^= 0x40
    folder.state.write_bytes(content)
    catalogue, report = replayed(folder)
    names = [stream.name for stream in catalogue.streams.values()]
    assert names[0] == "a"
    assert "b" not in names
    assert f"position {folder.starts[2]}" in report.lost[0]
