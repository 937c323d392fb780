"""Tails: every message once and in order for as long as the reader stays, and exactly on from there when it is back."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.types import Message as Said

from tests.transports.http.support.calling import permissions
from tests.transports.http.support.events import MESSAGES, Event, Events, tail
from tests.transports.http.support.serving import Serving, serving
from whippet.app.access.permissions import GlobalPermissions, Permissions
from whippet.app.client.batching import pack
from whippet.app.commands import requests
from whippet.app.config.listeners import Http, HttpLimits, HttpReaders
from whippet.storage.batch import Message, build
from whippet.transports.http import application
from whippet.transports.http.serving.open_tails import Tail

Readers = dict[str, Any]
POLLING = Permissions(GlobalPermissions(poll_messages=True))


@contextlib.asynccontextmanager
async def live(
    tmp_path: Path,
    partitions: int = 1,
    readers: Readers | None = None,
    limits: dict[str, Any] | None = None,
    **store: Any,
) -> AsyncIterator[Serving]:
    async with serving(tmp_path, Http(readers=HttpReaders(**(readers or {}))), store=store, **(limits or {})) as world:
        if not world.world.gateway.streams.find("s"):
            root = await world.world.root()
            await root.ask(requests.CreateStream("s"))
            await root.ask(requests.CreateTopic("s", "t", partitions))
        yield world
        assert len(world.api.tails) == 0, "a tail was left over"
        assert len(world.api.tails.feeds) == 0


async def send(world: Serving, *payloads: bytes, partition: int = 0) -> None:
    root = await world.world.root()
    to = requests.Partitioning(requests.PartitioningKind.PARTITION_ID, partition)
    await root.ask(requests.SendMessages("s", "t", to, (pack(payloads),)))


async def over(events: Events) -> Event:
    """The last event, after which the connection is closed."""
    while True:
        event = await events.next()
        if event.name == "end":
            with pytest.raises(EOFError):
                await events.next()
            assert events.is_over
            assert await events.link.is_over()
            return event


def unsent_bytes(kept: Tail) -> int:
    assert kept._writer is not None
    return kept._writer.unsent_bytes


async def until_tails(world: Serving, count: int) -> None:
    while len(world.api.tails) != count:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def leave(world: Serving, *tails: Events) -> None:
    left = len(world.api.tails) - len(tails)
    for events in tails:
        events.close()
    await until_tails(world, left)


def texts(events: list[Event]) -> list[bytes]:
    return [event.payload for event in events]


# ------------------------------------------------------------------------------------------------- what an event is


async def test_an_event_is_a_message_and_its_id_the_cursor_behind_it(tmp_path: Path) -> None:
    async with live(tmp_path) as world:
        await send(world, b"one", b"two")
        events = await tail(world)
        assert events.head is not None
        assert events.head.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert events.head.headers["cache-control"] == "no-store"
        assert events.head.headers["connection"] == "close"
        assert events.id == "0:0"
        first, second = await events.several(2)
        assert (first.id, second.id) == ("0:1", "0:2")
        assert list(first.json) == ["partition_id", "header", "payload", "user_headers"]
        assert (first.json["partition_id"], first.json["header"]["offset"]) == (0, 0)
        link = await world.link()
        polled = (await link.ask(world.request("GET", f"{MESSAGES}?count=1"))).json()["messages"][0]
        assert {"partition_id": 0, **polled} == first.json
        await leave(world, events)


async def test_an_event_of_text_is_the_payload_whatever_lines_it_has(tmp_path: Path) -> None:
    async with live(tmp_path) as world:
        events = await tail(world, "form=text")
        given = [b"plain", b'{"a": 1}', b"two\nlines", b"cr\r\nlf\rcr", b"\n\n", b": no comment", b"\xc3\xa4"]
        for payload in given:
            await send(world, payload)
        await send(world, b"\xff\x00")
        found = await events.several(len(given) + 1)
        assert [event.data for event in found[:-1]] == [
            *("plain", '{"a": 1}', "two\nlines", "cr\nlf\ncr", "\n\n", ": no comment", "\u00e4")
        ]
        assert {event.name for event in found[:-1]} == {"message"}
        assert (found[-1].name, base64.b64decode(found[-1].data)) == ("base64", b"\xff\x00")
        await leave(world, events)


async def test_messages_with_user_headers_and_of_all_sizes_come_as_they_are(tmp_path: Path) -> None:
    async with live(tmp_path) as world:
        events = await tail(world)
        block = b"\x02\x01\0\0\0k\x02\x01\0\0\0v"
        plain = [Message(b"x" * size, size, block if size % 2 else b"") for size in (1, 2, 100, 50_000, 300_000)]
        root = await world.world.root()
        to = requests.Partitioning(requests.PartitioningKind.PARTITION_ID, 0)
        for _ in range(2):
            await root.ask(requests.SendMessages("s", "t", to, (build(plain, 1, bytes),)))
        for event, message in zip(await events.several(10), plain * 2, strict=True):
            assert event.payload == message.payload
            assert event.json["header"]["id"] == message.id
            assert len(event.json["user_headers"]) == bool(message.user_headers)
        await leave(world, events)


# ------------------------------------------------------------------------------------------------- where it begins


async def test_a_tail_begins_where_it_is_told_to(tmp_path: Path) -> None:
    async with live(tmp_path, partitions=2) as world:
        for i in range(5):
            world.world.clock.now += 1_000_000
            await send(world, b"%d" % i)
        root = await world.world.root()
        me = requests.Consumer(requests.ConsumerKind.CONSUMER, "billing")
        await root.ask(requests.StoreConsumerOffset(me, "s", "t", 0, 2))
        partition = world.world.store.partition(0, 0, 0)
        assert partition is not None
        third = partition.last_timestamp - 2_000_000
        for query, expected in (
            ("offset=0", "01234"),
            ("offset=3", "34"),
            ("last=2", "34"),
            ("last=100", "01234"),
            (f"timestamp={third}", "234"),
            (f"timestamp={third + 1}", "34"),
            ("consumer=billing", "34"),
            ("consumer=nobody", "01234"),
            ("cursor=0:4", "4"),
            ("from=first", "01234"),
            ("from=last", "4"),
            ("from=next&consumer=billing", "34"),
            ("from=first&partition_id=0", "01234"),
        ):
            events = await tail(world, query)
            found = await events.several(len(expected))
            assert b"".join(texts(found)).decode() == expected, query
            await leave(world, events)
        for query in ("", "last=0", "partition=0", "partition_id=0", "from=next"):
            events = await tail(world, query)
            await send(world, b"new")
            assert (await events.next()).payload == b"new"
            await leave(world, events)


@pytest.mark.parametrize(
    ("query", "header", "expected"),
    [
        ("partition=x", None, (400, "partition")),
        ("partition=-1", None, (400, "partition")),
        ("partition=9", None, (404, "partition_id")),
        ("offset=x", None, (400, "offset")),
        ("offset=1&last=2", None, (400, None)),
        ("form=xml", None, (400, "form")),
        ("cursor=", None, (400, "cursor")),
        ("cursor=0", None, (400, "cursor")),
        ("cursor=1:5", None, (400, "cursor")),
        ("cursor=0:1,0:2", None, (400, "cursor")),
        ("cursor=0:-1", None, (400, "cursor")),
        ("", "0:x", (400, "last-event-id")),
        ("", "7", (400, "last-event-id")),
        ("", "0:" + "9" * 30, (400, "last-event-id")),
    ],
)
async def test_a_beginning_that_cannot_be_is_refused(
    tmp_path: Path, query: str, header: str | None, expected: tuple[int, str | None]
) -> None:
    async with live(tmp_path) as world:
        link = await world.link()
        more = [] if header is None else [f"Last-Event-ID: {header}"]
        response = await link.ask(world.request("GET", f"{MESSAGES}/tail?{query}", None, *more))
        assert (response.status, response.json()["field"]) == expected
        assert await link.pings()


async def test_the_head_of_a_tail_alone_is_no_tail(tmp_path: Path) -> None:
    async with live(tmp_path) as world:
        link = await world.link()
        await link.send(world.request("HEAD", f"{MESSAGES}/tail"))
        response = await link.response(has_body=False)
        assert response.headers["content-type"].startswith("text/event-stream")


# ------------------------------------------------------------------------------------------------- going on


async def test_a_tail_that_was_cut_goes_on_behind_the_last_event_without_loss_or_duplicates(tmp_path: Path) -> None:
    """Also over restarts of the server, and while somebody sends."""
    total, found = 3000, []

    async def feed(world: Serving, first: int) -> int:
        for i in range(first, first + total // 3):
            await send(world, b"%d" % i)
        return first + total // 3

    sent, cursor = 0, "0:0"
    for restart in range(3):
        async with live(tmp_path) as world:
            sending = asyncio.create_task(feed(world, sent))
            for cut in range(20):
                # What the first tail's client has not taken when it is cut is sent to the next.
                events = await tail(world, "", f"Last-Event-ID: {cursor}")
                assert events.id == cursor
                for event in await events.several(7 * cut % 31):
                    found.append(int(event.payload))
                    cursor = event.id
                await leave(world, events)
            sent = await sending
            if restart == 2:
                events = await tail(world, "", f"Last-Event-ID: {cursor}")
                found.extend([int(event.payload) for event in await events.several(total - len(found))])
                await leave(world, events)
    assert found == list(range(total))


async def test_a_tail_that_was_sent_nothing_yet_knows_its_place(tmp_path: Path) -> None:
    async with live(tmp_path) as world:
        await send(world, b"before")
        events = await tail(world, "")
        cursor = events.id
        assert cursor == "0:1"
        await leave(world, events)
        await send(world, b"while it was away")
        again = await tail(world, "", f"Last-Event-ID: {cursor}")
        assert (await again.next()).payload == b"while it was away"
        await leave(world, again)


async def test_a_tail_of_all_partitions_has_each_in_order_and_goes_on_in_all(tmp_path: Path) -> None:
    async with live(tmp_path, partitions=3) as world:
        found: dict[int, list[int]] = {0: [], 1: [], 2: []}
        cursor, number = "", 0
        for _ in range(5):
            for i in range(60):
                await send(world, b"%d" % (number + i), partition=i % 3)
            number += 60
            events = await tail(world, "partition=all&" + (f"cursor={cursor}" if cursor else "offset=0"))
            for event in await events.several(37):
                found[event.json["partition_id"]].append(int(event.payload))
                cursor = event.id
            await leave(world, events)
        events = await tail(world, f"partition=all&cursor={cursor}")
        for event in await events.several(number - 5 * 37):
            found[event.json["partition_id"]].append(int(event.payload))
            cursor = event.id
        assert cursor == "0:100,1:100,2:100"
        assert found == {partition: list(range(partition, number, 3)) for partition in found}
        await send(world, b"live", partition=2)
        assert (await events.next()).payload == b"live"
        await leave(world, events)


async def test_partitions_that_are_added_end_a_tail_of_all_and_are_read_from_their_beginning(tmp_path: Path) -> None:
    async with live(tmp_path, partitions=1) as world:
        await send(world, b"old")
        events = await tail(world, "partition=all&offset=0")
        assert (await events.next()).payload == b"old"
        root = await world.world.root()
        await root.ask(requests.CreatePartitions("s", "t", 1))
        await send(world, b"new", partition=1)
        end = await over(events)
        assert end.json["code"] == "changed"
        again = await tail(world, "partition=all", f"Last-Event-ID: {events.id}")
        assert (await again.next()).payload == b"new"
        await leave(world, again)


async def test_a_topic_without_partitions_is_followed_until_it_gets_some(tmp_path: Path) -> None:
    async with live(tmp_path, partitions=0) as world:
        events = await tail(world, "partition=all")
        root = await world.world.root()
        await root.ask(requests.CreatePartitions("s", "t", 2))
        await send(world, b"new", partition=1)
        end = await over(events)
        assert (end.json["code"], end.json["cursor"], events.id) == ("changed", "-", "-")
        again = await tail(world, "partition=all", f"Last-Event-ID: {events.id}")
        assert (await again.next()).payload == b"new"
        await leave(world, again)


async def test_a_purge_lets_a_tail_go_on_at_the_new_beginning(tmp_path: Path) -> None:
    async with live(tmp_path) as world:
        await send(world, b"old")
        here, away = await tail(world), await tail(world)
        for events in (here, away):
            assert (await events.next()).payload == b"old"
        await leave(world, away)
        root = await world.world.root()
        for i in range(5):
            await root.ask(requests.PurgeTopic("s", "t"))
            await send(world, b"new %d" % i)
            event = await here.next()
            assert (event.payload, event.id) == (b"new %d" % i, "0:1")
        await root.ask(requests.PurgeTopic("s", "t"))
        back = await tail(world, "", f"Last-Event-ID: {away.id}")
        assert back.id == "0:0"
        await leave(world, here, back)


# ------------------------------------------------------------------------------------------------- what ends it


async def test_a_tail_ends_with_the_topic_with_the_server_and_with_the_right_to_read(tmp_path: Path) -> None:
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
        his = await tail(world)
        assert (await link.ask(world.request("DELETE", "/users/logout"))).status == 204
        world.token = root_token
        assert (await over(his)).json["code"] == "unauthenticated"
        await send(world, b"another session of his goes on")
        assert (await daves.next()).id == "0:1"
        await leave(world, daves)

        events = await tail(world)
        assert await ended(events, "DELETE", "/streams/s/topics/t") in ("gone", "topic_id_not_found")
        assert events.id == "0:1"
        root = await world.world.root()
        await root.ask(requests.CreateTopic("s", "t", 1))
        events = await tail(world)
        world.api.drain()
        stopping = asyncio.create_task(world.server.stop())
        end = await over(events)
        assert end.json == {
            "code": "stopping",
            "reason": "The server is stopping",
            "cursor": "0:0",
            "last_offsets": {"0": None},
        }
        async with asyncio.timeout(5):
            await stopping


async def test_a_token_that_ends_ends_its_tail(tmp_path: Path) -> None:
    async with live(tmp_path) as world:
        events = await tail(world)
        world.world.clock.now += 2 * 3600 * 1_000_000
        assert (await over(events)).json["code"] == "unauthenticated"


async def test_who_may_not_poll_gets_no_tail(tmp_path: Path) -> None:
    async with live(tmp_path) as world:
        await world.world.user("alice")
        world.token = world.api.access_tokens.issue(world.world.gateway.users.get("alice")).text
        link = await world.link()
        assert (await link.ask(world.request("GET", f"{MESSAGES}/tail"))).status == 403
        assert (await link.ask(f"GET {MESSAGES}/tail HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())).status == 401


async def test_a_client_that_goes_away_leaves_nothing_behind(tmp_path: Path) -> None:
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


async def test_silence_is_filled_with_comments(tmp_path: Path) -> None:
    async with live(tmp_path, readers={"heartbeat": 0.05}) as world:
        events = await tail(world)
        while events.comments < 3:
            await events._chunk()
            events.comments += events._body.count(b":\n\n")
            events._body = b""
        await send(world, b"x")
        assert (await events.next()).payload == b"x"
        await leave(world, events)


# ------------------------------------------------------------------------------------------------- slow and many


async def test_a_stalled_tail_is_dropped_and_told_where_it_was(tmp_path: Path) -> None:
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
        assert event.id == event.json["cursor"] == f"0:{len(numbers)}"
        back = await tail(world, "", f"Last-Event-ID: {event.id}")
        assert int((await back.next()).payload[:6]) == len(numbers)
        await leave(world, back, steady)


async def test_a_slow_tail_is_not_dropped_and_costs_no_memory(tmp_path: Path) -> None:
    async with live(tmp_path, readers={"stall_time": 1.0}) as world:
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


async def test_a_tail_that_is_behind_for_minutes_is_kept_as_long_as_it_reads(tmp_path: Path) -> None:
    """Whenever it is looked at, there is something that it has not taken."""

    async with live(tmp_path) as world:
        slow = await tail(world, "offset=0", receive_bytes=4096)
        for start in range(0, 3000, 100):
            await send(world, *[b"%06d" % (start + i) + b"x" * 4000 for i in range(100)])
        (only,) = world.api.tails._tails
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


async def test_tails_have_a_limit(tmp_path: Path) -> None:
    async with live(tmp_path, readers={"tails": 2}) as world:
        tails = [await tail(world) for _ in range(2)]
        link = await world.link()
        refused = await link.ask(world.request("GET", f"{MESSAGES}/tail"))
        assert (refused.status, refused.json()["code"]) == (429, "too_many_tails")
        await leave(world, tails[0])
        again = await tail(world)
        await leave(world, tails[1], again)


async def test_one_user_cannot_take_all_tails(tmp_path: Path) -> None:
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


async def test_two_hundred_tails_have_all_of_it_and_share_what_is_made_for_them(tmp_path: Path) -> None:
    """They begin at different places while somebody sends, and all come to read together."""
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


async def test_a_ticket_opens_a_tail_once_and_for_a_short_while(tmp_path: Path) -> None:
    async with live(tmp_path) as world:
        link = await world.link()

        async def ticket() -> str:
            response = await link.ask(world.request("POST", "/tickets"))
            assert (response.status, response.headers["cache-control"]) == (201, "no-store")
            said = response.json()
            assert said["expires_at"] == world.world.clock() + 30_000_000
            return str(said["ticket"])

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


async def test_a_ticket_is_worth_what_its_token_is_worth_when_it_is_used(tmp_path: Path) -> None:
    async with live(tmp_path) as world:
        link = await world.link()
        text = (await link.ask(world.request("POST", "/tickets"))).json()["ticket"]
        assert (await link.ask(world.request("DELETE", "/users/logout"))).status == 204
        request = f"GET {MESSAGES}/tail?ticket={text} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        assert (await link.ask(request)).status == 401


async def test_a_tail_that_is_not_over_http_1_is_the_same(tmp_path: Path) -> None:
    """As an HTTP/3 stream asks for it: by ASGI alone."""

    async with live(tmp_path, readers={"heartbeat": 0.05, "stall_time": 0.2}) as world:
        await send(world, b"one")
        body, is_gone, may_send = bytearray(), asyncio.Event(), asyncio.Event()
        may_send.set()

        async def receive() -> Said:
            await is_gone.wait()
            return {"type": "http.disconnect"}

        async def take(message: Said) -> None:
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
        await until(b"id: 0:1\ndata: one\n\n")
        await until(b":\n\n:\n\n")
        await send(world, b"two")
        await until(b"id: 0:2\ndata: two\n\n")
        assert body.startswith(b"retry: 1000\nid: 0:0\n\nid: 0:1\n")
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


async def test_tails_are_among_the_clients(tmp_path: Path) -> None:
    async with live(tmp_path) as world:
        events = await tail(world)
        link = await world.link()
        clients = (await link.ask(world.request("GET", "/clients"))).json()
        assert [each["transport"] for each in clients if each["user_id"] == 0].count("http") == 1
        await leave(world, events)
        clients = (await link.ask(world.request("GET", "/clients"))).json()
        assert "http" not in [each["transport"] for each in clients]


async def test_last_words_are_json(tmp_path: Path) -> None:
    async with live(tmp_path, partitions=2, limits={"answer_time": 5.0}) as world:
        await send(world, b"x", partition=1)
        events = await tail(world, "partition=all&offset=0")
        assert (await events.next()).id == "0:0,1:1"
        root = await world.world.root()
        await root.ask(requests.DeleteStream("s"))
        end = await over(events)
        assert end.json["last_offsets"] == {"0": None, "1": 0}
        assert msgspec.json.decode(end.data)["cursor"] == "0:0,1:1"


assert HttpLimits().answer_time > HttpReaders().stall_time, "else nobody is told"
