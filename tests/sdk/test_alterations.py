"""Existing streams, topics and partitions: listed, renamed, altered, purged, deleted."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sdk.support.program import Sdk
from tests.sdk.support.server import Server

NAME = "alterations"
AB = ["a", "b"]
NEVER, UNLIMITED = "NeverExpire", "Unlimited"


@pytest.fixture(scope="module")
def program(newest: Sdk, server: Server) -> Any:
    return newest.finished("alterations", address=server.address, name=NAME)


@pytest.fixture(scope="module")
def said(program: Any) -> dict[str, Any]:
    return dict(program.findings())


def test_streams_are_listed_by_id_and_found_in_every_way(said: dict[str, Any]) -> None:
    assert said["streams"] == [[f"{NAME}-first", 0, 0], [f"{NAME}-second", 0, 0]]
    assert said["numbers"] == sorted(set(said["numbers"]))
    assert said["same"] == [True] * 3


def test_a_renamed_stream_has_only_its_new_name(said: dict[str, Any], newest: Sdk) -> None:
    assert said["renamed"] == [[f"{NAME}-renamed", 0, 0]] * 2 + [None]
    assert [newest.error(answer) for answer in said["refused_streams"]] == [
        "StreamNameAlreadyExists",
        "StreamIdNotFound",
        "InvalidFormat",
        "InvalidFormat",
        "UnsupportedOptionKey",
    ]


def test_topics_are_listed_with_their_settings(said: dict[str, Any]) -> None:
    assert said["topics"] == [["t", 2, 0, "gzip", 90, 3 << 30], ["other", 1, 0, "none", NEVER, UNLIMITED]]
    assert said["topics_of_stream"] == said["topics"]
    assert said["of_no_stream"] == 0


def test_an_update_of_a_topic_keeps_what_it_does_not_name(program: Any) -> None:
    assert program.all("answer") == [None] * 5
    assert [topic[:1] + topic[3:] for topic in program.all("changed")] == [
        ["renamed", "gzip", 90, 3 << 30],
        ["renamed", "gzip", NEVER, 3 << 30],
        ["renamed", "none", NEVER, UNLIMITED],
        ["t", "gzip", 7200, UNLIMITED],
        ["t", "gzip", 7200, UNLIMITED],
    ]


def test_an_invalid_update_is_refused(said: dict[str, Any], newest: Sdk) -> None:
    assert [newest.error(answer) for answer in said["refused_topics"]] == [
        "TopicNameAlreadyExists",
        "TopicIdNotFound",
        "StreamIdNotFound",
        "InvalidFormat",
        "UnsupportedOptionKey",
        "UnsupportedOptionKey",
        "InvalidOptionValue",
    ]


def test_partitions_are_added_and_removed_at_the_end(said: dict[str, Any], newest: Sdk) -> None:
    assert said["partition"] == [1, 1, 2]
    assert said["has_a_size"]
    assert said["grown"] == [[0, 2, AB], [1, 2, AB], [2, 0, []], [3, 1, ["c"]]]
    assert said["shrunk"] == [[0, 2, AB], [1, 2, AB], [2, 0, []]]
    assert said["messages"] == 4
    assert [newest.error(answer) for answer in said["refused_partitions"]] == [
        *["TooManyPartitions"] * 4,
        "InvalidPartitionsCount",
        "TopicIdNotFound",
        "StreamIdNotFound",
    ]


def test_a_purge_deletes_messages_and_keeps_everything_else(said: dict[str, Any], newest: Sdk) -> None:
    assert said["purged"] == [[0, 0, []], [1, 0, []]]
    assert said["after_purge"] == [[0, 1, ["new"]], [1, 0, []]]
    assert said["purged_stream"] == [[f"{NAME}-second", 2, 4], [f"{NAME}-second", 2, 0]]
    assert said["purged_topics"] == [[[0, 0, []]]] * 2
    assert [newest.error(answer) for answer in said["refused_purges"]] == ["StreamIdNotFound", "TopicIdNotFound"]


def test_deleted_streams_and_topics_are_gone(said: dict[str, Any], newest: Sdk) -> None:
    assert said["deleted_topic"] == [None, [0, 0]]
    assert said["topics_left"] == []
    assert [newest.error(answer) for answer in said["again"]] == ["TopicIdNotFound", "StreamIdNotFound"]
    assert said["deleted_streams"] == [None] * 3
    assert said["streams_left"] == []
    assert newest.error(said["streams_again"]) == "StreamIdNotFound"
