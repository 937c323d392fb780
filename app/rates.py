"""Rates: how much is appended to each partition, topic and stream, measured once a second while somebody wants to know.

Everything is computed from what the partitions know anyway, so that nothing is counted for it while nobody asks. What
was appended and deleted again within the second is counted by its number; its bytes are estimated.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from whippet.storage.offsets import Kind

if TYPE_CHECKING:
    from whippet.app.gateway import Gateway
    from whippet.app.model.catalogue import Stream, Topic
    from whippet.storage.partition import Partition

PERIOD_SECONDS = 1.0


class PartitionRates(msgspec.Struct, frozen=True):
    id: int
    messages_per_second: float
    bytes_per_second: float
    next_offset: int
    messages_count: int
    size_bytes: int


class GroupLag(msgspec.Struct, frozen=True):
    id: int
    name: str
    members_count: int
    lag: int
    """Messages that the group has not committed, over all partitions."""


class TopicRates(msgspec.Struct, frozen=True):
    id: int
    name: str
    messages_per_second: float
    bytes_per_second: float
    messages_count: int
    size_bytes: int
    partitions: list[PartitionRates]
    consumer_groups: list[GroupLag]


class StreamRates(msgspec.Struct, frozen=True):
    id: int
    name: str
    messages_per_second: float
    bytes_per_second: float
    messages_count: int
    size_bytes: int
    topics: list[TopicRates]


class Sample(msgspec.Struct, frozen=True):
    at: int
    """In us since 1970."""
    seconds: float
    """That the rates are measured over."""
    streams: list[StreamRates]


class _Count(NamedTuple):
    appended: int
    bytes: int
    first: int
    emptied: int


class Rates:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._waiting: list[asyncio.Future[Sample]] = []
        self._measuring: asyncio.Task[None] | None = None

    async def next(self) -> Sample:
        """That of the second that is going on."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Sample] = loop.create_future()
        self._waiting.append(future)
        if self._measuring is None or self._measuring.done():
            self._measuring = loop.create_task(self._measure(), name="rates")
        return await future

    async def _measure(self) -> None:
        """As long as somebody waits at the end of a period."""
        loop = asyncio.get_running_loop()
        before, began = self._counts(), loop.time()
        idle = 0
        while idle < 2:
            await asyncio.sleep(PERIOD_SECONDS - (loop.time() - began) % PERIOD_SECONDS)
            waiting, self._waiting = [each for each in self._waiting if not each.done()], []
            now, ended = self._counts(), loop.time()
            if waiting:
                sample = self._sample(before, now, max(ended - began, 1e-6))
                for future in waiting:
                    future.set_result(sample)
            # Who has got one asks for the next soon, and it should be that of a whole second again.
            idle = 0 if waiting else idle + 1
            before, began = now, ended

    def _counts(self) -> dict[Partition, _Count]:
        return {
            partition: _Count(partition.readable, partition.message_bytes, partition.first_offset, partition.emptied)
            for stream in self._gateway.streams
            for topic in stream.topics
            for partition in topic.served
        }

    def _sample(self, before: dict[Partition, _Count], now: dict[Partition, _Count], seconds: float) -> Sample:
        streams = [self._stream(stream, before, now, seconds) for stream in self._gateway.streams]
        return Sample(self._gateway.clock(), seconds, streams)

    def _stream(
        self, stream: Stream, before: dict[Partition, _Count], now: dict[Partition, _Count], seconds: float
    ) -> StreamRates:
        topics = [self._topic(topic, before, now, seconds) for topic in stream.topics]
        return StreamRates(
            stream.id,
            stream.name,
            sum(each.messages_per_second for each in topics),
            sum(each.bytes_per_second for each in topics),
            sum(each.messages_count for each in topics),
            sum(each.size_bytes for each in topics),
            topics,
        )

    def _topic(
        self, topic: Topic, before: dict[Partition, _Count], now: dict[Partition, _Count], seconds: float
    ) -> TopicRates:
        partitions = [
            _partition(partition, before.get(partition), now[partition], seconds)
            for partition in topic.served
            if partition in now
        ]
        groups = [
            GroupLag(group.id, group.name, len(group.members), _lag(topic.served, group.id)) for group in topic.groups
        ]
        return TopicRates(
            topic.id,
            topic.name,
            sum(each.messages_per_second for each in partitions),
            sum(each.bytes_per_second for each in partitions),
            sum(each.messages_count for each in partitions),
            sum(each.size_bytes for each in partitions),
            partitions,
            groups,
        )


def _partition(partition: Partition, before: _Count | None, now: _Count, seconds: float) -> PartitionRates:
    if before is None or before.emptied != now.emptied:
        # New, or begun anew: all that is there has come meanwhile.
        before = _Count(now.first, 0, now.first, now.emptied)
    messages = max(now.appended - before.appended, 0)
    octets = now.bytes - before.bytes
    if now.first != before.first or octets < 0:
        there = now.appended - now.first
        octets = messages * now.bytes // there if there else 0
    return PartitionRates(
        partition.place.partition,
        round(messages / seconds, 3),
        round(octets / seconds, 3),
        now.appended,
        partition.messages_count,
        now.bytes,
    )


def _lag(partitions: list[Partition], group_id: int) -> int:
    lag = 0
    for partition in partitions:
        stored = partition.offset_of(Kind.GROUP, group_id)
        at = partition.first_offset if stored is None else max(stored + 1, partition.first_offset)
        lag += max(partition.readable - at, 0)
    return lag
