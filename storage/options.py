"""The options of the store: one frozen value, built once by the composition root from the configuration.

Options chosen for one topic are in its document and take precedence. Nothing here reads a file or a variable, and no
other module of the store has settings.
"""

from __future__ import annotations

import enum
from typing import Annotated, Literal

import msgspec

from whippet.storage.encryption import Keyring

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


class Durability(enum.IntEnum):
    """What an acknowledged message survives. A higher level includes the lower ones."""

    MEMORY = 0
    """Appended: survives a graceful stop."""
    WRITTEN = 1
    """Handed to the operating system: survives kill -9 of the process."""
    SYNCED = 2
    """fdatasync has returned: survives a power failure."""


class ArchiveOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where the archive is, and how much may be spent on it."""

    kind: Literal["disk", "s3", "gcs", "azure"] = "disk"
    path: str = "local_data/archive"
    """The folder of the kind `disk`; the others are about buckets."""
    bucket: str = ""
    """Of S3 or Google; a container of Azure."""
    key_prefix: str = ""
    """Put before the names of all objects."""
    endpoint: str = ""
    """The URL of the service; empty: Amazon's, or Azure's."""
    account: str = ""
    """The storage account of Azure."""
    service_account_file: str = ""
    """The key of a service account of Google; empty: as for S3."""
    region: str = ""
    access_key_id: str = ""
    """Empty: credentials come from the environment, or from the role of the machine."""
    secret_access_key: str = ""
    request_timeout_s: float = 30.0
    """A request that takes longer has failed. It moves at most 8 MiB."""
    interval_s: float = 60.0
    """The pause between two rounds of the archiver, and so about the most that the loss of the machine costs."""
    bytes_per_second: int = 0
    """The most that is sent in a second, on average; 0: no limit."""
    local_limit_bytes: int | None = None
    """How many bytes may wait for the archive before messages are refused; None: no limit."""
    cache_bytes: int = GIB
    """The disk space for what was read from the archive."""
    protects_expired: bool = False
    """Whether retention deletes only what is in the archive."""

    def __repr__(self) -> str:
        # It has a secret.
        return f"ArchiveOptions(kind={self.kind!r})"


class StoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    """The data folder."""
    streams_folder: str = "streams"
    topics_folder: str = "topics"
    partitions_folder: str = "partitions"

    durability: Durability = Durability.WRITTEN
    """The level that an append reaches before it is acknowledged, unless the topic sets another one."""
    messages_required_to_save: int = 1
    """At level MEMORY, a partition writes once this many messages are buffered ..."""
    bytes_required_to_save: int = MIB
    """... or this many bytes, whichever is reached first."""
    respects_consumers: Literal["none", "groups", "all"] = "groups"
    """Whose unread messages retention keeps."""
    saver_interval_s: float | None = 30.0
    """The interval of the message saver, which writes what is still buffered; None: no saver."""
    saver_syncs: bool = True
    """Whether the saver also syncs what is written but not synced."""
    catalog_syncs: bool = True
    """Whether catalogue documents are synced before a command that changes them returns."""

    segment_bytes: int = GIB
    """A segment that has reached this size is closed. The batch that reaches it is not split, so it may be larger."""
    index_cache: Literal["all", "open_segment", "none"] = "open_segment"
    """Which indexes of closed segments stay in memory: all, the most recently used within the budget below, or none."""
    index_cache_bytes: int = 64 * MIB
    """The budget of all cached indexes of closed segments together."""
    delete_oldest_segments: bool = True
    """Whether retention makes room in a topic that has reached its size. Otherwise such a topic refuses messages."""
    compression: Literal["none", "gzip", "zstd"] = "none"
    """How batches are compressed on the disk if topics may not choose it."""
    compression_override: bool = True
    """Whether topics may choose it."""
    keyring: Keyring | None = None
    """The keys for what is encrypted, and whether what is written is."""
    validate_checksum: bool = False
    """Check every batch of every segment when the store is opened, not only the end of the last segment."""
    recreate_missing_state: bool = False
    """Recreate missing catalogue documents and folders from what exists."""

    shards: int = 1
    """How many threads own the partitions' files."""
    cpus: tuple[int, ...] = ()
    """The cores to which the shards are pinned in turn; empty: not pinned."""

    tail_bytes_max: int = 256 * MIB
    """The budget of recent batches kept in memory for readers, over all partitions."""
    unflushed_bytes_max: int = 256 * MIB
    """Bytes accepted but not yet written, over all partitions. Above it, appends wait."""
    partition_unflushed_bytes_max: int = 64 * MIB
    """The same for one partition, so that one with a slow disk does not stop the others."""
    batch_bytes_max: int = 64 * MIB
    """The size of one batch, including its header."""
    batch_messages_max: int = 1_000_000
    """The number of messages in one batch."""
    payload_bytes_max: int = 64_000_000
    """The payload of one message."""
    user_headers_bytes_max: int = 100_000
    """The encoded user headers of one message."""
    loop_append_bytes_max: int = 64 << 10
    """The most that the event loop writes itself, with one call, if the shard has nothing to do for the partition; 0:
    shards write everything."""
    read_bytes_max: int = 128 * MIB
    """The most bytes that one read returns. One message is always returned, whatever its size."""
    open_files_max: int = 4096
    """How many segment files the store keeps open, over all shards."""
    consumer_offsets_max: int = 4096
    """How many consumers may have an offset stored in one partition, and how many groups."""
    producers_max: int = 1000
    """How many producers with numbered sends are remembered in one partition."""
    producer_answers_max: int = 16
    """How many results are remembered for each of them."""
    disk_reserve: int | None = 0
    """How much of the disk is not used for messages; None: chosen by its size; 0: the disk's space is not checked."""
    write_retry_s: float = 1.0
    """The pause after a failed write (a full disk) before acknowledged messages are written again."""
    archive: ArchiveOptions | None = None
    """Where segments are copied to; None: nowhere."""


