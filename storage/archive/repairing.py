"""Reads from an archive what the repair of a data folder needs (repair.py), and uploads objects again.

Nothing of an object is used because a manifest says so: of a log, only batches whose own checksums are right count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from whippet.storage import catalog, scan
from whippet.storage import index as indexes
from whippet.storage.archive.blobs import content_of
from whippet.storage.archive.checking import Joined
from whippet.storage.archive.documents import (
    CATALOGUE,
    OWNER,
    ROUND,
    Catalogue,
    Document,
    Manifest,
    Owner,
    Piece,
    Round,
    aside_epoch,
    aside_name,
    decode,
    manifest_name,
    partition_folder,
)
from whippet.storage.archive.objects import Objects
from whippet.storage.archive.partition_archive import by_segment
from whippet.storage.archive.restoring import created_at, given_out_since
from whippet.storage.archive.reuploading import Reuploading
from whippet.storage.document_checksums import with_checksum
from whippet.storage.errors import ArchiveDamaged, RestoreRefused
from whippet.storage.files import Files
from whippet.storage.index import Index
from whippet.storage.layout import FORMAT_FILE, STREAM_FILE, TOKENS_FOLDER, TOPIC_FILE, USERS_FOLDER, PartitionId
from whippet.storage.repair_source import ArchivedPartition, ArchivedSegment, Finding


class ArchiveSource:
    """The archive below a prefix. Raises ArchiveError if it is none, or cannot be read."""

    def __init__(self, objects: Objects, clock: Callable[[], int]) -> None:
        self.location = objects.location
        self.notes: list[str] = []
        self._objects = objects
        owner = self._document(OWNER, Owner)
        catalogue = self._document(CATALOGUE, Catalogue)
        if objects.get(OWNER) is None or (owner is None and catalogue is None):
            raise RestoreRefused(f"{objects.location} is not an archive: it has no {OWNER}, or only damaged documents")
        self.store = owner.store if owner is not None else catalogue.store if catalogue is not None else ""
        self.claim, self.complete = ("", False) if owner is None else (owner.claim, owner.complete)
        last = self._document(ROUND, Round)
        began_at = 0 if catalogue is None else created_at(catalogue)
        self.given_out = given_out_since(began_at if last is None else last.began_at, clock())
        self._documents = {} if catalogue is None else _documents_in(catalogue)

    def document(self, name: str) -> bytes | None:
        return self._documents.get(name)

    def histories(self, place: PartitionId, incarnation: int, *, older: bool) -> list[ArchivedPartition]:
        names = self._set_aside(place) if older else [manifest_name(place)]
        manifests = (self._document(name, Manifest) for name in names)
        return [
            _Partition(self._objects, place, manifest)
            for manifest in manifests
            if manifest is not None and manifest.incarnation == incarnation
        ]

    def upload_again(
        self, place: PartitionId, incarnation: int, files: Files, folder: str, *, dry_run: bool
    ) -> list[Finding]:
        manifest = self._document(manifest_name(place), Manifest)
        if manifest is None or manifest.incarnation != incarnation:
            return []
        return list(Reuploading(self._objects, place, manifest, files, folder, dry_run=dry_run).run())

    def _set_aside(self, place: PartitionId) -> list[str]:
        folder = partition_folder(place)
        listed = (item.name.rpartition("/")[2] for item in self._objects.list(f"{folder}/"))
        epochs = [epoch for name in listed if (epoch := aside_epoch(name)) is not None]
        return [aside_name(place, epoch) for epoch in sorted(epochs, reverse=True)]

    def _document(self, name: str, kind: type[Document]) -> Document | None:
        """None also if the document is damaged, which is noted."""
        found = self._objects.get(name)
        try:
            return None if found is None else decode(found.content, kind, f"{self.location}/{name}")
        except ArchiveDamaged as error:
            if str(error) not in self.notes:
                self.notes.append(str(error))
            return None


def _documents_in(catalogue: Catalogue) -> dict[str, bytes]:
    """Every document in a catalogue as it is stored, by its path in a data folder."""
    found = {FORMAT_FILE: catalogue.format}
    for folder, documents in ((USERS_FOLDER, catalogue.users), (TOKENS_FOLDER, catalogue.tokens)):
        found |= {f"{folder}/{name}": content for name, content in documents.items()}
    for stream in catalogue.streams:
        above = f"streams/{stream.document.id}"
        found[f"{above}/{STREAM_FILE}"] = with_checksum(catalog.encoded(stream.document))
        for topic in stream.topics:
            folder = f"{above}/topics/{topic.document.id}"
            found[f"{folder}/{TOPIC_FILE}"] = with_checksum(catalog.encoded(topic.document))
            for group in topic.groups:
                found[f"{folder}/groups/{group.id}.json"] = with_checksum(catalog.encoded(group))
    return found


class _Partition:
    def __init__(self, objects: Objects, place: PartitionId, manifest: Manifest) -> None:
        self._objects = objects
        self._place = place
        self._manifest = manifest
        self._pieces = by_segment(manifest.pieces)
        self.starts = sorted(self._pieces)
        self.first_offset = manifest.pieces[0].first if manifest.pieces else 0
        self.next_offset = manifest.next_offset
        self.offsets = manifest.offsets

    def segment(self, start: int, ceiling: int) -> ArchivedSegment | None:
        pieces = _contiguous(self._pieces.get(start, ()))
        return _Segment(self._objects, self._place, pieces, ceiling) if pieces else None

    def described(self, start: int) -> Index | None:
        entries = Index()
        folder = partition_folder(self._place)
        for piece in _contiguous(self._pieces.get(start, ())):
            try:
                content = b"".join(content_of(self._objects, f"{folder}/{piece.index.name}", piece.index))
            except ArchiveDamaged:
                return None
            known = indexes.decode(content, start)
            if known is None:
                return None
            entries.extend(known[0])
        return entries

    def producers(self) -> bytes | None:
        blob = self._manifest.producers
        if blob is None:
            return None
        try:
            return b"".join(content_of(self._objects, f"{partition_folder(self._place)}/{blob.name}", blob))
        except ArchiveDamaged:
            return None


def _contiguous(pieces: Iterable[Piece]) -> list[Piece]:
    """The pieces of a segment from its first byte on, up to a gap."""
    found: list[Piece] = []
    for piece in pieces:
        if piece.position != (found[-1].end if found else 0):
            break
        found.append(piece)
    return found


class _Segment:
    def __init__(self, objects: Objects, place: PartitionId, pieces: list[Piece], ceiling: int) -> None:
        self._joined = Joined(objects, place, pieces)
        self.entries = Index()
        start, size = pieces[0].start, pieces[-1].end
        window = scan.Window(self._joined, 0, size)
        found = scan.scan(window, self.entries, pieces[0].log.name, place.partition, 0, start, ceiling)
        self.end = found.end
        self.next_offset = found.next_offset if len(self.entries) else start
        folder = f"{objects.location}/{partition_folder(place)}"
        self.notes = [f"{folder}/{piece.log.name}: {reason}" for piece, reason in self._joined.finish()]
        self._window = scan.Window(self._joined, 0, size)

    def read(self, position: int, length: int) -> bytes:
        return bytes(self._window.view(position, length))
