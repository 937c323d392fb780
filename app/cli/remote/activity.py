"""Reads for `whippet top` what a server is doing: twice, a moment apart, which gives the rates.

Everything comes from commands of the protocol. It has no counter of messages that were read, so the rate out is that at
which groups store offsets. What the user has no right to ask for is left out. The shards are in the metrics that the
server has over HTTP.
"""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import msgspec

from whippet.app.cli.remote.failures import UsageFailure
from whippet.app.cli.remote.output import Count, Duration, Row, Size, Time
from whippet.app.cli.remote.rows import TRANSPORTS

if TYPE_CHECKING:
    from whippet.app.client import Client

TOPICS_MAX = 200
"""Topics whose partitions and groups are asked for; of more, those with the most messages."""
OFFSETS_MAX = 2000
METRICS_S = 2
METRICS_BYTES_MAX = 16 << 20

Rate = Annotated[float, msgspec.Meta(ge=0, description="a number per second")]

Answer = TypeVar("Answer")


class TopicActivity(Row, frozen=True):
    topic: str
    partitions_count: Count
    messages_count: Count
    size_bytes: Size
    in_per_second: Rate
    in_size: Size
    """Bytes per second."""
    out_per_second: Rate
    lag: Count | None
    """The sum over all groups; None if the topic has none."""
    identity: ClassVar[str] = "topic"


class GroupActivity(Row, frozen=True):
    topic: str
    group: str
    members_count: Count
    lag: Count
    out_per_second: Rate
    identity: ClassVar[str] = "group"


class ShardActivity(Row, frozen=True):
    identity: ClassVar[str] = "shard"
    shard: str
    waiting: Count
    """Work items for its thread."""
    writes_per_second: Rate
    syncs_per_second: Rate


class Activity(Row, frozen=True):
    identity: ClassVar[str] = ""
    time: Time
    server: str
    version: str | None
    run_time: Duration | None
    cpu_percent: float | None
    memory: Size | None
    free_disk: Size | None
    connections: dict[str, int] | None
    """The number of connections over each transport."""
    in_per_second: Rate
    in_size: Size
    out_per_second: Rate
    lag: Count
    topics_count: Count
    """How many there are; `topics` has those with the most messages."""
    topics: list[TopicActivity]
    groups: list[GroupActivity]
    shards: list[ShardActivity]


class Group(msgspec.Struct, frozen=True):
    members: int
    stored: dict[int, int]
    """The stored offset of each partition that has one."""


class Topic(msgspec.Struct, frozen=True):
    partitions: int
    messages: int
    size: int
    next_offsets: dict[int, int]
    held: dict[int, int]
    """The number of messages in each partition."""
    groups: dict[str, Group]


class Reading(msgspec.Struct, frozen=True):
    """What the server has told at one time."""

    at: float
    """The time of the monotonic clock."""
    time_us: int
    stats: Any
    connections: dict[str, int] | None
    topics: dict[str, Topic]
    topics_count: int
    shards: dict[str, dict[str, float]]


