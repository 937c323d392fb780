"""The limits of subscriptions over the channel: their number, memory, and slow readers."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.transports.websocket.support.browsing import Browser, root, sending, stranger, until, with_topic
from tests.transports.websocket.support.subscribing import everything, sent, subscribed
from tests.transports.websocket.support.talking import frame, talking
from whippet.app.config.listeners import Http, HttpReaders, Websocket, WebsocketChannel
from whippet.transports.websocket import channel
from whippet.transports.websocket.subscribe_command import open_subscription

TOPIC = {"to": "topic", "stream": "s", "topic": "t"}
GROUP = {"to": "group", "stream": "s", "topic": "t", "group": "g"}


# ------------------------------------------------------------------------------------------------- limits


async def test_ten_thousand_subscriptions_are_limited_and_the_rest_refused(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        browser, witness = await with_topic(world), await root(world)

        async def flood() -> None:
            for number in range(10_000):
                said = {"id": f"f{number}", "cmd": "subscribe", **TOPIC}
                await browser.link.send(msgspec.json.encode(said).decode())

        flooding = asyncio.create_task(flood())
        given, refused = 0, set()
        for _ in range(10_000):
            answer = await browser.hear()
            if "ok" in answer:
                given += 1
            else:
                assert "websocket.channel.subscriptions" in answer["error"]["reason"]
                refused.add((answer["error"]["id"], answer["error"]["code"]))
        await flooding
        assert given == 100
        assert refused == {(429, "too_many_subscriptions")}
        assert len(world.serves.api.tails.feeds) == 1
        await sent(witness, 1)
        for sub in range(1, 101):
            assert await browser.offsets(sub, 1) == [(0, 0)]


async def test_a_subscriber_that_stops_reading_is_closed_without_affecting_others(tmp_path: Path) -> None:
    http = Http(readers=HttpReaders(stall_time=0.5))
    async with talking(tmp_path, http=http) as world:
        browser = await with_topic(world)
        sub = await subscribed(browser, **TOPIC, credit=10_000)
        raw = await world.raw("/ws", f"Authorization: Bearer {world.serves.token}", receive_bytes=4096)
        await raw.send(frame(1, msgspec.json.encode({"id": 1, "cmd": "subscribe", "credit": 10_000, **TOPIC})))
        assert b'"ok"' in (await raw.frame())[1]
        most, expected = 0, 0
        stalled = next(each for each in world.websockets._connections if each.address != own_address(browser))
        while world.connections == 2:
            await browser.ask("send_messages", **sending(*["A" * 40_000] * 10))
            assert await browser.offsets(sub, 10) == [(0, expected + i) for i in range(10)]
            expected += 10
            await browser.ask("grant", sub=sub, credit=10)
            most = max(most, stalled._transport.get_write_buffer_size())  # type: ignore[attr-defined]
        assert most < 2_000_000
        while len(world.websockets._channels) > 1:  # noqa: ASYNC110 -- it is notified an iteration later
            await asyncio.sleep(0)
        assert await browser.is_quiet()


@pytest.mark.parametrize("wanted", [TOPIC, GROUP, {"to": "stats"}, {"to": "events"}], ids=lambda wanted: wanted["to"])
async def test_a_client_that_leaves_before_its_subscription_starts_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: Any
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    opening = open_subscription

    async def slowly(*given: Any) -> Any:
        found = await opening(*given)
        begun.set()
        await go_on.wait()
        return found

    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        await browser.ask("create_consumer_group", stream="s", topic="t", name="g")
        monkeypatch.setattr(channel, "open_subscription", slowly)
        leaving = await world.raw("/ws", f"Authorization: Bearer {world.serves.token}")
        await leaving.send(frame(1, msgspec.json.encode({"id": 1, "cmd": "subscribe", **wanted})))
        await begun.wait()
        leaving.link.reset()
        await until(lambda: world.connections == 1)
        before = {task for task in asyncio.all_tasks() if task.get_name() in ("a feed", "rates")}
        go_on.set()
        await until(lambda: not any("_process_queue" in str(task.get_coro()) for task in asyncio.all_tasks()))
        await browser.ask("ping")
        assert {task for task in asyncio.all_tasks() if task.get_name() in ("a feed", "rates")} == before
        assert len(world.serves.api.tails.feeds) == 0
        assert not world.gateway.catalogue_events._listeners
        group = await browser.ask("get_consumer_group", stream="s", topic="t", group="g")
        assert group["members_count"] == 0


async def test_subscriptions_of_a_connection_share_its_memory(tmp_path: Path) -> None:
    """They all have kept up until now, and receive new messages at the same moment."""

    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        raw = await world.raw("/ws", f"Authorization: Bearer {world.serves.token}", receive_bytes=65_536)
        (stalled,) = [each for each in world.websockets._connections if each.address != own_address(browser)]
        for number in range(20):
            said = {"id": number, "cmd": "subscribe", "credit": 10_000, **TOPIC}
            await raw.send(frame(1, msgspec.json.encode(said)))
            assert b'"ok"' in (await raw.frame())[1]
        await sent(browser, 1)
        for _ in range(20):
            await raw.frame()
        size = 400_000
        for _ in range(4):
            await browser.ask("send_messages", **sending("A" * size))
            await asyncio.sleep(0.05)
            assert stalled._transport.get_write_buffer_size() < 2 * size  # type: ignore[attr-defined]
        # What waited is pushed when there is room, to each of them once and in order.
        offsets: dict[int, list[int]] = {}
        for _ in range(4 * 20):
            message = msgspec.json.decode((await raw.frame())[1])
            offsets.setdefault(message["sub"], []).extend(m["header"]["offset"] for m in message["messages"])
        assert offsets == {sub: [1, 2, 3, 4] for sub in range(1, 21)}


async def test_pings_of_a_slow_reader_are_answered(tmp_path: Path) -> None:
    """Clients that ping would mistake a server that is busy with them for one that is gone."""

    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        for _ in range(10):
            await browser.ask("send_messages", **sending(*["A" * 40_000] * 30))
        raw = await world.raw("/ws", f"Authorization: Bearer {world.serves.token}", receive_bytes=4096)
        (slow,) = [each for each in world.websockets._connections if each.address != own_address(browser)]
        beginning = {"id": 1, "cmd": "subscribe", "credit": 10_000, "offset": 0, **TOPIC}
        await raw.send(frame(1, msgspec.json.encode(beginning)))
        while not slow.is_full:  # type: ignore[attr-defined]  # noqa: ASYNC110
            await asyncio.sleep(0)
        await raw.send(frame(9, b"the first") + frame(9, b"the second"))
        heard, messages = [], 0
        while messages < 300:
            opcode, content = await raw.frame()
            if opcode == 1:
                messages += len(msgspec.json.decode(content).get("messages", ()))
            elif content:
                heard.append((opcode, content, messages < 300))
        assert heard == [(10, b"the second", True)]


async def test_a_slow_subscriber_is_kept_for_minutes_while_it_reads(tmp_path: Path) -> None:
    """At every check there is something that it has not read. It reads so little that the operating system, which has
    megabytes for it, takes nothing more for several checks."""

    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        for _ in range(30):
            await browser.ask("send_messages", **sending(*["A" * 40_000] * 30))
        raw = await world.raw("/ws", f"Authorization: Bearer {world.serves.token}", receive_bytes=4096)
        (slow,) = [each for each in world.websockets._connections if each.address != own_address(browser)]
        beginning = {"id": 1, "cmd": "subscribe", "credit": 10_000, "offset": 0, **TOPIC}
        await raw.send(frame(1, msgspec.json.encode(beginning)))
        # It would check at another time than we do.
        world.websockets._sweeper.cancel()  # type: ignore[union-attr]
        now = time.monotonic()
        for _ in range(25):
            heard = 0
            while heard < 100_000:
                heard += len((await raw.frame())[1])
            while not slow._transport.get_write_buffer_size():  # type: ignore[attr-defined]  # noqa: ASYNC110
                await asyncio.sleep(0)
            now += 6
            # It answers pings; this is about something else.
            slow._received_at = now  # type: ignore[attr-defined]
            assert slow.overdue(now) is None
        for _ in range(3):
            now += 6
            slow._received_at = now  # type: ignore[attr-defined]
            reason = slow.overdue(now)
        assert reason == "it does not read what it was sent"


def own_address(browser: Browser) -> str:
    return "{}:{}".format(*browser.link.local_address[:2])


async def test_the_number_of_subscriptions_is_configurable(tmp_path: Path) -> None:
    async with talking(tmp_path, websocket=Websocket(channel=WebsocketChannel(subscriptions=2))) as world:
        browser = await with_topic(world)
        subs = [await subscribed(browser, **TOPIC) for _ in range(2)]
        assert (await browser.refused("subscribe", **TOPIC))[0] == 429
        await browser.ask("unsubscribe", sub=subs[0])
        assert await subscribed(browser, **TOPIC) not in subs


async def test_one_user_cannot_take_all_subscriptions(tmp_path: Path) -> None:
    limits = WebsocketChannel(subscriptions_total=4, subscriptions_per_user=2)
    async with talking(tmp_path, websocket=Websocket(channel=limits)) as world:
        first, second = await with_topic(world), await root(world)
        sub = await subscribed(first, **TOPIC)
        await subscribed(second, to="events")
        for browser in (first, second):
            answer = await browser.answer(await browser.say(cmd="subscribe", **TOPIC))
            assert answer["error"]["code"] == "too_many_subscriptions"
            assert "websocket.channel.subscriptions_per_user = 2" in answer["error"]["reason"]
        reading = {"global": everything() | {"poll_messages": True}, "streams": None}
        await first.ask("create_user", username="alice", password="alicealice", status="active", permissions=reading)
        alice = await (await stranger(world)).log_in("alice", "alicealice")
        # A refused subscription does not count.
        await alice.refused("subscribe", to="topic", stream="s", topic="none")
        for _ in range(2):
            await subscribed(alice, **TOPIC)
        await first.ask("unsubscribe", sub=sub)
        await subscribed(second, **TOPIC)
        await second.link.close()
        while len(world.serves.api.subscriptions) != 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await subscribed(first, **TOPIC)
        await first.ask("delete_user", user="alice")
        while len(world.serves.api.subscriptions) != 1:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert world.serves.api.subscriptions.users_count == 1


async def test_many_subscribers_receive_the_same_messages_in_the_same_order(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        browsers = [await with_topic(world), *[await root(world) for _ in range(40)]]
        for browser in browsers:
            await subscribed(browser, **TOPIC, credit=1000)
        assert len(world.serves.api.tails.feeds) == 1
        for _ in range(20):
            await sent(browsers[0], 5)
        heard = await asyncio.gather(*[browser.offsets(1, 100) for browser in browsers])
        assert all(each == [(0, offset) for offset in range(100)] for each in heard)
