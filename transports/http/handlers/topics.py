"""Topics, and the partitions and segments in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from whippet.app.commands import requests, responses
from whippet.app.commands.topics import PARTITIONS_MAX
from whippet.app.errors import Code, CommandError
from whippet.app.model.options import Option
from whippet.transports.http.forms import field_types
from whippet.transports.http.forms.field_types import (
    U8,
    U32,
    U64,
    Algorithm,
    ChangedTopicOptions,
    Expiry,
    Name,
    NumberText,
    TopicOptions,
    check_u64,
    parse_expiry,
    parse_number,
)
from whippet.transports.http.forms.parameters import NAME_BYTES
from whippet.transports.http.forms.partition_context import NO_OWNER, Context
from whippet.transports.http.handlers import options
from whippet.transports.http.handlers.options import OptionText, OptionValue
from whippet.transports.http.operation import Call

ALGORITHMS = {"none": 1, "gzip": 2, "zstd": 3}
SHOWN_ALGORITHMS = {1: "none", 2: "gzip"}


def _between(low: int, high: int) -> Meta:
    """Describes limits that the command checks, with an error of its own."""
    return Meta(extra_json_schema={"allOf": [{"minimum": low, "maximum": high}]})


class HeldBack(msgspec.Struct, frozen=True):
    consumer_kind: Literal["consumer", "group"]
    consumer: str
    offset: int
    segments: int
    bytes: int


class Partition(msgspec.Struct, frozen=True):
    id: int
    created_at: int
    segments_count: int
    current_offset: int
    size: str
    messages_count: int
    first_offset: int
    next_offset: int
    context: Context
    """For clients since 0.12."""
    epoch: int
    """A number that changes whenever offsets start over: a purge and a new topic have another one."""
    disk_bytes: int
    """What the partition occupies on the disk; `size` is that of its messages."""
    held_back: HeldBack | None
    """What retention would have deleted if this consumer had read it, as of its last round."""


class Topic(msgspec.Struct, frozen=True):
    id: int
    created_at: int
    name: str
    size: str
    message_expiry: int
    compression_algorithm: str
    max_topic_size: int
    replication_factor: int
    """For clients before 0.9, which require it."""
    messages_count: int
    partitions_count: int
    options: dict[str, OptionValue]
    """For clients since 0.9."""
    disk_bytes: int
    """What the topic occupies on the disk, compressed if it is; `size` is that of its messages as clients get them."""


class TopicDetails(Topic, frozen=True):
    partitions: list[Partition]


class NewTopic(msgspec.Struct, frozen=True, kw_only=True):
    """The expiry is in us or a text such as `7 days`, the size in bytes; 0 is the server's default, 2**64 - 1 means
    never and unlimited."""

    name: Name
    partitions_count: Annotated[U32, _between(0, PARTITIONS_MAX)]
    compression_algorithm: Algorithm | None = None
    message_expiry: Expiry | None = 0
    max_topic_size: U64 | None = 0
    replication_factor: Annotated[U8, _between(1, 255)] | None = None
    options: TopicOptions | None = None

    def __post_init__(self) -> None:
        parse_expiry(self.message_expiry, "message_expiry")
        check_u64(self.max_topic_size)
        _check_algorithm(self.compression_algorithm)


class ChangedTopic(msgspec.Struct, frozen=True, kw_only=True):
    """What is absent, null or 0 stays unchanged. Clients since 0.12 send only what changes, and list in `reset` the
    options that return to the server's default."""

    name: Name | None = None
    reset: Annotated[
        list[Literal["message_expiry", "max_topic_size"]], Meta(extra_json_schema={"uniqueItems": True})
    ] = []
    compression_algorithm: Algorithm | None = None
    message_expiry: Expiry | None = None
    max_topic_size: U64 | NumberText | None = None
    replication_factor: Annotated[U8, _between(1, 255)] | None = None
    options: ChangedTopicOptions | None = None

    def __post_init__(self) -> None:
        parse_expiry(self.message_expiry, "message_expiry")
        check_u64(parse_number(self.max_topic_size))
        _check_algorithm(self.compression_algorithm)


class NewPartitions(msgspec.Struct, frozen=True):
    partitions_count: Annotated[U32, _between(1, PARTITIONS_MAX)]


class PartitionsCount(msgspec.Struct, frozen=True):
    partitions_count: Annotated[U32, _between(1, PARTITIONS_MAX)]


class SegmentsCount(msgspec.Struct, frozen=True):
    segments_count: U32


async def get_topics(call: Call) -> list[Topic]:
    return topics(await call.execute(requests.GetTopics(call.stream)) or ())


async def get_topic(call: Call) -> TopicDetails | None:
    found = await call.execute(requests.GetTopic(call.stream, call.topic))
    return None if found is None else _details(found)


