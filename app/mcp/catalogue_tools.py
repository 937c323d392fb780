"""Tools for streams, topics, partitions, segments and consumer groups."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from whippet.app.cli.remote import rows, topic_updates
from whippet.app.cli.remote.output import Done
from whippet.app.commands import requests
from whippet.app.mcp.bounds import Listing, skipping
from whippet.app.mcp.parameters import (
    INVALID,
    U32_MAX,
    Expiry,
    Listed,
    ListedOfStream,
    ListedOfTopic,
    Name,
    OfGroup,
    OfStream,
    OfTopic,
    Parameters,
    PartitionId,
    Size,
    Skip,
    expiry,
    identifier,
    size,
)
from whippet.app.mcp.work import Refused, Work

Compression = Literal["none", "gzip"]
COMPRESSIONS = {"none": 1, "gzip": 2}
PARTITIONS_MAX = 1000
Count = Annotated[int, msgspec.Meta(ge=1, le=PARTITIONS_MAX)]
Replication = Annotated[int, msgspec.Meta(ge=0, le=255, description="kept for Iggy; there is one node")]


class NewStream(Parameters, frozen=True):
    name: Name


class RenamedStream(OfStream, frozen=True):
    name: Name


class NewTopic(OfStream, frozen=True):
    name: Name
    partitions_count: Annotated[int, msgspec.Meta(ge=0, le=PARTITIONS_MAX)]
    compression_algorithm: Compression = "none"
    replication_factor: Replication = 1
    message_expiry: Expiry | None = None
    max_size: Size | None = None


class ChangedTopic(OfTopic, frozen=True):
    name: Name
    compression_algorithm: Compression | None = None
    replication_factor: Replication = 1
    message_expiry: Expiry | None = None
    max_size: Size | None = None


class Partitions(OfTopic, frozen=True):
    partitions_count: Count


class Segments(OfTopic, frozen=True):
    partition_id: PartitionId
    segments_count: Annotated[int, msgspec.Meta(ge=1, le=U32_MAX)]


class NewGroup(OfTopic, frozen=True):
    name: Name


class DetailsOfGroup(OfGroup, frozen=True):
    skip: Skip = 0


# ------------------------------------------------------------------------------------------------------------ streams


async def get_streams(work: Work, given: Listed) -> Listing:
    found = await work.execute(requests.GetStreams())
    return Listing("streams", [rows.stream(each) for each in found], given.skip, skipping)


async def get_stream(work: Work, given: ListedOfStream) -> Listing:
    found = await work.found(requests.GetStream(identifier(given.stream_id)), f"the stream {given.stream_id}")
    stream = rows.stream_details(found)
    return Listing("topics", stream.topics, given.skip, skipping, stream)


async def create_stream(work: Work, given: NewStream) -> Listing:
    stream = rows.stream_details(await work.execute(requests.CreateStream(given.name)))
    return Listing("topics", stream.topics, 0, skipping, stream)


async def update_stream(work: Work, given: RenamedStream) -> Done:
    await work.execute(requests.UpdateStream(identifier(given.stream_id), given.name))
    return Done(f"renamed stream {given.stream_id} to {given.name}")


async def delete_stream(work: Work, given: OfStream) -> Done:
    await work.execute(requests.DeleteStream(identifier(given.stream_id)))
    return Done(f"deleted stream {given.stream_id}")


async def purge_stream(work: Work, given: OfStream) -> Done:
    await work.execute(requests.PurgeStream(identifier(given.stream_id)))
    return Done(f"purged stream {given.stream_id}")


# ------------------------------------------------------------------------------------------------------------- topics


async def get_topics(work: Work, given: ListedOfStream) -> Listing:
    stream = identifier(given.stream_id)
    # Some servers return no topics for a stream that does not exist.
    await work.found(requests.GetStream(stream), f"the stream {given.stream_id}")
    found = await work.execute(requests.GetTopics(stream))
    return Listing("topics", [rows.topic(each) for each in found], given.skip, skipping)


async def get_topic(work: Work, given: ListedOfTopic) -> Listing:
    request = requests.GetTopic(identifier(given.stream_id), identifier(given.topic_id))
    topic = rows.topic_details(await work.found(request, named(given)))
    return Listing("partitions", topic.partitions, given.skip, skipping, topic)


def named(given: OfTopic) -> str:
    return f"the topic {given.stream_id}/{given.topic_id}"


async def create_topic(work: Work, given: NewTopic) -> Listing:
    request = requests.CreateTopic(
        identifier(given.stream_id),
        given.name,
        given.partitions_count,
        COMPRESSIONS[given.compression_algorithm],
        expiry(given.message_expiry),
        size(given.max_size),
        given.replication_factor,
    )
    topic = rows.topic_details(await work.execute(request))
    more = f"call get_topic with stream_id={given.stream_id}, topic_id={topic.id} and skip="
    return Listing("partitions", topic.partitions, 0, lambda skip: f"{more}{skip}", topic)


async def update_topic(work: Work, given: ChangedTopic) -> Done:
    stream, topic = identifier(given.stream_id), identifier(given.topic_id)
    compression = None if given.compression_algorithm is None else COMPRESSIONS[given.compression_algorithm]
    request = requests.UpdateTopic(
        stream,
        topic,
        given.name,
        compression,
        expiry(given.message_expiry),
        size(given.max_size),
        given.replication_factor,
    )
    if work.keeps_settings:
        await work.execute(request)
    else:
        present = (await work.found(requests.GetTopic(stream, topic), named(given))).info
        if compression is None:
            request = msgspec.structs.replace(request, compression_algorithm=present.compression_algorithm)
            if present.compression_algorithm == COMPRESSIONS["gzip"]:
                raise Refused(
                    INVALID,
                    "the topic may be compressed with zstd, which this protocol shows as gzip: give "
                    "compression_algorithm",
                )
        await topic_updates.update(work.execute, request, present)
    return Done(f"updated topic {given.stream_id}/{given.name}")


async def delete_topic(work: Work, given: OfTopic) -> Done:
    await work.execute(requests.DeleteTopic(identifier(given.stream_id), identifier(given.topic_id)))
    return Done(f"deleted {named(given)}")


async def purge_topic(work: Work, given: OfTopic) -> Done:
    await work.execute(requests.PurgeTopic(identifier(given.stream_id), identifier(given.topic_id)))
    return Done(f"purged {named(given)}")


# ---------------------------------------------------------------------------------------------- partitions, segments


async def create_partitions(work: Work, given: Partitions) -> Done:
    place = identifier(given.stream_id), identifier(given.topic_id)
    await work.execute(requests.CreatePartitions(*place, given.partitions_count))
    return Done(f"added {given.partitions_count} partitions to {named(given)}")


async def delete_partitions(work: Work, given: Partitions) -> Done:
    place = identifier(given.stream_id), identifier(given.topic_id)
    await work.execute(requests.DeletePartitions(*place, given.partitions_count))
    return Done(f"deleted the last {given.partitions_count} partitions of {named(given)}")


async def delete_segments(work: Work, given: Segments) -> Done:
    place = identifier(given.stream_id), identifier(given.topic_id)
    await work.execute(requests.DeleteSegments(*place, given.partition_id, given.segments_count))
    return Done(f"deleted up to {given.segments_count} segments of {named(given)}, partition {given.partition_id}")


# ------------------------------------------------------------------------------------------------------------- groups


async def get_consumer_groups(work: Work, given: ListedOfTopic) -> Listing:
    place = identifier(given.stream_id), identifier(given.topic_id)
    await work.found(requests.GetTopic(*place), named(given))
    found = await work.execute(requests.GetConsumerGroups(*place))
    return Listing("groups", [rows.group(each) for each in found], given.skip, skipping)


async def get_consumer_group(work: Work, given: DetailsOfGroup) -> Listing:
    place = identifier(given.stream_id), identifier(given.topic_id)
    request = requests.GetConsumerGroup(*place, identifier(given.group_id))
    found = await work.found(request, f"the group {given.group_id} of {named(given)}")
    group = rows.group_details(found)
    return Listing("members", group.members, given.skip, skipping, group)


async def create_consumer_group(work: Work, given: NewGroup) -> rows.GroupDetails:
    place = identifier(given.stream_id), identifier(given.topic_id)
    return rows.group_details(await work.execute(requests.CreateConsumerGroup(*place, given.name)))


async def delete_consumer_group(work: Work, given: OfGroup) -> Done:
    place = identifier(given.stream_id), identifier(given.topic_id)
    await work.execute(requests.DeleteConsumerGroup(*place, identifier(given.group_id)))
    return Done(f"deleted the group {given.group_id} of {named(given)}")
