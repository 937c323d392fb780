"""Reads the archived segments of one partition as if they were local: the same code (log_reader.py), with other bytes.

A reader sees the manifest as it was when the reader was made. It belongs to one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from whippet.storage import index as indexes
from whippet.storage.archive.blobs import content_of
from whippet.storage.archive.blocks import Blocks, Object
from whippet.storage.archive.documents import Manifest, Piece, partition_folder
from whippet.storage.archive.objects import Objects
from whippet.storage.archive.partition_archive import by_segment
from whippet.storage.encryption import Seal
from whippet.storage.errors import ArchiveDamaged
from whippet.storage.files import Buffer, Files
from whippet.storage.handles import Handles, IndexCache
from whippet.storage.index import Index
from whippet.storage.layout import PartitionId
from whippet.storage.log_reader import LogReader
from whippet.storage.segment import Damage, Segment

INDEXES_BYTES = 8 << 20
"""The indexes that one reader keeps in memory."""


class ArchiveReader(LogReader):
    """See the module. `until` is where the local log begins."""

    reads_ahead = False
    """The next blocks are fetched ahead (blocks.py); to wait for them would delay what is wanted now."""

    def __init__(
        self,
        objects: Objects,
        blocks: Blocks,
        files: Files,
        place: PartitionId,
        manifest: Manifest,
        until: int,
        report: Callable[[Damage], None],
        seal: Seal | None = None,
    ) -> None:
        self._objects = objects
        self._blocks = blocks
        self._pieces = {start: pieces for start, pieces in by_segment(manifest.pieces).items() if start < until}
        self.until = until
        segments: list[Segment] = []
        for start in sorted(self._pieces):
            last = self._pieces[start][-1]
            segment = Segment(start, last.end, last.next)
            segment.last_timestamp = last.last_timestamp
            segment.end_checked = True
            if segments:
                segments[-1].next_offset = start
            segments.append(segment)
        if segments:
            segments[-1].next_offset = until
        super().__init__(
            files,
            Handles(files, 2),
            IndexCache(INDEXES_BYTES),
            partition_folder(place),
            place.partition,
            segments,
            report,
            seal,
        )
        objects_in_order = [self._object(piece) for start in sorted(self._pieces) for piece in self._pieces[start]]
        self._following = {before.name: after for before, after in pairwise(objects_in_order)}

    @property
    def is_empty(self) -> bool:
        return not self.segments

    def first_timestamp(self, segment: Segment) -> int:
        return self._pieces[segment.start_offset][0].first_timestamp

    def _index(self, segment: Segment) -> Index:
        if segment.index is not None:
            self._indexes.touch(segment)
            return segment.index
        index = Index()
        for piece in self._pieces[segment.start_offset]:
            name = f"{self.folder}/{piece.index.name}"
            known = indexes.decode(b"".join(content_of(self._objects, name, piece.index)), segment.start_offset)
            if known is None or known[1] != piece.end:
                raise ArchiveDamaged(f"{self._objects.location}/{name} is not an index of its segment")
            index.extend(known[0])
        self._indexes.put(segment, index)
        return index

    def _read_file(self, segment: Segment, length: int, position: int) -> Buffer:
        parts = []
        for piece in self._pieces[segment.start_offset]:
            start, end = max(position, piece.position), min(position + length, piece.end)
            if start < end:
                parts.append(self._read_piece(piece, start - piece.position, end - start))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_piece(self, piece: Piece, start: int, length: int) -> Buffer:
        name = self._object(piece).name
        return self._blocks.read(name, piece.log.size, start, length, self._following.get(name))

    def _object(self, piece: Piece) -> Object:
        return Object(f"{self.folder}/{piece.log.name}", piece.log.size)

    def _rescan(self, segment: Segment) -> Index:
        names = ", ".join(piece.log.name for piece in self._pieces[segment.start_offset])
        raise ArchiveDamaged(
            f"{self._objects.location}/{self.folder}: the batches in {names} are not what the index says; "
            "`whippet check --archive` tells more"
        )

    def _drop_if_read(self, segment: Segment) -> None:
        """There is no file to close."""