Promise = Literal["replicated", "persisted"]
"""The durability of a topic: that of the server, or synced."""

ResizePolicy = Literal["mutable", "fixed"]
"""Whether partitions can be added to a topic and deleted from it."""

Positive = Annotated[int, msgspec.Meta(ge=1)]


class TopicOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The options that somebody chose for a topic, under their names on the wire and on the disk; None leaves an option
    to the server. The store does not use the first three: the values in effect are in the topic's document."""

    compression_algorithm: str | None = None
    message_expiry: int | None = None
    max_topic_size: int | None = None
    segment_size: Positive | None = None
    durability: Promise | None = None
    consumer_offset_durability: Promise | None = None
    enforce_fsync: bool | None = None
    """Another name for `durability`: true is `persisted`, false is `replicated`."""
    messages_required_to_save: Positive | None = None
    size_of_messages_required_to_save: Positive | None = None
    partition_resize_policy: ResizePolicy | None = None
    preallocate_segments: bool | None = None
    replication_factor: Literal[1] | None = None
    message_deduplication: bool | None = None
    message_deduplication_max_entries: int | None = None
    message_deduplication_expiry: int | None = None
    local_retention_time: Positive | None = None
    local_retention_size: Positive | None = None
    archive_retention: Positive | None = None


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings in effect for the partitions of one topic, from its options and the store's. They never change."""

    durability: Durability
    offset_durability: Durability
    """The level that a stored offset reaches before it is acknowledged."""
    messages_required_to_save: int
    bytes_required_to_save: int
    segment_bytes: int
    preallocates: bool
    """Whether blocks for a whole segment are reserved when it is created."""


def settings_of(chosen: TopicOptions, store: StoreOptions) -> TopicSettings:
    """A topic may buffer more messages than the server's default, and so promise less. But a server that syncs before
    it acknowledges does so for all topics."""
    default = store.durability
    if default is not Durability.SYNCED and chosen.messages_required_to_save is not None:
        default = Durability.MEMORY if chosen.messages_required_to_save > 1 else Durability.WRITTEN
    return TopicSettings(
        durability=Durability.SYNCED if chosen.durability == "persisted" or chosen.enforce_fsync else default,
        offset_durability=Durability.SYNCED if chosen.consumer_offset_durability == "persisted" else default,
        messages_required_to_save=chosen.messages_required_to_save or store.messages_required_to_save,
        bytes_required_to_save=chosen.size_of_messages_required_to_save or store.bytes_required_to_save,
        segment_bytes=chosen.segment_size or store.segment_bytes,
        preallocates=bool(chosen.preallocate_segments),
    )
