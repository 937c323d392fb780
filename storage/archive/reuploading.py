"""Uploads objects of an archive again that are damaged or missing, from the data folder that they were made from.

Only what has exactly the bytes that the manifest records is uploaded, so the manifest stays as it is, and it does not
matter who else uses the archive.
"""

from __future__ import annotations

from collections.abc import Iterator

import xxhash

from whippet.storage import index as indexes
from whippet.storage import recovery
from whippet.storage.archive.documents import Blob, Manifest, Piece, partition_folder
from whippet.storage.archive.objects import PART_BYTES, Digest, Objects
from whippet.storage.files import Files, read_all, read_fully
from whippet.storage.layout import PartitionId, log_file, producers_file
from whippet.storage.partition_check import Part
from whippet.storage.repair_source import Finding
from whippet.storage.segment import Damage

UPLOADED = "uploaded again"
NOT_HERE = "the data folder does not have exactly these bytes any more; `whippet restore` may not be complete"


class Reuploading:
    """One run over one partition."""

    def __init__(
        self, objects: Objects, place: PartitionId, manifest: Manifest, files: Files, folder: str, *, dry_run: bool
    ) -> None:
        self._objects = objects
        self._below = partition_folder(place)
        self._manifest = manifest
        self._files = files
        self._folder = folder
        self._dry_run = dry_run

    def run(self) -> Iterator[Finding]:
        for piece in self._manifest.pieces:
            if (reason := self._fault(piece.log)) is not None:
                yield self._finding(piece.log, piece, reason, self._upload_log(piece))
            if (reason := self._fault(piece.index)) is not None:
                yield self._finding(piece.index, piece, reason, self._upload(piece.index, self._index_of(piece)))
        producers = self._manifest.producers
        if producers is not None and (reason := self._fault(producers)) is not None:
            path = producers_file(self._folder)
            content = read_all(self._files, path) if self._files.exists(path) else b""
            yield self._finding(producers, None, reason, self._upload(producers, content))

    def _fault(self, blob: Blob) -> str | None:
        """Returns what is wrong with an object, which is read completely."""
        found = self._objects.digest(f"{self._below}/{blob.name}")
        if found is None:
            return "the object is missing"
        if found != Digest(blob.size, blob.xxh3):
            return f"the object has {found.size} bytes with the checksum {found.xxh3}, not {blob.size} with {blob.xxh3}"
        return None

    def _finding(self, blob: Blob, piece: Piece | None, reason: str, done: bool) -> Finding:
        path = f"{self._objects.location}/{self._below}/{blob.name}"
        damage = Damage(path, 0, 0, 0, 0, reason)
        if piece is not None:
            damage = Damage(path, piece.position, piece.end - piece.position, piece.first, piece.next, reason)
        return Finding(Part.OBJECT, damage, done, UPLOADED if done else NOT_HERE)

    def _upload_log(self, piece: Piece) -> bool:
        path = log_file(self._folder, piece.start)
        if not self._files.exists(path):
            return False
        handle = self._files.open_for_reading(path)
        try:

            def parts() -> Iterator[bytes]:
                for start in range(piece.position, piece.end, PART_BYTES):
                    yield read_fully(self._files, handle, min(PART_BYTES, piece.end - start), start)

            hasher, size = xxhash.xxh3_64(), 0
            for part in parts():
                hasher.update(part)
                size += len(part)
            if (size, hasher.hexdigest()) != (piece.log.size, piece.log.xxh3):
                return False
            if not self._dry_run:
                self._objects.put_parts(f"{self._below}/{piece.log.name}", parts())
        finally:
            self._files.close(handle)
        return self._dry_run or self._fault(piece.log) is None

    def _index_of(self, piece: Piece) -> bytes:
        known = recovery.load_index(self._files, self._folder, piece.start)
        if known is None:
            return b""
        entries = known[0]
        part = entries.part(entries.before(piece.position), entries.before(piece.end))
        return indexes.encode(part, piece.start, piece.end)

    def _upload(self, blob: Blob, content: bytes) -> bool:
        if (len(content), xxhash.xxh3_64_hexdigest(content)) != (blob.size, blob.xxh3):
            return False
        if not self._dry_run:
            self._objects.put(f"{self._below}/{blob.name}", content)
        return self._dry_run or self._fault(blob) is None
