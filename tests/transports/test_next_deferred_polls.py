"""0.12 clients without a socket: polls and fetches that wait."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from tests.app.access.support.world import world
from tests.transports.support.newer import (
    ME,
    Newer,
    with_topic,
)
from tests.transports.support.next_requests import at, fetch, payloads, poll, sent, settings, target
from whippet.app.access.permissions import GlobalPermissions, Permissions
from whippet.app.commands import requests
from whippet.app.errors import Code

OTHER = bytes(range(1, 17))

NEXT, FIRST = requests.Strategy(requests.StrategyKind.NEXT), requests.Strategy(requests.StrategyKind.FIRST)

GROUP = requests.Consumer(requests.ConsumerKind.GROUP, "g")
MINUTE = 60_000_000
SPARE = 1_000_000


# ------------------------------------------------------------------------------------------------------------- waiting


async def test_a_waiting_poll_blocks_nobody_and_is_answered_when_a_message_arrives(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        assert await client.say(client.asked(poll(wait=MINUTE))) is None
        waiting = client.number
        assert not (await client.reply(client.asked(requests.Ping()))).refused
        await sent(client, b"there")
        reply = await client.come_late()
        assert reply is not None
        assert reply.number == waiting
        assert b"there" in reply.body
        assert len(made.gateway.waiting_polls) == 0


async def test_a_poll_waits_for_as_many_messages_as_it_wants(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        await sent(client, b"1")
        assert await client.say(client.asked(poll(wait=MINUTE, min_count=3))) is None
        (late,) = client.late
        for text in (b"2", b"3"):
            await asyncio.sleep(0)
            assert not late.done()
            await sent(client, text)
        reply = await client.come_late()
        assert reply is not None
        assert reply.body[12:16] == (3).to_bytes(4, "little")


async def test_a_wait_that_times_out_returns_what_there_is(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        await sent(client, b"1")
        assert await client.say(client.asked(poll(wait=1, min_count=3))) is None
        reply = await client.come_late()
        assert reply is not None
        assert reply.body[12:16] == (1).to_bytes(4, "little")
        assert await client.say(client.asked(poll(wait=1, strategy=at(5)))) is None
        reply = await client.come_late()
        assert reply is not None
        assert len(reply.body) == 40


@pytest.mark.parametrize("commit", [True, False])
async def test_a_cancelled_poll_returns_nothing_and_commits_nothing(tmp_path: Path, commit: bool) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        await sent(client, b"1")
        assert await client.say(client.asked(poll(wait=MINUTE, min_count=2, strategy=NEXT, commit=commit))) is None
        assert await client.cancel(client.number) is None
        reply = await client.come_late()
        assert reply is not None
        assert (reply.refused, len(reply.body)) == (0, 40)
        assert await client.get(requests.GetConsumerOffset(ME, "s", "t", 0)) is None
        # Cancelling an unknown poll has no effect and no response.
        assert await client.cancel(client.number) is None
        assert await client.cancel(12345) is None


async def test_permissions_are_checked_again_after_the_wait(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        boss = await with_topic(made)
        await made.user("alice", permissions=Permissions(GlobalPermissions(poll_messages=True)))
        alice = Newer(made, OTHER)
        await alice.register(requests.LoginUser("alice", "alicealice", "1"))
        alice.incarnation = boss.incarnation
        assert await alice.say(alice.asked(poll(wait=MINUTE))) is None
        await boss.demand(requests.UpdatePermissions("alice", None))
        await sent(boss, b"not for alice")
        reply = await alice.come_late()
        assert reply is not None
        assert reply.refused == Code.UNAUTHORIZED


async def test_a_wait_ends_with_its_connection(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        assert await client.say(client.asked(poll(wait=MINUTE))) is None
        assert len(made.gateway.waiting_polls) == 1
        client.close()
        assert await client.come_late() is None
        assert len(made.gateway.waiting_polls) == 0


async def test_waiting_polls_are_limited_per_user_and_per_connection(tmp_path: Path) -> None:
    async with world(tmp_path, settings=settings(waiting_polls=9, waiting_polls_per_user=5)) as made:
        client = await with_topic(made, 3)
        targets = [target(number, client.incarnation) for number in range(3)]
        assert await client.say(client.asked(fetch(*targets, wait=MINUTE))) is None
        for _ in range(2):
            assert await client.say(client.asked(poll(wait=MINUTE))) is None
        assert await client.refused(poll(wait=MINUTE)) == Code.TOO_MANY_WAITING_POLLS
        assert not await client.refused(poll())
        client.close()
        assert [await client.come_late() for _ in range(3)] == [None] * 3
        assert len(made.gateway.waiting_polls) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"wait_us": 600_000_001, "request_timeout_us": 602_000_000},
        {"wait_us": 5, "request_timeout_us": 1_000_004},
        {"wait_us": 5, "request_timeout_us": 630_000_001},
        {"min_count": 0},
        {"min_count": 11},
        {"max_bytes": 343},
    ],
)
async def test_an_invalid_poll_is_refused(tmp_path: Path, wrong: dict[str, int]) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        request = msgspec.structs.replace(poll(wait=1), **wrong)
        assert await client.refused(request) == Code.INVALID_COMMAND


async def test_a_fetch_reads_many_partitions_within_its_limits(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made, 3)
        for number in range(3):
            await sent(client, *[b"%d:%d" % (number, index) for index in range(4)], partition=number)
        targets = [target(number, client.incarnation) for number in range(3)]
        found = await client.get(fetch(*targets))
        assert {section.partition_id: payloads(section) for section in found.sections} == {
            number: [b"%d:%d" % (number, index) for index in range(4)] for number in range(3)
        }
        assert {section.next_offset for section in found.sections} == {4}
        few = await client.get(fetch(*targets, count=5))
        assert sum(section.messages_count for section in few.sections) == 5
        absent = await client.get(fetch(target(7, client.incarnation), target(0, client.incarnation, at(4))))
        by_number = {section.partition_id: section for section in absent.sections}
        assert by_number[7].status == Code.PARTITION_NOT_FOUND
        assert (by_number[0].status, by_number[0].next_offset, by_number[0].batches) == (0, 4, ())


async def test_a_fetch_waits_for_any_of_its_partitions(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made, 3)
        targets = [target(number, client.incarnation) for number in range(3)]
        assert await client.say(client.asked(fetch(*targets, wait=MINUTE))) is None
        await sent(client, b"here", partition=2)
        reply = await client.come_late()
        assert reply is not None
        assert b"here" in reply.body


async def test_a_message_above_the_limits_is_returned_alone(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made, 2)
        for number in range(2):
            await sent(client, b"x" * 5000, partition=number)
        targets = [target(number, client.incarnation, max_bytes=344) for number in range(2)]
        found = await client.get(fetch(*targets, max_bytes=344))
        assert sorted(section.messages_count for section in found.sections) == [0, 1]
        assert {section.next_offset - section.messages_count for section in found.sections} == {0}
        assert len(payloads((await client.get(poll(max_bytes=344, wait=1))).polled)) == 1


@pytest.mark.parametrize("wrong", ["twice", "strategy", "too much", "none"])
async def test_an_invalid_fetch_is_refused(tmp_path: Path, wrong: str) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made)
        one = target(0, client.incarnation)
        targets = {
            "twice": (one, one),
            "strategy": (target(0, client.incarnation, FIRST),),
            "too much": (target(0, client.incarnation, max_bytes=(1 << 20) + 1),),
            "none": (),
        }[wrong]
        assert await client.refused(fetch(*targets)) == Code.INVALID_COMMAND


async def test_a_member_fetches_what_it_owns_and_commits(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made, 2)
        await client.demand(requests.CreateConsumerGroup("s", "t", "g"))
        one = target(0, client.incarnation)
        assert await client.refused(fetch(one, consumer=GROUP)) == Code.CONSUMER_GROUP_MEMBER_NOT_FOUND
        await client.demand(requests.JoinConsumerGroup("s", "t", "g"))
        other = Newer(made, OTHER)
        await other.register(secret=bytes(32))
        await other.demand(requests.JoinConsumerGroup("s", "t", "g"))
        owned = (await client.get(requests.SyncConsumerGroup("s", "t", "g"))).partitions
        assert len(owned) == 1
        for number in range(2):
            await sent(client, b"m", partition=number)
        targets = [target(number, client.incarnation) for number in range(2)]
        found = await client.get(fetch(*targets, consumer=GROUP, auto_commit=True))
        by_number = {section.partition_id: section for section in found.sections}
        (foreign,) = {0, 1} - set(owned)
        assert payloads(by_number[owned[0]]) == [b"m"]
        assert by_number[foreign].status == Code.CONSUMER_GROUP_PARTITION_NOT_OWNED
        offset = await client.get(requests.GetConsumerOffset(GROUP, "s", "t", owned[0]))
        assert offset.stored_offset == 0


async def test_an_external_group_stores_any_offset_and_needs_no_member(tmp_path: Path) -> None:
    external = requests.Consumer(requests.ConsumerKind.EXTERNAL_GROUP, "g")
    ask = requests.GetConsumerOffset(external, "s", "t", 0)
    async with world(tmp_path) as made:
        client = await with_topic(made)
        assert await client.get(ask) is None
        store = requests.StoreConsumerOffset(external, "s", "t", 0, 1_000_000)
        assert await client.refused(store) == Code.CONSUMER_GROUP_ID_NOT_FOUND
        await client.demand(requests.CreateConsumerGroup("s", "t", "g"))
        await client.demand(store)
        assert (await client.get(ask)).stored_offset == 1_000_000
        # The offsets of the group itself are separate.
        assert await client.get(requests.GetConsumerOffset(GROUP, "s", "t", 0)) is None
        assert await client.refused(msgspec.structs.replace(poll(), consumer=external)) == Code.INVALID_COMMAND
        await client.demand(requests.DeleteConsumerOffset(external, "s", "t", 0))
        assert await client.get(ask) is None
        await client.demand(store)
        await client.demand(requests.DeleteConsumerGroup("s", "t", "g"))
        await client.demand(requests.CreateConsumerGroup("s", "t", "g"))
        assert await client.get(ask) is None


async def test_a_client_of_0_12_0_asks_which_partitions_have_messages(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await with_topic(made, 3)
        starts = tuple((number, NEXT) for number in range(3))
        assert (
            await client.say(client.asked(requests.AwaitMessages(ME, "s", "t", MINUTE, MINUTE + SPARE, starts))) is None
        )
        await sent(client, b"here", partition=1)
        reply = await client.come_late()
        assert reply is not None
        assert reply.body == (1).to_bytes(4, "little") + (1).to_bytes(4, "little")
