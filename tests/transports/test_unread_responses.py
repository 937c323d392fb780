"""Responses that clients do not read share memory, on every transport: what was handed to a connection still counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tests.transports.http.support.serving import Link, serving
from tests.transports.support.crowded import crowded, waiting
from tests.transports.support.quic import Client, served
from tests.transports.support.raw import frame, message_body, poll
from tests.transports.support.siege import Deaf
from tests.transports.websocket.support.talking import Talking, talking
from tests.transports.websocket.support.talking import frame as websocket_frame
from whippet.app.commands import requests
from whippet.app.config.listeners import Http
from whippet.transports.admission.budget import Budget
from whippet.transports.http import routes
from whippet.transports.http.forms.responses import HttpResponse
from whippet.transports.http.operation import Call, Operation
from whippet.transports.quic_requests import BinaryProtocol

MIB = 1 << 20
SEND = 101
PATIENT: dict[str, Any] = dict.fromkeys(
    ("first_byte_time", "headers_time", "body_time", "idle_time", "answer_time"), 60.0
)


async def until(reached: Callable[[], bool]) -> None:
    while not reached():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


async def given_back(room: Budget) -> None:
    await until(lambda: (room.used, room.excess) == (0, 0))


# ------------------------------------------------------------------------------------------------------------ QUIC


async def with_messages(root: Client, *sizes: int) -> None:
    assert (await root.ask(requests.CreateStream("s")))[0] == 0
    assert (await root.ask(requests.CreateTopic("s", "t", 1)))[0] == 0
    for size in sizes:
        assert (await root.ask(frame(SEND, message_body(size))))[0] == 0


async def test_over_quic_many_small_responses_wait_for_the_window_as_a_large_one_does(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        await with_messages(await world.root(), 300_000)
        client = await world.root(max_data=100_000, max_stream_data=100_000)
        client.quic.__class__ = Deaf
        for _ in range(50):
            client.begin(poll(1))
        found = [each for each in world.listener._connections if each.engine.unacknowledged_bytes]
        while not found:
            await asyncio.sleep(0.001)
            found = [each for each in world.listener._connections if each.engine.unacknowledged_bytes > 100_000]
        engine, speaker = found[0].engine, found[0]._protocol
        assert isinstance(speaker, BinaryProtocol)
        await until(lambda: bool(speaker._responding) or engine.unacknowledged_bytes > 2 * world.listener.send_window)
        assert engine.unacknowledged_bytes <= world.listener.send_window + 50
        await until(lambda: world.listener.budgets.responses.used >= engine.unacknowledged_bytes)
        found[0].discard()
        await given_back(world.listener.budgets.responses)


async def test_over_quic_a_poll_whose_client_leaves_leaves_nothing_behind(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        await with_messages(await world.root(), *[MIB] * 4)
        client, room = await world.root(), world.listener.budgets.responses
        with crowded(room):
            asking = client.begin(poll(100))
            await until(lambda: waiting(room) == 1)
        # It has its memory now, and its client has left when it starts to read.
        for connection in list(world.listener._connections):
            connection.discard()
        await given_back(room)
        asking.cancel()


# ------------------------------------------------------------------------------------------------------------ HTTP


async def test_over_http_other_responses_reserve_memory_and_wait_for_it(tmp_path: Path) -> None:
    made = 0

    async def large(call: Call) -> HttpResponse:
        nonlocal made
        made += 1
        return HttpResponse(200, bytes(4 * MIB))

    operations = [
        Operation(name=name, method="GET", path=f"/{name}", summary="", subject="", handler=large, public=is_public)
        for name, is_public in (("large", False), ("public", True))
    ]
    async with serving(tmp_path, operations=(*routes.OPERATIONS, *operations), **PATIENT) as world:
        room = world.api.budgets.responses
        room.limit = 16 * MIB
        links = [await world.link(receive_bytes=4096) for _ in range(20)]
        for link in links:
            await link.send(world.request("GET", "/large"))
        await until(lambda: waiting(room) > 0)
        # A client that has not logged in has another account.
        honest: Link = await world.link()
        assert len((await honest.ask(b"GET /public HTTP/1.1\r\nHost: localhost\r\n\r\n")).body) == 4 * MIB
        assert made < 10
        assert room.used <= room.limit
        for link in links:
            link.link.close()
        await given_back(room)


async def test_an_unread_tail_holds_memory(tmp_path: Path) -> None:
    async with serving(tmp_path, Http(max_request_size=8 * MIB), **PATIENT) as world:
        link, room = await world.link(), world.api.budgets.responses
        assert (await link.ask(world.request("POST", "/streams", {"name": "s"}))).status == 200
        topic = {"name": "t", "partitions_count": 1}
        assert (await link.ask(world.request("POST", "/streams/s/topics", topic))).status == 200
        said = {"partitioning": {"kind": "balanced", "value": ""}, "messages": [{"payload": "A" * 4 * MIB}]}
        assert (await link.ask(world.request("POST", "/streams/s/topics/t/messages", said))).status == 201
        tails = [await world.link(receive_bytes=4096) for _ in range(3)]
        for tail in tails:
            await tail.send(world.request("GET", "/streams/s/topics/t/messages/tail?offset=0"))
        await until(lambda: room.used > 3 * 3 * MIB)
        for tail in tails:
            tail.link.close()
        await given_back(room)


# ------------------------------------------------------------------------------------------------------- WebSocket


async def channel(world: Talking) -> tuple[Link, Budget]:
    """A client that reads next to nothing, and the memory of what is sent to it."""
    raw = await world.raw("/ws", f"Authorization: Bearer {world.serves.token}", receive_bytes=4096)
    sent = {"partitioning": {"kind": "balanced", "value": ""}, "messages": [{"payload": "A" * 4 * MIB}]}
    commands: list[dict[str, Any]] = [
        {"cmd": "create_stream", "name": "s"},
        {"cmd": "create_topic", "stream": "s", "name": "t", "partitions_count": 1},
        {"cmd": "send_messages", "stream": "s", "topic": "t", **sent},
    ]
    for number, command in enumerate(commands):
        await raw.send(websocket_frame(1, msgspec.json.encode({"id": number, **command})))
        assert b'"ok"' in (await raw.frame())[1]
    return raw.link, world.websockets.budgets.responses


async def test_unread_messages_of_a_channel_hold_memory(tmp_path: Path) -> None:
    async with talking(tmp_path, http=Http(max_request_size=8 * MIB)) as world:
        asked: tuple[dict[str, Any], ...] = (
            {"cmd": "poll_messages", "stream": "s", "topic": "t", "value": 0},
            {"cmd": "subscribe", "to": "topic", "stream": "s", "topic": "t", "from": "first"},
        )
        for members in asked:
            link, room = await channel(world)
            polls = world.serves.api.budgets.responses
            await link.send(websocket_frame(1, msgspec.json.encode({"id": 9, **members})))
            await until(lambda room=room: room.used > MIB)  # type: ignore[misc]
            # What the poll held for its own response is held by the connection now.
            assert polls.used == 0
            link.link.close()
            await given_back(room)
            other = await world.raw("/ws", f"Authorization: Bearer {world.serves.token}")
            await other.send(websocket_frame(1, b'{"id":1,"cmd":"delete_stream","stream":"s"}'))
            assert b'"ok"' in (await other.frame())[1]
            other.link.link.close()
