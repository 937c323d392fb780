"""Uploads pieces of logs, and reads every object back before anybody relies on it. Runs on the archiver's threads."""

from __future__ import annotations

from collections.abc import Iterator

import xxhash

from whippet.storage import recovery
from whippet.storage.archive.documents import Blob, Piece, partition_folder, piece_name
from whippet.storage.archive.objects import PART_BYTES, Digest, Objects
from whippet.storage.archive.pacing import Pacer
from whippet.storage.archive.views import SegmentGone, SegmentView
from whippet.storage.batch import HEADER_BYTES, header
from whippet.storage.errors import ArchiveUnavailable, ReadFailed
from whippet.storage.files import Files, read_fully
from whippet.storage.handles import close
from whippet.storage.index import Index, encode
from whippet.storage.layout import PartitionId, log_file
from whippet.storage.segment import Segment


class Uploader:
    """Copies pieces of logs to one archive."""

    def __init__(self, objects: Objects, files: Files, pacer: Pacer) -> None:
        self.bytes = 0
        """How much was sent. Threads add to it without a lock: it is only shown."""
        self._objects = objects
        self._files = files
        self._pacer = pacer

    def piece(
        self,
        place: PartitionId,
        folder: str,
        segment: SegmentView,
        position: int,
        epoch: int,
        generation: int,
        now: int,
    ) -> Piece:
        """Uploads a segment from a position to its end, with the index of these bytes. Raises SegmentGone."""
        index = segment.entries
        if index is None:
            index = self._index_of(folder, segment, place.partition)
        index = index.part(index.before(position), len(index))
        end, count = segment.log_bytes, len(index)
        path = log_file(folder, segment.start)
        try:
            handle = self._files.open_for_reading(path)
        except FileNotFoundError as error:
            raise SegmentGone from error
        except OSError as error:
            raise ReadFailed(path, error) from error
        try:
            head = head_of(self._read(path, handle, HEADER_BYTES, index.position(0))) if count else ""
            name = piece_name(segment.start, position, end, epoch, generation, "log")
            log = self._upload_range(place, name, path, handle, position, end)
        finally:
            close(self._files, path, handle)
        name = piece_name(segment.start, position, end, epoch, generation, "index")
        return Piece(
            start=segment.start,
            position=position,
            end=end,
            first=index.base_offset(0) if count else segment.start,
            next=segment.next_offset if segment.is_closed or not count else index.next_offset(count - 1),
            first_timestamp=index.timestamp(0) if count else 0,
            last_timestamp=index.timestamp(count - 1) if count else 0,
            batches=count,
            head=head,
            log=log,
            index=self.blob(place, name, encode(index, segment.start, end)),
            archived_at=now,
        )

    def _index_of(self, folder: str, segment: SegmentView, partition_id: int) -> Index:
        known = recovery.load_index(self._files, folder, segment.start)
        if known is not None and known[1] == segment.log_bytes:
            return known[0]
        # It is a hint, which may be missing. The shard reports damage when it reads the segment; here the bytes are
        # copied as they are.
        rebuilt = Segment(segment.start, segment.log_bytes, segment.next_offset)
        try:
            recovery.check_closed(self._files, folder, rebuilt, partition_id)
        except FileNotFoundError as error:
            raise SegmentGone from error
        except OSError as error:
            raise ReadFailed(log_file(folder, segment.start), error) from error
        assert rebuilt.index is not None
        return rebuilt.index

    def blob(self, place: PartitionId, name: str, content: bytes) -> Blob:
        """Uploads a small object."""
        self._pacer.wait(len(content))
        path = f"{partition_folder(place)}/{name}"
        self._objects.put(path, content)
        return self._verified(path, name, Digest(len(content), xxhash.xxh3_64_hexdigest(content)))

    def _upload_range(self, place: PartitionId, name: str, log_path: str, handle: int, position: int, end: int) -> Blob:
        path = f"{partition_folder(place)}/{name}"
        hasher = xxhash.xxh3_64()

        def parts() -> Iterator[bytes]:
            for start in range(position, end, PART_BYTES):
                length = min(PART_BYTES, end - start)
                self._pacer.wait(length)
                content = self._read(log_path, handle, length, start)
                hasher.update(content)
                yield content

        if end - position <= PART_BYTES:
            self._objects.put(path, b"".join(parts()))
        else:
            self._objects.put_parts(path, parts())
        return self._verified(path, name, Digest(end - position, hasher.hexdigest()))

    def _read(self, path: str, handle: int, length: int, position: int) -> bytes:
        try:
            content = read_fully(self._files, handle, length, position)
        except OSError as error:
            raise ReadFailed(path, error) from error
        if len(content) < length:
            raise SegmentGone
        return content

    def _verified(self, path: str, name: str, sent: Digest) -> Blob:
        """Reads an object back. What differs from what was sent is not recorded, and will be uploaded again."""
        self.bytes += sent.size
        stored = self._objects.digest(path)
        if stored != sent:
            what = "it is missing" if stored is None else f"it has {stored.size} bytes with the checksum {stored.xxh3}"
            raise ArchiveUnavailable(
                f"{self._objects.location}/{path} was uploaded with {sent.size} bytes and the checksum {sent.xxh3}, "
                f"but {what}"
            )
        return Blob(name=name, size=sent.size, xxh3=sent.xxh3)


def head_of(batch: bytes) -> str:
    """The checksum of a batch, as manifests have it."""
    return f"{header(batch).checksum:016x}"
