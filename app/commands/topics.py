"""Topics: a name, limits for what is kept, and a number of partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from app.commands import answers, describe, groups
from app.commands import requests as ask
from app.commands.names import UNLIMITED, check_name
from app.commands.target import Target
from app.errors import Code, CommandError
from app.model.catalogue import Shelf, Stream, Topic
from storage.catalog import TopicDocument

if TYPE_CHECKING:
    from app.gateway import Gateway
    from app.model.sessions import Session

PARTITIONS_MAX = 1000
COMPRESSIONS = (1, 2, 3)
"""none, gzip, zstd"""
PATCHED = ("compression_algorithm", "message_expiry", "max_topic_size", "replication_factor")
"""What an update may leave out."""


async def get_topic(gateway: Gateway, session: Session, request: ask.GetTopic, target: Target) -> answers.TopicDetails:
    return describe.topic_details(target.topic)


async def get_topics(
    gateway: Gateway, session: Session, request: ask.GetTopics, target: Target
) -> tuple[answers.TopicInfo, ...]:
    return tuple(describe.topic(topic) for topic in target.stream.topics)


async def create_topic(
    gateway: Gateway, session: Session, request: ask.CreateTopic, target: Target
) -> answers.TopicDetails:
    stream = target.stream
    check_name(request.name, "topic")
    if not 0 <= request.partitions_count <= PARTITIONS_MAX:
        raise CommandError(Code.TOO_MANY_PARTITIONS, f"a topic is made with 0 to {PARTITIONS_MAX} partitions")
    _refuse_taken(stream, request.name)
    document = TopicDocument(
        id=stream.topics.next_id(),
        name=request.name,
        created_at=gateway.clock(),
        partitions_count=request.partitions_count,
        **_settings(gateway, request),
    )
    await gateway.store.create_topic(stream.id, document)
    topic = Topic(document, list(gateway.store.partitions_of(stream.id, document.id)), Shelf([]))
    stream.topics.put(topic)
    return describe.topic_details(topic)


async def update_topic(gateway: Gateway, session: Session, request: ask.UpdateTopic, target: Target) -> None:
    stream, topic = target.stream, target.topic
    check_name(request.name, "topic")
    old_name = topic.name
    if request.name != old_name:
        _refuse_taken(stream, request.name)
    kept = {name: getattr(topic.document, name) for name in PATCHED if getattr(request, name) is None}
    settings = _settings(gateway, msgspec.structs.replace(request, **kept))
    document = msgspec.structs.replace(topic.document, name=request.name, **settings)
    await gateway.store.update_topic(stream.id, document)
    topic.document = document
    stream.topics.rename(topic, old_name)


async def delete_topic(gateway: Gateway, session: Session, request: ask.DeleteTopic, target: Target) -> None:
    stream, topic = target.stream, target.topic
    groups.disband_all(gateway, stream.id, topic)
    gateway.forget_ids(topic.partitions)
    await gateway.users.forget_topic(stream.id, topic.id)
    await gateway.store.remove_topic(stream.id, topic.id)
    stream.topics.remove(topic)


async def purge_topic(gateway: Gateway, session: Session, request: ask.PurgeTopic, target: Target) -> None:
    await gateway.store.purge_topic(target.stream.id, target.topic.id)
    groups.purged(target.topic)
    gateway.forget_ids(target.topic.partitions)


def _settings(gateway: Gateway, request: ask.CreateTopic | ask.UpdateTopic) -> dict[str, Any]:
    """The limits of a topic, 0 resolved to the server's defaults: what is stored is what holds."""
    defaults = gateway.config.system.topic
    if request.compression_algorithm not in COMPRESSIONS:
        raise CommandError(Code.INVALID_COMMAND, f"there is no compression algorithm {request.compression_algorithm}")
    max_size = request.max_topic_size or 0
    if max_size == 0:
        max_size = UNLIMITED if defaults.max_size is None else defaults.max_size
    segment_size = gateway.config.system.segment.size
    if max_size < segment_size:
        raise CommandError(
            Code.INVALID_TOPIC_SIZE, f"a topic of {max_size} bytes cannot hold one segment of {segment_size}"
        )
    expiry = request.message_expiry or 0
    if expiry == 0:
        expiry = UNLIMITED if defaults.message_expiry is None else defaults.message_expiry
    return {
        "compression_algorithm": request.compression_algorithm,
        "message_expiry": expiry,
        "max_topic_size": max_size,
        "replication_factor": request.replication_factor or 1,
    }


def _refuse_taken(stream: Stream, name: str) -> None:
    if stream.topics.find(name) is not None:
        raise CommandError(Code.TOPIC_NAME_ALREADY_EXISTS, f"stream {stream.name!r} has a topic {name!r} already")
