"""What the store can be told: one frozen value, made once by the composition root from the configuration.

What somebody has chosen for one topic is in its document and comes before it. Nothing here reads a file or a variable,
and no module of the store has settings of its own.
"""

from __future__ import annotations

import enum
from typing import Annotated, Literal

import msgspec

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


class Durability(enum.IntEnum):
    """What an acknowledgement promises. A higher level includes the lower ones."""

    MEMORY = 0
    """Appended: survives a graceful stop."""
    WRITTEN = 1
    """Handed to the operating system: survives kill -9 of the process."""
    SYNCED = 2
    """fdatasync has returned: survives a power cut."""


class StoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    """The data folder."""
    streams_folder: str = "streams"
    topics_folder: str = "topics"
    partitions_folder: str = "partitions"

    durability: Durability = Durability.WRITTEN
    """The level that an append reaches before it is acknowledged, unless a partition says otherwise."""
    messages_required_to_save: int = 1
    """At level MEMORY: so many buffered messages of one partition are handed to the disk ..."""
    bytes_required_to_save: int = MIB
    """... or so many buffered bytes, whichever is reached first."""
    saver_interval_s: float | None = 30.0
    """Period of the message saver, which writes what is still buffered; None: no saver."""
    saver_syncs: bool = True
    """Whether the saver also makes durable what it finds written but not synced."""
    catalog_syncs: bool = True
    """Whether catalogue documents are synced before a command that changes them is answered."""

    segment_bytes: int = GIB
    """A segment that has reached this size is closed; the batch that reaches it stays whole, so it may be larger."""
    index_cache: Literal["all", "open_segment", "none"] = "open_segment"
    """Which indexes of closed segments stay in memory: all, those lately used within the budget below, or none."""
    index_cache_bytes: int = 64 * MIB
    """Budget of all cached indexes of closed segments together."""
    delete_oldest_segments: bool = True
    """Whether retention makes room in a topic that has reached its size; otherwise such a topic refuses messages."""
    validate_checksum: bool = False
    """Check every batch of every segment when the store is opened, not only the end of the last segment."""
    recreate_missing_state: bool = False
    """Make up catalogue documents and folders that are missing, from what is there."""

    shards: int = 1
    """Threads that own the partitions' files."""
    cpus: tuple[int, ...] = ()
    """Cores to pin the shards to, one after the other; empty: not pinned."""

    tail_bytes_max: int = 256 * MIB
    """Budget of recent batches kept in memory for readers, over all partitions."""
    unflushed_bytes_max: int = 256 * MIB
    """Bytes accepted but not yet written, over all partitions; appends wait above it."""
    partition_unflushed_bytes_max: int = 64 * MIB
    """The same for one partition, so that a slow disk under one does not stop the others."""
    batch_bytes_max: int = 64 * MIB
    """A batch with its header."""
    batch_messages_max: int = 1_000_000
    """Messages of one batch."""
    payload_bytes_max: int = 64_000_000
    """Payload of one message."""
    user_headers_bytes_max: int = 100_000
    """Encoded user headers of one message."""
    read_bytes_max: int = 128 * MIB
    """What one read returns at most; one message is always returned, whatever its size."""
    open_files_max: int = 4096
    """Segment files that the store keeps open, over all shards."""
    consumer_offsets_max: int = 4096
    """Consumers that may have an offset stored in one partition, and groups once more."""
    producers_max: int = 1000
    """Producers that number their sends, in one partition, whose answers are remembered."""
    producer_answers_max: int = 16
    """Answers that are remembered of each of them."""
    write_retry_s: float = 1.0
    """Pause before acknowledged but unwritten messages are tried again after a failed write (a full disk)."""


Promise = Literal["replicated", "persisted"]
"""What a topic may be told about an acknowledgement: what the server promises anyway, or that the disk has it."""

ResizePolicy = Literal["mutable", "fixed"]
"""Whether partitions can be added to a topic and deleted from it."""

Positive = Annotated[int, msgspec.Meta(ge=1)]


class TopicOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What somebody has chosen for a topic, under the names that it has on the wire and on the disk; None is left to
    the server. The store itself does not look at the first three: what of them holds is in the topic's document."""

    compression_algorithm: str | None = None
    message_expiry: int | None = None
    max_topic_size: int | None = None
    segment_size: Positive | None = None
    durability: Promise | None = None
    consumer_offset_durability: Promise | None = None
    enforce_fsync: bool | None = None
    """Another name of `durability`: true is `persisted`, false is `replicated`."""
    messages_required_to_save: Positive | None = None
    size_of_messages_required_to_save: Positive | None = None
    partition_resize_policy: ResizePolicy | None = None
    preallocate_segments: bool | None = None
    replication_factor: Literal[1] | None = None
    message_deduplication: bool | None = None
    message_deduplication_max_entries: int | None = None
    message_deduplication_expiry: int | None = None


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for the partitions of one topic: made of its options and of the store's, never changed."""

    durability: Durability
    offset_durability: Durability
    """What the acknowledgement of a stored offset promises."""
    messages_required_to_save: int
    bytes_required_to_save: int
    segment_bytes: int
    preallocates: bool
    """Whether the blocks of a whole segment are reserved when it is begun."""


def settings_of(chosen: TopicOptions, store: StoreOptions) -> TopicSettings:
    """A topic may be told to gather more messages than the server does, and so to promise less; but where the server
    promises that the disk has them, it does so for all topics."""
    usual = store.durability
    if usual is not Durability.SYNCED and chosen.messages_required_to_save is not None:
        usual = Durability.MEMORY if chosen.messages_required_to_save > 1 else Durability.WRITTEN
    return TopicSettings(
        durability=Durability.SYNCED if chosen.durability == "persisted" or chosen.enforce_fsync else usual,
        offset_durability=Durability.SYNCED if chosen.consumer_offset_durability == "persisted" else usual,
        messages_required_to_save=chosen.messages_required_to_save or store.messages_required_to_save,
        bytes_required_to_save=chosen.size_of_messages_required_to_save or store.bytes_required_to_save,
        segment_bytes=chosen.segment_size or store.segment_bytes,
        preallocates=bool(chosen.preallocate_segments),
    )
