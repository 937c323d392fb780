"""Polling without a group: every strategy and count, with and without committing what was read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.sdk.support.inspector import Inspector
from tests.sdk.support.program import Program, Sdk
from tests.sdk.support.server import Server

MESSAGES = 30
BATCHES = (1, 10, 4, 15)
FIRST, LAST, NEXT = ["First"], ["Last"], ["Next"]


def numbers(first: int, last: int) -> list[int]:
    return list(range(first, last + 1))


@pytest.fixture
def poll(sdk: Sdk, server: Server, start: Callable[..., Program], name: str) -> Callable[..., Program]:
    def poll_some(*polls: Any, **more: object) -> Program:
        task = {"stream": name, "topic": "t", "batches": BATCHES, "polls": polls, **more}
        program = start(sdk, "polling", address=server.address, **task)
        program.end()
        return program

    return poll_some


def test_every_strategy_starts_at_its_position_and_stops_at_the_count(poll: Callable[..., Program]) -> None:
    expected = [
        ((FIRST, 5, False), numbers(0, 4)),
        ((FIRST, 1000, False), numbers(0, 29)),
        ((LAST, 1, False), [29]),
        ((LAST, 12, False), numbers(18, 29)),
        ((LAST, 1000, False), numbers(0, 29)),
        ((["Offset", 0], 1, False), [0]),
        ((["Offset", 13], 10, False), numbers(13, 22)),
        ((["Offset", 29], 10, False), [29]),
        ((["Offset", 30], 10, False), []),
        ((["Offset", 2**63], 10, False), []),
        ((NEXT, 3, False), numbers(0, 2)),
        ((NEXT, 3, False), numbers(0, 2)),
    ]
    assert poll(*(asked for asked, _ in expected)).all("polled") == [found for _, found in expected]


def test_a_time_finds_the_first_message_that_is_not_older(poll: Callable[..., Program]) -> None:
    """All messages of a batch have one time; the next batch has a later one or, on a fast machine, the same."""
    of_third_batch, first, after_the_last = ["Timestamp", 11, 0], ["Timestamp", 0, -1_000_000], ["Timestamp", 29, 1]
    polled = poll((of_third_batch, 1000, False), (first, 3, False), (after_the_last, 5, False)).all("polled")
    assert polled[0][0] in (0, 1, 11)
    assert polled[0][-1] == 29
    assert polled[1:] == [[0, 1, 2], []]


def test_only_auto_commit_advances_the_next_poll(poll: Callable[..., Program], inspector: Inspector, name: str) -> None:
    expected = [
        ((NEXT, 10, True), numbers(0, 9)),
        ((NEXT, 5, False), numbers(10, 14)),
        ((FIRST, 3, False), numbers(0, 2)),
        ((NEXT, 5, True), numbers(10, 14)),
        ((["Offset", 20], 2, True), [20, 21]),
        ((NEXT, 100, True), numbers(22, 29)),
        ((NEXT, 100, True), []),
    ]
    assert poll(*(asked for asked, _ in expected)).all("polled") == [found for _, found in expected]
    assert inspector.consumer_offset(name, "t") == 29
    assert inspector.consumer_offset(name, "t", partition=1) is None


def test_an_empty_partition_returns_nothing_for_every_strategy(poll: Callable[..., Program]) -> None:
    strategies = (FIRST, LAST, NEXT, ["Offset", 0], ["Timestamp", 0, 0])
    program = poll(*((strategy, 10, True) for strategy in strategies), partition=1)
    assert program.all("polled") == [[]] * len(strategies)


def test_polling_a_missing_partition_or_zero_messages_is_refused(
    poll: Callable[..., Program], sdk: Sdk, name: str
) -> None:
    absent = "nobody made this"
    program = poll(refused=[(name, "t", 2, 1), (name, absent, 0, 1), (absent, "t", 0, 1), (name, "t", 0, 0)])
    answers = [sdk.error(answer) for answer in program.all("refused")]
    assert answers == ["PartitionNotFound", "TopicIdNotFound", "StreamIdNotFound", "InvalidMessagesCount"]
