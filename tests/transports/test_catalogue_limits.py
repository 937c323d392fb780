"""The limits of the catalogue: what exceeds one is refused on every transport, and what exists is kept."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.app.access.support.world import Person, World, refusal, world
from tests.storage.support.world import texts
from tests.transports.http.support.calling import calling
from tests.transports.support import modern
from tests.transports.support.raw import make_topic, served
from whippet.app.commands import requests
from whippet.app.commands.requests import Consumer, ConsumerKind, Partitioning, PartitioningKind, Strategy, StrategyKind
from whippet.app.config import Config
from whippet.app.errors import Code, CommandError
from whippet.storage.offsets import Kind
from whippet.storage.partition import Partition

TO_0 = Partitioning(PartitioningKind.PARTITION_ID, 0)
TO_1 = Partitioning(PartitioningKind.PARTITION_ID, 1)


def limited(**limits: int) -> Config:
    config = Config()
    system = msgspec.structs.replace(config.system, limits=msgspec.structs.replace(config.system.limits, **limits))
    return msgspec.structs.replace(config, system=system)


def consumer(name: int | str) -> Consumer:
    return Consumer(ConsumerKind.CONSUMER, name)


async def with_topic(made: World, partitions: int = 1) -> Person:
    root = await made.root()
    if made.gateway.streams.find("s") is None:
        await root.execute(requests.CreateStream("s"))
        await root.execute(requests.CreateTopic("s", "t", partitions))
    return root


async def outcomes(*asked: Any) -> list[Code | None]:
    """Executed at the same time; None: not refused."""
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(each, CommandError) for each in found if isinstance(each, BaseException)), found
    return [each.code if isinstance(each, CommandError) else None for each in found]


def partitions_of(made: World) -> int:
    stream = made.gateway.streams.find("s")
    assert stream is not None
    return sum(len(topic.partitions) for topic in stream.topics)


# ----------------------------------------------------------------------------------------------------------- partitions


@pytest.mark.parametrize("key", ["partitions", "partitions_per_topic"])
async def test_partitions_are_created_up_to_the_limit_even_concurrently(tmp_path: Path, key: str) -> None:
    async with world(tmp_path, settings=limited(**{key: 10})) as made:
        root = await with_topic(made, 4)
        found = await outcomes(*[root.execute(requests.CreatePartitions("s", "t", 2)) for _ in range(5)])
        assert found == [None] * 3 + [Code.TOO_MANY_PARTITIONS] * 2
        assert partitions_of(made) == 10
        with pytest.raises(CommandError, match=rf"system\.limits\.{key} = 10"):
            await root.execute(requests.CreatePartitions("s", "t", 1))
        await root.execute(requests.DeletePartitions("s", "t", 1))
        await root.execute(requests.CreatePartitions("s", "t", 1))
        assert partitions_of(made) == 10


async def test_a_topic_counts_with_all_its_partitions_and_is_refused_beyond_the_limit(tmp_path: Path) -> None:
    async with world(tmp_path, settings=limited(partitions=10, partitions_per_topic=8)) as made:
        root = await with_topic(made, 7)
        assert await refusal(root.execute(requests.CreateTopic("s", "larger", 9))) is Code.TOO_MANY_PARTITIONS
        assert await refusal(root.execute(requests.CreateTopic("s", "other", 4))) is Code.TOO_MANY_PARTITIONS
        await root.execute(requests.CreateTopic("s", "other", 3))
        # Without partitions it does not count.
        await root.execute(requests.CreateTopic("s", "empty", 0))
        await root.execute(requests.DeleteTopic("s", "t"))
        await root.execute(requests.CreateTopic("s", "larger", 7))


async def test_everything_is_served_after_a_start_with_lower_limits(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        root = await with_topic(made, 5)
        await root.execute(requests.CreateConsumerGroup("s", "t", "a"))
        await root.execute(requests.CreateConsumerGroup("s", "t", "b"))
        await root.execute(requests.SendMessages("s", "t", TO_0, (texts("x", "y"),)))
        for number in range(5):
            await root.execute(requests.StoreConsumerOffset(consumer(number), "s", "t", 0, 0))
    few = limited(partitions=2, partitions_per_topic=2, consumer_groups_per_topic=1)
    async with world(tmp_path, settings=few, consumer_offsets_max=2) as made:
        root = await made.root()
        for request, code in (
            (requests.CreatePartitions("s", "t", 1), Code.TOO_MANY_PARTITIONS),
            (requests.CreateConsumerGroup("s", "t", "c"), Code.TOO_MANY_CONSUMER_GROUPS),
            (requests.StoreConsumerOffset(consumer(5), "s", "t", 0, 0), Code.TOO_MANY_CONSUMER_OFFSETS),
        ):
            assert await refusal(root.execute(request)) is code
        await root.execute(
            requests.SendMessages("s", "t", Partitioning(PartitioningKind.PARTITION_ID, 4), (texts("x"),))
        )
        await root.execute(requests.StoreConsumerOffset(consumer(4), "s", "t", 0, 1))
        await root.execute(requests.JoinConsumerGroup("s", "t", "b"))
        for number in range(3):
            await root.execute(requests.DeleteConsumerOffset(consumer(number), "s", "t", 0))
        assert await refusal(root.execute(requests.StoreConsumerOffset(consumer(5), "s", "t", 0, 0))) is not None
        await root.execute(requests.DeleteConsumerOffset(consumer(3), "s", "t", 0))
        await root.execute(requests.StoreConsumerOffset(consumer(5), "s", "t", 0, 0))


# ----------------------------------------------------------------------------------------------------- streams, topics


async def test_streams_and_topics_are_created_up_to_the_limit_even_concurrently(tmp_path: Path) -> None:
    async with world(tmp_path, settings=limited(streams=2, topics_per_stream=2)) as made:
        root = await with_topic(made)
        found = await outcomes(*[root.execute(requests.CreateStream(f"s{number}")) for number in range(3)])
        assert found == [None] + [Code.TOO_MANY_STREAMS] * 2
        found = await outcomes(*[root.execute(requests.CreateTopic("s", f"t{number}", 0)) for number in range(3)])
        assert found == [None] + [Code.TOO_MANY_TOPICS] * 2
        with pytest.raises(CommandError, match=r"system\.limits\.streams = 2"):
            await root.execute(requests.CreateStream("another"))
        with pytest.raises(CommandError, match=r"system\.limits\.topics_per_stream = 2"):
            await root.execute(requests.CreateTopic("s", "another", 1))
        await root.execute(requests.CreateTopic("s0", "t", 1))
        await root.execute(requests.DeleteTopic("s", "t0"))
        await root.execute(requests.CreateTopic("s", "another", 1))
        await root.execute(requests.DeleteStream("s0"))
        await root.execute(requests.CreateStream("another"))


# --------------------------------------------------------------------------------------------------------------- groups


async def test_groups_of_a_topic_are_created_up_to_the_limit_even_concurrently(tmp_path: Path) -> None:
    async with world(tmp_path, settings=limited(consumer_groups_per_topic=3)) as made:
        root = await with_topic(made)
        await root.execute(requests.CreateTopic("s", "other", 1))
        found = await outcomes(*[root.execute(requests.CreateConsumerGroup("s", "t", f"g{i}")) for i in range(5)])
        assert found == [None] * 3 + [Code.TOO_MANY_CONSUMER_GROUPS] * 2
        with pytest.raises(CommandError, match=r"system\.limits\.consumer_groups_per_topic = 3"):
            await root.execute(requests.CreateConsumerGroup("s", "t", "g5"))
        await root.execute(requests.CreateConsumerGroup("s", "other", "g"))
        await root.execute(requests.DeleteConsumerGroup("s", "t", "g0"))
        await root.execute(requests.CreateConsumerGroup("s", "t", "g5"))


# ------------------------------------------------------------------------------------------------------- stored offsets


async def test_a_limited_number_of_consumers_may_store_offsets(tmp_path: Path) -> None:
    async with world(tmp_path, consumer_offsets_max=3) as made:
        root = await with_topic(made, 2)
        for to in (TO_0, TO_1):
            await root.execute(requests.SendMessages("s", "t", to, (texts("x", "y"),)))

        async def store(name: int | str, offset: int = 0, partition: int = 0) -> None:
            await root.execute(requests.StoreConsumerOffset(consumer(name), "s", "t", partition, offset))

        found = await outcomes(*[store(f"consumer {number}") for number in range(6)])
        assert found == [None] * 3 + [Code.TOO_MANY_CONSUMER_OFFSETS] * 3
        with pytest.raises(CommandError, match=r"system\.partition\.consumer_offsets_max = 3"):
            await store("one more")
        await store("consumer 0", 1)
        await store("one more", partition=1)
        # Groups are counted separately.
        await root.execute(requests.CreateConsumerGroup("s", "t", "g"))
        await root.execute(requests.JoinConsumerGroup("s", "t", "g"))
        await root.execute(requests.StoreConsumerOffset(Consumer(ConsumerKind.GROUP, "g"), "s", "t", 0, 0))
        await root.execute(requests.DeleteConsumerOffset(consumer("consumer 1"), "s", "t", 0))
        await store("one more")
        await root.execute(requests.PurgeTopic("s", "t"))
        await root.execute(requests.SendMessages("s", "t", TO_0, (texts("x"),)))
        assert await outcomes(*[store(f"later {number}") for number in range(4)]) == [
            *[None] * 3,
            Code.TOO_MANY_CONSUMER_OFFSETS,
        ]


async def test_a_poll_that_cannot_store_its_offset_is_refused_and_stores_nothing(tmp_path: Path) -> None:
    async with world(tmp_path, consumer_offsets_max=1) as made:
        root = await with_topic(made)
        await root.execute(requests.SendMessages("s", "t", TO_0, (texts("x", "y"),)))

        def poll(name: str, *, auto_commit: bool) -> Any:
            following = Strategy(StrategyKind.NEXT)
            return root.execute(requests.PollMessages(consumer(name), "s", "t", 0, following, 1, auto_commit))

        for _ in range(2):
            assert (await poll("a", auto_commit=True)).messages_count == 1
        assert await refusal(poll("b", auto_commit=True)) is Code.TOO_MANY_CONSUMER_OFFSETS
        assert (await poll("b", auto_commit=False)).messages_count == 1
        partition = made.store.partition(0, 0, 0)
        assert partition is not None
        assert len(partition.readers(Kind.CONSUMER)) == 1


async def test_names_are_forgotten_when_their_stored_offsets_are_deleted(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        root = await with_topic(made, 2)
        for to in (TO_0, TO_1):
            await root.execute(requests.SendMessages("s", "t", to, (texts("x"),)))
        first, second = made.store.partitions_of(0, 0)

        def names(partition: Partition) -> list[str | None]:
            return [partition.reader_name(Kind.CONSUMER, known) for known in partition.readers(Kind.CONSUMER)]

        async def store(name: str, partition: int) -> None:
            await root.execute(requests.StoreConsumerOffset(consumer(name), "s", "t", partition, 0))

        for number in range(1000):
            await store(f"consumer {number}", 0)
            await root.execute(requests.DeleteConsumerOffset(consumer(f"consumer {number}"), "s", "t", 0))
        assert names(first) == []
        for number in range(10):
            await store("the same", 0)
            await store(f"consumer {number}", 1)
        assert (names(first), len(set(names(second)))) == (["the same"], 10)
        await root.execute(requests.PurgeTopic("s", "t"))
        assert names(first) == names(second) == []


# ------------------------------------------------------------------------------------------------- on every transport


async def test_the_limits_have_error_numbers_on_the_binary_protocols(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"partitions_per_topic": 2, "consumer_groups_per_topic": 1}
    async with served(tmp_path, store={"consumer_offsets_max": 1}, **limits) as made:
        classic = await made.root()
        await make_topic(classic, 2)
        new = await modern.root(made)
        assert not await new.refused(requests.SendMessages(0, 0, TO_0, (texts("x"),)))
        assert (await classic.ask(requests.CreateConsumerGroup(0, 0, "g")))[0] == 0
        assert (await classic.ask(requests.StoreConsumerOffset(consumer(1), 0, 0, 0, 0)))[0] == 0
        for request, number in (
            (requests.CreatePartitions(0, 0, 1), 2015),
            (requests.CreateTopic(0, "u", 3), 2015),
            (requests.StoreConsumerOffset(consumer(2), 0, 0, 0, 0), 3024),
            # Iggy has no number for this one.
            (requests.CreateConsumerGroup(0, 0, "h"), 2),
        ):
            assert (await classic.ask(request))[0] == number, request
            assert await new.refused(request) == number, request


async def test_the_limits_are_named_over_http(tmp_path: Path) -> None:
    few = limited(partitions_per_topic=2, partitions=3, consumer_groups_per_topic=1)
    async with calling(tmp_path, settings=few, consumer_offsets_max=1) as made:
        root = await with_topic(made.world, 2)
        await root.execute(requests.SendMessages("s", "t", TO_0, (texts("x"),)))
        await root.execute(requests.CreateConsumerGroup("s", "t", "g"))
        await root.execute(requests.StoreConsumerOffset(consumer(1), "s", "t", 0, 0))
        for method, path, body, code, key in (
            ("POST", "/partitions", {"partitions_count": 1}, 2015, "system.limits.partitions_per_topic = 2"),
            ("POST", "/consumer-groups", {"name": "h"}, 20012, "system.limits.consumer_groups_per_topic = 1"),
            (
                "PUT",
                "/consumer-offsets",
                {"consumer_id": 2, "partition_id": 0, "offset": 0},
                3024,
                "system.partition.consumer_offsets_max = 1",
            ),
        ):
            answer = await made.root.ask(method, f"/streams/s/topics/t{path}", body)
            assert (answer.status_code, answer.json()["id"]) == (400, code)
            assert key in answer.json()["reason"]
        limits = {each["key"]: each["value"] for each in await made.root.get("/limits")}
        assert limits["system.limits.partitions"] == 3
        assert limits["system.limits.partitions_per_topic"] == 2
        assert limits["system.limits.consumer_groups_per_topic"] == 1
        assert limits["system.partition.consumer_offsets_max"] == 4096
