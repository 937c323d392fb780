"""A poll for a hundred megabytes returns all of them, and the server holds only a few of them at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sdk.support.program import Program, Sdk
from tests.sdk.support.server import Server

MIB = 1 << 20
COUNT, SIZE, CLIENTS = 5000, 20_000, 3


@pytest.mark.parametrize("transport", ["tcp", "ws"])
def test_polls_of_a_hundred_megabytes_return_everything_and_take_little_memory(
    newest: Sdk, transport: str, own_server: Callable[..., Server], start: Callable[..., Program]
) -> None:
    # What was sent must not be in memory anyway.
    server = own_server(IGGY_SYSTEM_LIMITS_TAIL_BYTES=str(MIB))
    task = {"stream": "s", "topic": "t", "count": COUNT, "size": SIZE, "clients": CLIENTS}
    program = start(Sdk(newest.version, transport), "large", address=server.address, **task)
    program.until("sent")
    server.forget_peak()
    before = server.resident_bytes
    program.tell("poll")
    program.end()
    assert program.all("polled") == [list(range(COUNT))] * CLIENTS
    assert server.peak_bytes - before < 40 * MIB
