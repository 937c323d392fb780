"""Stream s with topic t and its group g, and connections that read it, all through the table of commands."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from tests.app.access.support.world import Person, World, world
from tests.storage.support.world import split, texts
from whippet.app.commands import requests, responses
from whippet.app.commands.requests import Consumer, ConsumerKind, Partitioning, PartitioningKind, Strategy, StrategyKind
from whippet.app.model.catalogue import Topic
from whippet.app.model.groups import Group
from whippet.storage.batch import messages

GROUP = Consumer(ConsumerKind.GROUP, "g")
NEXT = Strategy(StrategyKind.NEXT)
FIRST = Strategy(StrategyKind.FIRST)


class Reader:
    """A logged-in connection."""

    def __init__(self, person: Person) -> None:
        self.person = person
        self.execute = person.execute
        self.session = person.session

    async def join(self) -> None:
        await self.execute(requests.JoinConsumerGroup("s", "t", "g"))

    async def leave(self) -> None:
        await self.execute(requests.LeaveConsumerGroup("s", "t", "g"))

    async def poll(
        self,
        partition: int | None = None,
        *,
        consumer: Consumer = GROUP,
        strategy: Strategy = NEXT,
        count: int = 100,
        auto_commit: bool = False,
    ) -> responses.Polled:
        polled = await self.execute(requests.PollMessages(consumer, "s", "t", partition, strategy, count, auto_commit))
        assert isinstance(polled, responses.Polled)
        return polled

    async def store(self, offset: int, partition: int | None = None, consumer: Consumer = GROUP) -> None:
        await self.execute(requests.StoreConsumerOffset(consumer, "s", "t", partition, offset))

    async def forget(self, partition: int | None = None, consumer: Consumer = GROUP) -> None:
        await self.execute(requests.DeleteConsumerOffset(consumer, "s", "t", partition))

    async def stored(self, partition: int | None = None, consumer: Consumer = GROUP) -> int | None:
        answer = await self.execute(requests.GetConsumerOffset(consumer, "s", "t", partition))
        assert answer is None or isinstance(answer, responses.ConsumerOffset)
        return None if answer is None else answer.stored_offset


class Reading:
    def __init__(self, made: World, root: Reader) -> None:
        self.world = made
        self.gateway = made.gateway
        self.clock = made.clock
        self.root = root

    @property
    def topic(self) -> Topic:
        stream = self.gateway.streams.find("s")
        topic = None if stream is None else stream.topics.find("t")
        assert topic is not None
        return topic

    @property
    def group(self) -> Group:
        group = self.topic.groups.find("g")
        assert group is not None
        return group

    async def reader(self) -> Reader:
        return Reader(await self.world.root())

    async def readers(self, count: int) -> list[Reader]:
        return [await self.reader() for _ in range(count)]

    async def send(self, partition: int, *payloads: str) -> None:
        where = Partitioning(PartitioningKind.PARTITION_ID, partition)
        await self.root.execute(requests.SendMessages("s", "t", where, (texts(*payloads),)))

    async def fill(self, messages_count: int = 10) -> None:
        """Payloads "<partition>/<offset>" in every partition."""
        for number in range(len(self.topic.partitions)):
            await self.send(number, *(f"{number}/{offset}" for offset in range(messages_count)))

    async def owned(self) -> list[list[int]]:
        """The partitions of every member, as the protocol describes them."""
        details = await self.root.execute(requests.GetConsumerGroup("s", "t", "g"))
        assert details.info.members_count == len(details.members)
        return [list(member.partitions) for member in details.members]


def payloads(polled: responses.Polled) -> list[str]:
    found = [message.payload.decode() for whole in split(polled.batches) for message in messages(whole)]
    assert len(found) == polled.messages_count
    return found


@contextlib.asynccontextmanager
async def reading(path: object, partitions: int = 3, **options: Any) -> AsyncIterator[Reading]:
    """Reuses what exists in the folder. `options` are the store's."""
    async with world(path, **options) as made:
        root = Reader(await made.root())
        if made.gateway.streams.find("s") is None:
            await root.execute(requests.CreateStream("s"))
            await root.execute(requests.CreateTopic("s", "t", partitions))
            await root.execute(requests.CreateConsumerGroup("s", "t", "g"))
        yield Reading(made, root)
