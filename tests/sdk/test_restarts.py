"""The server goes away and comes back with the same folder: clients carry on, and nothing acknowledged is lost."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import pytest

from tests.sdk.support.inspector import until
from tests.sdk.support.program import Program, Sdk
from tests.sdk.support.server import Server

PARTITIONS = 2
AT_LEAST = 60
"""Messages that go through before each restart, and after the last one."""


def acknowledged(producer: Program) -> list[str]:
    return list(chain.from_iterable(producer.all("acknowledged")))


def first_times(messages: list[str]) -> list[str]:
    return list(dict.fromkeys(messages))


@pytest.mark.parametrize("end", [Server.stop, Server.kill], ids=["stopped", "killed"])
def test_producer_and_consumer_carry_on_after_restarts_and_nothing_acknowledged_is_lost(
    sdk: Sdk, own_server: Callable[..., Server], start: Callable[..., Program], end: Callable[[Server], None]
) -> None:
    server = own_server()
    task = {"address": server.address, "stream": "orders", "topic": "t", "partitions": PARTITIONS}
    producer = start(sdk, "producer", **task, batch=5)
    producer.until("ready")
    member = start(sdk, "member", **task, group="g", auto_commit=["After", "ConsumingEachMessage"])
    producer.tell("go")

    restarts = 2
    for restart in range(restarts + 1):
        sent, got = len(acknowledged(producer)), len(member.all("consumed"))
        until(lambda sent=sent: len(acknowledged(producer)) >= sent + AT_LEAST, f"sent after {restart} restarts")
        until(lambda got=got: len(member.all("consumed")) >= got + AT_LEAST, f"consumed after {restart} restarts")
        if restart < restarts:
            end(server)
            server.start()
    producer.tell("stop")
    producer.end()
    promised = acknowledged(producer)
    until(lambda: set(promised) <= set(member.all("consumed")), "all that was acknowledged is consumed")

    stored = sdk.run("reading", **task)["polled"]
    assert set(member.all("consumed")) <= set(chain(*stored)), "what is consumed is what was sent, byte for byte"
    for partition in range(PARTITIONS):
        of_partition = [message for message in promised if message.startswith(f"{partition}:")]
        assert first_times(stored[partition]) == of_partition
        # The SDK repeats a request whose answer it did not get: that one batch may be there twice, no other.
        assert len(stored[partition]) - len(of_partition) <= 5 * restarts


def test_a_group_goes_on_after_a_restart_from_what_it_had_committed(
    sdk: Sdk, own_server: Callable[..., Server], start: Callable[..., Program]
) -> None:
    server = own_server()
    task = {"address": server.address, "stream": "orders", "topic": "t", "partitions": PARTITIONS}
    producer = start(sdk, "producer", **task, count=30)
    producer.tell("go")
    producer.end()
    sdk.run("reading", **task, group="g")
    server.kill()
    server.start()
    again = start(sdk, "producer", **task, count=5, first=30, create=False)
    again.tell("go")
    again.end()
    member = start(sdk, "member", **task, group="g", auto_commit=["When", "ConsumingEachMessage"])
    expected = {f"{partition}:{number}" for partition in range(PARTITIONS) for number in range(30, 35)}
    until(lambda: expected <= set(member.all("consumed")), "what was sent after the restart is consumed")
    assert set(member.all("consumed")) == expected
