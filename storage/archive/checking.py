"""Reads everything in an archive and reports its content and all damage, for `whippet check`. It changes nothing.

Batches are checked by the same code as those of a data folder (scan.py), which reads the pieces of a segment as if they
were one file.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import msgspec
import xxhash

from whippet.storage import index as indexes
from whippet.storage import scan
from whippet.storage.archive.blobs import content_of
from whippet.storage.archive.catalogue_archive import names_in, places_in
from whippet.storage.archive.documents import (
    CATALOGUE,
    OWNER,
    Blob,
    Catalogue,
    Document,
    Manifest,
    Owner,
    Piece,
    decode,
    manifest_name,
    partition_folder,
)
from whippet.storage.archive.objects import PART_BYTES, Objects
from whippet.storage.archive.partition_archive import by_segment
from whippet.storage.errors import ArchiveDamaged, RestoreRefused
from whippet.storage.files import Buffer, Files
from whippet.storage.index import Index
from whippet.storage.layout import PartitionId
from whippet.storage.segment import Damage
from whippet.storage.survey import Surveyed


def survey(objects: Objects) -> Iterator[Surveyed]:
    """Yields every partition that the catalogue of the archive lists."""
    if _read(objects, OWNER, Owner) is None:
        raise RestoreRefused(f"{objects.location} is not an archive: it has no {OWNER}")
    catalogue = _read(objects, CATALOGUE, Catalogue)
    if catalogue is None:
        raise ArchiveDamaged(f"{objects.location}/{CATALOGUE} is missing")
    names = names_in(catalogue.streams)
    for place in places_in(catalogue.streams):
        stream, topic = names[place.stream, place.topic]
        found = _Partition(objects, place).check()
        yield msgspec.structs.replace(found, stream_name=stream, topic_name=topic)


def _read(objects: Objects, name: str, kind: type[Document]) -> Document | None:
    found = objects.get(name)
    return None if found is None else decode(found.content, kind, f"{objects.location}/{name}")


class _Partition:
    """The check of one partition."""

    def __init__(self, objects: Objects, place: PartitionId) -> None:
        self._objects = objects
        self._place = place
        self._folder = f"{objects.location}/{partition_folder(place)}"
        self._damage: list[Damage] = []

    def check(self) -> Surveyed:
        name = manifest_name(self._place)
        try:
            manifest = _read(self._objects, name, Manifest)
        except ArchiveDamaged as error:
            return self._surveyed({}, 0, [Damage(f"{self._objects.location}/{name}", 0, 0, 0, 0, str(error))])
        if manifest is None:
            # A partition is in the catalogue before anything of it is archived.
            return self._surveyed({}, 0, [])
        segments = by_segment(manifest.pieces)
        messages = sum(self._check_segment(start, segments[start]) for start in sorted(segments))
        for before, after in pairwise(manifest.pieces):
            if before.next > after.first:
                reason = f"it begins with offset {after.first}, but the piece before it ends at {before.next}"
                self._report(after, reason)
        if manifest.producers is not None:
            self._check_producers(manifest.producers)
        return self._surveyed(segments, messages, self._damage)

    def _surveyed(self, segments: dict[int, list[Piece]], messages: int, damage: list[Damage]) -> Surveyed:
        pieces = [piece for each in segments.values() for piece in each]
        return Surveyed(
            place=self._place,
            segments=len(segments),
            messages=messages,
            first_offset=min(segments, default=0),
            next_offset=max((piece.next for piece in pieces), default=0),
            size_bytes=sum(piece.end - piece.position for piece in pieces),
            damage=damage,
        )

    def _report(self, piece: Piece, reason: str) -> None:
        path = f"{self._folder}/{piece.log.name}"
        self._damage.append(Damage(path, piece.position, piece.end - piece.position, piece.first, piece.next, reason))

    def _check_producers(self, blob: Blob) -> None:
        try:
            for _ in content_of(self._objects, f"{partition_folder(self._place)}/{blob.name}", blob):
                pass
        except ArchiveDamaged as error:
            self._damage.append(Damage(f"{self._folder}/{blob.name}", 0, 0, 0, 0, str(error)))

    def _check_segment(self, start: int, pieces: list[Piece]) -> int:
        """Returns how many messages of the segment are readable."""
        position = 0
        for piece in pieces:
            if piece.position != position or piece.log.size != piece.end - piece.position:
                self._report(piece, f"it should begin at position {position} of the segment, and have its own size")
                return 0
            position = piece.end
        described = Index()
        for piece in pieces:
            known = self._index_of(piece)
            if known is not None:
                described.extend(known)
        joined = Joined(self._objects, self._place, pieces)
        found_index = Index()
        path = f"{self._folder}/{pieces[0].log.name}"
        window = scan.Window(joined, 0, position)
        found = scan.scan(window, found_index, path, self._place.partition, 0, start)
        self._damage += found.damage
        if found.reason is not None:
            end = pieces[-1].next
            next_offset = max(end, found.next_offset)
            lost = Damage(path, found.end, position - found.end, found.next_offset, next_offset, found.reason)
            self._damage.append(lost)
        for piece, reason in joined.finish():
            self._report(piece, reason)
        if not described.describes_as(found_index):
            self._report(pieces[0], "the indexes of the segment do not describe its batches")
        return sum(found_index.count(i) for i in range(len(found_index)))

    def _index_of(self, piece: Piece) -> Index | None:
        name = f"{partition_folder(self._place)}/{piece.index.name}"
        try:
            content = b"".join(content_of(self._objects, name, piece.index))
        except ArchiveDamaged as error:
            self._report(piece, str(error))
            return None
        known = indexes.decode(content, piece.start)
        if known is None or known[1] != piece.end:
            self._report(piece, f"{name} is not an index of it")
            return None
        return known[0]


class Joined(Files):
    """The pieces of a segment as one file, whose parts are read once, in their order, and again only where a scan
    searches. What cannot be read, or has another size, reads as zeros, and is reported at the end."""

    def __init__(self, objects: Objects, place: PartitionId, pieces: list[Piece]) -> None:
        self._objects = objects
        self._folder = partition_folder(place)
        self._pieces = pieces
        self._hashers = [xxhash.xxh3_64() for _ in pieces]
        self._hashed = [0 for _ in pieces]
        self._reasons: dict[int, str] = {}
        for number, piece in enumerate(pieces):
            size = objects.size(f"{self._folder}/{piece.log.name}")
            if size != piece.log.size:
                found = "is missing" if size is None else f"has {size} bytes"
                self._reasons[number] = f"the object should have {piece.log.size} bytes, but it {found}"

    def read(self, handle: int, length: int, position: int) -> bytes:
        content = b""
        for number, piece in enumerate(self._pieces):
            start, end = max(position, piece.position), min(position + length, piece.end)
            if start < end:
                content += self._read(number, start - piece.position, end - start)
        return content

    def _read(self, number: int, start: int, length: int) -> Buffer:
        if number in self._reasons:
            return bytes(length)
        content = self._objects.read(f"{self._folder}/{self._pieces[number].log.name}", start, length)
        if start <= self._hashed[number] < start + length:
            self._hashers[number].update(content[self._hashed[number] - start :])
            self._hashed[number] = start + length
        return content

    def finish(self) -> Iterator[tuple[Piece, str]]:
        """Reads what the scan has not read, and yields the pieces that are not what was recorded."""
        for number, piece in enumerate(self._pieces):
            while number not in self._reasons and self._hashed[number] < piece.log.size:
                left = piece.log.size - self._hashed[number]
                self._read(number, self._hashed[number], min(left, PART_BYTES))
            if number in self._reasons:
                yield piece, self._reasons[number]
            elif (digest := self._hashers[number].hexdigest()) != piece.log.xxh3:
                yield piece, f"the object has the checksum {digest}, not {piece.log.xxh3} as in the manifest"
