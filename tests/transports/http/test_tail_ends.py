"""Tails: what ends them, slow clients, limits, and tickets."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import msgspec
from starlette.types import Message as AsgiMessage

from tests.transports.http.support.calling import permissions
from tests.transports.http.support.events import MESSAGES, Events, tail
from tests.transports.http.support.tails import POLLING, leave, live, over, send, unsent_bytes, until_tails
from tests.transports.support.cursors import places
from whippet.app.commands import requests
from whippet.app.config.listeners import HttpLimits, HttpReaders
from whippet.transports.http import application

# ------------------------------------------------------------------------------------------------- ending


async def test_a_tail_ends_with_its_topic_the_server_or_the_permission(tmp_path: Path) -> None:
    async with live(tmp_path, partitions=2) as world:
        link = await world.link()
        root_token = world.token
        users = world.world.gateway.users
        for name in ("alice", "bob", "carol", "dave"):
            await world.world.user(name)
            body = {"permissions": permissions("poll_messages")}
            assert (await link.ask(world.request("PUT", f"/users/{name}/permissions", body))).status == 204

        async def of(name: str) -> Events:
            world.token = world.api.access_tokens.issue(users.get(name)).text
            try:
                return await tail(world)
            finally:
                world.token = root_token

        async def ended(events: Events, method: str, path: str, body: Any = None) -> str:
            assert (await link.ask(world.request(method, path, body))).status == 204
            return str((await over(events)).json["code"])

        assert await ended(await of("alice"), "PUT", "/users/alice", {"status": "inactive"}) == "unauthenticated"
        assert await ended(await of("bob"), "DELETE", "/users/bob") == "unauthenticated"
        without = {"permissions": None}
        assert await ended(await of("carol"), "PUT", "/users/carol/permissions", without) == "unauthorized"
        daves = await of("dave")
        world.token = world.api.access_tokens.issue(users.get("dave")).text
        tail_of_alice = await tail(world)
        assert (await link.ask(world.request("DELETE", "/users/logout"))).status == 204
        world.token = root_token
        assert (await over(tail_of_alice)).json["code"] == "unauthenticated"
        await send(world, b"his other session continues")
        assert places((await daves.next()).id) == "0:1"
        await leave(world, daves)

        events = await tail(world)
        assert await ended(events, "DELETE", "/streams/s/topics/t") in ("gone", "topic_id_not_found")
        assert places(events.id) == "0:1"
        root = await world.world.root()
        await root.execute(requests.CreateTopic("s", "t", 1))
        events = await tail(world)
        world.api.drain()
        stopping = asyncio.create_task(world.server.stop())
        end = await over(events)
        assert end.json | {"cursor": places(end.json["cursor"])} == {
            "code": "stopping",
            "reason": "The server is stopping",
            "cursor": "0:0",
            "last_offsets": {"0": None},
        }
        async with asyncio.timeout(5):
            await stopping


async def test_a_tail_ends_with_its_token(tmp_path: Path) -> None:
    async with live(tmp_path) as world:
        events = await tail(world)
        world.world.clock.now += 2 * 3600 * 1_000_000
        assert (await over(events)).json["code"] == "unauthenticated"


async def test_a_tail_needs_permission_to_poll(tmp_path: Path) -> None:
    async with live(tmp_path) as world:
        await world.world.user("alice")
        world.token = world.api.access_tokens.issue(world.world.gateway.users.get("alice")).text
        link = await world.link()
        assert (await link.ask(world.request("GET", f"{MESSAGES}/tail"))).status == 403
        assert (await link.ask(f"GET {MESSAGES}/tail HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())).status == 401


async def test_a_client_that_disconnects_leaves_nothing_behind(tmp_path: Path) -> None:
    async with live(tmp_path) as world:
        tails = [await tail(world) for _ in range(20)]
        assert len(world.api.tails.feeds) == 1
        for number, events in enumerate(tails):
            if number % 2:
                events.link.reset()
            else:
                events.close()
        await until_tails(world, 0)
        while any(task.get_name() == "a feed" for task in asyncio.all_tasks()):  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_heartbeats_are_sent_while_there_are_no_messages(tmp_path: Path) -> None:
    async with live(tmp_path, readers={"heartbeat": 0.05}) as world:
        events = await tail(world)
        while events.comments < 3:
            await events._chunk()
            events.comments += events._body.count(b":\n\n")
            events._body = b""
        await send(world, b"x")
        assert (await events.next()).payload == b"x"
        await leave(world, events)


# -------------------------------------------------------------------------------------------- slow clients and limits


async def test_a_stalled_tail_is_ended_with_its_cursor(tmp_path: Path) -> None:
    async with live(tmp_path, readers={"stall_time": 0.4}) as world:
        stalled = await tail(world, "offset=0", receive_bytes=4096)
        steady = await tail(world, "offset=0")
        count = 0
        while len(world.api.tails) == 2:
            await send(world, *[b"%06d" % (count + i) + b"x" * 10_000 for i in range(10)])
            for event in await steady.several(10):
                assert int(event.payload[:6]) == count
                count += 1
            await asyncio.sleep(0)
        (kept,) = world.api.tails._tails
        assert unsent_bytes(kept) < 1 << 20
        await send(world, b"after it was dropped")
        numbers = []
        while True:
            event = await stalled.next()
            if event.name == "end":
                break
            numbers.append(int(event.payload[:6]))
        assert numbers == list(range(len(numbers)))
        assert 0 < len(numbers) < count
        assert event.json["code"] == "stalled"
        assert event.json["last_offsets"] == {"0": len(numbers) - 1}
        assert event.id == event.json["cursor"]
        assert places(event.id) == f"0:{len(numbers)}"
        back = await tail(world, "", f"Last-Event-ID: {event.id}")
        assert int((await back.next()).payload[:6]) == len(numbers)
        await leave(world, back, steady)


async def test_a_slow_tail_is_kept_and_uses_little_memory(tmp_path: Path) -> None:
    async with live(tmp_path) as world:
        slow = await tail(world, "offset=0", receive_bytes=4096)
        for start in range(0, 2000, 100):
            await send(world, *[b"%06d" % (start + i) + b"x" * 2000 for i in range(100)])
        (only,) = world.api.tails._tails
        largest = 0
        for number in range(2000):
            assert int((await slow.next()).payload[:6]) == number
            largest = max(largest, unsent_bytes(only))
        assert largest < 1 << 20
        await leave(world, slow)


async def test_a_tail_that_lags_for_minutes_is_kept_while_it_reads(tmp_path: Path) -> None:
    """Whenever it is checked, the client has not read everything."""

    async with live(tmp_path) as world:
        slow = await tail(world, "offset=0", receive_bytes=4096)
        for start in range(0, 3000, 100):
            await send(world, *[b"%06d" % (start + i) + b"x" * 4000 for i in range(100)])
        (only,) = world.api.tails._tails
        # The server would check at another time than we do.
        world.server._sweeping.cancel()
        now = asyncio.get_running_loop().time()
        for _ in range(20):
            for _ in range(100):
                await slow.next()
            while not unsent_bytes(only):  # noqa: ASYNC110
                await asyncio.sleep(0)
            now += 10
            world.server.listener.sweep(now)
            assert world.connections == 1
        for _ in range(8):
            now += 10
            world.server.listener.sweep(now)
        await until_tails(world, 0)


async def test_a_tail_is_kept_while_its_client_reads_what_the_operating_system_has_for_it(tmp_path: Path) -> None:
    """It reads so little that the operating system takes nothing more from the server for several checks."""
    async with live(tmp_path) as world:
        slow = await tail(world, "offset=0", receive_bytes=4096)
        for start in range(0, 3000, 100):
            await send(world, *[b"%06d" % (start + i) + b"x" * 4000 for i in range(100)])
        (only,) = world.api.tails._tails
        # The server would check at another time than we do.
        world.api.tails.close()
        now = asyncio.get_running_loop().time()
        for _ in range(25):
            for _ in range(25):
                await slow.next()
            while not unsent_bytes(only):  # noqa: ASYNC110
                await asyncio.sleep(0)
            now += 6
            only.check(now, HttpReaders(stall_time=10))
            assert len(world.api.tails) == 1
        only.check(now + 11, HttpReaders(stall_time=10))
        assert (await over(slow)).json["code"] == "stalled"


async def test_the_number_of_tails_is_limited(tmp_path: Path) -> None:
    async with live(tmp_path, readers={"tails": 2}) as world:
        tails = [await tail(world) for _ in range(2)]
        link = await world.link()
        refused = await link.ask(world.request("GET", f"{MESSAGES}/tail"))
        assert (refused.status, refused.json()["code"]) == (429, "too_many_tails")
        await leave(world, tails[0])
        again = await tail(world)
        await leave(world, tails[1], again)


async def test_one_user_cannot_occupy_all_tails(tmp_path: Path) -> None:
    async with live(tmp_path, readers={"tails": 4, "tails_per_user": 2}) as world:
        tails = [await tail(world) for _ in range(2)]
        link = await world.link()
        refused = await link.ask(world.request("GET", f"{MESSAGES}/tail"))
        assert (refused.status, refused.json()["code"]) == (429, "too_many_tails")
        assert "http.readers.tails_per_user = 2" in refused.json()["reason"]
        await world.world.user(permissions=POLLING)
        world.token = world.api.access_tokens.issue(world.world.gateway.users.get("alice")).text
        tails += [await tail(world) for _ in range(2)]
        refused = await link.ask(world.request("GET", f"{MESSAGES}/tail"))
        assert "http.readers.tails = 4" in refused.json()["reason"]
        await leave(world, *tails[2:])
        again = await tail(world)
        await leave(world, *tails[:2], again)
        assert world.api.tails.places.users_count == 0


async def test_two_hundred_tails_receive_everything_and_share_the_encoding(tmp_path: Path) -> None:
    """They start at different positions while messages are sent, and end up reading together."""
    made = 0

    async with live(tmp_path, limits={"connections": 1000}) as world:
        total = 500
        await send(world, *[b"%d" % i for i in range(100)])
        tails = []

        async def feed() -> None:
            for i in range(100, total):
                await send(world, b"%d" % i)
                await asyncio.sleep(0)

        sending = asyncio.create_task(feed())
        tails = [await tail(world, f"offset={number % 100}") for number in range(200)]
        (one,) = world.api.tails.feeds._feeds.values()
        original = one._encode

        async def counting(*given: Any) -> Any:
            nonlocal made
            made += 1
            return await original(*given)

        one._encode = counting

        async def read(number: int, events: Events) -> list[int]:
            return [int(event.payload) for event in await events.several(total - number % 100)]

        found = await asyncio.gather(*(read(number, events) for number, events in enumerate(tails)))
        await sending
        for number, each in enumerate(found):
            assert each == list(range(number % 100, total))
        made = 0
        for i in range(10):
            await send(world, b"%d" % i)
            assert {int(event.payload) for event in await asyncio.gather(*(each.next() for each in tails))} == {i}
        assert made == 10, "one piece for all"
        await leave(world, *tails)


# ------------------------------------------------------------------------------------------------- tickets


async def test_a_ticket_opens_a_tail_once_and_expires_soon(tmp_path: Path) -> None:
    async with live(tmp_path) as world:
        link = await world.link()

        async def ticket() -> str:
            response = await link.ask(world.request("POST", "/tickets"))
            assert (response.status, response.headers["cache-control"]) == (201, "no-store")
            reply = response.json()
            assert reply["expires_at"] == world.world.clock() + 30_000_000
            return str(reply["ticket"])

        def bare(path: str) -> bytes:
            return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()

        text = await ticket()
        other = await world.link()
        await other.send(bare(f"{MESSAGES}/tail?ticket={text}"))
        await until_tails(world, 1)
        assert (await link.ask(bare(f"{MESSAGES}/tail?ticket={text}"))).status == 401, "used"
        late = await ticket()
        world.world.clock.now += 30_000_001
        assert (await link.ask(bare(f"{MESSAGES}/tail?ticket={late}"))).status == 401, "ended"
        for wrong in ("", "x", late[:-1], "%00"):
            assert (await link.ask(bare(f"{MESSAGES}/tail?ticket={wrong}"))).status == 401
        assert (await link.ask(bare(f"{MESSAGES}?ticket={await ticket()}"))).status == 401, "elsewhere"
        assert (await link.ask(b"POST /tickets HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")).status == 401
        other.link.close()
        await until_tails(world, 0)


async def test_a_ticket_is_valid_only_while_its_token_is(tmp_path: Path) -> None:
    async with live(tmp_path) as world:
        link = await world.link()
        text = (await link.ask(world.request("POST", "/tickets"))).json()["ticket"]
        assert (await link.ask(world.request("DELETE", "/users/logout"))).status == 204
        request = f"GET {MESSAGES}/tail?ticket={text} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        assert (await link.ask(request)).status == 401


async def test_a_tail_through_asgi_is_the_same(tmp_path: Path) -> None:
    """They are written through ASGI only, as over HTTP/3."""

    async with live(tmp_path, readers={"heartbeat": 0.05, "stall_time": 0.2}) as world:
        await send(world, b"one")
        body, is_gone, may_send = bytearray(), asyncio.Event(), asyncio.Event()
        may_send.set()

        async def receive() -> AsgiMessage:
            await is_gone.wait()
            return {"type": "http.disconnect"}

        async def take(message: AsgiMessage) -> None:
            await may_send.wait()
            body.extend(message.get("body", b""))

        async def until(what: bytes) -> None:
            while what not in body:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

        def opened() -> asyncio.Task[None]:
            scope = {
                "type": "http",
                "method": "GET",
                "path": "",
                "raw_path": f"{MESSAGES}/tail".encode(),
                "query_string": b"offset=0&form=text",
                "headers": [(b"authorization", f"Bearer {world.token}".encode())],
                "client": ("h3", 1),
            }
            return asyncio.create_task(application.Application(world.api)(scope, receive, take))

        goes = opened()
        await until(b"\ndata: one\n\n")
        await until(b":\n\n:\n\n")
        await send(world, b"two")
        await until(b"\ndata: two\n\n")
        assert re.match(rb"retry: 1000\nid: 0:0:(\d+)\n\nid: 0:1:\1\ndata: one\n\n", body)
        assert re.search(rb"id: 0:2:\d+\ndata: two\n\n", body)
        is_gone.set()
        await goes
        is_gone.clear()
        stalls = opened()
        await until_tails(world, 1)
        may_send.clear()
        await send(world, b"three")
        await stalls
        may_send.set()
        ends = opened()
        await until_tails(world, 1)
        world.api.drain()
        await ends
        assert body.endswith(b"}\n\n")
        assert b"event: end" in body[-200:]


async def test_tails_are_listed_as_clients(tmp_path: Path) -> None:
    async with live(tmp_path) as world:
        events = await tail(world)
        link = await world.link()
        clients = (await link.ask(world.request("GET", "/clients"))).json()
        assert [each["transport"] for each in clients if each["user_id"] == 0].count("http") == 1
        await leave(world, events)
        clients = (await link.ask(world.request("GET", "/clients"))).json()
        assert "http" not in [each["transport"] for each in clients]


async def test_the_last_event_is_json(tmp_path: Path) -> None:
    async with live(tmp_path, partitions=2, limits={"answer_time": 5.0}) as world:
        await send(world, b"x", partition=1)
        events = await tail(world, "partition=all&offset=0")
        assert places((await events.next()).id) == "0:0,1:1"
        root = await world.world.root()
        await root.execute(requests.DeleteStream("s"))
        end = await over(events)
        assert end.json["last_offsets"] == {"0": None, "1": 0}
        assert places(msgspec.json.decode(end.data)["cursor"]) == "0:0,1:1"


assert HttpLimits().answer_time > HttpReaders().stall_time, "else the connection closes before the last event"
