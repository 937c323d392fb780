"""Groups by hand: who is a member, who has which partition, and that each member gets its messages once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sdk.support.program import Sdk
from tests.sdk.support.server import Server


@pytest.fixture(scope="module")
def said(newest: Sdk, server: Server) -> dict[str, Any]:
    return newest.finished("membership", address=server.address, name="membership").findings()


def numbered(partition: int, *numbers: int) -> list[str]:
    return [f"{partition}:{number}" for number in range(*numbers)]


def test_groups_are_created_found_and_deleted(said: dict[str, Any], newest: Sdk) -> None:
    (first, *_), (second, *_) = said["groups"]
    assert first != second
    assert said["groups"] == [[first, "g", 4, 0], [second, "h", 4, 0]]
    assert said["by_number"] == said["groups"][1]
    assert said["absent"] is None
    assert said["groups_left"] == ["g"]
    assert [newest.error(answer) for answer in said["refused_groups"]] == [
        "ConsumerGroupNameAlreadyExists",
        "TopicIdNotFound",
        "InvalidFormat",
        "ConsumerGroupIdNotFound",
        "ConsumerGroupMemberNotFound",
        "ConsumerGroupIdNotFound",
        None,
    ]
    assert said["deleted"] is None


def test_a_client_outside_a_group_gets_none_of_its_messages(said: dict[str, Any], newest: Sdk) -> None:
    assert newest.error(said["stranger"]) == newest.error(said["left"]) == "ConsumerGroupMemberNotFound"


def test_the_only_member_reads_every_partition_in_turn(said: dict[str, Any]) -> None:
    group, members = said["alone"]
    assert group[1:] == ["g", 4, 1]
    assert members == [[0, 1, 2, 3]]
    assert said["rounds"] == [numbered(partition, 5) for partition in range(4)] + [[]]


def test_two_members_share_the_partitions_and_get_nothing_that_was_committed(said: dict[str, Any]) -> None:
    group, members = said["together"]
    assert group[1:] == ["g", 4, 2]
    assert sorted(map(len, members)) == [2, 2]
    first, second = said["shares"]
    assert sorted(first + second) == sorted(message for partition in range(4) for message in numbered(partition, 5, 10))
    assert len(first) == len(second) == 10
    assert not {message[0] for message in first} & {message[0] for message in second}


def test_polling_another_members_partition_returns_nothing(said: dict[str, Any]) -> None:
    assert len(said["explicit"]) == 2
    for partition, found in said["explicit"].items():
        assert sorted(found) == [[], numbered(int(partition), 3)]


def test_remaining_members_get_the_partitions_of_one_that_leaves(said: dict[str, Any]) -> None:
    group, members = said["after_leaving"]
    assert group[1:] == ["g", 4, 1]
    assert members == [[0, 1, 2, 3]]
    assert said["alone_again"] == [f"{partition}:last" for partition in range(4)]


def test_logging_out_leaves_the_group(said: dict[str, Any]) -> None:
    assert said["after_logout"][1:] == ["g", 4, 0]


def test_every_consumer_has_its_own_offset_in_every_partition(said: dict[str, Any]) -> None:
    assert said["single"] == [
        numbered(0, 2),
        numbered(0, 2, 4),
        numbered(1, 3),
        numbered(1, 2),
        ["1:3"],
        ["1:3"],
        ["0:9", "0:last"],
        [],
    ]


def test_a_connection_attached_to_a_member_polls_for_that_member_only(newest: Sdk, server: Server, name: str) -> None:
    said = newest.finished("attaching", address=server.address, name=name).findings()
    errors = {key: newest.error(answer) for key, answer in said.items() if isinstance(answer, str | None)}
    assert errors == {
        "unattached": "ConsumerGroupMemberNotFound",
        "to_nobody": "ClientNotFound",
        "cut_off": "InvalidCommand",
        "another_user": "Unauthorized",
        "attached": None,
        "after": "ConsumerGroupMemberNotFound",
        "again": "ClientNotFound",
    }
    assert said["polled"] == [0, 1, 2]
    assert said["members"] == [[0]]
