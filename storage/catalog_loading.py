"""Reads the catalogue when the store is opened: finishes what a crash interrupted, then reads every document.

Runs on a shard's thread. Every problem becomes one line in `LoadedCatalog.problems`, and everything else is still
served. Files and folders are changed through catalog.py only, except that a damaged document is set aside here.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import TypeVar

import msgspec

from whippet.storage import placement
from whippet.storage.catalog import Catalog
from whippet.storage.document_checksums import State, without_checksum
from whippet.storage.documents import (
    NOT_UNDERSTOOD,
    GroupDocument,
    NumbersDocument,
    Stream,
    StreamDocument,
    Topic,
    TopicDocument,
)
from whippet.storage.files import Files, read_all
from whippet.storage.layout import (
    NUMBERS_FILE,
    STREAM_FILE,
    TOKENS_FOLDER,
    TOPIC_FILE,
    USERS_FOLDER,
    Layout,
    PartitionId,
    number,
)

RECREATE = "system.recovery.recreate_missing_state = true"

Document = TypeVar("Document", StreamDocument, TopicDocument, GroupDocument)


class LoadedCatalog(msgspec.Struct):
    """The whole catalogue, and a line for everything that was not as it should be."""

    streams: dict[int, Stream]
    users: dict[int, bytes]
    tokens: dict[int, bytes]
    problems: list[str]
    reserved: dict[str, set[int]]
    """Keyed by parent folder: the ids of folders that cannot be served. They must not be assigned again."""
    awaited: list[PartitionId] = []
    """Partitions without a folder that are still to come from the archive."""


def read_numbers(files: Files, layout: Layout) -> tuple[int, str | None]:
    """How far numbers have been reserved (0 if unknown), and what is wrong with the document."""
    path = layout.below(NUMBERS_FILE)
    try:
        return msgspec.json.decode(read_all(files, path), type=NumbersDocument).reserved, None
    except FileNotFoundError:
        return 0, None
    except (*NOT_UNDERSTOOD, OSError) as error:
        return 0, f"{path}: cannot be used, new numbers are taken from the clock: {error}"


def load(
    catalog: Catalog,
    files: Files,
    layout: Layout,
    clock: Callable[[], int],
    *,
    recreate: bool,
    awaited: Container[PartitionId] = (),
) -> LoadedCatalog:
    """Loads the catalogue. With `recreate`, missing documents and folders are recreated as far as possible. The folders
    of `awaited` partitions are not missing: they are still to come from the archive."""
    # Before the staging folder is emptied: what is to be put into place is still there.
    placement.finish(files, layout)
    catalog.empty_trash()
    loader = _Loader(catalog, files, layout, clock, recreate, awaited)
    loader.load_streams()
    loader.make_names_unique()
    return loader.loaded


class _Loader:
    """One run of `load`."""

    def __init__(
        self,
        catalog: Catalog,
        files: Files,
        layout: Layout,
        clock: Callable[[], int],
        recreate: bool,
        awaited: Container[PartitionId],
    ) -> None:
        self._awaited = awaited
        self._catalog = catalog
        self._files = files
        self._layout = layout
        self._clock = clock
        self._recreate = recreate
        self._problems: list[str] = []
        self._recreated: set[str] = set()
        """Documents that were missing. Where names collide, theirs give way to chosen names."""
        users, tokens = self._documents(USERS_FOLDER), self._documents(TOKENS_FOLDER)
        self.loaded = LoadedCatalog({}, users, tokens, self._problems, {})

    # ----------------------------------------------------------------------------------------------- streams and topics

    def load_streams(self) -> None:
        for stream_id in self._numbered_folders(self._layout.streams):
            document = self._read_or_recreate(
                f"{self._layout.stream(stream_id)}/{STREAM_FILE}",
                StreamDocument,
                lambda stream_id=stream_id: StreamDocument(  # type: ignore[misc]
                    id=stream_id, name=f"stream-{stream_id}", created_at=self._clock()
                ),
            )
            if document is None:
                self._reserve(self._layout.streams, stream_id)
                continue
            topics = self._load_topics(stream_id)
            self.loaded.streams[stream_id] = Stream(msgspec.structs.replace(document, id=stream_id), topics)

    def _load_topics(self, stream_id: int) -> dict[int, Topic]:
        topics: dict[int, Topic] = {}
        for topic_id in self._numbered_folders(self._layout.topics(stream_id)):
            partitions = set(self._numbered_folders(self._layout.partitions(stream_id, topic_id)))
            document = self._read_or_recreate(
                f"{self._layout.topic(stream_id, topic_id)}/{TOPIC_FILE}",
                TopicDocument,
                lambda topic_id=topic_id, partitions=partitions: TopicDocument(  # type: ignore[misc]
                    id=topic_id,
                    name=f"topic-{topic_id}",
                    created_at=self._clock(),
                    partitions_count=max(partitions, default=-1) + 1,
                ),
            )
            if document is None:
                self._reserve(self._layout.topics(stream_id), topic_id)
                continue
            document = msgspec.structs.replace(document, id=topic_id)
            document = self._checked_removing(stream_id, document)
            if document.removing:
                document = self._catalog.finish_removing(stream_id, document)
                partitions -= set(range(document.partitions_count, max(partitions, default=0) + 1))
            available = self._load_partitions(stream_id, document, partitions)
            topics[topic_id] = Topic(document, self._load_groups(stream_id, topic_id), available)
        return topics

    def _checked_removing(self, stream_id: int, document: TopicDocument) -> TopicDocument:
        """Only partitions that the topic no longer counts can be about to be removed."""
        removing = tuple(identity for identity in document.removing if identity >= document.partitions_count)
        if removing != document.removing:
            path = f"{self._layout.topic(stream_id, document.id)}/{TOPIC_FILE}"
            self._problems.append(f"{path}: `removing` names partitions that the topic has; they are not removed")
        return msgspec.structs.replace(document, removing=removing)

    def _load_partitions(self, stream_id: int, document: TopicDocument, partitions: set[int]) -> list[int]:
        wanted = set(range(document.partitions_count))
        if self._awaited:
            for partition_id in wanted - partitions:
                place = PartitionId(stream_id, document.id, partition_id)
                if place in self._awaited:
                    partitions.add(partition_id)
                    self.loaded.awaited.append(place)
        for run in _runs(sorted(wanted - partitions)):
            folder = self._layout.partition(PartitionId(stream_id, document.id, run[0]))
            missing = "the folder is missing" if len(run) == 1 else f"{len(run)} folders from this one on are missing"
            if self._recreate:
                for partition_id in run:
                    self._catalog.create_partition(PartitionId(stream_id, document.id, partition_id))
                partitions.update(run)
                self._problems.append(f"{folder}: {missing}; recreated, empty")
            else:
                self._problems.append(f"{folder}: {missing}, not served; {RECREATE} recreates them, empty")
        for partition_id in sorted(partitions - wanted):
            folder = self._layout.partition(PartitionId(stream_id, document.id, partition_id))
            self._problems.append(
                f"{folder}: {TOPIC_FILE} does not list this partition; it is left alone and not served"
            )
        return sorted(wanted & partitions)

    def _load_groups(self, stream_id: int, topic_id: int) -> dict[int, GroupDocument]:
        folder = self._layout.groups(stream_id, topic_id)
        groups: dict[int, GroupDocument] = {}
        for name, group_id in self._numbered_documents(folder):
            group = self._read(f"{folder}/{name}", GroupDocument)
            if group is None:
                self._reserve(folder, group_id)
            else:
                groups[group_id] = msgspec.structs.replace(group, id=group_id)
        return groups

    def _reserve(self, folder: str, identity: int) -> None:
        self.loaded.reserved.setdefault(folder, set()).add(identity)

    # ------------------------------------------------------------------------------------------------ folders and files

    def _numbered_folders(self, folder: str) -> list[int]:
        """The ids of the folders in a folder. Anything else there is left alone and reported."""
        ids = []
        try:
            items = self._files.list(folder)
        except FileNotFoundError:
            return []
        except NotADirectoryError:
            self._problems.append(f"{folder}: not a folder; nothing in it is served")
            return []
        for item in items:
            identity = number(item.name) if item.is_folder else None
            if identity is None:
                self._problems.append(f"{folder}/{item.name}: not part of the data folder's format, left alone")
            else:
                ids.append(identity)
        return sorted(ids)

    def _numbered_documents(self, folder: str) -> list[tuple[str, int]]:
        try:
            items = self._files.list(folder)
        except FileNotFoundError:
            return []
        named = []
        for item in items:
            if item.name.endswith(".json") and item.is_folder:
                self._problems.append(f"{folder}/{item.name}: a folder, left alone")
            elif item.name.endswith(".json"):
                named.append((item.name, number(item.name.removesuffix(".json"))))
        return sorted(((name, identity) for name, identity in named if identity is not None), key=lambda pair: pair[1])

    def _documents(self, folder: str) -> dict[int, bytes]:
        path = self._layout.below(folder)
        return {identity: self._content(f"{path}/{name}") for name, identity in self._numbered_documents(path)}

    def _content(self, path: str) -> bytes:
        """Empty if the file cannot be read: its number is taken all the same."""
        try:
            return self._without_checksum(path, read_all(self._files, path))
        except OSError as error:
            self._problems.append(f"{path}: cannot be read: {error.strerror}")
            return b""

    def _without_checksum(self, path: str, stored: bytes) -> bytes:
        """A document that can be decoded counts, whatever its checksum: somebody may have changed it by hand."""
        document, state = without_checksum(stored)
        if state is State.CHANGED:
            self._problems.append(f"{path}: is not what was written, its checksum does not match; it is used as it is")
        return document

    def _read(self, path: str, kind: type[Document]) -> Document | None:
        try:
            return msgspec.json.decode(self._without_checksum(path, read_all(self._files, path)), type=kind)
        except FileNotFoundError:
            self._problems.append(f"{path}: missing")
        except IsADirectoryError:
            self._problems.append(f"{path}: a folder")
        except NOT_UNDERSTOOD as error:
            self._problems.append(f"{path}: cannot be decoded: {error}")
        return None

    def _read_or_recreate(self, path: str, kind: type[Document], make: Callable[[], Document]) -> Document | None:
        try:
            document = self._read(path, kind)
        except OSError as error:
            # The file exists and may be readable another day, so nothing is created in its place.
            self._problems.append(f"{path}: cannot be read: {error.strerror}; this folder is not served")
            return None
        if document is not None:
            if document.id != (identity := int(path.rpartition("/")[0].rpartition("/")[2])):
                self._problems.append(f"{path}: has id {document.id}, but its folder is {identity}; the folder counts")
            return document
        if not self._recreate:
            self._problems[-1] += f"; this folder is not served; {RECREATE} recreates what it can"
            return None
        if self._files.exists(path):
            self._files.rename(path, self._free_name(f"{path}.damaged"))
        document = make()
        self._recreated.add(path)
        self._catalog.write(path, document)
        self._problems[-1] += f"; recreated as {document.name!r}"
        return document

    def _free_name(self, path: str) -> str:
        """A name that does not replace anything kept earlier."""
        free, copy = path, 0
        while self._files.exists(free):
            copy += 1
            free = f"{path}.{copy}"
        return free

    # ------------------------------------------------------------------------------------------------------------ names

    def make_names_unique(self) -> None:
        """Renames where necessary: a recreated stream or topic may have got a name that somebody chose for another."""
        streams = {f"{self._layout.stream(i)}/{STREAM_FILE}": one.document for i, one in self.loaded.streams.items()}
        for path, stream in self._renamed(streams):
            self.loaded.streams[stream.id].document = stream
            self._catalog.write_stream(stream)
            self._problems.append(f"{path}: another stream has its name; renamed to {stream.name!r}")
        for stream_id, one in self.loaded.streams.items():
            folder = self._layout.topics(stream_id)
            topics = {f"{folder}/{i}/{TOPIC_FILE}": topic.document for i, topic in one.topics.items()}
            for path, topic in self._renamed(topics):
                one.topics[topic.id].document = topic
                self._catalog.write_topic(stream_id, topic)
                self._problems.append(f"{path}: another topic has its name; renamed to {topic.name!r}")

    def _renamed(self, documents: dict[str, Document]) -> list[tuple[str, Document]]:
        """The documents that need another name: of two with the same name a recreated one, otherwise the later one."""
        names: set[str] = set()
        taken = {document.name for document in documents.values()}
        renamed = []
        for path in sorted(documents, key=lambda path: path in self._recreated):
            document = documents[path]
            name = document.name
            while name in names or (name != document.name and name in taken):
                name += "-found"
            if name != document.name:
                renamed.append((path, msgspec.structs.replace(document, name=name)))
            names.add(name)
        return renamed


def _runs(numbers: list[int]) -> list[list[int]]:
    """Groups consecutive numbers."""
    runs: list[list[int]] = []
    for value in numbers:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return runs