async def read(client: Client, metrics: str | None = None) -> Reading:
    stats, clients, streams = await asyncio.gather(
        _allowed(client.get_stats()), _allowed(client.get_clients()), client.get_streams()
    )
    lists = await asyncio.gather(*(_allowed(client.get_topics(each.id)) for each in streams))
    every = [(stream, topic) for stream, topics in zip(streams, lists, strict=True) for topic in topics or ()]
    chosen = sorted(every, key=lambda pair: -pair[1].messages_count)[:TOPICS_MAX]
    left = OFFSETS_MAX
    reading = []
    for stream, topic in chosen:
        reading.append(_topic(client, stream.id, topic.id, left))
        left = max(0, left - topic.partitions_count)
    details = await asyncio.gather(*reading)
    topics = {
        f"{stream.name}/{topic.name}": found
        for (stream, topic), found in zip(chosen, details, strict=True)
        if found is not None
    }
    connections: dict[str, int] | None = None
    if clients is not None:
        connections = {}
        for each in clients:
            name = TRANSPORTS.get(each.transport, str(each.transport))
            connections[name] = connections.get(name, 0) + 1
    shards = await asyncio.to_thread(_shards, metrics) if metrics else {}
    return Reading(time.monotonic(), time.time_ns() // 1000, stats, connections, topics, len(every), shards)


async def _topic(client: Client, stream: int, topic: int, offsets_left: int) -> Topic | None:
    """Returns None for a topic that is gone, or that the user may not see."""
    found, groups = await asyncio.gather(
        _allowed(client.get_topic(stream, topic)), _allowed(client.get_consumer_groups(stream, topic))
    )
    if found is None:
        return None
    ids = [partition.id for partition in found.partitions]
    known = {}
    for group in groups or ():
        offsets_left -= len(ids)
        if offsets_left >= 0:
            known[group.name] = await _group(client, stream, topic, group, ids)
    ends = {each.id: end_of(each) for each in found.partitions}
    held = {each.id: each.messages_count for each in found.partitions}
    return Topic(len(ids), found.info.messages_count, found.info.size_bytes, ends, held, known)


async def _group(client: Client, stream: int, topic: int, group: Any, partitions: Iterable[int]) -> Group:
    from whippet.app.commands.requests import Consumer, ConsumerKind  # noqa: PLC0415 -- not for --help

    consumer = Consumer(ConsumerKind.GROUP, group.id)
    stored = await asyncio.gather(
        *(_allowed(client.get_consumer_offset(stream, topic, consumer, each)) for each in partitions)
    )
    offsets = {each: found.stored_offset for each, found in zip(partitions, stored, strict=True) if found is not None}
    return Group(group.members_count, offsets)


def end_of(partition: Any) -> int:
    """Returns the offset after the last message. The protocol shows 0 for none, and for one."""
    is_empty = not partition.current_offset and not partition.messages_count
    return 0 if is_empty else partition.current_offset + 1


async def _allowed(answer: Awaitable[Answer]) -> Answer | None:
    """Returns None if the user has no right to it, or if it is gone meanwhile."""
    from whippet.app.client import Disconnected  # noqa: PLC0415 -- not for --help
    from whippet.app.errors import TABLE, CommandError  # noqa: PLC0415

    try:
        return await answer
    except CommandError as error:
        if isinstance(error, Disconnected) or TABLE[error.code].status not in (403, 404):
            raise
        return None


# ---------------------------------------------------------------------------------------------------------- metrics


def _shards(url: str) -> dict[str, dict[str, float]]:
    """Returns the figures of each shard. Blocks."""
    try:
        with urllib.request.urlopen(url, timeout=METRICS_S) as answer:
            text = answer.read(METRICS_BYTES_MAX).decode()
    except (OSError, ValueError) as error:
        raise UsageFailure(f"--metrics {url}: {getattr(error, 'reason', None) or error}") from None
    found: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        name, brace, rest = line.partition('{shard="')
        if brace and name.startswith("whippet_shard_"):
            shard, _, value = rest.partition('"} ')
            figure = name.removeprefix("whippet_shard_").removesuffix("_total")
            found.setdefault(shard, {})[figure] = float(value)
    return found


# ------------------------------------------------------------------------------------------------------------ rates


def between(before: Reading, after: Reading, server: str) -> Activity:
    """Returns the rates of the time between two readings."""
    seconds = max(after.at - before.at, 1e-6)
    topics, groups = [], []
    for name, topic in after.topics.items():
        old = before.topics.get(name)
        own = [
            GroupActivity(
                name, group, each.members, _lag(topic, each), _advance(_stored(old, group), each.stored, seconds)
            )
            for group, each in topic.groups.items()
        ]
        groups += own
        topics.append(
            TopicActivity(
                name,
                topic.partitions,
                topic.messages,
                topic.size,
                _advance(old.next_offsets if old else None, topic.next_offsets, seconds),
                max(0, int((topic.size - old.size) / seconds)) if old else 0,
                round(sum(each.out_per_second for each in own), 1),
                sum(each.lag for each in own) if own else None,
            )
        )
    stats = after.stats
    return Activity(
        after.time_us,
        server,
        stats and stats.server_version,
        stats and stats.run_time,
        stats and round(stats.cpu_usage, 1),
        stats and stats.memory_usage,
        stats and stats.free_disk_space,
        after.connections,
        round(sum(each.in_per_second for each in topics), 1),
        sum(each.in_size for each in topics),
        round(sum(each.out_per_second for each in topics), 1),
        sum(each.lag for each in groups),
        after.topics_count,
        sorted(topics, key=lambda each: (-each.in_per_second, each.topic)),
        sorted(groups, key=lambda each: (-each.lag, each.topic, each.group)),
        [_shard(name, before.shards.get(name), figures, seconds) for name, figures in sorted(after.shards.items())],
    )


def _stored(topic: Topic | None, group: str) -> dict[int, int] | None:
    known = topic.groups.get(group) if topic else None
    return known.stored if known else None


def _advance(before: dict[int, int] | None, after: dict[int, int], seconds: float) -> float:
    """Returns how far offsets have moved per second. What is new, or began again after a purge, has not moved."""
    if not before:
        return 0.0
    moved = sum(max(0, offset - before.get(each, offset)) for each, offset in after.items())
    return round(moved / seconds, 1)


def _lag(topic: Topic, group: Group) -> int:
    """A partition without a stored offset is read from its beginning."""
    lag = 0
    for partition, end in topic.next_offsets.items():
        stored = group.stored.get(partition)
        lag += topic.held[partition] if stored is None else max(0, end - stored - 1)
    return lag


def _shard(name: str, before: dict[str, float] | None, after: dict[str, float], seconds: float) -> ShardActivity:
    def rate(figure: str) -> float:
        now = after.get(figure, 0.0)
        return round(max(0.0, now - (before or {}).get(figure, now)) / seconds, 1)

    return ShardActivity(name, int(after.get("queue_length", 0)), rate("writes"), rate("syncs"))
