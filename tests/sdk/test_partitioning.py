"""The partition of messages: in turn, named, or chosen by a key; and what the server confirms."""

from __future__ import annotations

from typing import Any

import pytest
import xxhash

from tests.sdk.support.program import Program, Sdk
from tests.sdk.support.server import Server

KEYS = (b"a", b"b", b"key-1", b"a", "ключ".encode(), b"\0" * 255)


@pytest.fixture(scope="module")
def program(newest: Sdk, server: Server) -> Program:
    return newest.finished("partitioning", address=server.address, name="partitioning")


@pytest.fixture(scope="module")
def said(program: Program) -> dict[str, Any]:
    return program.findings()


def test_balanced_batches_go_round_the_partitions_and_are_confirmed_with_offsets(said: dict[str, Any]) -> None:
    stream, topic = said["ids"]
    of_sizes = {1: (0, 0), 2: (1, 0), 3: (2, 0), 4: (0, 1), 5: (1, 2), 6: (2, 3)}
    assert said["balanced"] == [[[stream, topic, *where]] for where in of_sizes.values()]


def test_a_batch_goes_to_the_named_partition(said: dict[str, Any]) -> None:
    stream, topic = said["ids"]
    assert said["named"] == [[[stream, topic, 2, offset]] for offset in (9, 19, 22)]


def test_the_hash_of_a_key_decides_its_partition(said: dict[str, Any]) -> None:
    assert said["keyed"] == [[xxhash.xxh32_intdigest(key) % 3] * 2 for key in KEYS]


def test_streams_and_topics_may_be_named_by_id(said: dict[str, Any]) -> None:
    stream, topic = said["ids"]
    ((of_stream, of_topic, partition, offset),) = said["by_ids"]
    assert (of_stream, of_topic, partition) == (stream, topic, 0)
    assert said["counts"][0] == offset + 1
    assert sum(said["counts"]) == 21 + 14 + 2 * len(KEYS) + 1


def test_missing_targets_and_empty_batches_are_refused(said: dict[str, Any], program: Program, newest: Sdk) -> None:
    assert [newest.error(answer) for answer in said["refused"]] == [
        "PartitionNotFound",
        "TopicIdNotFound",
        "StreamIdNotFound",
        "InvalidMessagesCount",
    ]
    assert program.all("bad_key") == ["ValueError"] * 3


def test_new_clients_see_new_partitions_and_old_ones_get_an_error_for_deleted_ones(
    said: dict[str, Any], newest: Sdk
) -> None:
    assert said["after_growth"] == [0, 1, 2, 3]
    assert sorted(said["unaware"]) == [0, 1, 2]
    assert [newest.error(answer) for answer in said["after_shrinking"]] == [None, *["PartitionNotFound"] * 3]


def test_the_largest_message_and_the_largest_batch_arrive(said: dict[str, Any]) -> None:
    assert said["big"] == [True] * 3
    assert said["too_big"] == "Too big message payload"
    assert said["many"] == [3, 3]
