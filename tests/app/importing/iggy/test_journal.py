"""The journal of Iggy 0.9 is replayed as Iggy replays it: with the rights of the users, and with the same numbers."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.app.importing.iggy.support import made
from tests.app.importing.iggy.support.made import ALL_GLOBAL, CREATED_AT, Modern, name, named, numeric, sized
from whippet.app.access.permissions import ALL
from whippet.app.importing.iggy import journal
from whippet.app.importing.iggy.catalogue import Catalogue, User
from whippet.app.importing.iggy.report import Report

READ_STREAMS = b"\0\0\0\0\0\1\0\0\0\0"


@pytest.fixture
def folder(tmp_path: Path) -> Modern:
    return Modern(tmp_path / "iggy")


def replayed(folder: Modern, first_op: int = 1) -> tuple[Catalogue, Report]:
    catalogue, report = Catalogue({}, {0: User(0, "iggy", "", 1, True, ALL)}), Report()
    journal.read(folder.journal.read_bytes(), str(folder.journal), catalogue, first_op, report)
    return catalogue, report


def test_the_lowest_free_number_is_given_to_the_next_stream_and_topic(folder: Modern) -> None:
    for text in ("a", "b", "c"):
        folder.stream(text)
    folder.record(130, named("a"))
    folder.record(130, named("b"))
    folder.stream("d")
    folder.topic("d", "x")
    folder.topic("d", "y")
    folder.record(134, named("d") + numeric(0))
    folder.topic("d", "z")
    catalogue, report = replayed(folder)
    assert {number: stream.name for number, stream in catalogue.streams.items()} == {2: "c", 0: "d"}
    assert {number: topic.name for number, topic in catalogue.streams[0].topics.items()} == {1: "y", 0: "z"}
    assert report.lost == []


def test_numbers_of_groups_are_not_given_again(folder: Modern) -> None:
    folder.stream("s")
    folder.topic("s", "t")
    folder.record(139, named("s") + named("t") + name("first"))
    folder.record(140, named("s") + named("t") + named("first"))
    folder.record(139, named("s") + named("t") + name("second"))
    assert {group.id: group.name for group in replayed(folder)[0].streams[0].topics[0].groups.values()} == {1: "second"}


def test_rejected_requests_have_no_effect_and_are_no_loss(folder: Modern) -> None:
    folder.stream("s")
    folder.stream("s")
    folder.topic("nothing", "t")
    folder.record(137, named("s") + named("t") + struct.pack("<I", 1))
    folder.record(143, numeric(0))
    folder.record(145, numeric(0) + b"\0")
    catalogue, report = replayed(folder)
    assert [stream.name for stream in catalogue.streams.values()] == ["s"]
    assert list(catalogue.users) == [0]
    assert report.lost == []


def test_users_change_only_what_they_may(folder: Modern) -> None:
    folder.record(141, made.user_request("alice", permissions=ALL_GLOBAL + b"\0"))
    folder.record(141, made.user_request("bob", permissions=READ_STREAMS + b"\0"))
    folder.stream("of alice", user_id=1)
    folder.stream("of bob", user_id=2)
    folder.stream("of nobody", user_id=9)
    folder.topic("of alice", "of bob", user_id=2)
    folder.topic("of alice", "t")
    folder.record(139, named("of alice") + named("t") + name("of bob"), user_id=2)
    folder.record(143, named("alice"), user_id=2)
    folder.record(144, named("bob") + name("") * 0 + b"\0" + name("changed"), user_id=2)
    folder.record(144, named("alice") + b"\0" + name("changed"), user_id=2)
    catalogue, report = replayed(folder)
    assert [stream.name for stream in catalogue.streams.values()] == ["of alice"]
    topics = catalogue.streams[0].topics
    assert [topic.name for topic in topics.values()] == ["t"]
    # Whoever may read a topic may create groups.
    assert [group.name for group in topics[0].groups.values()] == ["of bob"]
    assert catalogue.users[2].password_hash == "changed"
    assert catalogue.users[1].password_hash == made.PASSWORD_HASH
    assert report.lost == []


def test_changes_of_every_kind(folder: Modern) -> None:
    folder.stream("s")
    folder.topic("s", "t", 2)
    folder.record(129, named("s") + name("renamed"))
    more = sized(named("renamed") + named("t") + struct.pack("<I", 3)) + struct.pack("<I", 3)
    folder.record(65, more + b"".join(struct.pack("<IQ", number, number) for number in range(3)))
    folder.record(137, named("renamed") + named("t") + struct.pack("<I", 1))
    folder.record(133, named("renamed") + named("t") + name("u") + made.option("message_expiry", 12, b"\7" + bytes(7)))
    folder.record(131, named("renamed"))
    folder.record(141, made.user_request("alice"))
    folder.record(142, named("alice") + b"\1" + name("alicia") + b"\1\2")
    folder.record(145, named("alicia") + b"\1" + sized(ALL_GLOBAL + b"\0"))
    folder.record(146, struct.pack("<I", 1) + name("one") + struct.pack("<Q", 5) + b"a" * 64)
    folder.record(147, struct.pack("<I", 1) + name("one") + b"\1", time=CREATED_AT + 4)
    folder.record(146, struct.pack("<I", 1) + name("two") + struct.pack("<Q", 0) + b"b" * 64)
    folder.record(147, struct.pack("<I", 1) + name("two") + b"\0")
    catalogue, report = replayed(folder)
    stream = catalogue.streams[0]
    topic = stream.topics[0]
    assert (stream.name, topic.name, topic.message_expiry) == ("renamed", "u", 7)
    assert [partition.purges for partition in topic.partitions] == [1] * 4
    user = catalogue.users[1]
    assert (user.name, user.is_active, user.permissions) == ("alicia", False, ALL)
    assert {token.name: token.expires_at for token in user.tokens.values()} == {"one": CREATED_AT + 5}
    assert report.lost == []


def test_entries_that_a_snapshot_includes_are_skipped(folder: Modern) -> None:
    folder.stream("in the snapshot")
    folder.stream("after it")
    assert [stream.name for stream in replayed(folder, first_op=3)[0].streams.values()] == ["after it"]


def test_the_last_entry_with_a_number_holds(folder: Modern) -> None:
    folder.stream("first")
    folder.op -= 1
    folder.stream("second")
    assert [stream.name for stream in replayed(folder)[0].streams.values()] == ["second"]


def test_nothing_after_a_missing_entry_is_used(folder: Modern) -> None:
    folder.stream("before")
    folder.op += 1
    folder.stream("after")
    catalogue, report = replayed(folder)
    assert [stream.name for stream in catalogue.streams.values()] == ["before"]
    assert "entry 3 is missing" in report.lost[0]


def test_nothing_after_an_unknown_operation_is_used(folder: Modern) -> None:
    folder.stream("before")
    folder.record(99, b"")
    folder.stream("after")
    catalogue, report = replayed(folder)
    assert [stream.name for stream in catalogue.streams.values()] == ["before"]
    assert f"position {folder.starts[-2]}" in report.lost[0]


def test_entries_without_checksums_count(folder: Modern) -> None:
    """Earlier versions did not write them."""
    folder.stream("s")
    content = bytearray(folder.journal.read_bytes())
    content[folder.starts[-1] : folder.starts[-1] + 32] = bytes(32)
    folder.journal.write_bytes(content)
    assert [stream.name for stream in replayed(folder)[0].streams.values()] == ["s"]
