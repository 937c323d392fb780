"""The server stops and restarts with the same folder: clients continue, and nothing acknowledged is lost."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from operator import ge

import pytest

from tests.sdk.support.inspector import until
from tests.sdk.support.program import Program, Sdk
from tests.sdk.support.server import Server

PARTITIONS = 2
AT_LEAST = 60
"""Messages that are acknowledged before each restart, and after the last one."""


def acknowledged(producer: Program) -> list[str]:
    return list(chain.from_iterable(producer.all("acknowledged")))


def first_times(messages: list[str]) -> list[str]:
    return list(dict.fromkeys(messages))


@pytest.mark.parametrize(
    "end",
    [Server.kill, pytest.param(Server.stop, marks=pytest.mark.long)],
    ids=["killed", "stopped"],
)
def test_clients_continue_after_restarts_and_nothing_acknowledged_is_lost(
    sdk: Sdk, own_server: Callable[..., Server], start: Callable[..., Program], end: Callable[[Server], None]
) -> None:
    server = own_server()
    task = {"address": server.address, "stream": "orders", "topic": "t", "partitions": PARTITIONS}
    producer = start(sdk, "producer", **task, batch=5)
    producer.until("ready")
    follower = start(sdk, "follower", **task)
    member = start(sdk, "member", **task, group="g", auto_commit=["When", "PollingMessages"], restless=True)
    producer.tell("go")

    def progress() -> tuple[int, int, int]:
        return len(acknowledged(producer)), len(follower.all("consumed")), len(member.all("consumed"))

    def reached(goal: list[int]) -> bool:
        return all(map(ge, progress(), goal))

    restarts = 2
    for restart in range(restarts + 1):
        goal = [done + AT_LEAST for done in progress()]
        until(partial(reached, goal), f"{goal} after {restart} restarts")
        if restart < restarts:
            end(server)
            server.start()
    producer.tell("stop")
    producer.end()
    promised = acknowledged(producer)
    until(lambda: set(promised) <= set(follower.all("consumed")), "all that was acknowledged is consumed")

    stored = sdk.run("reading", **task)["polled"]
    assert sorted(follower.all("consumed")) == sorted(chain(*stored))
    assert set(member.all("consumed")) <= set(chain(*stored))
    for partition in range(PARTITIONS):
        of_partition = [message for message in promised if message.startswith(f"{partition}:")]
        assert first_times(stored[partition]) == of_partition
        # The SDK, and then the producer, repeat a batch without a response; no other message may be there twice.
        assert len(set(stored[partition])) + 5 * 2 * restarts >= len(stored[partition])


def test_a_group_resumes_after_a_restart_from_what_it_had_committed(
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
