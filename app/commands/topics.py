"""Topics: a name, limits for retention, and a number of partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from whippet.app.commands import groups, requests, responses
from whippet.app.commands.catalogue_info import topic_details, topic_info
from whippet.app.commands.target import Target
from whippet.app.errors import Code, CommandError
from whippet.app.model import topic_options
from whippet.app.model.catalogue import Directory, Stream, Topic, check_name
from whippet.app.model.topic_options import COMPRESSIONS, TopicDefaults
from whippet.storage.documents import TopicDocument
from whippet.storage.options import TopicOptions, TopicSettings, settings_of

if TYPE_CHECKING:
    from whippet.app.gateway import Gateway
    from whippet.app.model.sessions import Session

PARTITIONS_MAX = 1000
"""Limit for one request."""
UNCOMPRESSED = 1
"""Also sent by classic clients that choose no compression."""


async def get_topic(
    gateway: Gateway, session: Session, request: requests.GetTopic, target: Target
) -> responses.TopicDetails:
    await gateway.store.measure(target.stream.id, target.topic.id)
    return topic_details(target.topic, gateway.topic_defaults)


async def get_topics(
    gateway: Gateway, session: Session, request: requests.GetTopics, target: Target
) -> tuple[responses.TopicInfo, ...]:
    await gateway.store.measure(target.stream.id)
    return tuple(topic_info(topic, gateway.topic_defaults) for topic in target.stream.topics)


async def create_topic(
    gateway: Gateway, session: Session, request: requests.CreateTopic, target: Target
) -> responses.TopicDetails:
    stream = target.stream
    check_name(request.name, "topic")
    if not 0 <= request.partitions_count <= PARTITIONS_MAX:
        raise CommandError(Code.TOO_MANY_PARTITIONS, f"a topic is created with 0 to {PARTITIONS_MAX} partitions")
    _refuse_taken(stream, request.name)
    limit = gateway.config.system.limits.topics_per_stream
    if len(stream.topics) >= limit:
        raise CommandError(
            Code.TOO_MANY_TOPICS,
            f"stream {stream.name!r} has {len(stream.topics)} topics, as many as are allowed "
            f"(system.limits.topics_per_stream = {limit})",
        )
    chosen = _chosen_options(request)
    check_archived(gateway, chosen)
    defaults = gateway.topic_defaults
    compression = chosen.compression_algorithm or defaults.values["compression_algorithm"]
    algorithm = topic_options.NUMBERS_OF_COMPRESSIONS[str(compression)]
    _check_compression(gateway, algorithm)
    document = TopicDocument(
        id=stream.topics.next_id(),
        name=request.name,
        created_at=gateway.clock(),
        partitions_count=request.partitions_count,
        message_expiry=chosen.message_expiry or defaults.number("message_expiry"),
        max_topic_size=chosen.max_topic_size or defaults.number("max_topic_size"),
        compression_algorithm=algorithm,
        replication_factor=request.replication_factor or 1,
        options=chosen,
        incarnations=request.partitions_count * (await gateway.unique_numbers.next(),),
    )
    check_partitions_count(gateway, 0, request.partitions_count)
    settings = settings_of(chosen, gateway.store.options)
    _check_size(document.max_topic_size, settings)
    check_reserved(settings, document.partitions_count)
    await gateway.store.create_topic(stream.id, document)
    topic = Topic(document, list(gateway.store.partitions_of(stream.id, document.id)), Directory([]))
    stream.topics.add(topic)
    return topic_details(topic, gateway.topic_defaults)


async def update_topic(gateway: Gateway, session: Session, request: requests.UpdateTopic, target: Target) -> None:
    stream, topic = target.stream, target.topic
    check_name(request.name, "topic")
    old_name = topic.name
    if request.name != old_name:
        _refuse_taken(stream, request.name)
    document = _updated(topic.document, request, gateway.topic_defaults)
    if document.compression_algorithm != topic.document.compression_algorithm:
        _check_compression(gateway, document.compression_algorithm)
    check_archived(gateway, document.options)
    if document.max_topic_size != topic.document.max_topic_size:
        _check_size(document.max_topic_size, settings_of(document.options, gateway.store.options))
    await gateway.store.update_topic(stream.id, document)
    topic.document = document
    if gateway.deduplication.bounds(document.options) is None:
        gateway.forget_ids(topic.partitions)
    stream.topics.rename(topic, old_name)


async def delete_topic(gateway: Gateway, session: Session, request: requests.DeleteTopic, target: Target) -> None:
    stream, topic = target.stream, target.topic
    groups.disband_all(gateway, stream.id, topic)
    gateway.forget_ids(topic.partitions)
    await gateway.users.forget_topic(stream.id, topic.id)
    await gateway.store.remove_topic(stream.id, topic.id)
    stream.topics.remove(topic)


async def purge_topic(gateway: Gateway, session: Session, request: requests.PurgeTopic, target: Target) -> None:
    await purge(gateway, target.stream, target.topic, await gateway.unique_numbers.next())


async def purge(gateway: Gateway, stream: Stream, topic: Topic, epoch: int) -> None:
    try:
        await gateway.store.purge_topic(stream.id, topic.id, epoch)
    finally:
        # Some partitions may have been purged.
        topic.document = gateway.store.streams[stream.id].topics[topic.id].document
    groups.record_purge(topic)
    gateway.forget_ids(topic.partitions)


def check_partitions_count(gateway: Gateway, of_topic: int, more: int) -> None:
    """Refuses partitions beyond the limits of the topic and of the server. Only one change of the catalogue runs at a
    time, so no other request can take the places in between."""
    if not more:
        return
    limits = gateway.config.system.limits
    for have, limit, key, where in (
        (of_topic, limits.partitions_per_topic, "partitions_per_topic", "a topic"),
        (gateway.store.partitions_count, limits.partitions, "partitions", "the server"),
    ):
        if have + more > limit:
            raise CommandError(
                Code.TOO_MANY_PARTITIONS,
                f"{more} more partitions in addition to {have} would exceed the limit of {where} "
                f"(system.limits.{key} = {limit})",
            )


def check_reserved(settings: TopicSettings, partitions_count: int) -> None:
    """Refuses segments whose reserved disk space exceeds the limit for a topic."""
    size = settings.segment_bytes * partitions_count
    if settings.preallocates and size > topic_options.RESERVED_BYTES_MAX:
        raise CommandError(
            Code.INVALID_OPTION_VALUE,
            f"'preallocate_segments': {partitions_count} partitions with segments of {settings.segment_bytes} "
            f"bytes would reserve {size}; at most {topic_options.RESERVED_BYTES_MAX} are allowed",
        )


def check_archived(gateway: Gateway, chosen: TopicOptions) -> None:
    """Refuses options about the archive of a server that has none."""
    for key in sorted(topic_options.ARCHIVED):
        if getattr(chosen, key) not in (None, topic_options.UNLIMITED) and gateway.archiver is None:
            raise CommandError(
                Code.INVALID_OPTION_VALUE, f"{key!r} needs an archive, and data_maintenance.archiver.enabled is false"
            )


def _chosen_options(request: requests.CreateTopic | requests.UpdateTopic, *, changing: bool = False) -> TopicOptions:
    """Returns the values from the fields of a request and from its options. Fields have precedence."""
    chosen = topic_options.parse_options(request.options, changing=changing)
    fields: dict[str, Any] = {}
    compression = request.compression_algorithm
    if compression is not None and compression not in COMPRESSIONS:
        raise CommandError(Code.INVALID_COMMAND, f"there is no compression algorithm {compression}")
    if compression is not None and compression != UNCOMPRESSED:
        fields["compression_algorithm"] = COMPRESSIONS[compression]
    if request.message_expiry:
        fields["message_expiry"] = request.message_expiry
    if request.max_topic_size:
        fields["max_topic_size"] = request.max_topic_size
    return msgspec.structs.replace(chosen, **fields)


def _updated(document: TopicDocument, request: requests.UpdateTopic, defaults: TopicDefaults) -> TopicDocument:
    chosen = _chosen_options(request, changing=True)
    compressed = document.compression_algorithm != UNCOMPRESSED
    if chosen.compression_algorithm is None and request.compression_algorithm == UNCOMPRESSED and compressed:
        chosen = msgspec.structs.replace(chosen, compression_algorithm=COMPRESSIONS[UNCOMPRESSED])
    named = {key: value for key, value in msgspec.structs.asdict(chosen).items() if value is not None}
    kept = {"replication_factor": request.replication_factor} if request.replication_factor else {}
    values = kept | {key: named[key] for key in named.keys() & set(document.__struct_fields__)}
    if chosen.compression_algorithm is not None:
        values["compression_algorithm"] = topic_options.NUMBERS_OF_COMPRESSIONS[chosen.compression_algorithm]
    kept_by_topic = set(request.reset) & set(document.__struct_fields__)
    values |= {key: defaults.stored(key) for key in kept_by_topic}
    options = msgspec.structs.replace(document.options, **named, **dict.fromkeys(request.reset))
    return msgspec.structs.replace(document, name=request.name, options=options, **values)


def _check_compression(gateway: Gateway, algorithm: int) -> None:
    default = gateway.config.system.compression.default_algorithm
    if not gateway.config.system.compression.allow_override and COMPRESSIONS[algorithm] != default:
        raise CommandError(
            Code.INVALID_OPTION_VALUE,
            f"'compression_algorithm' is {COMPRESSIONS[algorithm]}, but on this server it is {default} for all topics "
            "(system.compression.allow_override = false)",
        )


def _check_size(size: int, settings: TopicSettings) -> None:
    if size < settings.segment_bytes:
        raise CommandError(
            Code.INVALID_TOPIC_SIZE, f"{size} bytes are less than one segment ({settings.segment_bytes} bytes)"
        )


def _refuse_taken(stream: Stream, name: str) -> None:
    if stream.topics.find(name) is not None:
        raise CommandError(Code.TOPIC_NAME_ALREADY_EXISTS, about=(name, stream.name))
