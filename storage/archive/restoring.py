"""Makes a data folder from an archive: for a machine that was lost, or as a copy.

The folder gets the file FORMAT last, once everything else is on the disk. So a folder that is only half restored is not
opened by any server; restoring it again keeps the logs that are already complete. All of it blocks: the command line
calls it, and a server before it opens the store.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import msgspec
import xxhash

from whippet.storage import index as indexes
from whippet.storage import offsets, takeover
from whippet.storage.archive import ownership
from whippet.storage.archive.blobs import content_of
from whippet.storage.archive.catalogue_archive import as_of, places_in
from whippet.storage.archive.documents import (
    CATALOGUE,
    OWNER,
    ROUND,
    Blob,
    Catalogue,
    Document,
    Listed,
    Manifest,
    Owner,
    Piece,
    Round,
    decode,
    encode,
    manifest_name,
    partition_folder,
    plain,
)
from whippet.storage.archive.objects import Objects
from whippet.storage.archive.partition_archive import by_segment
from whippet.storage.catalog import Catalog
from whippet.storage.data_folder import Identity
from whippet.storage.documents import NOT_UNDERSTOOD
from whippet.storage.encryption import Seal
from whippet.storage.errors import ArchiveConflict, ArchiveDamaged, RestoreRefused
from whippet.storage.files import Buffer, Files, make_folders, read_fully, replace, write_all
from whippet.storage.index import Index
from whippet.storage.layout import (
    CLAIMS_FILE,
    EXTERNAL_GROUPS_FOLDER,
    FORMAT_FILE,
    LOCK_FILE,
    OFFSETS_FOLDER,
    RESTORING_FILE,
    TOKENS_FOLDER,
    USERS_FOLDER,
    Layout,
    PartitionId,
    index_file,
    left_out_file,
    log_file,
    producers_file,
)
from whippet.storage.options import StoreOptions
from whippet.storage.survey import SealsOf
from whippet.storage.takeover import Ends

_log = logging.getLogger(__name__)

MARKER = RESTORING_FILE
LEFT_ALONE = frozenset({"lost+found", LOCK_FILE, MARKER, CLAIMS_FILE})
MESSAGES_PER_SECOND_MAX = 1 << 24
"""No partition receives more. It bounds which offsets a lost server may have given out since it archived last."""
CLOCKS_APART_S = 60
TAKE_OVER_TRIES = 5
THREADS = 8
"""How many partitions are restored at the same time."""


class Restored(NamedTuple):
    """What was restored, and what may be lost."""

    partitions: int
    messages: int
    size_bytes: int
    archived_at: int
    """When the last complete round of the archiver began, in us: everything before it is there."""
    complete: bool
    """Whether the server had stopped and archived everything before, so that nothing is lost."""
    catalogue_at: int = 0
    """When the catalogue was written that names, options, users and tokens are from."""
    offsets_lowered: int = 0
    """Stored offsets that were after the last message that is restored."""
    offsets_unknown: int = 0
    """Stored offsets that are encrypted with a key which is not known here, so that they are as they were archived."""


class Progress(NamedTuple):
    partitions: int
    total: int
    size_bytes: int


class Restoring:
    """One run. `to` restores the messages up to a time, in us. `take_over` makes the new folder the owner of the
    archive, and nobody else can write to it any more. Without `downloads` the messages stay in the archive, from where
    the server reads them."""

    def __init__(
        self,
        objects: Objects,
        options: StoreOptions,
        files: Files,
        clock: Callable[[], int],
        *,
        to: int | None = None,
        take_over: bool = False,
        downloads: bool = True,
        on_progress: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        self._objects = objects
        self._files = files
        self._layout = Layout(options)
        self._clock = clock
        self._to = to
        self._take_over = take_over
        self._on_progress = on_progress
        self._archive_path = "" if options.archive is None else options.archive.path
        self._owner: Owner | None = None
        self._downloads = downloads
        self._messages = self._bytes = self._lowered = self._unknown = 0
        self._keyring = options.keyring
        self._seals = SealsOf(None, "")
        self._lock = threading.Lock()

    def run(self) -> Restored:
        """Raises RestoreRefused if there is something else in the folder already."""
        root = self._layout.root
        for above in make_folders(self._files, root):
            self._files.sync_folder(above)
        lock = self._files.lock(self._layout.below(LOCK_FILE))
        if lock is None:
            raise RestoreRefused(f"{root}: another process has this folder open")
        try:
            self._require_empty()
            return self._restore()
        finally:
            self._files.close(lock)

    def _require_empty(self) -> None:
        root = self._layout.root
        names = {item.name for item in self._files.list(root)}
        if FORMAT_FILE in names:
            raise RestoreRefused(f"{root} is a data folder already; restore into a new or empty folder")
        others = sorted(
            name
            for name in names
            if name.removesuffix(".new") not in LEFT_ALONE
            and not f"{self._archive_path}/".startswith(f"{root}/{name}/")
        )
        if MARKER not in names and others:
            raise RestoreRefused(f"{root} is not empty (it has {others[0]}); restore into a new or empty folder")

    def _restore(self) -> Restored:
        before = self._document(OWNER, Owner)
        if before is None:
            raise RestoreRefused(f"{self._objects.location} is not an archive: it has no {OWNER}")
        replace(self._files, self._layout.below(MARKER), f"{self._objects.location}\n".encode())
        own = ownership.read_claims(self._files, self._layout).archives.get(self._objects.location, ownership.Known())
        if self._take_over:
            self._owner = ownership.claim(
                self._objects, self._files, self._layout, before.store, self._clock, take_over=True
            ).owner
        catalogue = self._taken(CATALOGUE, Catalogue, self._renewed)
        if catalogue is None:
            raise ArchiveDamaged(f"{self._objects.location}/{CATALOGUE} is missing, so there is nothing to restore")
        if self._to is not None:
            catalogue = msgspec.structs.replace(catalogue, streams=as_of(catalogue.streams, self._to))
        self._seals = SealsOf(self._keyring, _identity_in(catalogue).id)
        self._restore_documents(catalogue)
        places = places_in(catalogue.streams)
        if self._downloads:
            last = self._taken(ROUND, Round, self._renewed)
            given_out = self._given_out(before, last, catalogue)
            incarnations = {
                (stream.document.id, topic.document.id): topic.document.incarnation
                for stream in catalogue.streams
                for topic in stream.topics
            }

            def restore(place: PartitionId) -> None:
                incarnation = incarnations[place.stream, place.topic](place.partition)
                self._restore_partition(place, incarnation, given_out)

            self._on_threads(restore, places)
        else:
            last = self._taken(ROUND, Round, lambda last: self._listed(before, last, catalogue, own))
        # The round may be of an earlier claim: since then, nothing is certain to be archived.
        archived_at = created_at(catalogue) if last is None else last.began_at
        self._files.sync_filesystem(self._layout.root)
        replace(self._files, self._layout.below(FORMAT_FILE), catalogue.format)
        self._files.remove(self._layout.below(MARKER))
        self._files.sync_folder(self._layout.root)
        return Restored(
            len(places), self._messages, self._bytes, archived_at, before.complete, catalogue.written_at,
            self._lowered, self._unknown,
        )  # fmt: skip

    def _document(self, name: str, kind: type[Document]) -> Document | None:
        found = self._objects.get(name)
        return None if found is None else decode(found.content, kind, f"{self._objects.location}/{name}")

    def _taken(
        self, name: str, kind: type[Document], renewed: Callable[[Document | None], Document | None]
    ) -> Document | None:
        """Reads a document. If the archive is taken over, it is also replaced, so that a server which has not noticed
        yet that it has lost the archive cannot replace it any more."""
        where = f"{self._objects.location}/{name}"
        for _ in range(TAKE_OVER_TRIES):
            found = self._objects.get(name)
            document = None if found is None else decode(found.content, kind, where)
            if self._owner is None or (new := renewed(document)) is None:
                return document
            try:
                self._objects.replace(name, encode(new), None if found is None else found.version)
            except ArchiveConflict:
                continue
            return document
        raise ArchiveConflict(f"{where}: another server keeps changing it")

    def _renewed(self, document: Any) -> Any:
        """A document as its new owner writes it."""
        if document is None or self._owner is None:
            return None
        return msgspec.structs.replace(document, generation=self._owner.generation)

    def _given_out(self, before: Owner, last: Round | None, catalogue: Catalogue) -> int:
        """Returns how many offsets a partition may have given out that the archive does not know."""
        if before.complete and self._to is None:
            return 0
        return given_out_since(
            created_at(catalogue) if last is None else last.bounded_at or last.began_at, self._clock()
        )

    def _on_threads(self, work: Callable[[PartitionId], object], places: Sequence[PartitionId]) -> None:
        with ThreadPoolExecutor(THREADS, thread_name_prefix="restore") as threads:
            try:
                for count, _ in enumerate(threads.map(work, places)):
                    self._on_progress(Progress(count + 1, len(places), self._bytes))
            except BaseException:
                threads.shutdown(cancel_futures=True)
                raise

    # ------------------------------------------------------------------------------------------------- without messages

    def _listed(self, before: Owner, last: Round | None, catalogue: Catalogue, own: ownership.Known) -> Round:
        """Lists where every partition begins, and where it continues from now on: in `takeover.json`, and in the round
        that replaces the last one. Whoever takes the archive over next counts from there."""
        assert self._owner is not None
        # Nobody was served by an attempt of this folder that was interrupted, so the list that it has made still holds.
        is_again = last is not None and last.generation == before.generation and own.has(before.claim)
        given_out = 0 if is_again else self._given_out(before, last, catalogue)
        known = {} if last is None else {listed.place: listed for listed in last.partitions or ()}
        topics = {(s.document.id, t.document.id): t.document for s in catalogue.streams for t in s.topics}
        listed: dict[PartitionId, Listed] = {}
        for place in places_in(catalogue.streams):
            one = known.get(place)
            if one is not None and one.incarnation == topics[place.stream, place.topic].incarnation(place.partition):
                listed[place] = msgspec.structs.replace(one, next=one.next + given_out)

        def look(place: PartitionId) -> None:
            incarnation = topics[place.stream, place.topic].incarnation(place.partition)
            manifest = self._document(manifest_name(place), Manifest)
            listed[place] = _ends_in(manifest, place, incarnation, given_out)

        self._on_threads(look, [place for place in places_in(catalogue.streams) if place not in listed])
        takeover.write(
            self._files, self._layout, self._objects.location,
            (Ends(one.stream, one.topic, one.partition, one.first, one.end, one.next) for one in listed.values()),
        )  # fmt: skip
        self._messages = sum(one.end - one.first for one in listed.values())
        return Round(
            store=catalogue.store,
            generation=self._owner.generation,
            began_at=created_at(catalogue) if last is None else last.began_at,
            bounded_at=self._clock(),
            partitions=tuple(listed.values()),
        )

    # ------------------------------------------------------------------------------------------------------- the parts

    def _restore_documents(self, catalogue: Catalogue) -> None:
        layout = self._layout
        catalog = Catalog(self._files, layout, sync=False)
        for folder, documents in ((USERS_FOLDER, catalogue.users), (TOKENS_FOLDER, catalogue.tokens)):
            make_folders(self._files, layout.below(folder))
            for name, content in documents.items():
                self._write(f"{layout.below(folder)}/{plain(name)}", content)
        if catalogue.numbers_reserved:
            catalog.write_numbers(catalogue.numbers_reserved)
        make_folders(self._files, layout.streams)
        for stream in catalogue.streams:
            make_folders(self._files, layout.topics(stream.document.id))
            catalog.write_stream(stream.document)
            for topic in stream.topics:
                make_folders(self._files, layout.partitions(stream.document.id, topic.document.id))
                # Partitions that were being removed are not in the archive any more.
                document = msgspec.structs.replace(topic.document, removing=())
                catalog.write_topic(stream.document.id, document)
                for group in topic.groups:
                    catalog.write_group(stream.document.id, topic.document.id, group)

    def _restore_partition(self, place: PartitionId, incarnation: int, given_out: int) -> None:
        folder = self._layout.partition(place)
        make_folders(self._files, folder)
        manifest = self._manifest(place)
        if manifest is None or manifest.incarnation != incarnation:
            # Nothing of it was archived. What there may be is of a partition that had its place before it.
            self._write(log_file(folder, given_out), b"")
            return
        segments = by_segment(manifest.pieces)
        self._remove_strays(folder, {log_file(folder, start) for start in segments})
        end, cut = 0, False
        for start in sorted(segments):
            if self._to is not None and segments[start][0].first_timestamp > self._to:
                break
            if end < start and start != min(segments):
                self._leave_out(folder, end)
            end, cut = self._restore_segment(place, folder, start, segments[start])
            if cut:
                break
        # Nothing that may have been given out is given out again. An empty segment stands for what is left out, and the
        # name of the last one tells where the partition continues.
        newest = max(manifest.next_offset, manifest.pieces[-1].next if manifest.pieces else 0) + given_out
        if newest > end or not segments:
            if segments:
                self._leave_out(folder, end)
            self._write(log_file(folder, newest), b"")
        self._restore_small_files(place, folder, manifest, end)

    def _restore_small_files(self, place: PartitionId, folder: str, manifest: Manifest, end: int) -> None:
        seal = self._seals.of(place).offsets
        for name, archived in manifest.offsets.items():
            kind, _, identity = name.partition("/")
            path = f"{folder}/{OFFSETS_FOLDER}/{plain(kind)}/{plain(identity)}"
            content = archived if self._to is None else self._lowered_to(end, name, archived, seal)
            if content is None:
                if self._files.exists(path):
                    self._files.remove(path)
                continue
            make_folders(self._files, path.rpartition("/")[0])
            self._write(path, content)
        if manifest.producers is not None:
            self._write(producers_file(folder), b"".join(self._content(place, manifest.producers)))

    def _lowered_to(self, end: int, name: str, content: bytes, seal: Seal | None) -> bytes | None:
        """A file of stored offsets that does not go beyond the messages that are restored; None if it is left out."""
        if name.startswith(f"{EXTERNAL_GROUPS_FOLDER}/"):
            return content
        part = None if seal is None else seal.for_part(name)
        known = offsets.value_in(content, part)
        lowered = known is not None and known >= end
        with self._lock:
            self._lowered += lowered
            self._unknown += known is None
        if not lowered:
            return content
        return offsets.rewritten(content, part, end - 1) if end else None

    def _count(self, messages: int, size: int) -> None:
        with self._lock:
            self._messages += messages
            self._bytes += size

    def _remove_strays(self, folder: str, wanted: set[str]) -> None:
        """An earlier run may have restored an older state of the archive. Logs that are wanted are compared."""
        for item in self._files.list(folder):
            path = f"{folder}/{item.name}"
            if not item.is_folder and path not in wanted:
                self._files.remove(path)

    def _leave_out(self, folder: str, offset: int) -> None:
        """An empty segment for the offsets from here to the next segment, which will never be given out."""
        if not self._files.exists(log_file(folder, offset)):
            self._write(log_file(folder, offset), b"")
        self._write(left_out_file(folder, offset), b"")

    def _manifest(self, place: PartitionId) -> Manifest | None:
        def renewed(manifest: Manifest | None) -> Manifest | None:
            if manifest is None or self._owner is None:
                return None
            return msgspec.structs.replace(manifest, generation=self._owner.generation, revision=manifest.revision + 1)

        return self._taken(manifest_name(place), Manifest, renewed)

    def _restore_segment(self, place: PartitionId, folder: str, start: int, pieces: list[Piece]) -> tuple[int, bool]:
        """Returns the offset after the last message, and whether there are later ones that are not restored."""
        entries = Index()
        position = 0
        for piece in pieces:
            if piece.position != position:
                raise ArchiveDamaged(
                    f"{self._objects.location}/{manifest_name(place)}: the bytes from {position} to {piece.position} "
                    f"of the segment {start} are in no piece"
                )
            position = piece.end
            content = b"".join(self._content(place, piece.index))
            known = indexes.decode(content, start)
            if known is None or known[1] != piece.end:
                raise ArchiveDamaged(
                    f"{self._objects.location}/{partition_folder(place)}/{piece.index.name} is not an index of it"
                )
            entries.extend(known[0])
        count, size, end = len(entries), position, pieces[-1].next
        if self._to is not None:
            count = next((i for i in range(len(entries)) if entries.timestamp(i) > self._to), count)
        cut = count < len(entries)
        if cut:
            entries.keep(count)
            size = entries.end_position(count - 1) if count else 0
            end = entries.next_offset(count - 1) if count else start
        path = log_file(folder, start)
        if not self._is_complete(path, pieces, size):
            self._write_parts(path, self._log_parts(place, pieces), size)
        self._write(index_file(folder, start), indexes.encode(entries, start, size))
        self._count(sum(entries.count(i) for i in range(count)), size)
        return end, cut

    def _is_complete(self, path: str, pieces: list[Piece], size: int) -> bool:
        """Whether an earlier run has restored this log."""
        if self._to is not None or not self._files.exists(path):
            return False
        handle = self._files.open_for_reading(path)
        try:
            if self._files.size(handle) != size:
                return False
            for piece in pieces:
                hasher = xxhash.xxh3_64()
                for start in range(piece.position, piece.end, 1 << 20):
                    hasher.update(read_fully(self._files, handle, min(1 << 20, piece.end - start), start))
                if hasher.hexdigest() != piece.log.xxh3:
                    return False
        finally:
            self._files.close(handle)
        return True

    def _log_parts(self, place: PartitionId, pieces: list[Piece]) -> Iterator[Buffer]:
        for piece in pieces:
            if piece.log.size != piece.end - piece.position:
                raise ArchiveDamaged(
                    f"{self._objects.location}/{manifest_name(place)}: {piece.log.name} has another size"
                )
            yield from self._content(place, piece.log)

    def _content(self, place: PartitionId, blob: Blob) -> Iterator[Buffer]:
        """The content of an object. Raises ArchiveDamaged at its end if it is not what was recorded."""
        yield from content_of(self._objects, f"{partition_folder(place)}/{blob.name}", blob)

    # ------------------------------------------------------------------------------------------------------------ files

    def _write(self, path: str, content: bytes) -> None:
        self._write_parts(path, iter((content,)), len(content))

    def _write_parts(self, path: str, parts: Iterator[Buffer], size: int) -> None:
        """Writes the first `size` bytes; all parts are read, so that their checksum is checked."""
        temporary = f"{path}.new"
        handle = self._files.open_for_writing(temporary)
        try:
            self._files.truncate(handle, 0)
            position = 0
            for part in parts:
                if (kept := part[: size - position]) and position < size:
                    write_all(self._files, handle, [kept], position)
                    position += len(kept)
        finally:
            self._files.close(handle)
        self._files.rename(temporary, path)


def given_out_since(archived_at: int, now: int) -> int:
    """Returns how many offsets of a partition a server may have given out since a time."""
    return (max(now - archived_at, 0) // 1_000_000 + CLOCKS_APART_S) * MESSAGES_PER_SECOND_MAX


def created_at(catalogue: Catalogue) -> int:
    """When the data folder was created."""
    return _identity_in(catalogue).created_at


def _identity_in(catalogue: Catalogue) -> Identity:
    try:
        return msgspec.json.decode(catalogue.format, type=Identity)
    except NOT_UNDERSTOOD as error:
        raise ArchiveDamaged(f"{CATALOGUE}: the file FORMAT in it cannot be decoded: {error}") from error


def _ends_in(manifest: Manifest | None, place: PartitionId, incarnation: int, given_out: int) -> Listed:
    first = end = next_offset = 0
    if manifest is not None and manifest.incarnation == incarnation:
        if manifest.pieces:
            first, end = manifest.pieces[0].first, manifest.pieces[-1].next
        next_offset = max(manifest.next_offset, end)
    return Listed.of(place, incarnation, first, end, next_offset + given_out)
