"""Repairs a data folder that no server has open from its archive, for `whippet repair`.

It finds damage as `whippet check` does. Nothing that is healthy changes, what is damaged is kept beside it, and the
repair may end at any point and be repeated. Without an archive it rebuilds indexes, and says what the server would do
about everything else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec

from whippet.storage import document_check, partition_repair
from whippet.storage.data_folder import Identity, read_identity
from whippet.storage.document_check import CheckedDocuments, Names
from whippet.storage.document_checksums import State, with_checksum, without_checksum
from whippet.storage.errors import RepairRefused, StoreLocked, UnsupportedFormat
from whippet.storage.files import Files, make_folders, read_all, replace
from whippet.storage.layout import (
    CLAIMS_FILE,
    FORMAT_FILE,
    FORMAT_VERSION,
    LOCK_FILE,
    NUMBERS_FILE,
    PLACEMENT_FILE,
    RESTORING_FILE,
    STAGING_FOLDER,
    Layout,
    PartitionId,
)
from whippet.storage.options import StoreOptions
from whippet.storage.partition_check import CHECKSUM_FAULT, Found, Part
from whippet.storage.partition_repair import FROM_ARCHIVE, NO_ARCHIVE, NOT_ARCHIVED, PartitionRepair, left
from whippet.storage.repair_source import Finding, Outcome, Source
from whippet.storage.segment import Damage
from whippet.storage.survey import SealsOf, places_in


class Repair:
    """One run. `trusts_archive` also replaces what is intact, but differs from the archive; `uploads` also repairs the
    archive from the folder."""

    def __init__(
        self,
        options: StoreOptions,
        files: Files,
        source: Source | None,
        *,
        dry_run: bool = False,
        trusts_archive: bool = False,
        uploads: bool = False,
    ) -> None:
        self._options = options
        self._files = files
        self._layout = Layout(options)
        self._source = source
        self._dry_run = dry_run
        self._trusts_archive = trusts_archive
        self._uploads = uploads
        self._others: list[Finding] = []
        self._notes: list[str] = []

    def run(self) -> Iterator[Outcome]:
        """Yields the partitions in which there was something to do, then a value about all other files. Raises
        StorageError if the folder cannot be repaired as a whole."""
        with self._locked():
            identity = self._enter()
            seals = SealsOf(self._options.keyring, identity.id)
            documents = document_check.check(self._files, self._layout, seals.documents)
            self._repair_documents(documents)
            if self._others and not self._dry_run:
                documents = document_check.check(self._files, self._layout, seals.documents)
            self._restore_folders(documents)
            for place in places_in(self._files, self._layout):
                yield from self._repair_partition(place, documents, seals)
            archive = [] if self._source is None else self._source.notes
            yield Outcome(None, "", "", self._others, [*self._notes, *archive])

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        root, layout = self._layout.root, self._layout
        if not any(self._files.exists(path) for path in (layout.below(FORMAT_FILE), layout.streams)):
            raise UnsupportedFormat(f"{layout.below(FORMAT_FILE)}: missing; this is not a data folder of Whippet")
        if self._files.exists(layout.below(RESTORING_FILE)):
            raise RepairRefused(f"{root}: it is being restored; repeat `whippet restore` instead")
        if self._files.exists(layout.below(PLACEMENT_FILE)):
            raise RepairRefused(f"{root}: an import was interrupted; start the server once, which finishes it")
        lock = self._files.lock(layout.below(LOCK_FILE))
        if lock is None:
            raise StoreLocked(f"{root}: another process has this data folder open; stop it first")
        try:
            yield
        finally:
            self._files.close(lock)

    # ----------------------------------------------------------------------------------------------------- the identity

    def _enter(self) -> Identity:
        """The identity of the folder, which may have to come from the archive."""
        path = self._layout.below(FORMAT_FILE)
        there = self._files.exists(path)
        content = read_all(self._files, path) if there else b""
        reason = "it is missing"
        if there:
            reason = ""
            if without_checksum(content)[1] is State.CHANGED:
                reason = CHECKSUM_FAULT
            else:
                try:
                    identity = read_identity(self._files, path)
                except UnsupportedFormat:
                    if _version_in(content) is not None:
                        raise
                    reason = "it cannot be decoded"
        if reason:
            identity = self._identity_from_archive(path, reason, content if there else None)
        elif self._source is not None and identity.id != self._source.store:
            raise RepairRefused(
                f"{self._source.location} is the archive of another data folder, with the id {self._source.store}; "
                f"this one has the id {identity.id}"
            )
        if self._source is not None and not self._is_claimed():
            self._notes.append(
                f"{self._source.location} was claimed by another server later; what it has from then on is not of this "
                "folder"
            )
        if self._source is not None and identity.whippet_store < FORMAT_VERSION and not self._dry_run:
            # The archive may have batches and indexes that older servers do not know.
            identity = msgspec.structs.replace(identity, whippet_store=FORMAT_VERSION)
            replace(self._files, path, with_checksum(msgspec.json.encode(identity) + b"\n"))
        return identity

    def _identity_from_archive(self, path: str, reason: str, damaged: bytes | None) -> Identity:
        archived = None if self._source is None else self._source.document(FORMAT_FILE)
        if archived is None:
            raise UnsupportedFormat(f"{path}: {reason}, and {NO_ARCHIVE}")
        assert self._source is not None
        if not self._is_claimed() and (damaged is None or not _resemble(damaged, archived)):
            raise RepairRefused(
                f"{path}: {reason}, so it is not certain that {self._source.location} is the archive of this folder "
                f"({CLAIMS_FILE} does not name it either)"
            )
        self._replace(Found(Part.DOCUMENT, Damage(path, 0, 0, 0, 0, reason)), archived)
        return msgspec.json.decode(archived, type=Identity)

    def _is_claimed(self) -> bool:
        """Returns whether this folder was the last one that wrote to the archive."""
        assert self._source is not None
        path = self._layout.below(CLAIMS_FILE)
        content = read_all(self._files, path) if self._files.exists(path) else b""
        return bool(self._source.claim) and f'"{self._source.claim}"'.encode() in content

    # -------------------------------------------------------------------------------------------------------- documents

    def _repair_documents(self, documents: CheckedDocuments) -> None:
        for found in documents.found:
            path = found.damage.file
            name = self._name_in_archive(path)
            if found.part is Part.FOLDER or path == self._layout.below(FORMAT_FILE):
                continue
            if name == NUMBERS_FILE:
                self._set_aside(found, "removed: new numbers are taken from the clock")
            elif name == CLAIMS_FILE:
                self._others.append(
                    left(found, "only this folder knows its claims; the archive of a folder without them is refused")
                )
            else:
                archived = None if self._source is None else self._source.document(name)
                if archived is None:
                    self._others.append(left(found, NO_ARCHIVE if self._source is None else NOT_ARCHIVED))
                else:
                    self._replace(found, archived)

    def _name_in_archive(self, path: str) -> str:
        """The path of a document in a folder with the usual names."""
        parts = path.removeprefix(f"{self._layout.root}/").split("/")
        if f"{self._layout.root}/{parts[0]}" == self._layout.streams:
            parts[0] = "streams"
            if len(parts) > 3:
                parts[2] = "topics"
        return "/".join(parts)

    def _replace(self, found: Found, content: bytes) -> None:
        path = found.damage.file
        kept: tuple[str, ...] = ()
        if not self._dry_run:
            if self._files.exists(path):
                kept = (self._free_name(path),)
                partition_repair.replace_keeping(self._files, path, content, kept[0])
            else:
                make_folders(self._files, path.rpartition("/")[0])
                replace(self._files, path, content)
        self._others.append(Finding(found.part, found.damage, True, FROM_ARCHIVE, kept))

    def _set_aside(self, found: Found, how: str) -> None:
        path, kept = found.damage.file, ()
        if not self._dry_run:
            kept = (self._free_name(path),)  # type: ignore[assignment]
            self._files.rename(path, kept[0])  # type: ignore[misc]
            self._files.sync_folder(self._layout.root)
        self._others.append(Finding(found.part, found.damage, True, how, kept))

    def _free_name(self, path: str) -> str:
        kept, number = f"{path}.damaged", 0
        while self._files.exists(kept):
            number += 1
            kept = f"{path}.damaged.{number}"
        return kept

    # ------------------------------------------------------------------------------------------------------- partitions

    def _restore_folders(self, checked: CheckedDocuments) -> None:
        """Restores the partitions whose folders are missing."""
        folders = {self._layout.partition(place): place for place in checked.incarnations}
        for found in checked.found:
            if found.part is not Part.FOLDER:
                continue
            place = folders[found.damage.file]
            histories = (
                [] if self._source is None else self._source.histories(place, checked.incarnations[place], older=False)
            )
            if not histories:
                self._others.append(left(found, NO_ARCHIVE if self._source is None else NOT_ARCHIVED))
                continue
            if not self._dry_run:
                assert self._source is not None
                staged = f"{self._layout.below(STAGING_FOLDER)}/repair"
                if self._files.exists(staged):
                    self._files.remove_tree(staged)
                make_folders(self._files, staged)
                self._notes += partition_repair.restore_partition(self._files, staged, histories[0], self._source)
                target = self._layout.partition(place)
                make_folders(self._files, target.rpartition("/")[0])
                self._files.sync_filesystem(self._layout.root)
                self._files.rename(staged, target)
                self._files.sync_folder(target.rpartition("/")[0])
            self._others.append(Finding(found.part, found.damage, True, FROM_ARCHIVE))

    def _repair_partition(self, place: PartitionId, documents: CheckedDocuments, seals: SealsOf) -> Iterator[Outcome]:
        run = PartitionRepair(
            self._files,
            self._layout.partition(place),
            place,
            seals.of(place),
            self._source,
            documents.incarnations.get(place),
            dry_run=self._dry_run,
            trusts_archive=self._trusts_archive,
        )
        run.run()
        incarnation = documents.incarnations.get(place)
        if self._uploads and self._source is not None and incarnation is not None:
            folder = self._layout.partition(place)
            run.findings += self._source.upload_again(place, incarnation, self._files, folder, dry_run=self._dry_run)
        names: Names = documents.names_of(place)
        if run.findings or run.notes:
            yield Outcome(place, names.stream, names.topic, run.findings, sorted(set(run.notes)))


class _Version(msgspec.Struct):
    whippet_store: int


def _version_in(content: bytes) -> int | None:
    try:
        return msgspec.json.decode(content, type=_Version).whippet_store
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _resemble(damaged: bytes, archived: bytes) -> bool:
    """Returns whether a damaged file was this one: most of its bytes are the same."""
    same = sum(a == b for a, b in zip(damaged, archived, strict=False))
    return same >= max(len(damaged), len(archived)) * 3 // 4
