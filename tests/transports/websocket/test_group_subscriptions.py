"""Subscriptions to consumer groups over the channel, and to rates and events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.transports.websocket.support.browsing import Browser, root, stranger, until, with_topic
from tests.transports.websocket.support.subscribing import sent, subscribed
from tests.transports.websocket.support.talking import Talking, talking
from whippet.app import rates
from whippet.transports.websocket import group_subscription, stats_and_events

TOPIC = {"to": "topic", "stream": "s", "topic": "t"}
GROUP = {"to": "group", "stream": "s", "topic": "t", "group": "g"}


# ------------------------------------------------------------------------------------------------- groups


@pytest.fixture
def looked_at_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_subscription, "CHECK_SECONDS", 0.01)


async def with_group(world: Talking, partitions: int = 2) -> Browser:
    browser = await with_topic(world, partitions)
    await browser.ask("create_consumer_group", stream="s", topic="t", name="g")
    return browser


async def test_members_share_the_partitions_and_hand_over_acknowledged_ones(
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
        # Unacknowledged messages are pushed again after their reader leaves.
        await first.link.close()
        assert set(await second.offsets(other, 2)) == {(0, 0), (0, 1)}


async def test_a_group_pushes_no_more_than_its_credit_and_resumes_from_its_offsets(
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


async def test_automatically_acknowledged_messages_are_not_pushed_again(tmp_path: Path, looked_at_often: None) -> None:
    async with talking(tmp_path) as world:
        browser = await with_group(world, 1)
        await sent(browser, 3)
        sub = await subscribed(browser, **GROUP, ack="auto")
        assert len(await browser.offsets(sub, 3)) == 3
        await browser.ask("unsubscribe", sub=sub)
        sub = await subscribed(browser, **GROUP)
        await sent(browser, 1)
        assert await browser.offsets(sub, 1) == [(0, 3)]


async def test_a_connection_joins_a_group_once_and_acknowledges_only_its_own_messages(tmp_path: Path) -> None:
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


# ----------------------------------------------------------------------------------------------- rates and events


async def test_rates_are_pushed_every_second_for_everything_a_stream_or_a_topic(
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
        # Without subscribers nothing is measured.
        await browser.ask("unsubscribe", sub=sub)
        task = world.gateway.rates._measuring
        await until(lambda: task is not None and task.done())


async def test_events_of_the_catalogue_are_pushed(tmp_path: Path) -> None:
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
            assert event.get("partitions_count") == (said["partitions_count"] if kind == "partitions" else None)
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


async def test_refused_commands_and_unreadable_objects_cause_no_events(tmp_path: Path) -> None:
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


async def test_events_that_wait_too_long_are_skipped_the_oldest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats_and_events, "EVENTS_MAX", 3)

    async with talking(tmp_path) as world:
        browser = await root(world)
        sub = await subscribed(browser, to="events", credit=0)
        for number in range(10):
            await browser.ask("create_stream", name=f"s{number}")
        await browser.ask("grant", sub=sub, credit=10)
        heard = [await browser.push(sub) for _ in range(3)]
        assert [each["event"]["stream"]["name"] for each in heard] == ["s7", "s8", "s9"]
        assert heard[0]["skipped"] == 7


async def test_events_without_permission_neither_count_nor_displace_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats_and_events, "EVENTS_MAX", 3)

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
