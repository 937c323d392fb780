"""A server process reclaims memory from a client that holds more than its share and continues slowly: the connection
that holds most is closed, and the client that has waited for it is served. All of it over real sockets.

The time until that is short here, and the budgets are so small that one client fills them.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator

import pytest

from tests.app.support.process import starting
from tests.support.running import run
from tests.transports.support.raw import frame, message_body
from tests.transports.support.siege import MESSAGES, MIB, SETTINGS, TO_FIRST, Besieged, quic
from whippet.app.commands import requests

SOON = "from whippet.transports.admission import budget; budget.RECLAIM_SECONDS = 0.1; "
SMALL = {
    "IGGY_SYSTEM_LIMITS_FRAMES_BYTES": "256 KiB",
    "IGGY_HTTP_LIMITS_BODIES_BYTES": "256 KiB",
    "IGGY_SYSTEM_LIMITS_RESPONSES_BYTES": "1 MiB",
    "IGGY_SYSTEM_LIMITS_TAIL_BYTES": "4 MiB",
    # Nothing else ends an unfinished request.
    "IGGY_SYSTEM_LIMITS_FRAME_TIME": "10 m",
    "IGGY_HTTP_LIMITS_BODY_TIME": "10 m",
}
RECLAIMED = "it holds more than its share of memory"


@pytest.fixture(scope="module")
def besieged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Besieged]:
    with starting(tmp_path_factory.mktemp("reclaiming") / "data") as start:
        gateway = start(SOON, **SETTINGS, **SMALL)
        found = Besieged(gateway)
        run(found.prepare(16 * MIB))
        yield found
        gateway.signal(signal.SIGTERM)
        assert gateway.end() == 0
        assert not [line for line in (*gateway.out, *gateway.err) if "Traceback" in line or "ERROR" in line]


async def test_an_unfinished_http_body_is_reclaimed(besieged: Besieged) -> None:
    def head(name: str, size: int) -> bytes:
        lines = ("Content-Type: application/octet-stream", f"Content-Length: {size}")
        return besieged.head("POST", path, besieged.tokens[name], *lines)

    path = MESSAGES.format(topic="ordinary") + "?partition_id=0"
    slow = await besieged.link("http")
    await slow.send(head("hostile", 1_900_000) + bytes(300_000))
    closed = asyncio.create_task(slow.is_closed())
    while not closed.done():
        # The first ones may get memory before the slow client has it.
        honest = await besieged.link("http")
        await honest.send(head("ordinary", 250_000) + bytes(250_000))
        assert (await honest.exactly(13)) == b"HTTP/1.1 201 "
        honest.link.close()
    assert await closed
    besieged.gateway.line(RECLAIMED)
    slow.link.close()


async def test_an_unfinished_quic_request_is_reclaimed(besieged: Besieged) -> None:
    async with contextlib.AsyncExitStack() as ends, await besieged.client("ordinary") as honest:
        slow = await quic(besieged, ends, window=MIB)
        assert (await slow.ask(requests.LoginUser("hostile", "password of hostile")))[0] == 0
        slow.say(slow.open(), frame(101, message_body(1_900_000))[:300_000], fin=False)
        # It has got its memory when this is answered.
        while not slow.terminated.done():
            await honest.send_messages("s", "ordinary", [bytes(250_000)], TO_FIRST)
        assert RECLAIMED in slow.terminated.result().reason_phrase
