"""Checks the documents of a data folder that no server has open: `FORMAT`, the catalogue, users, tokens. It changes
nothing.

For `whippet check` and `whippet repair`. A document is damaged if it is missing although there is something that it
describes, cannot be decoded, or is not what was written, which its checksum tells.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container
from typing import Any, NamedTuple

import msgspec

from whippet.storage import sealed_documents, takeover
from whippet.storage.data_folder import Identity
from whippet.storage.document_checksums import without_checksum
from whippet.storage.documents import GroupDocument, NumbersDocument, StreamDocument, TopicDocument
from whippet.storage.encryption import Seal
from whippet.storage.errors import CatalogueError, UnsupportedFormat
from whippet.storage.files import Files, read_all
from whippet.storage.layout import (
    CLAIMS_FILE,
    FORMAT_FILE,
    NUMBERS_FILE,
    STREAM_FILE,
    TAKEOVER_FILE,
    TOKENS_FOLDER,
    TOPIC_FILE,
    USERS_FOLDER,
    Layout,
    PartitionId,
    number,
)
from whippet.storage.partition_check import Found, Part, document_fault
from whippet.storage.segment import Damage


class Names(NamedTuple):
    """The names of a stream and a topic; empty if their documents cannot be read."""

    stream: str
    topic: str


class CheckedDocuments:
    def __init__(self) -> None:
        self.count = 0
        self.found: list[Found] = []
        self.names: dict[tuple[int, int], Names] = {}
        """By the ids of stream and topic."""
        self.incarnations: dict[PartitionId, int] = {}
        """Of the partitions that a readable document of a topic lists."""

    def names_of(self, place: PartitionId) -> Names:
        return self.names.get((place.stream, place.topic), Names("", ""))


def check(files: Files, layout: Layout, seal: Seal | None) -> CheckedDocuments:
    """`seal` decrypts users and tokens; without it, encrypted ones are only compared with their checksums."""
    run = _Check(files, layout, seal)
    run.check_single(FORMAT_FILE, Identity)
    run.check_single(NUMBERS_FILE, NumbersDocument)
    run.check_single(CLAIMS_FILE, dict[str, Any])
    run.check_single(TAKEOVER_FILE, takeover.TakeoverDocument)
    for folder in (USERS_FOLDER, TOKENS_FOLDER):
        run.check_secrets(folder)
    run.check_streams()
    return run.checked


def numbered(files: Files, folder: str) -> list[int]:
    """The ids of the folders in a folder, which may be missing."""
    if not files.exists(folder):
        return []
    ids = (number(item.name) for item in files.list(folder) if item.is_folder)
    return sorted(identity for identity in ids if identity is not None)


class _Check:
    def __init__(self, files: Files, layout: Layout, seal: Seal | None) -> None:
        self.checked = CheckedDocuments()
        self._files = files
        self._layout = layout
        self._seal = seal
        self._awaited: Container[PartitionId] = ()
        # If the list is damaged, that is reported as such, and the folders are missing, too.
        with contextlib.suppress(UnsupportedFormat):
            self._awaited = takeover.read(files, layout).awaited

    def check_single(self, name: str, kind: Any) -> None:
        """Checks a document that need not exist."""
        path = self._layout.below(name)
        if self._files.exists(path):
            self._check(path, kind)

    def check_secrets(self, folder: str) -> None:
        for identity in self._documents(self._layout.below(folder)):
            name = f"{folder}/{identity}.json"
            path = self._layout.below(name)
            content = self._check(path, dict[str, Any])
            if content is not None and self._seal is not None:
                try:
                    sealed_documents.opened(content, name, self._seal)
                except CatalogueError as error:
                    self._report(path, str(error).removeprefix(f"{name}: "))

    def check_streams(self) -> None:
        files, layout = self._files, self._layout
        for stream_id in numbered(files, layout.streams):
            stream = self._decoded(f"{layout.stream(stream_id)}/{STREAM_FILE}", StreamDocument, stream_id)
            name = "" if stream is None else stream.name
            for topic_id in numbered(files, layout.topics(stream_id)):
                self._check_topic(stream_id, topic_id, name)

    def _check_topic(self, stream_id: int, topic_id: int, stream_name: str) -> None:
        files, layout = self._files, self._layout
        topic = self._decoded(f"{layout.topic(stream_id, topic_id)}/{TOPIC_FILE}", TopicDocument, topic_id)
        self.checked.names[stream_id, topic_id] = Names(stream_name, "" if topic is None else topic.name)
        folder = layout.groups(stream_id, topic_id)
        for group_id in self._documents(folder):
            self._decoded(f"{folder}/{group_id}.json", GroupDocument, group_id)
        there = set(numbered(files, layout.partitions(stream_id, topic_id)))
        for partition_id in range(0 if topic is None else topic.partitions_count):
            assert topic is not None
            place = PartitionId(stream_id, topic_id, partition_id)
            self.checked.incarnations[place] = topic.incarnation(partition_id)
            if partition_id not in there and place not in self._awaited:
                self._report(layout.partition(place), "the folder is missing", Part.FOLDER)

    def _decoded(self, path: str, kind: type[Any], identity: int) -> Any:
        """The document if it can be decoded, damaged or not."""
        if not self._files.exists(path):
            self.checked.count += 1
            self._report(path, "it is missing")
            return None
        content = self._check(path, kind)
        try:
            document = None if content is None else msgspec.json.decode(without_checksum(content)[0], type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            # Reported already.
            return None
        if document is not None and document.id != identity:
            self._report(path, f"it has the id {document.id}, but its place is {identity}")
        return document

    def _check(self, path: str, kind: Any) -> bytes | None:
        """Returns the content of the file; None if it cannot be read."""
        self.checked.count += 1
        try:
            content = read_all(self._files, path)
        except OSError as error:
            self._report(path, f"it cannot be read: {error.strerror}")
            return None
        reason = document_fault(content, kind)
        if reason is not None:
            self._report(path, reason)
        return content

    def _report(self, path: str, reason: str, part: Part = Part.DOCUMENT) -> None:
        if not any(found.damage.file == path for found in self.checked.found):
            self.checked.found.append(Found(part, Damage(path, 0, 0, 0, 0, reason)))

    def _documents(self, folder: str) -> list[int]:
        if not self._files.exists(folder):
            return []
        names = (item.name for item in self._files.list(folder) if not item.is_folder)
        ids = (number(name.removesuffix(".json")) for name in names if name.endswith(".json"))
        return sorted(identity for identity in ids if identity is not None)
