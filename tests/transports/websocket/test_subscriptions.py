"""What is subscribed to: messages of a topic and of a group, rates, news; credit, filters, readers that do not read."""

from __future__ import annotations

import asyncio
import base64
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.transports.websocket.support.browsing import Browser, root, sending, stranger, until, with_topic
from tests.transports.websocket.support.talking import Talking, frame, talking
from whippet.app import rates
from whippet.app.config.listeners import Http, HttpReaders, Websocket, WebsocketChannel
from whippet.transports.websocket import channel, group_subscription, listener, stats_and_events
from whippet.transports.websocket.subscribe_command import open_subscription

TOPIC = {"to": "topic", "stream": "s", "topic": "t"}
GROUP = {"to": "group", "stream": "s", "topic": "t", "group": "g"}


async def sent(browser: Browser, count: int, *, partition: int = 0, **more: Any) -> None:
    await browser.ask("send_messages", **sending(*["AAAA"] * count, partition=partition, **more))


async def subscribed(browser: Browser, **wanted: Any) -> int:
    found: int = (await browser.ask("subscribe", **wanted))["sub"]
    return found


def text(value: str) -> dict[str, str]:
    return {"kind": "string", "value": base64.b64encode(value.encode()).decode()}


# ------------------------------------------------------------------------------------------------- where it begins


@pytest.mark.parametrize(
    ("beginning", "expected"),
    [
        ({}, [10]),
        ({"from": "new"}, [10]),
        ({"from": "first"}, list(range(11))),
        ({"last": 3}, [7, 8, 9, 10]),
        ({"last": 100}, list(range(11))),
        ({"offset": 8}, [8, 9, 10]),
        ({"offsets": {"0": 9}}, [9, 10]),
        ({"cursor": "0:7"}, [7, 8, 9, 10]),
        ({"timestamp": 0}, list(range(11))),
        ({"timestamp": 1_700_000_000_000_001}, [10]),
        ({"consumer": 1}, [5, 6, 7, 8, 9, 10]),
        ({"consumer": "nobody"}, list(range(11))),
    ],
)
async def test_a_subscription_begins_where_it_is_told_to(tmp_path: Path, beginning: Any, expected: list[int]) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        await sent(browser, 10)
        await browser.ask("store_consumer_offset", stream="s", topic="t", consumer_id=1, partition_id=0, offset=4)
        sub = await subscribed(browser, **TOPIC, partition=0, **beginning)
        await browser.ask("ping")
        world.serves.world.clock.now += 1_000_000
        await sent(browser, 1)
        assert await browser.offsets(sub, len(expected)) == [(0, offset) for offset in expected]
        assert await browser.is_quiet()


@pytest.mark.parametrize(
    ("wanted", "status", "field"),
    [
        ({"from": "first", "last": 1}, 422, None),
        ({"from": "nowhere"}, 422, "from"),
        ({"last": -1}, 422, "last"),
        ({"offset": 2**64}, 422, None),
        ({"cursor": "nonsense"}, 400, "cursor"),
        ({"cursor": "5:1"}, 400, "cursor"),
        ({"offsets": {"x": 1}}, 400, "offsets"),
        ({"offsets": {}}, 400, "offsets"),
        ({"partition": 9}, 3007, None),
        ({"topic": "none"}, 2010, "topic_id"),
        ({"stream": "none"}, 1009, "stream_id"),
        ({"filter": {"value": "x"}}, 422, "filter"),
        ({"max_rate": 0}, 422, "max_rate"),
        ({"behind": "sulk"}, 422, "behind"),
        ({"credit": "many"}, 422, "credit"),
    ],
)
async def test_what_cannot_be_subscribed_to_is_refused(
    tmp_path: Path, wanted: Any, status: int, field: str | None
) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        found = await browser.refused("subscribe", **(TOPIC | wanted))
        assert (found[0], found[2] if status < 500 else field) == (status, field)
        assert len(world.serves.api.tails.feeds) == 0


