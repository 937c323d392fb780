"""Tails: every message once and in order while the client is connected, and without a gap after it reconnects."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import pytest

from tests.transports.http.support.events import MESSAGES, tail
from tests.transports.http.support.serving import Serving
from tests.transports.http.support.tails import leave, live, over, send, texts
from tests.transports.support.cursors import places
from whippet.app.commands import requests
from whippet.storage.batch import Message, build

# ------------------------------------------------------------------------------------------------- events


async def test_an_event_is_a_message_and_its_id_the_cursor_after_it(tmp_path: Path) -> None:
    async with live(tmp_path) as world:
        await send(world, b"one", b"two")
        events = await tail(world)
        assert events.head is not None
        assert events.head.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert events.head.headers["cache-control"] == "no-store"
        assert events.head.headers["connection"] == "close"
        assert places(events.id) == "0:0"
        first, second = await events.several(2)
        assert (places(first.id), places(second.id)) == ("0:1", "0:2")
        assert list(first.json) == ["partition_id", "header", "payload", "user_headers"]
        assert (first.json["partition_id"], first.json["header"]["offset"]) == (0, 0)
        link = await world.link()
        polled = (await link.ask(world.request("GET", f"{MESSAGES}?count=1"))).json()["messages"][0]
        assert {"partition_id": 0, **polled} == first.json
        await leave(world, events)


async def test_a_text_event_is_the_payload_whatever_lines_it_has(tmp_path: Path) -> None:
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


async def test_messages_of_all_sizes_and_with_user_headers_are_sent_unchanged(tmp_path: Path) -> None:
    async with live(tmp_path) as world:
        events = await tail(world)
        block = b"\x02\x01\0\0\0k\x02\x01\0\0\0v"
        plain = [Message(b"x" * size, size, block if size % 2 else b"") for size in (1, 2, 100, 50_000, 300_000)]
        root = await world.world.root()
        to = requests.Partitioning(requests.PartitioningKind.PARTITION_ID, 0)
        for _ in range(2):
            await root.execute(requests.SendMessages("s", "t", to, (build(plain, 1, bytes),)))
        for event, message in zip(await events.several(10), plain * 2, strict=True):
            assert event.payload == message.payload
            assert event.json["header"]["id"] == message.id
            assert len(event.json["user_headers"]) == bool(message.user_headers)
        await leave(world, events)


# ------------------------------------------------------------------------------------------------- starting


async def test_a_tail_starts_at_the_requested_position(tmp_path: Path) -> None:
    async with live(tmp_path, partitions=2) as world:
        for i in range(5):
            world.world.clock.now += 1_000_000
            await send(world, b"%d" % i)
        root = await world.world.root()
        me = requests.Consumer(requests.ConsumerKind.CONSUMER, "billing")
        await root.execute(requests.StoreConsumerOffset(me, "s", "t", 0, 2))
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
async def test_an_invalid_starting_position_is_refused(
    tmp_path: Path, query: str, header: str | None, expected: tuple[int, str | None]
) -> None:
    async with live(tmp_path) as world:
        link = await world.link()
        more = [] if header is None else [f"Last-Event-ID: {header}"]
        response = await link.ask(world.request("GET", f"{MESSAGES}/tail?{query}", None, *more))
        assert (response.status, response.json()["field"]) == expected
        assert await link.pings()


async def test_a_head_request_opens_no_tail(tmp_path: Path) -> None:
    async with live(tmp_path) as world:
        link = await world.link()
        await link.send(world.request("HEAD", f"{MESSAGES}/tail"))
        response = await link.response(has_body=False)
        assert response.headers["content-type"].startswith("text/event-stream")


# ------------------------------------------------------------------------------------------------- resuming


async def test_a_disconnected_tail_resumes_after_the_last_event_without_loss_or_duplicates(tmp_path: Path) -> None:
    """Also across restarts of the server, and while messages are sent."""
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
                # What the client has not read when it is disconnected is sent again.
                events = await tail(world, "", f"Last-Event-ID: {cursor}")
                assert cursor in (events.id, "0:0")
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


async def test_a_tail_without_messages_yet_has_a_cursor(tmp_path: Path) -> None:
    async with live(tmp_path) as world:
        await send(world, b"before")
        events = await tail(world, "")
        cursor = events.id
        assert places(cursor) == "0:1"
        await leave(world, events)
        await send(world, b"while it was away")
        again = await tail(world, "", f"Last-Event-ID: {cursor}")
        assert (await again.next()).payload == b"while it was away"
        await leave(world, again)


async def test_a_tail_of_all_partitions_has_each_in_order_and_resumes_in_all(tmp_path: Path) -> None:
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
        assert places(cursor) == "0:100,1:100,2:100"
        assert found == {partition: list(range(partition, number, 3)) for partition in found}
        await send(world, b"live", partition=2)
        assert (await events.next()).payload == b"live"
        await leave(world, events)


async def test_added_partitions_end_a_tail_of_all_and_are_read_from_their_start(tmp_path: Path) -> None:
    async with live(tmp_path, partitions=1) as world:
        await send(world, b"old")
        events = await tail(world, "partition=all&offset=0")
        assert (await events.next()).payload == b"old"
        root = await world.world.root()
        await root.execute(requests.CreatePartitions("s", "t", 1))
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
        await root.execute(requests.CreatePartitions("s", "t", 2))
        await send(world, b"new", partition=1)
        end = await over(events)
        assert (end.json["code"], end.json["cursor"], events.id) == ("changed", "-", "-")
        again = await tail(world, "partition=all", f"Last-Event-ID: {events.id}")
        assert (await again.next()).payload == b"new"
        await leave(world, again)


async def test_a_tail_continues_with_the_first_message_after_a_purge(tmp_path: Path) -> None:
    async with live(tmp_path) as world:
        await send(world, b"old")
        here, away = await tail(world), await tail(world)
        for events in (here, away):
            assert (await events.next()).payload == b"old"
        await leave(world, away)
        root = await world.world.root()
        for i in range(5):
            await root.execute(requests.PurgeTopic("s", "t"))
            await send(world, b"new %d" % i)
            event = await here.next()
            assert (event.payload, places(event.id)) == (b"new %d" % i, "0:1")
        await root.execute(requests.PurgeTopic("s", "t"))
        back = await tail(world, "", f"Last-Event-ID: {away.id}")
        assert places(back.id) == "0:0"
        await leave(world, here, back)


async def test_a_tail_misses_nothing_that_was_sent_between_a_purge_and_its_return(tmp_path: Path) -> None:
    """There are more messages by then than before: the offset of the cursor is that of another message."""
    async with live(tmp_path) as world:
        root = await world.world.root()
        for is_deleted in (False, True):
            await send(world, b"old")
            events = await tail(world)
            assert (await events.next()).payload == b"old"
            await leave(world, events)
            if is_deleted:
                await root.execute(requests.DeleteTopic("s", "t"))
                await root.execute(requests.CreateTopic("s", "t", 1))
            else:
                await root.execute(requests.PurgeTopic("s", "t"))
            for i in range(3):
                await send(world, b"new %d" % i)
            back = await tail(world, "", f"Last-Event-ID: {events.id}")
            assert [event.payload for event in await back.several(3)] == [b"new 0", b"new 1", b"new 2"]
            await leave(world, back)
            back = await tail(world, f"cursor={places(events.id)}")
            assert (await back.next()).payload == b"new 1"
            await leave(world, back)
            await root.execute(requests.PurgeTopic("s", "t"))
