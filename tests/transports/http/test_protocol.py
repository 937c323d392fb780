"""HTTP connections with raw sockets: slow, silent and greedy clients, and ambiguous requests.

Deadlines are short here; tests wait for a response or the end of the connection, never for time.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.storage.support.world import SlowDisk
from tests.transports.http.support.serving import PING, Link, Serving, serving
from tests.transports.support.crowded import crowded, waiting
from whippet.app.config.listeners import Http
from whippet.transports.admission.budget import STEP_BYTES_MIN
from whippet.transports.http import routes
from whippet.transports.http.forms import request_bodies
from whippet.transports.http.forms.responses import HttpResponse
from whippet.transports.http.handlers.messages import UNACKNOWLEDGED_BYTES
from whippet.transports.http.operation import Call, Operation
from whippet.transports.http.serving.protocol import PIPELINED_MAX

SHORT = 0.2
LONG = 60.0
PATIENT: dict[str, Any] = {
    "first_byte_time": LONG,
    "headers_time": LONG,
    "body_time": LONG,
    "idle_time": LONG,
    "answer_time": LONG,
}


def patient(**short: float) -> dict[str, Any]:
    """Sets all deadlines but these far in the future."""
    return PATIENT | short


def parse_number(response: object) -> int:
    body = response.json()  # type: ignore[attr-defined]
    assert list(body) == ["id", "code", "reason", "field"]
    return int(body["id"])


async def make_topic(world: Serving) -> None:
    link = await world.link()
    assert (await link.ask(world.request("POST", "/streams", {"name": "s"}))).status == 200
    topic = {"name": "t", "partitions_count": 1}
    assert (await link.ask(world.request("POST", "/streams/s/topics", topic))).status == 200


def send_body(*sizes: int) -> bytes:
    messages = [{"payload": b"x" * size} for size in sizes]
    return msgspec.json.encode({"partitioning": {"kind": "balanced", "value": ""}, "messages": messages})


MESSAGES = "/streams/s/topics/t/messages"


# ------------------------------------------------------------------------------------------ slowloris, in four forms


async def test_a_silent_client_is_closed(tmp_path: Path) -> None:
    async with serving(tmp_path, **patient(first_byte_time=SHORT)) as world:
        link = await world.link()
        assert await link.is_over()


async def test_a_client_that_sends_only_line_ends_is_closed(tmp_path: Path) -> None:
    async with serving(tmp_path, **patient(first_byte_time=SHORT)) as world:
        link = await world.link()
        await link.send(b"\r\n")
        assert await link.is_over()


@pytest.mark.parametrize(
    "begun", [b"G", b"GET /ping HTTP/1.1\r\n", b"GET /ping HTTP/1.1\r\nHost: localhost\r\nX-A: b\r\n", PING[:-1]]
)
async def test_endless_headers_are_answered_408_however_often_a_byte_arrives(tmp_path: Path, begun: bytes) -> None:
    async def drip(link: Link, octets: bytes) -> None:
        while octets:
            await link.send(octets)
            await asyncio.sleep(SHORT / 10)

    async with serving(tmp_path, **patient(headers_time=SHORT)) as world:
        link = await world.link()
        await link.send(begun)
        dripping = asyncio.create_task(drip(link, b"X: y\r\n" if begun.endswith(b"\n") and begun != PING[:-1] else b""))
        response = await link.response()
        assert (response.status, parse_number(response)) == (408, 408)
        assert response.headers["connection"] == "close"
        dripping.cancel()
        await asyncio.gather(dripping, return_exceptions=True)


@pytest.mark.parametrize("framing", ["Content-Length: 1000", "Transfer-Encoding: chunked"])
async def test_a_body_that_stalls_is_answered_408_and_nothing_is_stored(tmp_path: Path, framing: str) -> None:
    async with serving(tmp_path, **patient(body_time=SHORT)) as world:
        await make_topic(world)
        link = await world.link()
        head = world.request("POST", MESSAGES, None, "Content-Type: application/json", framing)
        await link.send(head + (b"1\r\n{\r\n" if "chunked" in framing else b"{"))
        response = await link.response()
        assert (response.status, parse_number(response)) == (408, 408)
        assert await link.is_over()
        reader = await world.link()
        topic = (await reader.ask(world.request("GET", "/streams/s/topics/t"))).json()
        assert topic["messages_count"] == 0


async def test_a_trickling_body_is_refused_and_one_that_is_fast_enough_is_not(tmp_path: Path) -> None:
    async with serving(tmp_path, **patient(body_time=SHORT), body_rate=20_000) as world:
        await make_topic(world)
        body = send_body(*[60] * 100)
        slow, fast = await world.link(), await world.link()
        for link in (slow, fast):
            head = f"Content-Length: {len(body)}"
            await link.send(world.request("POST", MESSAGES, None, "Content-Type: application/json", head))

        async def send(link: Link, size: int) -> None:
            for start in range(0, len(body), size):
                await link.send(body[start : start + size])
                await asyncio.sleep(SHORT / 10)

        dripping = asyncio.create_task(send(slow, 1))
        await send(fast, 800)
        assert (await fast.response()).status == 201
        assert (await slow.response()).status == 408
        dripping.cancel()
        await asyncio.gather(dripping, return_exceptions=True)


async def test_a_client_that_does_not_read_its_response_is_disconnected(tmp_path: Path) -> None:
    async with serving(tmp_path, **patient(answer_time=SHORT)) as world:
        await make_topic(world)
        sender = await world.link()
        for _ in range(8):
            assert (await sender.ask(world.request("POST", MESSAGES, send_body(*[400_000] * 2)))).status == 201
        others = world.connections
        greedy = await world.link(receive_bytes=4096)
        await greedy.send(world.request("GET", f"{MESSAGES}?count=1000"))
        while world.connections <= others:  # noqa: ASYNC110
            await asyncio.sleep(0)
        while world.connections > others:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        with pytest.raises((EOFError, ConnectionResetError)):
            await greedy.response()
        assert await sender.pings()


async def test_an_idle_connection_is_closed_and_an_active_one_is_kept(tmp_path: Path) -> None:
    async with serving(tmp_path, **patient(idle_time=SHORT)) as world:
        rests, talks = await world.link(), await world.link()
        assert await rests.pings()
        ended = asyncio.create_task(rests.is_over())
        while not ended.done():
            assert await talks.pings()
            await asyncio.sleep(SHORT / 10)
        assert ended.result()


async def test_http3_is_announced_once_it_is_served(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        link, ping = await world.link(), world.request("GET", "/ping")
        first = await link.ask(ping)
        assert "alt-svc" not in first.headers
        world.server.announce_http3(3000)
        seen = await link.ask(ping)
        assert seen.headers["alt-svc"] == 'h3=":3000"; ma=86400'
        while seen.headers["date"] == first.headers["date"]:
            # uvicorn renews the default headers every second.
            await asyncio.sleep(SHORT / 10)
            seen = await link.ask(ping)
        assert seen.headers["alt-svc"] == 'h3=":3000"; ma=86400'


async def test_time_that_the_server_takes_does_not_count_against_the_client(tmp_path: Path) -> None:
    """Neither the time that a request takes, nor the time that a pipelined one waits."""

    async def slow(call: Call) -> HttpResponse:
        await request_bodies.read(call.receive, 100)
        await asyncio.sleep(3 * SHORT)
        return HttpResponse(200, b"done")

    operation = Operation(name="slow", method="POST", path="/slow", summary="", subject="", handler=slow, public=True)

    limits: dict[str, Any] = dict.fromkeys(PATIENT, SHORT)
    async with serving(tmp_path, operations=(*routes.OPERATIONS, operation), **limits) as world:
        link = await world.link()
        request = b"POST /slow HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nab"
        await link.send(request + request[:-1])
        assert (await link.response()).body == b"done"
        await link.send(b"b")
        assert (await link.response()).body == b"done"


# ------------------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize("pieces", [1, 7])
async def test_too_many_headers_are_answered_431(tmp_path: Path, pieces: int) -> None:
    async with serving(tmp_path, headers_bytes=1 << 24) as world:
        link = await world.link()
        request = PING[:-2] + b"".join(b"X-%d: y\r\n" % i for i in range(100_000)) + b"\r\n"
        sending = asyncio.create_task(send_all(link, request, pieces))
        response = await link.response()
        assert (response.status, parse_number(response)) == (431, 431)
        await asyncio.gather(sending, return_exceptions=True)
        assert await (await world.link()).pings()


async def send_all(link: Link, octets: bytes, pieces: int) -> None:
    size = -(-len(octets) // pieces)
    for start in range(0, len(octets), size):
        await link.send(octets[start : start + size])


@pytest.mark.parametrize(
    "request_head",
    [
        b"GET /ping HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 5000 + b"\r\n\r\n",
        b"GET /ping HTTP/1.1\r\nHost: localhost\r\n" + b"a" * 5000 + b": x\r\n\r\n",
        b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
@pytest.mark.parametrize("whole", [True, False])
async def test_long_headers_are_answered_431_before_they_are_complete(
    tmp_path: Path, request_head: bytes, whole: bool
) -> None:
    async with serving(tmp_path, headers_bytes=2048) as world:
        link = await world.link()
        if whole:
            await link.send(request_head)
        else:
            for start in range(0, 4096, 512):
                await link.send(request_head[start : start + 512])
                await asyncio.sleep(0)
        response = await link.response()
        assert (response.status, parse_number(response)) == (431, 431)


async def test_a_body_over_the_limit_is_answered_413_before_it_arrives_and_ends_the_connection(tmp_path: Path) -> None:
    async with serving(tmp_path, Http(max_request_size=1000)) as world:
        await make_topic(world)
        link = await world.link()
        response = await link.ask(
            world.request("POST", MESSAGES, None, "Content-Type: application/json", "Content-Length: 1001")
        )
        assert (response.status, parse_number(response)) == (413, 413)
        assert response.headers["connection"] == "close"
        assert await link.is_over()


async def test_a_chunked_body_over_the_limit_is_answered_413(tmp_path: Path) -> None:
    async with serving(tmp_path, Http(max_request_size=1000)) as world:
        await make_topic(world)
        link = await world.link()
        head = world.request("POST", MESSAGES, None, "Content-Type: application/json", "Transfer-Encoding: chunked")
        await link.send(head + (b"100\r\n" + b" " * 256 + b"\r\n") * 100 + b"0\r\n\r\n")
        assert (await link.response()).status == 413


async def test_the_response_to_a_body_in_transit_is_not_lost_in_a_reset(tmp_path: Path) -> None:
    async with serving(tmp_path, Http(max_request_size=1000)) as world:
        for _ in range(20):
            link = await world.link()
            body = b" " * 1_000_000
            await link.send(world.request("POST", "/streams", body))
            assert (await link.response()).status == 413


async def test_a_client_that_is_refused_early_may_finish_its_body_and_go_on(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        link = await world.link()
        request = b"POST /streams HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
        assert (await link.ask(request)).status == 401
        await link.send(b"x" * 100_000)
        assert await link.pings()


async def test_a_body_in_100_000_chunks_of_one_byte_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        link = await world.link()
        head = world.request("POST", "/streams", None, "Content-Type: application/json", "Transfer-Encoding: chunked")
        sending = asyncio.create_task(send_all(link, head + b"1\r\n \r\n" * 100_000, 10))
        response = await link.response()
        assert (response.status, parse_number(response)) == (400, 400)
        await asyncio.gather(sending, return_exceptions=True)


async def test_connections_beyond_the_limit_are_answered_503_with_retry_after(tmp_path: Path) -> None:
    async with serving(tmp_path, connections=2) as world:
        links = [await world.link() for _ in range(2)]
        for link in links:
            assert await link.pings()
        response = await (await world.link()).response()
        assert (response.status, parse_number(response)) == (503, 503)
        assert response.headers["retry-after"] == "1"
        links[0].link.close()
        while world.connections > 1:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert await (await world.link()).pings()


async def test_bodies_reserve_memory_as_they_arrive_and_not_as_announced(tmp_path: Path) -> None:
    """Sends 140 requests of one byte, with bodies of unknown size."""
    async with serving(tmp_path, body_time=LONG) as world:
        await make_topic(world)
        head = world.request("POST", MESSAGES, None, "Content-Type: application/json", "Transfer-Encoding: chunked")
        for _ in range(140):
            link = await world.link()
            await link.send(head + b"1\r\n{\r\n")
        honest, room = await world.link(), world.api.budgets.bodies
        assert (await honest.ask(world.request("POST", MESSAGES, send_body(20_000)))).status == 201
        assert room.used <= 140 * (STEP_BYTES_MIN + 1)
        assert not waiting(room)


async def test_unacknowledged_sends_reserve_memory_until_they_are_done(tmp_path: Path) -> None:
    """As many are accepted as the budget allows; the others get no response until the disk continues."""
    disk = SlowDisk()
    async with serving(tmp_path, store={"files": disk, "messages_required_to_save": 1}, bodies_bytes=100_000) as world:
        await make_topic(world)
        disk.stop()
        unheard = world.request("POST", f"{MESSAGES}?ack=none", send_body(10))
        links = [await world.link() for _ in range(40)]
        for link in links:
            await link.send(unheard)
        room = world.api.budgets.bodies
        while not waiting(room):  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert room.used <= 100_000 + 2 * UNACKNOWLEDGED_BYTES
        accepted = [asyncio.ensure_future(link.response()) for link in links]
        while sum(each.done() for each in accepted) * UNACKNOWLEDGED_BYTES < 40_000:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert sum(each.done() for each in accepted) < 20
        disk.go()
        assert {(await each).status for each in accepted} == {202}
        while room.used:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_unread_poll_responses_are_limited(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        await make_topic(world)
        for _ in range(8):
            assert (await (await world.link()).ask(world.request("POST", MESSAGES, send_body(1_000_000)))).status == 201
        room = world.api.budgets.responses
        room.limit = 12 << 20
        poll, honest = world.request("GET", f"{MESSAGES}?count=100"), await world.link()
        links = [await world.link(receive_bytes=4096) for _ in range(8)]
        for link in links:
            await link.send(poll * 2)
        for _ in range(3):
            assert (await honest.ask(poll)).status == 200
            assert room.used <= room.limit + 2_000_000
        for link in links:
            link.link.close()
        while room.used:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_large_bodies_wait_for_memory_and_small_ones_do_not(tmp_path: Path) -> None:
    async with serving(tmp_path, bodies_bytes=300_000, body_time=LONG) as world:
        await make_topic(world)
        body, room = send_body(200_000), world.api.budgets.bodies
        large, small = await world.link(), await world.link()
        with crowded(room):
            await large.send(world.request("POST", MESSAGES, body))
            while not waiting(room):  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert (await small.ask(world.request("POST", MESSAGES, send_body(10)))).status == 201
        assert (await large.response()).status == 201


async def test_pipelined_requests_are_answered_in_order_and_too_many_end_the_connection(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        link = await world.link()
        await link.send(PING * 20)
        for _ in range(20):
            assert (await link.response()).body == b"pong"
        await link.send(PING * (PIPELINED_MAX + 20))
        answered = 0
        try:
            while (await link.response()).body == b"pong":
                answered += 1
        except (EOFError, ConnectionResetError):
            pass
        assert PIPELINED_MAX <= answered <= PIPELINED_MAX + 20


# ------------------------------------------------------------------------------------------------- smuggling

BODY = b"0\r\n\r\n"
SMUGGLED = [
    b"POST /users/login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + BODY,
    b"POST /users/login HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n" + BODY,
    b"POST /users/login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n" + BODY,
    b"POST /users/login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5, 5\r\n\r\n" + BODY,
    b"POST /users/login HTTP/1.1\r\nHost: localhost\r\nContent-Length: +5\r\n\r\n" + BODY,
    b"POST /users/login HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n" + BODY,
    b"POST /users/login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0x5\r\n\r\n" + BODY,
    b"POST /users/login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999999\r\n\r\n" + BODY,
    b"POST /users/login HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked, identity\r\n\r\n" + BODY,
    b"POST /users/login HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: xchunked\r\n\r\n" + BODY,
    b"POST /users/login HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding : chunked\r\n\r\n" + BODY,
    b"POST /users/login HTTP/1.1\r\nHost: localhost\r\nX: a\r\n Transfer-Encoding: chunked\r\n\r\n" + BODY,
    b"POST /users/login HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
    b"POST /users/login HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n\r\n",
    b"POST /users/login HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxy\r\n0\r\n\r\n",
    b"POST /users/login HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\nx\n0\n\n",
    b"POST /users/login HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + b"f" * 20 + b"\r\n",
    b"GET /ping HTTP/1.1\r\n\r\n",
    b"GET /ping HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET /ping HTTP/1.1\r\nHost: localhost\r\nX\0: y\r\n\r\n",
    b"GET /ping HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n",
    b"GET /ping HTTP/1.1\r\nHost: localhost\r\nX: a\rb\r\n\r\n",
    b"GET /ping HTTP/1.1\nHost: localhost\n\n",
    b"GET /ping HTTP/9.9\r\nHost: localhost\r\n\r\n",
    b"GET /p\xffng HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET http:// HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"NONSENSE /ping HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"\0\0\0\0" * 100,
]


@pytest.mark.parametrize("octets", SMUGGLED, ids=range(len(SMUGGLED)))
async def test_an_ambiguous_request_is_refused_and_ends_the_connection(tmp_path: Path, octets: bytes) -> None:
    async with serving(tmp_path) as world:
        link = await world.link()
        await link.send(octets + PING)
        received = await link.rest()
        assert received.startswith(b"HTTP/1.1 4"), received
        assert received.count(b"HTTP/1.1 ") == 1, "a second request was found after the first"
        assert b"pong" not in received
        assert b"Traceback" not in received
        assert await (await world.link()).pings()


async def test_trailers_have_no_effect(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        link = await world.link()
        head = b"POST /streams HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        trailer = f"Authorization: Bearer {world.token}\r\n\r\n".encode()
        body = b'd\r\n{"name": "s"}\r\n0\r\n'
        await link.send(head + b"Transfer-Encoding: chunked\r\nTrailer: Authorization\r\n\r\n" + body + trailer)
        assert (await link.response()).status == 401


async def test_an_unknown_upgrade_is_ignored(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        link = await world.link()
        upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQ\r\n\r\n"
        assert (await link.ask(PING[:-2] + upgrade)).body == b"pong"


async def test_a_client_that_disconnects_early_leaves_nothing_behind(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        await make_topic(world)
        body = send_body(60_000)
        request = world.request("POST", MESSAGES, body)
        for cut in (3, 40, len(request) - len(body), len(request) - 5):
            link = await world.link()
            await link.send(request[:cut])
            link.reset()
        while world.connections > 1 or world.api.budgets.bodies.used:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_expect_continue_is_answered_only_where_the_body_is_read(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as world:
        link = await world.link()
        body = b'{"name": "s"}'
        framing = ("Content-Type: application/json", f"Content-Length: {len(body)}", "Expect: 100-continue")
        await link.send(world.request("POST", "/streams", None, *framing))
        assert (await link.response()).status == 100
        assert (await link.ask(body)).status == 200
        refused = await world.link()
        await refused.send(world.request("POST", "/streams", None, *framing).replace(b"Bearer ", b"Bearer x"))
        assert (await refused.response()).status == 401
