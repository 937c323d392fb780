"""The newest pre-release of the official SDK, which speaks the next wire protocol: over each of its transports,
together with clients of the classic wire, and across a crash of the server."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sdk.support import environments
from tests.sdk.support.inspector import Inspector
from tests.sdk.support.program import Program, Sdk
from tests.sdk.support.server import Server

EXPECTED = [[f"{partition}:{number}" for number in range(10)] for partition in range(2)]


@pytest.fixture(scope="module")
def python() -> None:
    environments.interpreter(environments.PRE_RELEASE)


@pytest.mark.usefixtures("python")
@pytest.mark.parametrize("transport", ["tcp", "ws", "quic"])
def test_the_pre_release_creates_sends_polls_and_consumes_in_a_group(
    server: Server, start: Callable[..., Program], inspector: Inspector, name: str, transport: str
) -> None:
    sdk = Sdk(environments.PRE_RELEASE, transport)
    program = start(sdk, "newer", address=server.address, stream=name, topic="t")
    program.end()
    assert program.all("partitions") == [2]
    assert program.all("polled") == [EXPECTED]
    (consumed,) = program.all("consumed")
    assert consumed[-1] == "late"
    assert sorted(consumed[:-1]) == sorted(text for texts in EXPECTED for text in texts)
    # A client of the classic wire sees the same.
    assert [message.payload for message in inspector.poll(name, "t", 1)] == [text.encode() for text in EXPECTED[1]]


@pytest.mark.usefixtures("python")
def test_the_pre_release_keeps_sending_after_the_server_was_killed(
    own_server: Callable[..., Server], start: Callable[..., Program], name: str
) -> None:
    server = own_server()
    sdk = Sdk(environments.PRE_RELEASE, "tcp")
    program = start(sdk, "newer", address=server.address, stream=name, topic="t", goes_on=True)
    program.until("ready")
    program.tell("go")
    for _ in range(2):
        for _ in range(20):
            program.until("acknowledged")
        server.kill()
        server.start()
    for _ in range(20):
        program.until("acknowledged")
    program.tell("stop")
    program.end()
    (stored,), (sent,) = program.all("stored"), program.all("sent")
    acknowledged = [f"again:{number}" for number in range(sent)]
    # Each message is stored; one that was in flight when the server died, and was never acknowledged, may be there
    # twice.
    assert list(dict.fromkeys(stored)) == acknowledged
    assert len(stored) <= sent + 2
