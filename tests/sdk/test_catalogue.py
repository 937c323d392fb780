"""Streams and topics: creating them with all parameters, finding them, and not finding missing ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sdk.support.inspector import Inspector
from tests.sdk.support.program import Program, Sdk
from tests.sdk.support.server import Server

SECOND_US = 1_000_000
NEVER = UNLIMITED = 2**64 - 1
PLAIN, GZIP = 1, 2


@pytest.fixture
def run(sdk: Sdk, server: Server, start: Callable[..., Program], name: str) -> Callable[..., Program]:
    def run_one(
        stream: str = name, bad_names: tuple[str, ...] = (), topics: tuple[dict[str, object], ...] = ()
    ) -> Program:
        program = start(sdk, "catalogue", address=server.address, stream=stream, bad_names=bad_names, topics=topics)
        program.end()
        return program

    return run_one


def test_a_stream_is_created_once_and_found_by_name_and_id(run: Callable[..., Program], sdk: Sdk, name: str) -> None:
    program = run()
    assert program.all("absent") == [None]
    assert [sdk.error(answer) for answer in program.all("duplicate")] == ["StreamNameAlreadyExists"]
    by_name = program.all("by_name")[0]
    assert by_name[1:] == [name, 0, 0]
    assert program.all("by_id") == [by_name]


@pytest.mark.parametrize("stream", ["заказы 注文 🐕", "a b/c\\d.e", "x" * 255], ids=["unicode", "signs", "longest"])
def test_a_name_may_be_any_text_that_fits(run: Callable[..., Program], name: str, stream: str) -> None:
    unique = (name + stream)[:255]
    program = run(unique, topics=({"name": stream, "partitions_count": 1},))
    assert program.all("by_name")[0][1] == unique
    assert program.all("topic")[0][1] == stream
    assert program.all("by_ids") == program.all("topic")


def test_an_empty_or_too_long_name_is_refused_and_the_client_stays_usable(run: Callable[..., Program]) -> None:
    for_streams, for_topics = run(bad_names=("", "x" * 256)).all("bad_names")
    assert all(for_streams)
    assert all(for_topics)


def test_topics_have_the_parameters_they_were_created_with(
    run: Callable[..., Program], sdk: Sdk, inspector: Inspector, name: str
) -> None:
    with_all = {"compression_algorithm": "gzip", "replication_factor": 1}
    if sdk.release >= (0, 7):
        with_all |= {"message_expiry": 3_600_000, "max_topic_size": 10 << 30}
    topics = (
        {"name": "plain", "partitions_count": 3},
        {"name": "all of them", "partitions_count": 1, **with_all},
        {"name": "none", "partitions_count": 0},
        {"name": "many", "partitions_count": 1000, "compression_algorithm": "none"},
    )
    program = run(topics=topics)
    assert program.all("made") == [None] * 4
    assert program.all("topic") == [
        [0, "plain", 3, 0],
        [1, "all of them", 1, 0],
        [2, "none", 0, 0],
        [3, "many", 1000, 0],
    ]
    assert program.all("by_ids") == program.all("topic")
    assert program.all("absent") == [None] * 5
    assert {sdk.error(answer) for answer in program.all("duplicate")[1:]} == {"TopicNameAlreadyExists"}
    assert program.all("by_name")[-1][2] == 4

    plain = inspector.topic(name, "plain")
    assert (plain.compression, plain.message_expiry, plain.max_size, plain.replication) == (PLAIN, NEVER, UNLIMITED, 1)
    full = inspector.topic(name, "all of them")
    assert (full.compression, full.replication) == (GZIP, 1)
    if sdk.release >= (0, 7):
        assert (full.message_expiry, full.max_size) == (3600 * SECOND_US, 10 << 30)


def test_topics_with_invalid_parameters_are_refused(run: Callable[..., Program], sdk: Sdk) -> None:
    refused: tuple[dict[str, object], ...] = (
        {"name": "compressed oddly", "partitions_count": 1, "compression_algorithm": "middle-out"},
    )
    program = run(topics=refused)
    assert program.all("made")[0]
    last = program.said[-1]
    assert last["topic_of_absent_stream"] is None
    assert sdk.error(last["made_in_absent_stream"]) == "StreamIdNotFound"
    assert sdk.error(last["too_many_partitions"]) == "TooManyPartitions"
