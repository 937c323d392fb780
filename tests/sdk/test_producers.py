"""Producers: direct ones learn where their messages are, background ones lose none, and failures are reported."""

from __future__ import annotations

from typing import Any

import pytest
import xxhash

from tests.sdk.support.program import Program, Sdk
from tests.sdk.support.server import Server


@pytest.fixture(scope="module")
def program(newest: Sdk, server: Server) -> Program:
    return newest.finished("producers", address=server.address, name="producers")


@pytest.fixture(scope="module")
def said(program: Program) -> dict[str, Any]:
    return program.findings()


def test_a_producer_creates_what_it_needs_if_it_may(said: dict[str, Any], newest: Sdk) -> None:
    assert [newest.error(answer) for answer in said["unmade"]] == ["StreamNameNotFound", "TopicNameNotFound"]
    assert said["made"] == [3, 60, 4 << 30]
    assert said["options"]["message_expiry"] == 60_000_000


def test_a_direct_producer_learns_where_each_of_its_batches_is(said: dict[str, Any]) -> None:
    assert said["direct"] == [
        [[0, 0], [0, 10], [0, 20]],
        [[0, 25]],
        [[0, 26]],
        [],
        [[0, 0]],
        [[0, 2]],
    ]
    assert said["direct_stored"] is True
    assert said["keyed"] == [xxhash.xxh32_intdigest(b"a") % 3] * 3
    assert said["paced_ms"] >= 100


def test_a_closed_producer_sends_nothing_and_may_be_closed_again(said: dict[str, Any]) -> None:
    assert said["closed"] == "producer has been shut down"
    assert said["twice"] is None


def test_background_producers_send_everything_they_accepted(program: Program) -> None:
    of_mode = {finding["background"]: finding for finding in program.said if "background" in finding}
    assert list(of_mode) == ["ordered", "balanced", "small", "blocking"]
    for mode, finding in of_mode.items():
        assert finding["confirmed"] == [], mode
        assert finding["complete"], mode
        assert finding["in_order"] or mode == "balanced", mode


def test_a_full_background_producer_raises_an_error(said: dict[str, Any]) -> None:
    assert said["full"][0] is None
    assert said["full"][-1] == "Background send buffer overflow"
    assert said["timed_out"][0] is None
    assert said["timed_out"][-1] == "Background send timeout"


def test_a_failed_send_returns_the_messages_that_were_not_stored(said: dict[str, Any], newest: Sdk) -> None:
    assert said["failed"] == f"Producer send failed: {said['cause']}"
    assert newest.error(said["cause"]) == "TopicIdNotFound"
    assert (said["unsent"], said["committed"]) == (5, [])
    assert said["sent_again"] == [[0, 0]]
    assert said["stored_again"] == [f"{number}" for number in range(2, 7)]


def test_a_producer_with_retries_waits_for_its_topic(said: dict[str, Any]) -> None:
    assert said["retried"] == [[0, 0]]
    assert said["stored_late"] == ["0", "1", "2"]