async def test_all_partitions_or_one_and_the_cursor_goes_on_behind_what_was_said(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world, 3)
        for partition in (0, 1, 2):
            await sent(browser, 5, partition=partition)
        sub = await subscribed(browser, **TOPIC, **{"from": "first"}, credit=7)
        first = await browser.offsets(sub, 7)
        assert await browser.is_quiet()
        cursor = (await browser.ask("unsubscribe", sub=sub))["cursor"]
        again = await subscribed(browser, **TOPIC, cursor=cursor)
        assert sorted(first + await browser.offsets(again, 8)) == [(p, o) for p in range(3) for o in range(5)]
        one = await subscribed(browser, **TOPIC, partition=1, last=2)
        assert await browser.offsets(one, 2) == [(1, 3), (1, 4)]


async def test_who_was_told_nothing_yet_knows_his_place_as_well(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world, 2)
        await sent(browser, 3, partition=1)
        begun = await browser.ask("subscribe", **TOPIC)
        assert begun == {"sub": begun["sub"], "cursor": "0:0,1:3"}
        await browser.ask("unsubscribe", sub=begun["sub"])
        await sent(browser, 2, partition=1)
        again = await subscribed(browser, **TOPIC, cursor=begun["cursor"])
        assert await browser.offsets(again, 2) == [(1, 3), (1, 4)]


# ------------------------------------------------------------------------------------------------- credit, rates


