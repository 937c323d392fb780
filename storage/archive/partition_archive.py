"""The archive of one partition: its manifest, and what is uploaded and recorded in one round.

The order is: upload, read back, record in the manifest, and only then remove what the manifest no longer names. The
manifest is replaced on the condition that it is unchanged. So a crash at any point leaves at most objects that no
manifest names, which the next server removes.

All of it blocks. The archiver runs it on its threads, never two rounds of one partition at the same time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec
import xxhash

from whippet.storage.archive.documents import (
    Blob,
    Manifest,
    Owner,
    Piece,
    aside_epoch,
    aside_name,
    blobs,
    decode,
    encode,
    epoch_of,
    manifest_name,
    partition_folder,
    producers_name,
)
from whippet.storage.archive.objects import Objects, Version
from whippet.storage.archive.uploads import Uploader, head_of
from whippet.storage.archive.views import Extent, SegmentGone, SegmentView, View, upload_from
from whippet.storage.batch import HEADER_BYTES
from whippet.storage.errors import ArchiveConflict, ArchiveUnavailable, ReadFailed
from whippet.storage.files import Files, read_all, read_fully
from whippet.storage.handles import close
from whippet.storage.layout import OFFSETS_FOLDER, PartitionId, log_file, number, producers_file
from whippet.storage.offsets import FOLDERS

_log = logging.getLogger(__name__)

RECORDED_TOGETHER_BYTES = 64 << 20
"""The manifest is replaced each time this much was uploaded, so that a failure costs no more."""


class Known(NamedTuple):
    """What the archive has of a partition, as the event loop needs it."""

    extents: dict[int, list[Extent]]
    """By the start offset of a segment."""
    covered: int
    """All closed segments that end at or before this offset are in the archive completely."""
    first_offset: int
    """The first message in the archive."""
    next_offset: int
    """After the last message in the archive."""
    local_bytes: int
    """Bytes of the local log that are in the archive."""
    log_end: int
    """Where the log continued when it was archived."""


class PartitionArchive:
    """See the module."""

    def __init__(
        self, place: PartitionId, folder: str, incarnation: int, owner: Owner, objects: Objects, files: Files,
        uploader: Uploader, clock: Callable[[], int],
    ) -> None:  # fmt: skip
        self.place = place
        self.incarnation = incarnation
        self._folder = folder
        self._owner = owner
        self._objects = objects
        self._files = files
        self._uploader = uploader
        self._clock = clock
        self._manifest: Manifest | None = None
        self._version: Version | None = None
        self._pieces: dict[int, list[Piece]] = {}
        """Those to be recorded next, by the start offset of their segment."""

    def load(self) -> Known:
        """Reads the manifest, unless it is known."""
        if self._manifest is None:
            name = manifest_name(self.place)
            found = self._objects.get(name)
            if found is None:
                manifest, version = self._fresh(epoch=0), None
            else:
                manifest, version = decode(found.content, Manifest, f"{self._objects.location}/{name}"), found.version
                self._check_owner(manifest)
                self._remove_strays(manifest)
            self._use(manifest, version)
        return self._known(View([], 0))

    def take(self) -> Manifest:
        """Replaces the manifest by one of this server, so that an earlier owner of the archive which has not noticed
        yet that it has lost it cannot replace it any more. Returns what it says about this incarnation."""
        name = manifest_name(self.place)
        found = self._objects.get(name)
        try:
            if found is None:
                fresh = self._fresh(epoch=0)
                self._use(fresh, None)
                self._record(fresh)
            else:
                manifest = decode(found.content, Manifest, f"{self._objects.location}/{name}")
                self._check_owner(manifest)
                self._use(manifest, found.version)
                if manifest.generation != self._owner.generation:
                    self._record(manifest)
            taken = self._manifest
            assert taken is not None
            return taken if taken.incarnation == self.incarnation else self._fresh(taken.epoch)
        finally:
            # The first round looks for objects that nothing names.
            self.forget()

    def advance(self, view: View, is_current: Callable[[], bool], expired: int = 0) -> Known:
        """Archives what a view has, and removes segments that are not in it and whose messages are all older than
        `expired`. `is_current` is False if the partition was purged since the view was taken; then
        SegmentGone is raised, and nothing is recorded."""
        try:
            self.load()
            assert self._manifest is not None
            if self._manifest.incarnation != self.incarnation:
                # What had this place before was removed on request.
                self._record(self._fresh(self._manifest.epoch + 1))
            elif reason := self._contradiction(self._manifest, view):
                self._set_aside(self._manifest, reason)
            self._forget_expired(view, expired)
            self._upload(view, is_current)
            return self._known(view)
        except BaseException:
            # Whether a record has arrived may be unknown, so the next round begins with what the archive says.
            self.forget()
            raise

    def look(self, view: View) -> Known:
        """Returns what the archive has of a view. Nothing is uploaded."""
        self.load()
        assert self._manifest is not None
        if self._manifest.incarnation != self.incarnation or self._contradiction(self._manifest, view):
            return Known({}, 0, 0, 0, 0, 0)
        return self._known(view)

    def begin_epoch(self) -> None:
        """Removes everything from the archive: it was deleted on request."""
        self.load()
        assert self._manifest is not None
        if self._version is not None:
            _log.info("archive: %s was emptied, and what the archive had of it is removed", self.place)
            self._record(self._fresh(self._manifest.epoch + 1))

    def forget(self) -> None:
        self._manifest = self._version = None

    # --------------------------------------------------------------------------------------------------------- manifest

    def _fresh(self, epoch: int) -> Manifest:
        revision = 0 if self._manifest is None else self._manifest.revision
        return Manifest(
            store=self._owner.store,
            generation=self._owner.generation,
            revision=revision,
            epoch=epoch,
            incarnation=self.incarnation,
            written_at=self._clock(),
            next_offset=0,
        )

    def _use(self, manifest: Manifest, version: Version | None) -> None:
        self._manifest, self._version = manifest, version
        self._pieces = by_segment(manifest.pieces)

    def _check_owner(self, manifest: Manifest) -> None:
        where = f"{self._objects.location}/{manifest_name(self.place)}"
        if manifest.store != self._owner.store:
            raise ArchiveConflict(f"{where} belongs to another data folder, with the id {manifest.store}")
        if manifest.generation > self._owner.generation:
            raise ArchiveConflict(f"{where} was written by a server that has claimed the archive later")

    def _record(self, manifest: Manifest, *, keeps_objects: bool = False) -> None:
        """Replaces the manifest, then removes what the old one named and the new one does not."""
        old = self._manifest
        assert old is not None
        manifest = msgspec.structs.replace(
            manifest, generation=self._owner.generation, revision=old.revision + 1, written_at=self._clock()
        )
        name, content = manifest_name(self.place), encode(manifest)
        try:
            version = self._objects.replace(name, content, self._version)
        except ArchiveConflict:
            # A write may succeed although its response is lost.
            found = self._objects.get(name)
            if found is None:
                raise
            if found.content != content:
                self._check_owner(decode(found.content, Manifest, f"{self._objects.location}/{name}"))
                # A write of this server, or of the one before it, that had seemed to fail has arrived after all.
                raise ArchiveUnavailable(
                    f"{self._objects.location}/{name} was written late; it is read again"
                ) from None
            version = found.version
        self._use(manifest, version)
        if not keeps_objects:
            named = {blob.name for blob in blobs(manifest)}
            self._remove(blob.name for blob in blobs(old) if blob.name not in named)

    def _remove(self, names: Iterable[str]) -> None:
        folder = partition_folder(self.place)
        self._objects.remove([f"{folder}/{name}" for name in names])

    def _remove_strays(self, manifest: Manifest) -> None:
        """Removes the objects that a server has uploaded and not recorded, or no longer named and not removed."""
        folder = partition_folder(self.place)
        self._objects.remove_unfinished(folder)
        names = [item.name.rpartition("/")[2] for item in self._objects.list(f"{folder}/")]
        kept = {epoch for name in names if (epoch := aside_epoch(name)) is not None}
        named = {blob.name for blob in blobs(manifest)}
        self._remove(
            name for name in names if (epoch := epoch_of(name)) is not None and epoch not in kept and name not in named
        )

    # -------------------------------------------------------------------------------------------- histories that differ

    def _contradiction(self, manifest: Manifest, view: View) -> str | None:
        """Why the manifest is not about the log that the partition has; None if it is."""
        if not manifest.pieces:
            return None
        if manifest.pieces[-1].next > view.next_offset:
            return f"its messages end at offset {view.next_offset}, those in the archive at {manifest.pieces[-1].next}"
        shared = [segment for segment in view.segments if segment.start in self._pieces]
        for segment in shared:
            end = self._pieces[segment.start][-1].end
            if end > segment.log_bytes:
                return f"the segment {segment.start} has {segment.log_bytes} bytes, in the archive it has {end}"
        for segment in {segment.start: segment for segment in (*shared[:1], *shared[-1:])}.values():
            piece = self._pieces[segment.start][0]
            if piece.head and piece.head != self._head(segment, piece.position):
                return f"the segment {segment.start} begins with another batch than in the archive"
        return None

    def _head(self, segment: SegmentView, position: int) -> str:
        path = log_file(self._folder, segment.start)
        try:
            handle = self._files.open_for_reading(path)
            try:
                content = read_fully(self._files, handle, HEADER_BYTES, position)
            finally:
                close(self._files, path, handle)
        except OSError as error:
            raise ReadFailed(path, error) from error
        return head_of(content) if len(content) == HEADER_BYTES else ""

    def _set_aside(self, manifest: Manifest, reason: str) -> None:
        """Begins a new history. Nobody asked for the old one to be deleted, so its manifest and all its objects stay,
        under the name that includes its epoch."""
        name = aside_name(self.place, manifest.epoch)
        _log.warning(
            "archive: %s continues differently (%s); what the archive had of it is kept as %s",
            self.place, reason, name,
        )  # fmt: skip
        self._objects.put(name, encode(manifest))
        self._record(self._fresh(manifest.epoch + 1), keeps_objects=True)

    def _forget_expired(self, view: View, expired: int) -> None:
        """The next record is without them."""
        for start in sorted(self._pieces):
            last = self._pieces[start][-1]
            if last.next > view.first_offset or last.last_timestamp >= expired:
                break
            del self._pieces[start]

    # ---------------------------------------------------------------------------------------------------------- uploads

    def _upload(self, view: View, is_current: Callable[[], bool]) -> None:
        manifest = self._manifest
        assert manifest is not None
        unrecorded = 0
        for segment in view.segments:
            known = extents(self._pieces.get(segment.start, ()))
            if (known[-1].end if known else 0) >= segment.log_bytes:
                continue
            position = upload_from(known, segment.log_bytes)
            try:
                piece = self._uploader.piece(
                    self.place, self._folder, segment, position, manifest.epoch, self._owner.generation, self._clock()
                )
            except SegmentGone:
                # Retention has deleted it, or a purge, which shows in a moment.
                continue
            kept = [each for each in self._pieces.get(segment.start, ()) if each.end <= position]
            self._pieces[segment.start] = [*kept, piece]
            unrecorded += piece.end - piece.position
            if unrecorded >= RECORDED_TOGETHER_BYTES and is_current():
                self._record(self._with_pieces(self._manifest or manifest, view))
                unrecorded = 0
        if not is_current():
            raise SegmentGone
        assert self._manifest is not None
        recorded = msgspec.structs.replace(
            self._with_pieces(self._manifest, view), offsets=self._offset_files(), producers=self._producers()
        )
        if self._version is None or self._differs(recorded):
            self._record(recorded)

    def _with_pieces(self, manifest: Manifest, view: View) -> Manifest:
        pieces = tuple(piece for start in sorted(self._pieces) for piece in self._pieces[start])
        return msgspec.structs.replace(manifest, pieces=pieces, next_offset=view.next_offset)

    def _differs(self, new: Manifest) -> bool:
        old = self._manifest
        assert old is not None
        return (old.pieces, old.next_offset, old.offsets, old.producers) != (
            new.pieces, new.next_offset, new.offsets, new.producers,
        )  # fmt: skip

    def _offset_files(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for name in FOLDERS.values():
            folder = f"{self._folder}/{OFFSETS_FOLDER}/{name}"
            try:
                for item in self._files.list(folder):
                    if number(item.name) is not None and not item.is_folder:
                        found[f"{name}/{item.name}"] = read_all(self._files, f"{folder}/{item.name}")
            except FileNotFoundError:
                # A purge or a consumer has just removed it.
                continue
            except OSError as error:
                raise ReadFailed(folder, error) from error
        return found

    def _producers(self) -> Blob | None:
        assert self._manifest is not None
        path, known = producers_file(self._folder), self._manifest.producers
        try:
            content = read_all(self._files, path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ReadFailed(path, error) from error
        xxh3 = xxhash.xxh3_64_hexdigest(content)
        if known is not None and known.xxh3 == xxh3:
            return known
        name = producers_name(self._manifest.epoch, self._owner.generation, xxh3)
        return self._uploader.blob(self.place, name, content)

    # ----------------------------------------------------------------------------------------------------------- result

    def _known(self, view: View) -> Known:
        manifest = self._manifest
        assert manifest is not None
        covered = 0
        for segment in view.segments:
            archived = self._pieces.get(segment.start)
            if not segment.is_closed or (archived[-1].end if archived else 0) < segment.log_bytes:
                break
            covered = segment.next_offset
        known = {start: extents(pieces) for start, pieces in self._pieces.items()}
        local = sum(known[segment.start][-1].end for segment in view.segments if segment.start in known)
        first, end = (manifest.pieces[0].first, manifest.pieces[-1].next) if manifest.pieces else (0, 0)
        return Known(known, covered, first, end, local, manifest.next_offset)


def by_segment(pieces: Iterable[Piece]) -> dict[int, list[Piece]]:
    found: dict[int, list[Piece]] = {}
    for piece in pieces:
        found.setdefault(piece.start, []).append(piece)
    return found


def extents(pieces: Iterable[Piece]) -> list[Extent]:
    return [Extent(piece.position, piece.end) for piece in pieces]
