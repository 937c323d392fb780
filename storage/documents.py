"""The documents of the catalogue as values, and the streams and topics that they describe (FORMAT.md, section 6).

Nothing here reads or writes a file: catalog_loading.py reads the documents, catalog.py writes them.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from whippet.storage.options import TopicOptions

NOT_UNDERSTOOD = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding a damaged document may raise. Invalid UTF-8 is not a DecodeError."""
PARTITIONS_MAX = 2**20
"""The most partitions of one topic. Whippet never writes a document with more, so such a document is not loaded."""
FIRST_INCARNATION = 1
"""The incarnation of partitions that were created before incarnations were recorded."""


class NumbersDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`numbers.json`. Every number below `reserved` may have been given to a session or a partition."""

    reserved: int


class StreamDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`stream.json`. Times are microseconds since 1970."""

    id: int
    name: str
    created_at: int


class TopicDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`topic.json`. Expiry and size use the numbers of the protocol: 2**64 - 1 means never and unlimited."""

    id: int
    name: str
    created_at: int
    partitions_count: Annotated[int, msgspec.Meta(ge=0, le=PARTITIONS_MAX)]
    message_expiry: int = 2**64 - 1
    max_topic_size: int = 2**64 - 1
    compression_algorithm: int = 1
    replication_factor: int = 1
    options: TopicOptions = TopicOptions()
    """The options that somebody chose for this topic; for all others the server's configuration holds."""
    removing: tuple[int, ...] = ()
    """Partitions whose removal was decided. Their folders may still exist."""
    incarnations: tuple[int, ...] = ()
    """A number for each partition that no other partition of this data folder ever has, so that a deleted partition
    cannot be mistaken for one created in its place. Partitions without an entry have `FIRST_INCARNATION`."""

    epochs: tuple[int, ...] = ()
    """For each partition, the number that the last purge gave it; 0, or no entry, if there was none."""

    def epoch(self, partition_id: int) -> int:
        """A number that changes whenever the offsets of a partition start over. A reader that remembers an offset
        remembers it as well: after a purge, the offset is that of another message."""
        purged = self.epochs[partition_id] if partition_id < len(self.epochs) else 0
        return purged or self.incarnation(partition_id)

    def purged(self, epoch: int) -> TopicDocument:
        return msgspec.structs.replace(self, epochs=self.partitions_count * (epoch,))

    def incarnation(self, partition_id: int) -> int:
        known = self.incarnations
        return known[partition_id] if partition_id < len(known) else FIRST_INCARNATION

    def with_partitions(self, count: int, incarnation: int) -> TopicDocument:
        """The document with `count` more partitions, all created by the same operation."""
        missing = self.partitions_count - len(self.incarnations)
        incarnations = self.incarnations + missing * (FIRST_INCARNATION,) + count * (incarnation,)
        return msgspec.structs.replace(self, partitions_count=self.partitions_count + count, incarnations=incarnations)


class GroupDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`groups/<id>.json`. Members are not stored: they are connections."""

    id: int
    name: str
    created_at: int


class Topic(msgspec.Struct):
    """A topic. `partitions` lists the partitions whose folders exist."""

    document: TopicDocument
    groups: dict[int, GroupDocument]
    partitions: list[int]


class Stream(msgspec.Struct):
    document: StreamDocument
    topics: dict[int, Topic]