async def test_never_more_is_said_than_was_granted(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        sub = await subscribed(browser, **TOPIC, **{"from": "first"}, credit=0)
        await sent(browser, 100)
        assert await browser.is_quiet()
        expected = 0
        for credit in (1, 2, 30, 0, 5):
            await browser.ask("grant", sub=sub, credit=credit)
            assert await browser.offsets(sub, credit) == [(0, expected + i) for i in range(credit)]
            expected += credit
            assert await browser.is_quiet()
        await browser.ask("grant", sub=sub, credit=2**32 - 1)
        await browser.ask("grant", sub=sub, credit=2**32 - 1)
        assert await browser.offsets(sub, 100 - expected) == [(0, i) for i in range(expected, 100)]


async def test_who_would_rather_be_up_to_date_skips_to_the_newest_and_hears_how_much(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world, 2)
        sub = await subscribed(browser, **TOPIC, behind="skip", credit=3)
        await sent(browser, 10)
        message = await browser.push(sub)
        assert [each["header"]["offset"] for each in message["messages"]] == [0, 1, 2]
        assert message["cursor"] == "0:3,1:0"
        await sent(browser, 5, partition=1)
        await browser.ask("grant", sub=sub, credit=2)
        # At once, and not when something comes again, which may be never.
        message = await browser.push(sub)
        assert [each["header"]["offset"] for each in message["messages"]] == [9]
        assert message["skipped"] == {"0": 6, "1": 5}
        assert message["cursor"] == "0:10,1:5"
        await sent(browser, 1)
        message = await browser.push(sub)
        assert [each["header"]["offset"] for each in message["messages"]] == [10]
        assert "skipped" not in message


async def test_partitions_take_turns_in_what_those_hear_who_skip(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world, 3)
        sub = await subscribed(browser, **TOPIC, behind="skip", credit=0)
        heard = []
        for _ in range(6):
            for partition in range(3):
                await sent(browser, 2, partition=partition)
            await browser.ask("grant", sub=sub, credit=1)
            heard += await browser.offsets(sub, 1)
        assert heard == [(0, 1), (1, 3), (2, 5), (0, 7), (1, 9), (2, 11)]


@pytest.mark.parametrize("sends", [1, 90])
async def test_after_a_burst_that_is_too_much_comes_the_newest_and_what_was_skipped(tmp_path: Path, sends: int) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        sub = await subscribed(browser, **TOPIC, behind="skip", max_rate=20, credit=1000)
        for _ in range(sends):
            await sent(browser, 90 // sends)
        heard, skipped = [-1], 0
        while heard[-1] < 89:
            message = await browser.push(sub)
            heard += [each["header"]["offset"] for each in message["messages"]]
            skipped += message.get("skipped", {}).get("0", 0)
        assert heard == sorted(set(heard))
        assert len(heard) - 1 + skipped == 90


@pytest.mark.parametrize("behind", ["hold", "skip"])
async def test_a_rate_is_kept(tmp_path: Path, behind: str) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        sub = await subscribed(browser, **TOPIC, **{"from": "first"}, max_rate=50, behind=behind, credit=1000)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await sent(browser, 70)
        if behind == "hold":
            assert await browser.offsets(sub, 70) == [(0, offset) for offset in range(70)]
            assert loop.time() - began > 0.3
            return
        heard, skipped = len((await browser.push(sub))["messages"]), 0
        assert heard == 50
        while skipped + heard < 70 + 1:
            await sent(browser, 1)
            if browser.pushed:
                message = browser.pushed.pop()
                heard += len(message["messages"])
                skipped += message.get("skipped", {}).get("0", 0)
        assert skipped >= 20


async def test_messages_that_were_deleted_before_they_were_read_are_skipped(tmp_path: Path) -> None:
    async with talking(tmp_path, store={"segment_bytes": 1_000_000, "durability": 1}) as world:
        browser = await with_topic(world)
        for _ in range(5):
            await browser.ask("send_messages", **sending("A" * 600_000))
        sub = await subscribed(browser, **TOPIC, **{"from": "first"}, credit=1)
        assert await browser.offsets(sub, 1) == [(0, 0)]
        await browser.ask("delete_segments", stream="s", topic="t", partition=0, segments_count=2)
        first = world.gateway.streams.find("s").topics.find("t").partitions[0].first_offset  # type: ignore[union-attr]
        assert first > 1
        await browser.ask("grant", sub=sub, credit=10)
        message = await browser.push(sub)
        assert message["messages"][0]["header"]["offset"] == first
        assert message["skipped"] == {"0": first - 1}


async def test_a_topic_that_is_purged_begins_anew_and_nothing_is_missing(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        await sent(browser, 5)
        sub = await subscribed(browser, **TOPIC, last=1)
        assert await browser.offsets(sub, 1) == [(0, 4)]
        await browser.ask("purge_topic", stream="s", topic="t")
        await sent(browser, 2)
        message = await browser.push(sub)
        assert "skipped" not in message
        assert message["messages"][0]["header"]["offset"] == 0


# ------------------------------------------------------------------------------------------------- filters


async def test_only_messages_with_a_header_are_said_and_the_others_cost_no_credit(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        kinds = [None, "order", "bill", "order", None]
        subs = {
            name: await subscribed(browser, **TOPIC, filter=wanted, credit=10)
            for name, wanted in {
                "any kind": {"header": "kind"},
                "orders": {"header": "kind", "value": "order"},
                "seven": {"header": "number", "value": 7},
                "true": {"header": "flag", "value": True},
            }.items()
        }
        for kind in kinds:
            headers = [{"key": text("kind"), "value": text(kind)}] if kind else None
            await sent(browser, 1, headers=headers)
        seven = {"kind": "uint32", "value": base64.b64encode((7).to_bytes(4, "little")).decode()}
        yes = {"kind": "bool", "value": base64.b64encode(b"\x01").decode()}
        await sent(browser, 1, headers=[{"key": text("number"), "value": seven}, {"key": text("flag"), "value": yes}])
        assert await browser.offsets(subs["any kind"], 3) == [(0, 1), (0, 2), (0, 3)]
        assert await browser.offsets(subs["orders"], 2) == [(0, 1), (0, 3)]
        assert await browser.offsets(subs["seven"], 1) == [(0, 5)]
        assert await browser.offsets(subs["true"], 1) == [(0, 5)]
        assert await browser.is_quiet()
        assert (await browser.ask("unsubscribe", sub=subs["orders"]))["cursor"] == "0:6"


async def test_one_and_true_are_not_the_same_to_a_filter(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        values = [("int32", b"\1\0\0\0"), ("bool", b"\1"), ("int32", bytes(4)), ("bool", b"\0")]
        for kind, octets in values:
            value = {"kind": kind, "value": base64.b64encode(octets).decode()}
            await sent(browser, 1, headers=[{"key": text("flag"), "value": value}])
        # All at once: what is said to several is encoded once.
        subs = [
            await subscribed(browser, **TOPIC, **{"from": "first"}, filter={"header": "flag", "value": value})
            for value in (1, True, 0, False)
        ]
        assert [await browser.offsets(sub, 1) for sub in subs] == [[(0, offset)] for offset in range(4)]
        assert await browser.is_quiet()


async def test_a_key_chooses_the_partition_of_its_messages(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world, 5)
        members = sending("AAAA")
        key = base64.b64encode(b"order 7").decode()
        place = await browser.ask(
            "send_messages", **(members | {"partitioning": {"kind": "messages_key", "value": key}})
        )
        partition = place["confirmations"][0]["partition_id"]
        sub = await subscribed(browser, **TOPIC, **{"from": "first"}, filter={"key": "order 7"})
        assert await browser.offsets(sub, 1) == [(partition, 0)]
        other = (partition + 1) % 5
        refused = await browser.refused("subscribe", **TOPIC, partition=other, filter={"key": "order 7"})
        assert refused == (400, "bad_request", "partition")


# ------------------------------------------------------------------------------------------------- what ends it


@pytest.fixture
def checked_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "CHECK_SECONDS", 0.01)


async def test_what_cannot_go_on_ends_and_says_why_and_where(tmp_path: Path, checked_often: None) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        await sent(browser, 3)
        sub = await subscribed(browser, **TOPIC, **{"from": "first"})
        assert len(await browser.offsets(sub, 3)) == 3
        await browser.ask("create_partitions", stream="s", topic="t", partitions_count=1)
        assert (await browser.push(sub))["end"] | {"reason": ""} == {
            "code": "changed",
            "reason": "",
            "cursor": "0:3",
        }
        sub = await subscribed(browser, **TOPIC, cursor="0:3")
        await browser.ask("delete_topic", stream="s", topic="t")
        assert (await browser.push(sub))["end"]["code"] in ("gone", "topic_id_not_found")
        assert await browser.refused("grant", sub=sub, credit=1) == (404, "not_found", "sub")
        assert len(world.serves.api.tails.feeds) == 0


async def test_a_topic_without_partitions_is_followed_until_it_gets_some(tmp_path: Path, checked_often: None) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world, 0)
        begun = await browser.ask("subscribe", **TOPIC)
        assert begun["cursor"] == "-"
        await browser.ask("create_partitions", stream="s", topic="t", partitions_count=2)
        await sent(browser, 2, partition=1)
        end = (await browser.push(begun["sub"]))["end"]
        assert (end["code"], end["cursor"]) == ("changed", "-")
        sub = await subscribed(browser, **TOPIC, cursor=end["cursor"])
        assert await browser.offsets(sub, 2) == [(1, 0), (1, 1)]


async def test_who_may_not_read_any_more_is_told(tmp_path: Path, checked_often: None) -> None:
    async with talking(tmp_path) as world:
        first = await with_topic(world)
        reading = {"global": everything() | {"read_streams": True, "read_servers": True}, "streams": None}
        await first.ask("create_user", username="alice", password="alicealice", status="active", permissions=reading)
        alice = await (await stranger(world)).log_in("alice", "alicealice")
        wanted = [
            TOPIC,
            {"to": "stats"},
            {"to": "stats", "stream": "s"},
            {"to": "events", "stream": "s", "topic": "t"},
        ]
        subs = [await subscribed(alice, **each) for each in wanted]
        await first.ask("update_permissions", user="alice", permissions=None)
        for sub in subs:
            assert (await alice.push(sub, "end"))["end"]["code"] == "unauthorized"
        for each in wanted:
            assert (await alice.refused("subscribe", **each))[0] == 41


def everything() -> dict[str, bool]:
    names = "manage_servers read_servers manage_users read_users manage_streams read_streams manage_topics read_topics"
    return dict.fromkeys((*names.split(), "poll_messages", "send_messages"), False)


# ------------------------------------------------------------------------------------------------- groups


@pytest.fixture
def looked_at_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_subscription, "LOOK_SECONDS", 0.01)


async def with_group(world: Talking, partitions: int = 2) -> Browser:
    browser = await with_topic(world, partitions)
    await browser.ask("create_consumer_group", stream="s", topic="t", name="g")
    return browser


async def test_members_share_the_partitions_and_hand_over_what_is_acknowledged(
    tmp_path: Path, looked_at_often: None
) -> None:
    async with talking(tmp_path) as world:
        first, second = await with_group(world), await root(world)
        sub = await subscribed(first, **GROUP)
        assert (await first.push(sub))["assigned"]["partitions"] == [0, 1]
        for partition in (0, 1):
            await sent(first, 2, partition=partition)
        assert sorted(await first.offsets(sub, 4)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
        other = await subscribed(second, **GROUP)
        said = (await first.push(sub, "assigned"))["assigned"]
        assert (said["partitions"], said["finishing"]) == ([0], [1])
        assert (await second.push(other))["assigned"]["partitions"] == []
        await first.ask("ack", sub=sub, partition_id=1, offset=1)
        assert (await first.push(sub, "assigned"))["assigned"]["finishing"] == []
        assert (await second.push(other, "assigned"))["assigned"]["partitions"] == [1]
        await sent(first, 1, partition=1)
        assert await second.offsets(other, 1) == [(1, 2)]
        # What nobody has acknowledged comes again when its reader goes.
        await first.link.close()
        assert set(await second.offsets(other, 2)) == {(0, 0), (0, 1)}


async def test_a_group_says_no_more_than_it_has_credit_for_and_goes_on_from_what_it_has_stored(
    tmp_path: Path, looked_at_often: None
) -> None:
    async with talking(tmp_path) as world:
        browser = await with_group(world, 1)
        await sent(browser, 10)
        sub = await subscribed(browser, **GROUP, credit=4)
        assert await browser.offsets(sub, 4) == [(0, 0), (0, 1), (0, 2), (0, 3)]
        await browser.ask("ack", sub=sub, partition_id=0, offset=2)
        browser.pushed.clear()
        assert await browser.is_quiet()
        await browser.ask("unsubscribe", sub=sub)
        sub = await subscribed(browser, **GROUP, credit=2)
        assert await browser.offsets(sub, 2) == [(0, 3), (0, 4)]
        await browser.ask("grant", sub=sub, credit=5)
        assert await browser.offsets(sub, 5) == [(0, offset) for offset in range(5, 10)]


async def test_what_is_acknowledged_by_itself_does_not_come_again(tmp_path: Path, looked_at_often: None) -> None:
    async with talking(tmp_path) as world:
        browser = await with_group(world, 1)
        await sent(browser, 3)
        sub = await subscribed(browser, **GROUP, ack="auto")
        assert len(await browser.offsets(sub, 3)) == 3
        await browser.ask("unsubscribe", sub=sub)
        sub = await subscribed(browser, **GROUP)
        await sent(browser, 1)
        assert await browser.offsets(sub, 1) == [(0, 3)]


async def test_a_connection_is_in_a_group_once_and_acknowledges_only_what_is_its_own(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        browser = await with_group(world, 1)
        sub = await subscribed(browser, **GROUP)
        assert await browser.refused("subscribe", **GROUP) == (409, "conflict", "group")
        assert await browser.refused("subscribe", **(GROUP | {"group": 0})) == (409, "conflict", "group")
        assert (await browser.refused("subscribe", **(GROUP | {"group": "none"})))[0] == 5000
        assert (await browser.refused("ack", sub=sub, partition_id=7, offset=0))[0] in (3022, 3007, 5009)
        assert (await browser.refused("ack", sub=sub, partition_id=0))[2] == "offset"
        topic = await subscribed(browser, **TOPIC)
        assert await browser.refused("ack", sub=topic, partition_id=0, offset=0) == (400, "bad_request", "sub")


async def test_a_group_that_is_deleted_ends_the_subscription(tmp_path: Path, looked_at_often: None) -> None:
    async with talking(tmp_path) as world:
        browser = await with_group(world)
        sub = await subscribed(browser, **GROUP)
        await browser.ask("delete_consumer_group", stream="s", topic="t", group="g")
        assert (await browser.push(sub, "end"))["end"]["code"] == "consumer_group_member_not_found"


# ------------------------------------------------------------------------------------------------- rates and news


async def test_rates_are_said_each_second_of_everything_of_a_stream_and_of_a_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates, "PERIOD_SECONDS", 0.2)

    async with talking(tmp_path) as world:
        browser = await with_topic(world, 2)
        await browser.ask("create_consumer_group", stream="s", topic="t", name="g")
        wanted: list[dict[str, Any]] = [{}, {"stream": "s"}, {"stream": "s", "topic": "t"}]
        subs = [await subscribed(browser, to="stats", **each, credit=1000) for each in wanted]
        await sent(browser, 40, partition=1)
        counts = [0.0, 0.0, 0.0]
        while min(counts) < 39.5:
            for i, (sub, member) in enumerate(zip(subs, ("streams", "stream", "topic"), strict=True)):
                stats = (await browser.push(sub))["stats"]
                found = stats["streams"][0] if member == "streams" else stats[member]
                counts[i] += found["messages_per_second"] * stats["seconds"]
                topic = found if member == "topic" else found["topics"][0]
        assert [round(each) for each in counts] == [40, 40, 40]
        assert [each["next_offset"] for each in topic["partitions"]] == [0, 40]
        assert topic["consumer_groups"] == [{"id": 0, "name": "g", "members_count": 0, "lag": 40}]


async def test_rates_without_credit_are_skipped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "PERIOD_SECONDS", 0.02)

    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        sub = await subscribed(browser, to="stats", credit=1)
        assert "skipped" not in await browser.push(sub)
        subscription = next(iter(world.websockets._channels))._subscriptions[sub]
        await until(lambda: getattr(subscription, "_skipped") > 2)  # noqa: B009
        await browser.ask("grant", sub=sub, credit=1)
        assert (await browser.push(sub))["skipped"] > 2
        # Nobody asks any more: nothing is measured.
        await browser.ask("unsubscribe", sub=sub)
        task = world.gateway.rates._measuring
        await until(lambda: task is not None and task.done())


async def test_news_of_the_catalogue_are_said(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        listening, acting = await root(world), await root(world)
        everything_, of_topic = await subscribed(listening, to="events"), 0
        acts: list[tuple[str, dict[str, Any], str, str]] = [
            ("create_stream", {"name": "s"}, "created", "stream"),
            ("update_stream", {"stream": "s", "name": "z"}, "updated", "stream"),
            ("update_stream", {"stream": "z", "name": "s"}, "updated", "stream"),
            (
                "create_topic",
                {
                    "stream": "s",
                    "name": "t",
                    "partitions_count": 1,
                    "compression_algorithm": "none",
                    "message_expiry": 0,
                },
                "created",
                "topic",
            ),
            ("create_partitions", {"stream": "s", "topic": "t", "partitions_count": 2}, "created", "partitions"),
            ("create_consumer_group", {"stream": "s", "topic": "t", "name": "g"}, "created", "consumer_group"),
            ("join_consumer_group", {"stream": "s", "topic": "t", "group": "g"}, "rebalanced", "consumer_group"),
            ("delete_partitions", {"stream": "s", "topic": "t", "partitions_count": 1}, "deleted", "partitions"),
            ("delete_consumer_group", {"stream": "s", "topic": "t", "group": "g"}, "deleted", "consumer_group"),
            ("purge_topic", {"stream": "s", "topic": "t"}, "purged", "topic"),
            ("delete_topic", {"stream": "s", "topic": "t"}, "deleted", "topic"),
            ("purge_stream", {"stream": "s"}, "purged", "stream"),
            ("delete_stream", {"stream": "s"}, "deleted", "stream"),
        ]
        for cmd, said, what, kind in acts:
            if cmd == "create_partitions":
                of_topic = await subscribed(listening, to="events", stream="s", topic="t")
            await acting.ask(cmd, **said)
            while True:
                event = (await listening.push(everything_))["event"]
                if (event["what"], event["kind"]) == (what, kind):
                    break
                assert event["what"] == "rebalanced"
            assert event["stream"] == {
                "id": 0,
                "name": "z" if cmd == "update_stream" and said["name"] == "z" else "s",
            }
            if kind != "stream":
                assert event["topic"] == {"id": 0, "name": "t"}
            if kind == "consumer_group":
                assert event["consumer_group"] == {"id": 0, "name": "g"}
            if what == "rebalanced":
                assert [each["partitions"] for each in event["members"]] == [[0, 1, 2]]
        heard = [each["event"]["what"] for each in listening.pushed if each["sub"] == of_topic and "event" in each]
        assert [each for each in heard if each != "rebalanced"] == [
            "created",
            "created",
            "deleted",
            "deleted",
            "purged",
            "deleted",
        ]


async def test_a_refused_command_is_no_news_and_who_may_not_read_hears_nothing(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        first = await root(world)
        await first.ask("create_user", username="alice", password="alicealice", status="active", permissions=None)
        alice = await (await stranger(world)).log_in("alice", "alicealice")
        sub, hers = await subscribed(first, to="events"), await subscribed(alice, to="events")
        assert (await alice.refused("create_stream", name="mine"))[0] == 41
        assert (await first.refused("delete_stream", stream="none"))[0] == 1009
        await first.ask("create_stream", name="s")
        assert (await first.push(sub))["event"]["stream"]["name"] == "s"
        assert await alice.is_quiet()
        assert hers


async def test_news_that_wait_too_long_are_skipped_the_oldest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats_and_events, "NEWS_KEPT", 3)

    async with talking(tmp_path) as world:
        browser = await root(world)
        sub = await subscribed(browser, to="events", credit=0)
        for number in range(10):
            await browser.ask("create_stream", name=f"s{number}")
        await browser.ask("grant", sub=sub, credit=10)
        heard = [await browser.push(sub) for _ in range(3)]
        assert [each["event"]["stream"]["name"] for each in heard] == ["s7", "s8", "s9"]
        assert heard[0]["skipped"] == 7


async def test_news_that_may_not_be_heard_neither_count_nor_take_the_place_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats_and_events, "NEWS_KEPT", 3)

    async with talking(tmp_path) as world:
        first = await root(world)
        own = await first.ask("create_stream", name="own")
        nothing = ("manage_stream", "manage_topics", "read_topics", "poll_messages", "send_messages")
        rights = dict.fromkeys(nothing, False) | {"read_stream": True, "topics": None}
        everywhere = ["manage_servers", "read_servers", "manage_users", "read_users", "manage_streams"]
        everywhere += ("read_streams", "manage_topics", "read_topics", "poll_messages", "send_messages")
        permissions = {"global": dict.fromkeys(everywhere, False), "streams": {own["id"]: rights}}
        hers = {"username": "alice", "password": "alicealice", "status": "active", "permissions": permissions}
        await first.ask("create_user", **hers)
        alice = await (await stranger(world)).log_in("alice", "alicealice")
        sub = await subscribed(alice, to="events", credit=0)
        await first.ask("update_stream", stream="own", name="renamed")
        for number in range(10):
            await first.ask("create_stream", name=f"s{number}")
        await alice.ask("grant", sub=sub, credit=10)
        message = await alice.push(sub)
        assert (message["event"]["what"], message["event"]["stream"]["name"]) == ("updated", "renamed")
        assert "skipped" not in message
        assert await alice.is_quiet()


# ------------------------------------------------------------------------------------------------- bounds


async def test_ten_thousand_subscribes_are_as_many_as_may_be_and_refusals(tmp_path: Path) -> None:
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


async def test_a_subscriber_that_stops_reading_is_cut_off_and_nobody_else(tmp_path: Path) -> None:
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
        while len(world.websockets._channels) > 1:  # noqa: ASYNC110 -- it hears of it a turn later
            await asyncio.sleep(0)
        assert await browser.is_quiet()


@pytest.mark.parametrize("wanted", [TOPIC, GROUP, {"to": "stats"}, {"to": "events"}], ids=lambda wanted: wanted["to"])
async def test_who_goes_before_his_subscription_has_begun_leaves_nothing(
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


async def test_subscriptions_of_a_connection_share_the_room_that_it_has(tmp_path: Path) -> None:
    """They all have kept up until now, and are handed what comes at the same moment."""

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
        # What waited comes when there is room, to each of them once and in order.
        offsets: dict[int, list[int]] = {}
        for _ in range(4 * 20):
            message = msgspec.json.decode((await raw.frame())[1])
            offsets.setdefault(message["sub"], []).extend(m["header"]["offset"] for m in message["messages"])
        assert offsets == {sub: [1, 2, 3, 4] for sub in range(1, 21)}


async def test_a_reader_that_is_behind_still_has_its_pings_answered(tmp_path: Path) -> None:
    """Clients that ping would take a server that is busy with them for one that is gone."""

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


async def test_a_subscriber_that_is_behind_for_minutes_is_kept_as_long_as_it_reads(tmp_path: Path) -> None:
    """Whenever it is looked at, there is something that it has not taken."""

    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        for _ in range(30):
            await browser.ask("send_messages", **sending(*["A" * 40_000] * 30))
        raw = await world.raw("/ws", f"Authorization: Bearer {world.serves.token}", receive_bytes=4096)
        (slow,) = [each for each in world.websockets._connections if each.address != own_address(browser)]
        beginning = {"id": 1, "cmd": "subscribe", "credit": 10_000, "offset": 0, **TOPIC}
        await raw.send(frame(1, msgspec.json.encode(beginning)))
        # It would look at another time than we do.
        world.websockets._sweeper.cancel()  # type: ignore[union-attr]
        now = time.monotonic()
        for _ in range(25):
            heard = 0
            while heard < 700_000:
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


async def test_the_number_of_subscriptions_is_a_setting(tmp_path: Path) -> None:
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
        # What is refused takes no place.
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


async def test_many_who_read_the_same_hear_the_same_in_the_same_order(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        browsers = [await with_topic(world), *[await root(world) for _ in range(40)]]
        for browser in browsers:
            await subscribed(browser, **TOPIC, credit=1000)
        assert len(world.serves.api.tails.feeds) == 1
        for _ in range(20):
            await sent(browsers[0], 5)
        heard = await asyncio.gather(*[browser.offsets(1, 100) for browser in browsers])
        assert all(each == [(0, offset) for offset in range(100)] for each in heard)
