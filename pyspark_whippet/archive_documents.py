"""The documents of an archive as values, in the layout of storage/FORMAT.md, section 10. Nothing here is skipped: a
document that is missing, or is not what it should be, is an error that names it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pyspark_whippet.archive_objects import Objects
from pyspark_whippet.errors import ArchiveError

VERSION = 1
OWNER, ROUND, CATALOGUE, MANIFEST = "archive.json", "round.json", "catalogue.json", "manifest.json"
FIRST_INCARNATION = 1
"""That of partitions without an entry in the document of their topic."""
MISUNDERSTOOD = (ValueError, TypeError, KeyError, AttributeError)
"""Raised for documents that are not what they should be."""

Decoded = TypeVar("Decoded")


@dataclass(frozen=True)
class Blob:
    """An object, and what it must contain."""

    name: str
    size: int
    xxh3: str


@dataclass(frozen=True)
class Piece:
    """Messages start .. end-1: some of the log of a segment, or all of it."""

    start: int
    end: int
    size: int
    segment: int
    """The offset with which the segment begins."""
    position: int
    """Where in the log of the segment it begins."""
    first_timestamp: int
    log: Blob
    index: Blob


@dataclass(frozen=True)
class Manifest:
    """The list of what the archive has of a partition."""

    epoch: int
    pieces: tuple[Piece, ...]
    """Those with messages, in order."""


@dataclass(frozen=True)
class Topic:
    folder: str
    """Where its partitions are."""
    stream_id: int
    id: int
    created_at: int
    incarnations: tuple[int, ...]
    """One for each partition."""

    def partition(self, number: int) -> str:
        return f"{self.folder}/partitions/{number}"

    def must_have_manifest(self, partition: int, complete_at: int) -> bool:
        """Returns whether the partition existed when the archive was complete the last time. One that was added later
        has another incarnation than the first."""
        return self.created_at < complete_at and self.incarnations[partition] == self.incarnations[0]


@dataclass(frozen=True)
class Catalogue:
    store: str
    """The id of the data folder that writes to the archive."""
    complete_at: int
    """Every message that was readable at this time is in the archive."""
    topics: dict[str, Topic]
    """Keyed by `stream/topic`."""


def catalogue(objects: Objects, location: str) -> Catalogue:
    owner = _optional(objects, location, OWNER, lambda document: str(document["store"]))
    if owner is None:
        raise ArchiveError(f"option 'archive': {location} is not an archive: it has no {OWNER}")
    store, topics = _required(
        objects, location, CATALOGUE, lambda document: (str(document["store"]), _topics(document["streams"]))
    )
    if store != owner:
        raise ArchiveError(f"{location}/{CATALOGUE} is of another data folder than {OWNER}")
    complete_at = _optional(objects, location, ROUND, lambda document: int(document["began_at"]))
    return Catalogue(store, complete_at or 0, topics)


def _topics(streams: list[dict[str, Any]]) -> dict[str, Topic]:
    found = {}
    for stream in streams:
        name, stream_id = stream["document"]["name"], int(stream["document"]["id"])
        for each in stream.get("topics", ()):
            topic = each["document"]
            known, count = topic.get("incarnations", ()), int(topic["partitions_count"])
            found[f"{name}/{topic['name']}"] = Topic(
                f"streams/{stream_id}/topics/{int(topic['id'])}",
                stream_id,
                int(topic["id"]),
                int(topic["created_at"]),
                (*known[:count], *[FIRST_INCARNATION] * (count - len(known))),
            )
    return found


def manifest(objects: Objects, location: str, whole: Catalogue, topic: Topic, partition: int) -> Manifest:
    """A partition of which nothing is archived yet has no manifest, or still that of the one before it."""
    name = f"{topic.partition(partition)}/{MANIFEST}"

    def decode(document: dict[str, Any]) -> Manifest:
        if document["store"] != whole.store:
            raise ValueError(f"it is of another data folder than {CATALOGUE}")
        if document["incarnation"] != topic.incarnations[partition]:
            return Manifest(int(document["epoch"]), ())
        return Manifest(int(document["epoch"]), _pieces(document["pieces"], topic.partition(partition)))

    if topic.must_have_manifest(partition, whole.complete_at):
        return _required(objects, location, name, decode)
    return _optional(objects, location, name, decode) or Manifest(0, ())


def _pieces(documents: list[dict[str, Any]], folder: str) -> tuple[Piece, ...]:
    def blob(document: dict[str, Any]) -> Blob:
        if "/" in document["name"]:
            raise ValueError(f"{document['name']!r} is not the name of an object in this folder")
        return Blob(f"{folder}/{document['name']}", int(document["size"]), str(document["xxh3"]))

    found = tuple(
        Piece(
            int(each["first"]),
            int(each["next"]),
            int(each["end"]) - int(each["position"]),
            int(each["start"]),
            int(each["position"]),
            int(each["first_timestamp"]),
            blob(each["log"]),
            blob(each["index"]),
        )
        for each in documents
    )
    before = None
    for piece in found:
        position = 0
        if before is not None:
            if before.segment == piece.segment:
                position = before.position + before.size
            if before.end > piece.start:
                raise ValueError(f"the piece at offset {piece.start} begins before the one before it ends")
        if piece.position != position or piece.size != piece.log.size:
            raise ValueError("its pieces are not those of a log")
        before = piece
    return tuple(piece for piece in found if piece.start < piece.end)


def _required(objects: Objects, location: str, name: str, decode: Callable[[dict[str, Any]], Decoded]) -> Decoded:
    found = _optional(objects, location, name, decode)
    if found is None:
        raise ArchiveError(f"{location}/{name} is missing")
    return found


def _optional(
    objects: Objects, location: str, name: str, decode: Callable[[dict[str, Any]], Decoded]
) -> Decoded | None:
    """Returns None if there is no such document."""
    content = objects.get(name)
    if content is None:
        return None
    try:
        document = json.loads(content)
        version = document["whippet_archive"]
        if version == VERSION:
            return decode(document)
    except MISUNDERSTOOD as error:
        raise ArchiveError(f"{location}/{name} is damaged: {type(error).__name__}: {error}") from None
    raise ArchiveError(f"{location}/{name}: the archive has format version {version}, this reader knows {VERSION}")
