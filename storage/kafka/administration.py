"""Creates, changes and deletes topics in Kafka."""

from __future__ import annotations

from typing import TypeAlias

from aiokafka import errors
from aiokafka.protocol.admin import CreateTopicsRequest, DeleteTopicsRequest

from whippet.storage.documents import TopicDocument
from whippet.storage.errors import CatalogueError, Unsupported
from whippet.storage.kafka.cluster import Cluster, Refused
from whippet.storage.options import StoreOptions
from whippet.storage.packing import Compression

Settings: TypeAlias = "list[tuple[str, str]]"

UNLIMITED = 2**64 - 1
MESSAGE_BYTES_MAX = 2**30
HONOURED = frozenset(
    {
        "compression_algorithm",
        "max_topic_size",
        "message_expiry",
        "partition_resize_policy",
        "replication_factor",
        "segment_size",
    }
)
"""The options of a topic that have a meaning in Kafka."""
KEPT_ANYWAY = {
    "consumer_offset_durability": "replicated",
    "durability": "replicated",
    "enforce_fsync": False,
    "message_deduplication": False,
    "messages_required_to_save": 1,
    "preallocate_segments": False,
}
"""Values of others that request what happens in any case."""
_TYPES = {Compression.NONE: "producer", Compression.GZIP: "gzip", Compression.ZSTD: "zstd"}


def settings(document: TopicDocument, cluster: Cluster, options: StoreOptions) -> Settings:
    """Returns the configuration of a topic in Kafka. Refuses options that would have no effect there."""
    chosen = document.options
    for key in chosen.__struct_fields__:
        value = getattr(chosen, key)
        if key not in HONOURED and value not in (None, UNLIMITED) and value != KEPT_ANYWAY.get(key):
            raise Unsupported(f"the option {key!r} of a topic with the value {value!r}")
    expiry, size = document.message_expiry, document.max_topic_size
    each = -1 if size in (0, UNLIMITED) else -(-size // max(document.partitions_count, 1))
    segments = [] if chosen.segment_size is None else [("segment.bytes", str(chosen.segment_size))]
    return [
        *segments,
        ("cleanup.policy", "delete"),
        ("compression.type", _TYPES[Compression(document.compression_algorithm)]),
        # A record has more around it than a message in a batch.
        ("max.message.bytes", str(min(2 * options.batch_bytes_max, MESSAGE_BYTES_MAX))),
        ("message.timestamp.type", "LogAppendTime"),
        ("min.insync.replicas", str(cluster.options.min_insync_replicas)),
        ("retention.bytes", str(each)),
        ("retention.ms", "-1" if expiry in (0, UNLIMITED) else str(max(expiry // 1000, 1))),
    ]


async def create(cluster: Cluster, topic: str, partitions: int, chosen: Settings, *, may_exist: bool = False) -> None:
    """Creates a topic. Refuses a name that Kafka has already, unless it may exist."""
    timeout_ms = max(int(cluster.options.timeout_s * 1000), 1)
    wanted: list[tuple[str, int, int, list[object], Settings]]
    wanted = [(topic, partitions, cluster.options.replication_factor, [], chosen)]
    try:
        await cluster.anywhere(
            f"creating {topic}",
            lambda: CreateTopicsRequest(wanted, timeout_ms, False),
            lambda found: found.topic_errors[0][1:3],
        )
    except Refused as refusal:
        if isinstance(refusal.reason, errors.TopicAlreadyExistsError):
            if may_exist:
                return
            raise CatalogueError(
                f"Kafka has a topic {topic!r} already, which is not a topic here: choose another name, or delete it"
            ) from refusal
        if isinstance(refusal.reason, errors.InvalidReplicationFactorError):
            raise CatalogueError(
                f"Kafka has fewer than {cluster.options.replication_factor} brokers for a new topic "
                "(engine.kafka.replication_factor)"
            ) from refusal
        raise


async def delete(cluster: Cluster, topics: list[str]) -> None:
    """Deletes topics, as far as they exist."""
    timeout_ms = max(int(cluster.options.timeout_s * 1000), 1)
    for topic in topics:
        try:
            await cluster.anywhere(
                f"deleting {topic}",
                lambda topic=topic: DeleteTopicsRequest([topic], timeout_ms),  # type: ignore[misc]
                _ignoring_unknown,
            )
        except Refused as refusal:
            raise CatalogueError(str(refusal)) from refusal


def _ignoring_unknown(found: object) -> int:
    code = int(found.topic_error_codes[0][1])  # type: ignore[attr-defined]
    return 0 if code == errors.UnknownTopicOrPartitionError.errno else code
