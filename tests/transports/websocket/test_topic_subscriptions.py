"""Subscriptions to topics over the channel: starting points, credit, rates, filters, and how they end."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from tests.support.clocks import Seconds
from tests.transports.support.cursors import places
from tests.transports.websocket.support.browsing import sending, stranger, with_topic
from tests.transports.websocket.support.subscribing import everything, sent, subscribed
from tests.transports.websocket.support.talking import talking
from whippet.storage.options import Durability
from whippet.transports.websocket import listener, topic_subscription

TOPIC = {"to": "topic", "stream": "s", "topic": "t"}


def text(value: str) -> dict[str, str]:
    return {"kind": "string", "value": base64.b64encode(value.encode()).decode()}


# ------------------------------------------------------------------------------------------------- starting points


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
async def test_a_subscription_starts_where_the_client_wants(
    tmp_path: Path, beginning: Any, expected: list[int]
) -> None:
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
async def test_invalid_subscriptions_are_refused(tmp_path: Path, wanted: Any, status: int, field: str | None) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        found = await browser.refused("subscribe", **(TOPIC | wanted))
        assert (found[0], found[2] if status < 500 else field) == (status, field)
        assert len(world.serves.api.tails.feeds) == 0


async def test_a_cursor_resumes_after_the_last_message_of_one_or_all_partitions(tmp_path: Path) -> None:
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


async def test_a_subscription_without_messages_still_has_a_cursor(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world, 2)
        await sent(browser, 3, partition=1)
        begun = await browser.ask("subscribe", **TOPIC)
        assert begun.keys() == {"sub", "cursor"}
        assert places(begun["cursor"]) == "0:0,1:3"
        await browser.ask("unsubscribe", sub=begun["sub"])
        await sent(browser, 2, partition=1)
        again = await subscribed(browser, **TOPIC, cursor=begun["cursor"])
        assert await browser.offsets(again, 2) == [(1, 3), (1, 4)]


# ------------------------------------------------------------------------------------------------- credit, rates


async def test_a_subscription_never_exceeds_its_credit(tmp_path: Path) -> None:
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


async def test_a_client_may_skip_to_the_newest_message_and_learn_how_many_it_missed(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world, 2)
        sub = await subscribed(browser, **TOPIC, behind="skip", credit=3)
        await sent(browser, 10)
        message = await browser.push(sub)
        assert [each["header"]["offset"] for each in message["messages"]] == [0, 1, 2]
        assert places(message["cursor"]) == "0:3,1:0"
        await sent(browser, 5, partition=1)
        await browser.ask("grant", sub=sub, credit=2)
        # At once, and not with the next message, which may never come.
        message = await browser.push(sub)
        assert [each["header"]["offset"] for each in message["messages"]] == [9]
        assert message["skipped"] == {"0": 6, "1": 5}
        assert places(message["cursor"]) == "0:10,1:5"
        await sent(browser, 1)
        message = await browser.push(sub)
        assert [each["header"]["offset"] for each in message["messages"]] == [10]
        assert "skipped" not in message


async def test_partitions_take_turns_when_a_client_skips(tmp_path: Path) -> None:
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
async def test_after_a_burst_comes_the_newest_message_and_what_was_skipped(tmp_path: Path, sends: int) -> None:
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


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Seconds:
    """Subscriptions count their rate by it."""
    stopped = Seconds()
    monkeypatch.setattr(topic_subscription, "time", stopped)
    return stopped


async def test_a_subscription_with_a_rate_limit_gets_every_message_at_that_rate(tmp_path: Path, clock: Seconds) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        sub = await subscribed(browser, **TOPIC, **{"from": "first"}, max_rate=50, behind="hold", credit=1000)
        await sent(browser, 70)
        assert offsets_in(await browser.push(sub)) == list(range(50))
        clock.now += 0.11
        assert offsets_in(await browser.push(sub)) == list(range(50, 55))
        clock.now += 10
        assert offsets_in(await browser.push(sub)) == list(range(55, 70))


async def test_a_subscription_that_may_skip_gets_the_newest_message_when_its_rate_allows_one(
    tmp_path: Path, clock: Seconds
) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        sub = await subscribed(browser, **TOPIC, **{"from": "first"}, max_rate=50, behind="skip", credit=1000)
        await sent(browser, 70)
        assert offsets_in(await browser.push(sub)) == list(range(50))
        for newest, skipped in ((69, 19), (74, 4)):
            clock.now += 0.03
            message = await browser.push(sub)
            assert (offsets_in(message), message["skipped"]) == ([newest], {"0": skipped})
            await sent(browser, 5)


def offsets_in(message: dict[str, Any]) -> list[int]:
    return [each["header"]["offset"] for each in message["messages"]]


async def test_messages_deleted_before_they_were_read_are_skipped(tmp_path: Path) -> None:
    async with talking(tmp_path, store={"segment_bytes": 1_000_000, "durability": Durability.WRITTEN}) as world:
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


async def test_a_purged_topic_starts_again_and_nothing_counts_as_missing(tmp_path: Path) -> None:
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


async def test_only_messages_with_the_header_are_pushed_and_cost_credit(tmp_path: Path) -> None:
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
        assert places((await browser.ask("unsubscribe", sub=subs["orders"]))["cursor"]) == "0:6"


async def test_a_filter_distinguishes_one_from_true(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        values = [("int32", b"\1\0\0\0"), ("bool", b"\1"), ("int32", bytes(4)), ("bool", b"\0")]
        for kind, octets in values:
            value = {"kind": kind, "value": base64.b64encode(octets).decode()}
            await sent(browser, 1, headers=[{"key": text("flag"), "value": value}])
        # All at once: what several subscribers receive is encoded once.
        subs = [
            await subscribed(browser, **TOPIC, **{"from": "first"}, filter={"header": "flag", "value": value})
            for value in (1, True, 0, False)
        ]
        assert [await browser.offsets(sub, 1) for sub in subs] == [[(0, offset)] for offset in range(4)]
        assert await browser.is_quiet()


async def test_a_key_selects_the_partition_of_its_messages(tmp_path: Path) -> None:
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


# ------------------------------------------------------------------------------------------------------ the end


@pytest.fixture
def checked_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "CHECK_SECONDS", 0.01)


async def test_a_subscription_that_cannot_continue_ends_with_reason_and_cursor(
    tmp_path: Path, checked_often: None
) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        await sent(browser, 3)
        sub = await subscribed(browser, **TOPIC, **{"from": "first"})
        assert len(await browser.offsets(sub, 3)) == 3
        await browser.ask("create_partitions", stream="s", topic="t", partitions_count=1)
        end = (await browser.push(sub))["end"]
        assert (end["code"], places(end["cursor"])) == ("changed", "0:3")
        sub = await subscribed(browser, **TOPIC, cursor="0:3")
        await browser.ask("delete_topic", stream="s", topic="t")
        assert (await browser.push(sub))["end"]["code"] in ("gone", "topic_id_not_found")
        assert await browser.refused("grant", sub=sub, credit=1) == (404, "not_found", "sub")
        assert len(world.serves.api.tails.feeds) == 0


async def test_a_topic_without_partitions_is_followed_until_it_has_some(tmp_path: Path, checked_often: None) -> None:
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


async def test_a_subscription_ends_when_its_user_loses_permission(tmp_path: Path, checked_often: None) -> None:
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
