"""Consumers: which messages they get, and what they commit and when, alone and in groups."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from tests.app.access.support.world import refusal
from tests.app.client.support.server import SOON, connected, serving
from whippet.app.client import AutoCommit, Client, Consumer, GroupConsumer
from whippet.app.client.commands import LAST, NEXT, from_offset, from_time, to_partition
from whippet.app.commands import requests
from whippet.app.commands.requests import ConsumerKind, Strategy, StrategyKind
from whippet.app.errors import Code, CommandError

ME = requests.Consumer(ConsumerKind.CONSUMER, "me")
GROUP = requests.Consumer(ConsumerKind.GROUP, "g")
FIRST = Strategy(StrategyKind.FIRST)


async def fill(client: Client, count: int, partition_id: int = 0, start: int = 0) -> None:
    payloads = [str(number).encode() for number in range(start, start + count)]
    await client.send_messages("s", "t", payloads, to_partition(partition_id))


async def committed(client: Client, partition_id: int = 0, consumer: requests.Consumer = ME) -> int | None:
    found = await client.get_consumer_offset("s", "t", consumer, partition_id)
    return None if found is None else found.stored_offset


async def read(consumer: Consumer | GroupConsumer) -> list[int]:
    return [int(message.payload) async for message in consumer]


async def test_a_consumer_resumes_after_its_stored_offset(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        await fill(client, 250)
        for expected in (list(range(250)), [], list(range(250, 260))):
            async with Consumer(client, "s", "t", "me", batch=100, follow=False) as consumer:
                assert await read(consumer) == expected
            if not expected:
                await fill(client, 10, start=250)


@pytest.mark.parametrize(
    ("strategy", "first"), [(FIRST, 0), (NEXT, 5), (LAST, 17), (from_offset(7), 7), (from_time(2**63), 20)]
)
async def test_the_strategy_sets_the_beginning_and_nothing_is_skipped_after_it(
    tmp_path: Path, strategy: Strategy, first: int
) -> None:
    async with connected(tmp_path) as (_, client):
        await fill(client, 20)
        await client.store_consumer_offset("s", "t", ME, 4, 0)
        consumer = Consumer(client, "s", "t", "me", strategy=strategy, batch=3, follow=False)
        assert await read(consumer) == list(range(first, 20))
        if first < 20:
            await fill(client, 5, start=20)
            assert await read(consumer) == list(range(20, 25))


async def test_a_message_has_its_partition_and_offset(tmp_path: Path) -> None:
    async with connected(tmp_path, partitions=2) as (_, client):
        await fill(client, 2, partition_id=1)
        message = await anext(Consumer(client, "s", "t", "me", partition_id=1, strategy=from_offset(1)))
        assert (message.partition_id, message.offset, message.payload, message.user_headers) == (1, 1, b"1", b"")
        assert message.id
        assert message.timestamp >= message.origin_timestamp > 0


async def test_a_following_consumer_waits_for_new_messages(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        consumer = Consumer(client, "s", "t", "me", idle_s=0.001)
        waiting = asyncio.create_task(anext(consumer))
        await client.ping()
        assert not waiting.done()
        await fill(client, 1)
        assert (await waiting).payload == b"0"


async def test_whole_polls_can_be_iterated(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        await fill(client, 25)
        async with Consumer(client, "s", "t", "me", batch=10, follow=False) as consumer:
            counts = []
            async for polled in consumer.polls():
                counts.append(polled.messages_count)
                assert await committed(client) == (None if len(counts) == 1 else 10 * len(counts) - 11)
        assert counts == [10, 10, 5]
        assert await committed(client) == 24


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (AutoCommit.off(), [None] * 6),
        (AutoCommit.each_poll(), [3, 3, 3, 3, 7, 7]),
        (AutoCommit.each_poll_processed(), [None, None, None, None, 3, 3]),
        (AutoCommit.each_message(), [None, 0, 1, 2, 3, 4]),
        (AutoCommit.each(3), [None, None, None, 2, 2, 2]),
        (AutoCommit.at_intervals(0), [None, 0, 1, 2, 3, 4]),
        (AutoCommit.at_intervals(3600), [None] * 6),
    ],
)
async def test_each_auto_commit_mode_commits_at_its_time(
    tmp_path: Path, mode: AutoCommit, expected: list[int | None]
) -> None:
    async with connected(tmp_path) as (_, client):
        await fill(client, 10)
        async with Consumer(client, "s", "t", "me", batch=4, auto_commit=mode) as consumer:
            found = []
            for _ in expected:
                await anext(consumer)
                found.append(await committed(client))
        assert found == expected
        on_close = {AutoCommit.off(): None, AutoCommit.each_poll(): 7}.get(mode, 5)
        assert await committed(client) == on_close


async def test_a_message_whose_processing_failed_is_not_committed(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        await fill(client, 10)
        with pytest.raises(ZeroDivisionError):
            async with Consumer(client, "s", "t", "me") as consumer:
                async for message in consumer:
                    assert 1 / (3 - message.offset)
        assert await committed(client) == 2
        async with Consumer(client, "s", "t", "me") as consumer:
            assert (await anext(consumer)).offset == 3


async def test_with_commits_off_the_caller_commits(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        await fill(client, 10)
        async with Consumer(client, "s", "t", "me", batch=2, auto_commit=AutoCommit.off()) as consumer:
            assert [(await anext(consumer)).offset for _ in range(5)] == [0, 1, 2, 3, 4]
            await consumer.commit()
            assert await committed(client) == 3
            await anext(consumer)
        assert await committed(client) == 3


async def test_a_consumer_starts_over_after_a_purge(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        await fill(client, 10)
        consumer = Consumer(client, "s", "t", "me", follow=False)
        assert await read(consumer) == list(range(10))
        await client.purge_topic("s", "t")
        assert await read(consumer) == []
        await fill(client, 3, start=50)
        assert await read(consumer) == [50, 51, 52]


async def test_a_consumer_continues_after_a_restart_of_the_server(tmp_path: Path) -> None:
    async with connected(tmp_path) as (server, other), await server.client(SOON) as client:
        await fill(other, 30)
        async with Consumer(
            client, "s", "t", "me", batch=10, follow=False, auto_commit=AutoCommit.each_message()
        ) as consumer:
            found = [int((await anext(consumer)).payload) for _ in range(15)]
            await server.stop()
            await server.start()
            assert found + await read(consumer) == list(range(30))
        assert await committed(client) == 29
        await other.reconnect()


# --------------------------------------------------------------------------------------------------------------- groups


async def test_a_member_reads_all_partitions_and_leaves_when_it_is_closed(tmp_path: Path) -> None:
    async with connected(tmp_path, partitions=3) as (_, client):
        for partition_id in range(3):
            await fill(client, 100, partition_id, start=100 * partition_id)
        async with GroupConsumer(client, "s", "t", "g", batch=30, follow=False) as consumer:
            found = await read(consumer)
            group = await client.get_consumer_group("s", "t", "g")
            assert group is not None
            assert group.info.members_count == 1
        assert sorted(found) == list(range(300))
        for partition_id in range(3):
            assert await committed(client, partition_id, GROUP) == 99
        group = await client.get_consumer_group("s", "t", "g")
        assert group is not None
        assert group.info.members_count == 0


@pytest.mark.parametrize(
    "mode",
    [
        AutoCommit.off(),
        AutoCommit.each_poll(),
        AutoCommit.each_poll_processed(),
        AutoCommit.each_message(),
        AutoCommit.each(7),
        AutoCommit.at_intervals(3600),
    ],
)
async def test_a_member_gets_every_message_once_in_every_mode(tmp_path: Path, mode: AutoCommit) -> None:
    async with connected(tmp_path, partitions=2) as (_, client):
        for partition_id in range(2):
            await fill(client, 50, partition_id, start=50 * partition_id)
        async with GroupConsumer(client, "s", "t", "g", batch=20, follow=False, auto_commit=mode) as consumer:
            found = await read(consumer)
            await fill(client, 30, start=100)
            found += await read(consumer)
            found += await read(consumer)
        assert sorted(found) == list(range(130))
        expected = None if mode.is_off else 79
        assert await committed(client, 0, GROUP) == expected


async def test_each_message_goes_to_one_member(tmp_path: Path) -> None:
    async with connected(tmp_path, partitions=6) as (server, client):
        clients = [await server.client() for _ in range(3)]
        members = [GroupConsumer(one, "s", "t", "g", batch=10, idle_s=0.001) for one in clients]
        for member in members:
            await member.join()
        seen: Counter[int] = Counter()
        partitions: list[set[int]] = [set(), set(), set()]
        everything = asyncio.Event()

        async def consume(number: int) -> None:
            async with members[number] as member:
                async for message in member:
                    seen[int(message.payload)] += 1
                    partitions[number].add(message.partition_id)
                    if len(seen) == 600:
                        everything.set()

        tasks = [asyncio.create_task(consume(number)) for number in range(3)]
        for partition_id in range(6):
            await fill(client, 100, partition_id, start=100 * partition_id)
        await everything.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert seen == Counter(range(600))
        assert sorted(len(mine) for mine in partitions) == [2, 2, 2]
        assert set.union(*partitions) == set(range(6))
        for one in clients:
            await one.close()


async def test_joining_and_leaving_members_share_the_remaining_messages(tmp_path: Path) -> None:
    async with connected(tmp_path, partitions=2) as (server, client), await server.client() as another:
        for partition_id in range(2):
            await fill(client, 100, partition_id, start=100 * partition_id)
        async with GroupConsumer(client, "s", "t", "g", batch=10, follow=False) as first:
            found = [int((await anext(first)).payload) for _ in range(40)]
            async with GroupConsumer(another, "s", "t", "g", batch=10, follow=False) as second:
                # The first member processes what it has before its partition moves to the second.
                found += [int((await anext(first)).payload) for _ in range(20)]
                theirs = [await anext(second) for _ in range(30)]
                assert len({message.partition_id for message in theirs}) == 1
                found += [int(message.payload) for message in theirs]
            found += await read(first)
        assert sorted(found) == list(range(200))


async def test_a_member_rejoins_after_its_connection_was_lost(tmp_path: Path) -> None:
    async with connected(tmp_path, partitions=2) as (server, other), await server.client(SOON) as client:
        for partition_id in range(2):
            await fill(other, 100, partition_id, start=100 * partition_id)
        async with GroupConsumer(client, "s", "t", "g", batch=10, follow=False) as consumer:
            found = [int((await anext(consumer)).payload) for _ in range(60)]
            await server.stop()
            await server.start()
            found += await read(consumer)
        assert set(found) == set(range(200))
        assert len(found) <= 210
        await other.reconnect()


async def test_the_group_is_created_only_on_request(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        absent = GroupConsumer(client, "s", "t", "g", create=False)
        assert await refusal(absent.join()) == Code.CONSUMER_GROUP_ID_NOT_FOUND
        assert await refusal(GroupConsumer(client, "s", "t", 7).join()) == Code.CONSUMER_GROUP_ID_NOT_FOUND
        await client.create_consumer_group("s", "t", "g")
        for again in range(2):
            async with GroupConsumer(client, "s", "t", "g", create=bool(again)) as consumer:
                await consumer.join()


async def test_a_deleted_group_or_topic_ends_the_iteration_with_an_error(
    tmp_path: Path,
) -> None:
    async with connected(tmp_path) as (_, client):
        await fill(client, 3)
        consumer = GroupConsumer(client, "s", "t", "g", auto_commit=AutoCommit.off(), batch=1)
        await consumer.join()
        await anext(consumer)
        await client.delete_consumer_group("s", "t", "g")
        with pytest.raises(CommandError) as raised:
            await anext(consumer)
        assert raised.value.code is Code.CONSUMER_GROUP_ID_NOT_FOUND
        await consumer.close()
        await consumer.close()


async def test_a_consumer_with_empty_polls_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, await server.client() as client:
        with pytest.raises(ValueError):
            Consumer(client, "s", "t", "me", batch=0)
        with pytest.raises(ValueError):
            AutoCommit.each(0)
