"""Rates: how much is appended to each partition, topic and stream, measured once a second while somebody subscribes.

They are computed from what the partitions count anyway, so they cost nothing while nobody subscribes. Messages appended
and deleted within the same second are counted; their bytes are estimated. A large catalogue is read over several
iterations of the event loop, and a sample for many subscribers is encoded once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from whippet.app.commands.catalogue_info import held_back
from whippet.storage.offsets import Kind

if TYPE_CHECKING:
    from whippet.app.gateway import Gateway
    from whippet.app.model.catalogue import Stream, Topic
    from whippet.storage.engine import Partition

PERIOD_SECONDS = 1.0
TOGETHER = 500
"""After this many partitions or subscribers, the event loop gets to run something else."""
DECIMALS = 3
"""Few, because clients that read JSON with json-bigint take a number of more than 15 characters for an integer."""
_encode = msgspec.json.Encoder().encode


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
    disk_bytes: int
    """What the topic occupies on the disk."""
    partitions: list[PartitionRates]
    consumer_groups: list[GroupLag]
    held_back: list[str]
    """Who keeps retention from deleting: a sentence for each consumer."""


class StreamRates(msgspec.Struct, frozen=True):
    id: int
    name: str
    messages_per_second: float
    bytes_per_second: float
    messages_count: int
    size_bytes: int
    topics: list[TopicRates]


class DiskState(msgspec.Struct, frozen=True):
    free_bytes: int
    total_bytes: int
    reserve_bytes: int
    """What messages may not use."""
    is_full: bool
    """Whether messages are refused."""


class ArchiveState(msgspec.Struct, frozen=True):
    problem: str | None
    """What is wrong; null if the last round archived everything."""
    is_refused: bool
    """Whether another server has the archive."""
    failures: int
    """Failures since the start."""
    completed_at: int | None
    """When the last round began that archived everything, in us since 1970; null if none did since the start."""
    waiting_messages: int
    """Messages that are not in the archive yet."""


class Sample(msgspec.Struct, frozen=True):
    at: int
    """In us since 1970."""
    seconds: float
    """The time over which the rates are measured."""
    streams: list[StreamRates]
    disk: DiskState | None = None
    """The disk of the data folder; null if its space is not checked."""
    archive: ArchiveState | None = None
    """Null if there is no archive."""


class Measurement:
    """A sample, and the parts of it that were requested, each encoded once for all subscribers."""

    __slots__ = ("_encoded", "sample")

    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        self._encoded: dict[tuple[int | None, int | None], bytes] = {}

    def encoded(self, stream_id: int | None = None, topic_id: int | None = None) -> bytes:
        """Returns as JSON the whole sample, or one stream or topic of it."""
        key = stream_id, topic_id
        found = self._encoded.get(key)
        if found is None:
            found = self._encoded[key] = self._encode(stream_id, topic_id)
        return found

    def _encode(self, stream_id: int | None, topic_id: int | None) -> bytes:
        sample = self.sample
        if stream_id is None:
            return _encode(sample)
        stream = next((each for each in sample.streams if each.id == stream_id), None)
        head = {"at": sample.at, "seconds": sample.seconds}
        if topic_id is None:
            return _encode({**head, "stream": stream})
        topics = [] if stream is None else stream.topics
        return _encode({**head, "topic": next((each for each in topics if each.id == topic_id), None)})


class _Count(NamedTuple):
    appended: int
    bytes: int
    first: int
    emptied: int


class Rates:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._waiting: list[asyncio.Future[Measurement]] = []
        self._measuring: asyncio.Task[None] | None = None

    async def next(self) -> Measurement:
        """Returns the measurement of the current second."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Measurement] = loop.create_future()
        self._waiting.append(future)
        if self._measuring is None or self._measuring.done():
            self._measuring = loop.create_task(self._measure(), name="rates")
        return await future

    async def _measure(self) -> None:
        """Measures as long as somebody waits at the end of a period."""
        loop = asyncio.get_running_loop()
        before, began = await self._counts(), loop.time()
        idle = 0
        # Somebody may have begun to wait while the last counts were taken.
        while idle < 2 or self._waiting:
            await asyncio.sleep(PERIOD_SECONDS - (loop.time() - began) % PERIOD_SECONDS)
            waiting, self._waiting = [each for each in self._waiting if not each.done()], []
            now, ended = await self._counts(), loop.time()
            if waiting:
                measurement = Measurement(await self._sample(before, now, max(ended - began, 1e-6)))
                for number, future in enumerate(waiting, 1):
                    if not future.done():
                        future.set_result(measurement)
                    await _yield_now_and_then(number)
            # A subscriber asks for the next measurement soon, which should again cover a whole second.
            idle = 0 if waiting else idle + 1
            before, began = now, ended

    async def _counts(self) -> dict[Partition, _Count]:
        found: dict[Partition, _Count] = {}
        for stream in self._gateway.streams:
            for topic in stream.topics:
                for one in topic.served:
                    found[one] = _Count(one.readable, one.size_bytes, one.first_offset, one.emptied)
                    await _yield_now_and_then(len(found))
        return found

    async def _sample(self, before: dict[Partition, _Count], now: dict[Partition, _Count], seconds: float) -> Sample:
        streams = [await self._stream(stream, before, now, seconds) for stream in self._gateway.streams]
        gateway = self._gateway
        return Sample(gateway.clock(), round(seconds, 6), streams, _disk(gateway), await _archive(gateway))

    async def _stream(
        self, stream: Stream, before: dict[Partition, _Count], now: dict[Partition, _Count], seconds: float
    ) -> StreamRates:
        topics = [await self._topic(topic, before, now, seconds) for topic in stream.topics]
        return StreamRates(
            stream.id,
            stream.name,
            _total(each.messages_per_second for each in topics),
            _total(each.bytes_per_second for each in topics),
            sum(each.messages_count for each in topics),
            sum(each.size_bytes for each in topics),
            topics,
        )

    async def _topic(
        self, topic: Topic, before: dict[Partition, _Count], now: dict[Partition, _Count], seconds: float
    ) -> TopicRates:
        partitions: list[PartitionRates] = []
        lags: Counter[int] = Counter()
        unread = 0
        for number, one in enumerate(topic.served, 1):
            if one in now:
                partitions.append(_partition(one, before.get(one), now[one], seconds))
            # Most groups have stored nothing in most partitions: only stored offsets are read.
            unread += one.readable - one.first_offset
            for group_id in one.readers(Kind.GROUP) if topic.groups else ():
                lags[group_id] -= _read_by(one, group_id)
            await _yield_now_and_then(number)
        groups = [GroupLag(group.id, group.name, len(group.members), unread + lags[group.id]) for group in topic.groups]
        return TopicRates(
            topic.id,
            topic.name,
            _total(each.messages_per_second for each in partitions),
            _total(each.bytes_per_second for each in partitions),
            sum(each.messages_count for each in partitions),
            sum(each.size_bytes for each in partitions),
            topic.disk_bytes,
            partitions,
            groups,
            _held_back(topic),
        )


