"""The catalogue as responses: descriptions of streams, topics and partitions."""

from __future__ import annotations

from whippet.app.commands import responses
from whippet.app.model.catalogue import Stream, Topic
from whippet.app.model.topic_options import TopicDefaults
from whippet.storage.engine import Partition
from whippet.storage.offsets import Kind


def stream_info(stream: Stream) -> responses.StreamInfo:
    return responses.StreamInfo(
        id=stream.id,
        created_at=stream.document.created_at,
        topics_count=len(stream.topics),
        size_bytes=stream.size_bytes,
        messages_count=stream.messages_count,
        name=stream.name,
        classic_size_bytes=stream.classic_size_bytes,
    )


def stream_details(whole: Stream, defaults: TopicDefaults) -> responses.StreamDetails:
    return responses.StreamDetails(stream_info(whole), tuple(topic_info(one, defaults) for one in whole.topics))


def topic_info(topic: Topic, defaults: TopicDefaults) -> responses.TopicInfo:
    document = topic.document
    explicit, derived = defaults.describe(document)
    return responses.TopicInfo(
        id=document.id,
        created_at=document.created_at,
        partitions_count=document.partitions_count,
        message_expiry=document.message_expiry,
        compression_algorithm=document.compression_algorithm,
        max_topic_size=document.max_topic_size,
        replication_factor=document.replication_factor,
        size_bytes=topic.size_bytes,
        messages_count=topic.messages_count,
        name=document.name,
        explicit=explicit,
        derived=derived,
        classic_size_bytes=topic.classic_size_bytes,
        disk_bytes=topic.disk_bytes,
    )


def topic_details(whole: Topic, defaults: TopicDefaults) -> responses.TopicDetails:
    return responses.TopicDetails(topic_info(whole, defaults), tuple(_partitions(whole)))


def _partitions(whole: Topic) -> list[responses.PartitionInfo]:
    created_at = whole.document.created_at
    infos = []
    for number, partition in enumerate(whole.partitions):
        if partition is None:
            incarnation, epoch = whole.incarnation(number), whole.document.epoch(number)
            infos.append(responses.PartitionInfo(number, created_at, 0, 0, 0, 0, incarnation=incarnation, epoch=epoch))
            continue
        infos.append(
            responses.PartitionInfo(
                id=number,
                created_at=created_at,
                segments_count=partition.segments_count,
                current_offset=max(partition.readable - 1, 0),
                size_bytes=partition.size_bytes,
                messages_count=partition.messages_count,
                first_offset=partition.first_offset,
                next_offset=partition.readable,
                classic_size_bytes=partition.message_bytes,
                incarnation=whole.incarnation(number),
                epoch=partition.epoch,
                disk_bytes=partition.disk_bytes,
                held_back=held_back(whole, partition),
            )
        )
    return infos


def held_back(topic: Topic, partition: Partition) -> responses.HeldBack | None:
    """What the last round of retention had to keep for a consumer."""
    held = partition.held_back
    if held is None:
        return None
    kind, identity, offset = held.reader
    name = partition.reader_name(kind, identity)
    if kind is Kind.GROUP:
        name = next((group.name for group in topic.groups if group.id == identity), name)
    return responses.HeldBack(kind.name.lower(), name or str(identity), offset, held.segments, held.bytes)
