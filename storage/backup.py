"""Copies a data folder while a server has it open, for `whippet backup`. It needs nothing of that server.

Logs only grow, documents are replaced as a whole, and stored offsets survive a copy at any moment. So each partition is
copied up to its last whole batch, and once more if something of it was deleted meanwhile. The copy gets the file FORMAT
last: until then, no server opens it. All of it blocks.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from whippet.storage import scan, takeover
from whippet.storage.batch import HEADER_BYTES
from whippet.storage.documents import NOT_UNDERSTOOD, TopicDocument
from whippet.storage.errors import BackupFailed, UnsupportedFormat
from whippet.storage.files import Files, make_folders, read_all, read_fully, replace, write_all
from whippet.storage.index import Index
from whippet.storage.layout import (
    FORMAT_FILE,
    HISTORY_FILE,
    INTENT_FILE,
    NUMBERS_FILE,
    OFFSETS_FOLDER,
    STREAM_FILE,
    TOKENS_FOLDER,
    TOPIC_FILE,
    USERS_FOLDER,
    Layout,
    PartitionId,
    index_file,
    left_out_file,
    log_file,
    number,
    producers_file,
    segment_of,
)
from whippet.storage.offsets import FOLDERS
from whippet.storage.options import MIB

TRIES = 100
"""How often a partition is copied again because of deletions. Each pass needs them to hold still only once."""


class Copied(NamedTuple):
    """What the copy has."""

    partitions: int
    size_bytes: int


class _Changed(Exception):
    """Something that was being copied has been deleted."""


class Backup:
    """One copy, from one data folder to another, whose folders have the same names."""

    def __init__(self, source: Layout, target: Layout, files: Files) -> None:
        self._source = source
        self._target = target
        self._files = files
        self._size = 0

    def run(self) -> Copied:
        files, source, target = self._files, self._source, self._target
        if not files.exists(source.below(FORMAT_FILE)):
            raise UnsupportedFormat(f"{source.below(FORMAT_FILE)}: missing; this is not a data folder of Whippet")
        if awaited := takeover.missing(files, source):
            raise BackupFailed(
                f"{source.root}: {len(awaited)} partitions are still only in the archive, from which this folder was "
                "begun; back it up once the server has fetched all of them, or restore the archive elsewhere"
            )
        for above in make_folders(files, target.root):
            files.sync_folder(above)
        if found := files.list(target.root):
            raise BackupFailed(f"{target.root} is not empty (it has {found[0].name}); choose a new or empty folder")
        for folder in (USERS_FOLDER, TOKENS_FOLDER):
            self._documents(source.below(folder), target.below(folder))
        self._document(source.below(NUMBERS_FILE), target.below(NUMBERS_FILE))
        make_folders(files, target.streams)
        places = self._catalogue()
        for place in places:
            self._partition(place)
        files.sync_filesystem(target.root)
        replace(files, target.below(FORMAT_FILE), read_all(files, source.below(FORMAT_FILE)))
        return Copied(len(places), self._size)

    # -------------------------------------------------------------------------------------------------------- catalogue

    def _catalogue(self) -> list[PartitionId]:
        """Copies the documents, and returns the partitions that they count."""
        source, target = self._source, self._target
        places = []
        for stream in self._numbered(source.streams):
            if not self._document(f"{source.stream(stream)}/{STREAM_FILE}", f"{target.stream(stream)}/{STREAM_FILE}"):
                continue
            make_folders(self._files, target.topics(stream))
            for topic in self._numbered(source.topics(stream)):
                path = f"{target.topic(stream, topic)}/{TOPIC_FILE}"
                if not self._document(f"{source.topic(stream, topic)}/{TOPIC_FILE}", path):
                    continue
                self._documents(source.groups(stream, topic), target.groups(stream, topic))
                make_folders(self._files, target.partitions(stream, topic))
                try:
                    document = msgspec.json.decode(read_all(self._files, path), type=TopicDocument)
                except NOT_UNDERSTOOD as error:
                    raise BackupFailed(
                        f"{source.topic(stream, topic)}/{TOPIC_FILE} cannot be decoded: {error}"
                    ) from error
                places += [PartitionId(stream, topic, each) for each in range(document.partitions_count)]
        return places

    def _numbered(self, folder: str) -> list[int]:
        try:
            items = self._files.list(folder)
        except FileNotFoundError:
            return []
        ids = (number(item.name) for item in items if item.is_folder)
        return sorted(identity for identity in ids if identity is not None)

    def _documents(self, source: str, target: str) -> None:
        make_folders(self._files, target)
        try:
            items = self._files.list(source)
        except FileNotFoundError:
            return
        for item in items:
            if item.name.endswith(".json") and number(item.name.removesuffix(".json")) is not None:
                self._document(f"{source}/{item.name}", f"{target}/{item.name}")

    def _document(self, source: str, target: str) -> bool:
        """Copies a small file; False if it does not exist (any more)."""
        try:
            content = read_all(self._files, source)
        except FileNotFoundError:
            return False
        make_folders(self._files, target.rpartition("/")[0])
        self._write(target, content)
        return True

    def _write(self, path: str, content: bytes) -> None:
        handle = self._files.open_for_writing(path)
        try:
            self._files.truncate(handle, 0)
            if content:
                write_all(self._files, handle, [content], 0)
        finally:
            self._files.close(handle)

    # ------------------------------------------------------------------------------------------------------- partitions

    def _partition(self, place: PartitionId) -> None:
        source, target = self._source.partition(place), self._target.partition(place)
        for _ in range(TRIES):
            if self._files.exists(target):
                self._files.remove_tree(target)
            make_folders(self._files, target)
            try:
                size = self._logs(place, source, target)
            except (_Changed, FileNotFoundError):
                if not self._files.exists(source):
                    # The topic was removed, and its copy is an empty partition.
                    self._files.remove_tree(target)
                    make_folders(self._files, target)
                    self._write(log_file(target, 0), b"")
                    return
                continue
            self._size += size
            self._document(producers_file(source), producers_file(target))
            self._document(f"{source}/{HISTORY_FILE}", f"{target}/{HISTORY_FILE}")
            for name in FOLDERS.values():
                self._offsets(f"{source}/{OFFSETS_FOLDER}/{name}", f"{target}/{OFFSETS_FOLDER}/{name}")
            return
        raise BackupFailed(f"{place}: its segments were deleted faster than they could be copied")

    def _offsets(self, source: str, target: str) -> None:
        try:
            items = self._files.list(source)
        except FileNotFoundError:
            return
        for item in items:
            if number(item.name) is not None and not item.is_folder:
                self._document(f"{source}/{item.name}", f"{target}/{item.name}")

    def _logs(self, place: PartitionId, source: str, target: str) -> int:
        """Returns the bytes of the logs. Raises _Changed or FileNotFoundError if it is to be tried again."""
        before = self._segments(source)
        first = self._head(source, before)
        for start, size in sorted(before.items()):
            self._log(log_file(source, start), log_file(target, start), size)
            for named in (index_file, left_out_file):
                if start != max(before):
                    self._document(named(source, start), named(target, start))
        after = self._segments(source)
        if not before or any(after.get(start, -1) < size for start, size in before.items()):
            raise _Changed
        if self._head(source, before) != first or self._files.exists(f"{source}/{INTENT_FILE}"):
            raise _Changed
        last = max(before)
        return sum(before.values()) - self._cut(log_file(target, last), place, last, before[last])

    def _segments(self, folder: str) -> dict[int, int]:
        if self._files.exists(f"{folder}/{INTENT_FILE}"):
            raise _Changed
        found = {}
        for item in self._files.list(folder):
            name = segment_of(item.name)
            if name is not None and name[1] == "log" and not item.is_folder:
                found[name[0]] = item.size
        return found

    def _head(self, folder: str, segments: dict[int, int]) -> bytes:
        """How the first segment begins: with something else after a purge."""
        if not segments or not segments[min(segments)]:
            return b""
        handle = self._files.open_for_reading(log_file(folder, min(segments)))
        try:
            return self._files.read(handle, HEADER_BYTES, 0)
        finally:
            self._files.close(handle)

    def _log(self, source: str, target: str, size: int) -> None:
        reading = self._files.open_for_reading(source)
        try:
            writing = self._files.open_for_writing(target)
            try:
                for position in range(0, size, MIB):
                    piece = read_fully(self._files, reading, min(MIB, size - position), position)
                    write_all(self._files, writing, [piece], position)
                if self._files.size(writing) != size:
                    raise _Changed
            finally:
                self._files.close(writing)
        finally:
            self._files.close(reading)

    def _cut(self, path: str, place: PartitionId, start: int, size: int) -> int:
        """Cuts off what the server was writing, and returns how much that was. Damage before the end stays as it is: a
        start reports it."""
        handle = self._files.open_for_writing(path)
        try:
            found = scan.scan(scan.Window(self._files, handle, size), Index(), path, place.partition, 0, start)
            if found.reason is not None:
                self._files.truncate(handle, found.end)
            return size - found.end
        finally:
            self._files.close(handle)