async def create_topic(call: Call) -> TopicDetails:
    body: NewTopic = call.body
    _check_name(body.name)
    _check_factor(body.replication_factor)
    created = await call.execute(
        requests.CreateTopic(
            stream=call.stream,
            name=body.name,
            partitions_count=body.partitions_count,
            compression_algorithm=_algorithm(body.compression_algorithm) or ALGORITHMS["none"],
            message_expiry=parse_expiry(body.message_expiry, "message_expiry") or 0,
            max_topic_size=body.max_topic_size or 0,
            replication_factor=body.replication_factor or 0,
            options=options.of_texts(body.options),
        )
    )
    return _details(created)


async def update_topic(call: Call) -> None:
    body: ChangedTopic = call.body
    if body.name is not None:
        _check_name(body.name)
    _check_factor(body.replication_factor)
    if body.name is None or body.reset:
        await call.execute(requests.PatchTopic(call.stream, call.topic, _patched(body), tuple(body.reset)))
        return
    await call.execute(
        requests.UpdateTopic(
            stream=call.stream,
            topic=call.topic,
            name=body.name,
            compression_algorithm=_algorithm(body.compression_algorithm),
            message_expiry=parse_expiry(body.message_expiry, "message_expiry") or None,
            max_topic_size=parse_number(body.max_topic_size) or None,
            replication_factor=body.replication_factor,
            options=options.of_texts(body.options),
        )
    )


async def delete_topic(call: Call) -> None:
    await call.execute(requests.DeleteTopic(call.stream, call.topic))


async def purge_topic(call: Call) -> None:
    await call.execute(requests.PurgeTopic(call.stream, call.topic))


async def create_partitions(call: Call) -> None:
    body: NewPartitions = call.body
    await call.execute(requests.CreatePartitions(call.stream, call.topic, body.partitions_count))


async def delete_partitions(call: Call) -> None:
    query: PartitionsCount = call.query
    await call.execute(requests.DeletePartitions(call.stream, call.topic, query.partitions_count))


async def delete_segments(call: Call) -> None:
    query: SegmentsCount = call.query
    await call.execute(
        requests.DeleteSegments(call.stream, call.topic, call.parameters["partition"], query.segments_count)
    )


# ---------------------------------------------------------------------------------------------------- conversions


def _patched(body: ChangedTopic) -> tuple[Option, ...]:
    """Returns what changes, as options."""
    named = {
        "name": body.name,
        "compression_algorithm": body.compression_algorithm,
        "message_expiry": parse_expiry(body.message_expiry, "message_expiry") or None,
        "max_topic_size": parse_number(body.max_topic_size) or None,
    }
    texts: dict[str, OptionText] = {key: value for key, value in named.items() if value is not None}
    return options.of_texts(texts | (body.options or {}))


def topics(found: Sequence[responses.TopicInfo]) -> list[Topic]:
    return [Topic(*_members(info)) for info in found]


def _details(found: responses.TopicDetails) -> TopicDetails:
    return TopicDetails(*_members(found.info), partitions=[_partition(each) for each in found.partitions])


Members = tuple[int, int, str, str, int, str, int, int, int, int, dict[str, OptionValue], int]


def _members(info: responses.TopicInfo) -> Members:
    return (
        info.id,
        info.created_at,
        info.name,
        field_types.size_text(info.size_bytes),
        info.message_expiry,
        # HTTP clients of Iggy know these two, and another one would make the response unreadable: it is in the options.
        SHOWN_ALGORITHMS.get(info.compression_algorithm, "gzip"),
        info.max_topic_size,
        info.replication_factor,
        info.messages_count,
        info.partitions_count,
        options.texts_of(info.explicit, info.derived),
        info.disk_bytes,
    )


def _partition(info: responses.PartitionInfo) -> Partition:
    return Partition(
        info.id,
        info.created_at,
        info.segments_count,
        info.current_offset,
        field_types.size_text(info.size_bytes),
        info.messages_count,
        info.first_offset,
        info.next_offset,
        Context(info.incarnation, NO_OWNER, info.incarnation),
        info.epoch,
        info.disk_bytes,
        None if info.held_back is None else msgspec.convert(info.held_back, HeldBack, from_attributes=True),
    )


def _check_algorithm(name: str | None) -> None:
    if name is not None and name.lower() not in ALGORITHMS:
        raise ValueError(f"unknown compression algorithm {name!r}: none, gzip or zstd")


def _algorithm(name: str | None) -> int | None:
    return None if name is None else ALGORITHMS[name.lower()]


def _check_name(name: str) -> None:
    if len(name.encode()) not in NAME_BYTES:
        raise CommandError(Code.INVALID_TOPIC_NAME)


def _check_factor(factor: int | None) -> None:
    if factor == 0:
        raise CommandError(Code.INVALID_REPLICATION_FACTOR)