def _disk(gateway: Gateway) -> DiskState | None:
    disk = gateway.store.disk
    space = None if disk is None else disk.space
    return None if disk is None or space is None else DiskState(space.free, space.total, disk.reserve, disk.is_full)


async def _archive(gateway: Gateway) -> ArchiveState | None:
    archiver = gateway.archiver
    if archiver is None:
        return None
    waiting = 0
    for number, partition in enumerate(list(archiver.partitions), 1):
        waiting += archiver.waiting_in(partition)
        await _yield_now_and_then(number)
    return ArchiveState(
        problem=archiver.summary(),
        is_refused=archiver.refused,
        failures=archiver.failures,
        completed_at=archiver.completed_at,
        waiting_messages=waiting,
    )


def _held_back(topic: Topic) -> list[str]:
    octets: Counter[tuple[str, str]] = Counter()
    for partition in topic.served:
        held = held_back(topic, partition)
        if held is not None:
            octets[held.consumer_kind, held.consumer] += held.bytes
    return [f"{kind} {name} has not read {size} bytes that have expired" for (kind, name), size in octets.items()]


def _partition(partition: Partition, before: _Count | None, now: _Count, seconds: float) -> PartitionRates:
    if before is None or before.emptied != now.emptied:
        # New, or purged: everything in it was appended meanwhile.
        before = _Count(now.first, 0, now.first, now.emptied)
    messages = max(now.appended - before.appended, 0)
    octets = now.bytes - before.bytes
    if now.first != before.first or octets < 0:
        present = now.appended - now.first
        octets = messages * now.bytes // present if present else 0
    return PartitionRates(
        partition.place.partition,
        round(messages / seconds, DECIMALS),
        round(octets / seconds, DECIMALS),
        now.appended,
        partition.messages_count,
        now.bytes,
    )


def _total(rates: Iterable[float]) -> float:
    """Returns the sum with the decimals of the summands, and not with 17 digits."""
    return round(sum(rates), DECIMALS)


def _read_by(partition: Partition, group_id: int) -> int:
    """Messages in the partition that the group has committed."""
    stored = partition.offset_of(Kind.GROUP, group_id)
    first = partition.first_offset
    return 0 if stored is None else min(max(stored + 1, first), partition.readable) - first


async def _yield_now_and_then(done: int) -> None:
    if done % TOGETHER == 0:
        await asyncio.sleep(0)
