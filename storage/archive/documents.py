"""The names and the documents of an archive as values (FORMAT.md, section 10). Nothing here reads or writes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, TypeVar

import msgspec

from whippet.storage.document_checksums import State, with_checksum, without_checksum
from whippet.storage.documents import GroupDocument, StreamDocument, TopicDocument
from whippet.storage.errors import ArchiveDamaged
from whippet.storage.layout import PartitionId

ARCHIVE_VERSION = 1
OWNER = "archive.json"
CATALOGUE = "catalogue.json"
MANIFEST = "manifest.json"
ROUND = "round.json"

Count = Annotated[int, msgspec.Meta(ge=0)]


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """`archive.json`: which data folder writes to the archive. Nobody else may."""

    whippet_archive: int = ARCHIVE_VERSION
    store: str
    """The id in FORMAT of the data folder."""
    generation: Count
    """How often the archive has been claimed: by each start of a server."""
    claim: str
    """A random value, which the data folder also keeps. Of two copies of a folder, only one has the latest."""
    claimed_at: int
    complete: bool = False
    """Whether the last owner has stopped, and had archived everything before."""


class Listed(msgspec.Struct, frozen=True, array_like=True):
    """The offsets at which a partition began and ended in a round."""

    stream: Count
    topic: Count
    partition: Count
    incarnation: int
    first: Count
    """The oldest message in the archive."""
    end: Count
    """After the newest message in the archive. The same as `first` if there is none."""
    next: Count
    """No offset from here on had been given out at `bounded_at`."""

    @property
    def place(self) -> PartitionId:
        return PartitionId(self.stream, self.topic, self.partition)

    @classmethod
    def of(cls, place: PartitionId, incarnation: int, first: int, end: int, next_offset: int) -> Listed:
        return cls(place.stream, place.topic, place.partition, incarnation, first, end, next_offset)


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """`round.json`: the last round of the archiver that archived everything."""

    whippet_archive: int = ARCHIVE_VERSION
    store: str
    generation: Count
    began_at: int
    """Every message that was readable at this time is in the archive."""
    bounded_at: int | None = None
    """The time for which `next` of the partitions holds; None: that is `began_at`."""
    partitions: tuple[Listed, ...] | None = None
    """None: only the manifests tell."""


class Blob(msgspec.Struct, frozen=True, kw_only=True):
    """An object, and what it must contain."""

    name: str
    """Below the folder of its partition."""
    size: Count
    xxh3: str
    """Of its content, as 16 hexadecimal digits."""


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive bytes of the log of one segment: whole batches."""

    start: Count
    """The start offset of the segment."""
    position: Count
    """Where in the log the first byte is; after the piece before it."""
    end: Count
    """The position after the last byte."""
    first: Count
    """The offset of the first message."""
    next: Count
    """The offset after the last message."""
    first_timestamp: int
    last_timestamp: int
    batches: Count
    head: str
    """The checksum of the first batch, as 16 hexadecimal digits, which tells whether a log is the one that was
    archived."""
    log: Blob
    index: Blob
    archived_at: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`manifest.json` of a partition: what of it is in the archive. An object that it does not name does not count."""

    whippet_archive: int = ARCHIVE_VERSION
    store: str
    generation: Count
    """Of the server that wrote this."""
    revision: Count
    """How often the manifest was replaced."""
    epoch: Count
    """How often the history of the partition began anew: it was purged, or created again."""
    incarnation: int
    written_at: int
    next_offset: Count
    """Where the log continued when this was written."""
    pieces: tuple[Piece, ...] = ()
    """In the order of the log."""
    offsets: dict[str, bytes] = {}
    """The files below `offsets/`, by their names."""
    producers: Blob | None = None


class StoredTopic(msgspec.Struct, frozen=True, kw_only=True):
    document: TopicDocument
    groups: tuple[GroupDocument, ...] = ()


class StoredStream(msgspec.Struct, frozen=True, kw_only=True):
    document: StreamDocument
    topics: tuple[StoredTopic, ...] = ()


class Catalogue(msgspec.Struct, frozen=True, kw_only=True):
    """`catalogue.json`: everything that the data folder has besides the partitions."""

    whippet_archive: int = ARCHIVE_VERSION
    store: str
    generation: Count
    written_at: int
    format: bytes
    """The file FORMAT."""
    numbers_reserved: Count
    streams: tuple[StoredStream, ...] = ()
    users: dict[str, bytes] = {}
    """The files below `users/`, by their names."""
    tokens: dict[str, bytes] = {}
    removed: tuple[PartitionId, ...] = ()
    """Partitions that were removed, and whose objects may not all be removed yet."""


Document = TypeVar("Document", Owner, Round, Manifest, Catalogue)


def encode(document: Owner | Round | Manifest | Catalogue) -> bytes:
    return with_checksum(msgspec.json.encode(document))


def decode(content: bytes, kind: type[Document], where: str) -> Document:
    try:
        document = msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ArchiveDamaged(f"{where} cannot be decoded: {error}") from error
    if document.whippet_archive != ARCHIVE_VERSION:
        raise ArchiveDamaged(
            f"{where}: this archive has format version {document.whippet_archive}, this program has {ARCHIVE_VERSION}"
        )
    if without_checksum(content)[1] is State.CHANGED:
        raise ArchiveDamaged(f"{where} is not what was written: its checksum does not match")
    return document


def partition_folder(place: PartitionId) -> str:
    return f"streams/{place.stream}/topics/{place.topic}/partitions/{place.partition}"


def manifest_name(place: PartitionId) -> str:
    return f"{partition_folder(place)}/{MANIFEST}"


def aside_name(place: PartitionId, epoch: int) -> str:
    """A manifest whose history has ended for an unknown reason is kept under this name, with all its objects."""
    return f"{partition_folder(place)}/manifest.{epoch}.json"


def piece_name(start: int, position: int, end: int, epoch: int, generation: int, kind: str) -> str:
    """A name stands for the same bytes for ever: within an epoch, one server's log is never written differently. So
    whatever is uploaded again after a failure is what was there before."""
    return f"{start:020}.{position}-{end}.{epoch}.{generation}.{kind}"


def producers_name(epoch: int, generation: int, xxh3: str) -> str:
    return f"producers.{xxh3}.{epoch}.{generation}"


_OBJECT = re.compile(r"(?:\d{20}\.\d+-\d+|producers\.[0-9a-f]{16})\.(\d+)\.(\d+)(?:\.log|\.index)?", re.ASCII)
_ASIDE = re.compile(r"manifest\.(\d+)\.json", re.ASCII)


def epoch_of(name: str) -> int | None:
    """The epoch in the name of an object that a manifest may name; None for any other name."""
    match = _OBJECT.fullmatch(name)
    return None if match is None else int(match[1])


def aside_epoch(name: str) -> int | None:
    """The epoch in the name of a manifest that was set aside; None for any other name."""
    match = _ASIDE.fullmatch(name)
    return None if match is None else int(match[1])


def plain(name: str) -> str:
    """A name from the archive, which must not lead to another folder."""
    if not name or "/" in name or name.startswith("."):
        raise ArchiveDamaged(f"the archive names a file {name!r}, which cannot be part of a data folder")
    return name


def pieces_of(pieces: Sequence[Piece], start: int) -> list[Piece]:
    """The pieces of one segment."""
    return [piece for piece in pieces if piece.start == start]


def blobs(manifest: Manifest) -> list[Blob]:
    found = [blob for piece in manifest.pieces for blob in (piece.log, piece.index)]
    return found if manifest.producers is None else [*found, manifest.producers]
