"""Reads a range of messages from one piece of an archive: what a task does with from=archive.

The archiver may have replaced the piece by a longer one since the job was planned. So if an object is missing, the
manifest is read again; what it does not have either is reported as data loss.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from pyspark_whippet import archive_documents, log_index, stored_log
from pyspark_whippet.archive_documents import Blob, Manifest, Piece
from pyspark_whippet.archive_objects import Objects, open_objects
from pyspark_whippet.batches import Array, BadBatch, Messages
from pyspark_whippet.errors import DataLossError
from pyspark_whippet.gateway_reader import Split, report_loss
from pyspark_whippet.packages import needed
from pyspark_whippet.packed_batches import Opener
from pyspark_whippet.settings import Settings
from pyspark_whippet.stored_log import LogChanged, Read

FETCH_BYTES = 8 * 1024 * 1024
"""What one request reads. The next one is under way while Spark works on the last."""


@dataclass
class PieceSplit(Split):
    """Messages that one task reads from this piece."""

    piece: Piece
    manifest_epoch: int
    """The manifest's. In another epoch the same offsets belong to other messages."""
    context: bytes
    """What encrypted batches are bound to."""


def read_piece(settings: Settings, split: PieceSplit, *, is_second_try: bool = False) -> Iterator[Messages]:
    """Yields all messages of the split, in pages."""
    objects = open_objects(settings)

    def missing(start: int, end: int, why: str) -> Iterator[Messages]:
        at = start
        for piece in () if is_second_try else _replaced(settings, objects, split):
            part = PieceSplit(
                split.topic,
                split.partition,
                max(at, piece.start),
                min(end, piece.end),
                piece,
                split.manifest_epoch,
                split.context,
            )
            if part.start >= part.end:
                continue
            if at < part.start:
                report_loss(settings, split, at, part.start, why)
            yield from read_piece(settings, part, is_second_try=True)
            at = part.end
        if at < end:
            report_loss(settings, split, at, end, why)

    log = _ArchivedPiece(objects, str(settings.archive), split.piece)
    opener = Opener(settings.keys, split.context)
    return stored_log.read(settings, split, log, opener, missing, has_fallback=False)


def _replaced(settings: Settings, objects: Objects, split: PieceSplit) -> tuple[Piece, ...]:
    """The pieces of the partition now; none if the archive still names this one, or has another history."""
    found = current_manifest(settings, objects, split.topic, split.partition)
    is_named = split.piece.log in [piece.log for piece in found.pieces]
    return () if is_named or found.epoch != split.manifest_epoch else found.pieces


def current_manifest(settings: Settings, objects: Objects, topic: str, partition: int) -> Manifest:
    location = str(settings.archive)
    whole = archive_documents.catalogue(objects, location)
    found = whole.topics.get(topic)
    if found is None or partition >= len(found.incarnations):
        return Manifest(-1, ())
    return archive_documents.manifest(objects, location, whole, found, partition)


def index_entries(objects: Objects, location: str, piece: Piece) -> Array:
    """Returns the index of a piece, or raises DataLossError if it is not what was archived."""
    content = objects.get(piece.index.name)
    if content is None:
        raise LogChanged(f"{location}/{piece.index.name} is missing")
    if needed("xxhash").xxh3_64_hexdigest(content) != piece.index.xxh3:
        raise DataLossError(f"{location}/{piece.index.name} is damaged: its checksum is wrong")
    found = log_index.decode(content, piece.segment, piece.position + piece.size)
    if found is None:
        raise DataLossError(f"{location}/{piece.index.name} is damaged: it is not an index of its piece")
    return found


class _ArchivedPiece:
    """A piece as a StoredLog."""

    def __init__(self, objects: Objects, location: str, piece: Piece) -> None:
        self._objects = objects
        self._location = location
        self._piece = piece
        self.name = f"{location}/{piece.log.name}"
        self.start, self.end = piece.start, piece.end
        self.position, self.until = piece.position, piece.position + piece.size

    def entries(self) -> Array:
        return index_entries(self._objects, self._location, self._piece)

    @contextlib.contextmanager
    def reading(self, position: int) -> Iterator[Read]:
        blob = self._piece.log
        size = self._objects.size(blob.name)
        if size != blob.size:
            found = "is missing" if size is None else f"has {size} bytes, not {blob.size} as in its manifest"
            raise LogChanged(f"{self.name} {found}")
        with ThreadPoolExecutor(1) as thread:
            fetched = _Fetched(self._objects, blob, self.name, position - self.position, thread)

            def read(position: int, length: int) -> memoryview:
                return fetched.read(position - self.position, length)

            yield read
            fetched.check(self.until)


class _Fetched:
    """The content of an object, fetched from a position on. The checksum of the object is compared once all of it was
    read; before, and for parts, there are those of the batches."""

    def __init__(self, objects: Objects, blob: Blob, name: str, position: int, thread: ThreadPoolExecutor) -> None:
        self._objects = objects
        self._blob = blob
        self._name = name
        self._thread = thread
        self._begin = self._end = position
        self._content = b""
        self._hasher = needed("xxhash").xxh3_64() if position == 0 else None
        self._next = self._fetch(position)

    def _fetch(self, position: int) -> Future[bytes | None] | None:
        length = min(FETCH_BYTES, self._blob.size - position)
        return self._thread.submit(self._objects.read, self._blob.name, position, length) if length > 0 else None

    def read(self, position: int, length: int) -> memoryview:
        parts = [self._content[position - self._begin :]]
        while self._end < position + length:
            parts.append(self._take())
        self._begin, self._content = position, b"".join(parts)
        return memoryview(self._content)[:length]

    def _take(self) -> bytes:
        assert self._next is not None
        content = self._next.result()
        wanted = min(FETCH_BYTES, self._blob.size - self._end)
        if content is None or len(content) != wanted:
            found = "is missing" if content is None else "has become shorter"
            raise LogChanged(f"{self._name} {found}")
        self._end += len(content)
        self._next = self._fetch(self._end)
        if self._hasher is not None:
            self._hasher.update(content)
        return content

    def check(self, until: int) -> None:
        """Raises BadBatch if all of the object was read, and it is not what was archived."""
        if self._hasher is None or self._end < self._blob.size:
            return
        if self._hasher.hexdigest() != self._blob.xxh3:
            raise BadBatch(until, "its batches are intact, but its checksum is not that in its manifest")
