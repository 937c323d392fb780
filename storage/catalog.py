"""The catalogue on the disk: a JSON document for every stream, topic, group, user and token, beside the data it names.

FORMAT.md, section 6. All functions run on a shard's thread. A change is made with one rename: of a new document over
the old one, of a finished folder into its place, or of a doomed folder into the trash; so a crash leaves the old state
or the new one. What the documents mean is the business of the command layer.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from typing import Annotated, TypeVar

import msgspec

from whippet.storage.errors import CatalogueError
from whippet.storage.files import Files, make_folders, read_all, replace
from whippet.storage.layout import (
    NUMBERS_FILE,
    STAGING_FOLDER,
    STREAM_FILE,
    TOKENS_FOLDER,
    TOPIC_FILE,
    TRASH_FOLDER,
    USERS_FOLDER,
    Layout,
    PartitionId,
    log_file,
    number,
    segment_of,
)
from whippet.storage.options import TopicOptions

NOT_UNDERSTOOD = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding a damaged document may raise; invalid UTF-8 is no DecodeError."""
PARTITIONS_MAX = 2**20
"""Of one topic: a document that says more was not written by this program, and is not tried."""


FIRST_INCARNATION = 1
"""Of partitions that were made before incarnations were kept."""


class NumbersDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`numbers.json`. Every number below this one may have been given to a session or a partition."""

    reserved: int


class StreamDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`stream.json`. Times are microseconds since 1970."""

    id: int
    name: str
    created_at: int


class TopicDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`topic.json`. Expiry and size as the protocol says them: 2**64 - 1 is never and unlimited."""

    id: int
    name: str
    created_at: int
    partitions_count: Annotated[int, msgspec.Meta(ge=0, le=PARTITIONS_MAX)]
    message_expiry: int = 2**64 - 1
    max_topic_size: int = 2**64 - 1
    compression_algorithm: int = 1
    replication_factor: int = 1
    options: TopicOptions = TopicOptions()
    """What of all that somebody has chosen; the rest is the server's."""
    removing: tuple[int, ...] = ()
    """Partitions whose removal was decided; their folders may still be there."""
    incarnations: tuple[int, ...] = ()
    """For each partition a number that no other partition of this folder ever has, so that a deleted one cannot be
    mistaken for one that was made in its place. Partitions without an entry have `FIRST_INCARNATION`."""

    def incarnation(self, partition_id: int) -> int:
        known = self.incarnations
        return known[partition_id] if partition_id < len(known) else FIRST_INCARNATION

    def with_partitions(self, count: int, incarnation: int) -> TopicDocument:
        """The document with `count` more partitions, all made by the same operation."""
        missing = self.partitions_count - len(self.incarnations)
        incarnations = self.incarnations + missing * (FIRST_INCARNATION,) + count * (incarnation,)
        return msgspec.structs.replace(self, partitions_count=self.partitions_count + count, incarnations=incarnations)


class GroupDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`groups/<id>.json`. Members are connections and are not kept."""

    id: int
    name: str
    created_at: int


class Topic(msgspec.Struct):
    """A topic as it was found: `partitions` are those whose folders are there."""

    document: TopicDocument
    groups: dict[int, GroupDocument]
    partitions: list[int]


class Stream(msgspec.Struct):
    document: StreamDocument
    topics: dict[int, Topic]


class Found(msgspec.Struct):
    """The whole catalogue as it was found, and a line for everything that was not as it should be."""

    streams: dict[int, Stream]
    users: dict[int, bytes]
    tokens: dict[int, bytes]
    problems: list[str]
    reserved: dict[str, set[int]]
    """Ids of folders that cannot be served, by the folder they are in: they must not be given to something new."""
    made_up: set[str]
    """Documents that were missing: their names give way to those that somebody has chosen."""


Document = TypeVar("Document", StreamDocument, TopicDocument, GroupDocument)


class Catalog:
    """Reads and changes the documents of one store."""

    def __init__(self, files: Files, layout: Layout, *, sync: bool, clock: Callable[[], int]) -> None:
        self._files = files
        self._layout = layout
        self._sync = sync
        self._clock = clock
        self._staged = 0

    # --------------------------------------------------------------------------------------------------------- loading

    def load(self, *, recreate: bool) -> Found:
        """Finishes what a crash interrupted, then reads every document. What is missing is made up if asked for."""
        self.empty_trash()
        found = Found({}, {}, {}, [], {}, set())
        found.users |= self._documents(USERS_FOLDER, found)
        found.tokens |= self._documents(TOKENS_FOLDER, found)
        for stream_id in self._numbered(self._layout.streams, found):
            folder = self._layout.stream(stream_id)
            document = self._read_or_make(
                f"{folder}/{STREAM_FILE}",
                StreamDocument,
                lambda stream_id=stream_id: StreamDocument(  # type: ignore[misc]
                    id=stream_id, name=f"stream-{stream_id}", created_at=self._clock()
                ),
                found,
                recreate,
            )
            if document is None:
                found.reserved.setdefault(self._layout.streams, set()).add(stream_id)
                continue
            topics = self._load_topics(stream_id, found, recreate)
            found.streams[stream_id] = Stream(msgspec.structs.replace(document, id=stream_id), topics)
        self._make_names_unique(found)
        return found

    def _load_topics(self, stream_id: int, found: Found, recreate: bool) -> dict[int, Topic]:
        topics: dict[int, Topic] = {}
        for topic_id in self._numbered(self._layout.topics(stream_id), found):
            partitions = set(self._numbered(self._layout.partitions(stream_id, topic_id), found))
            document = self._read_or_make(
                f"{self._layout.topic(stream_id, topic_id)}/{TOPIC_FILE}",
                TopicDocument,
                lambda topic_id=topic_id, partitions=partitions: TopicDocument(  # type: ignore[misc]
                    id=topic_id,
                    name=f"topic-{topic_id}",
                    created_at=self._clock(),
                    partitions_count=max(partitions, default=-1) + 1,
                ),
                found,
                recreate,
            )
            if document is None:
                found.reserved.setdefault(self._layout.topics(stream_id), set()).add(topic_id)
                continue
            document = msgspec.structs.replace(document, id=topic_id)
            document = self._checked_removing(stream_id, document, found)
            if document.removing:
                document = self.finish_removing(stream_id, document)
                partitions -= set(range(document.partitions_count, max(partitions, default=0) + 1))
            here = self._load_partitions(stream_id, document, partitions, found, recreate)
            groups = self._load_groups(stream_id, topic_id, found)
            topics[topic_id] = Topic(document, groups, here)
        return topics

    def _checked_removing(self, stream_id: int, document: TopicDocument, found: Found) -> TopicDocument:
        """Only what is not counted any more can be on its way out."""
        removing = tuple(identity for identity in document.removing if identity >= document.partitions_count)
        if removing != document.removing:
            path = f"{self._layout.topic(stream_id, document.id)}/{TOPIC_FILE}"
            found.problems.append(f"{path}: partitions that it counts are named in `removing`; they are not removed")
        return msgspec.structs.replace(document, removing=removing)

    def _load_partitions(
        self, stream_id: int, document: TopicDocument, partitions: set[int], found: Found, recreate: bool
    ) -> list[int]:
        wanted = set(range(document.partitions_count))
        for run in _runs(sorted(wanted - partitions)):
            folder = self._layout.partition(PartitionId(stream_id, document.id, run[0]))
            these = "the folder is missing" if len(run) == 1 else f"{len(run)} folders from this one on are missing"
            if recreate:
                for partition_id in run:
                    self._place_partition(PartitionId(stream_id, document.id, partition_id))
                partitions.update(run)
                found.problems.append(f"{folder}: {these}; made anew, empty")
            else:
                found.problems.append(
                    f"{folder}: {these}, not served; "
                    "system.recovery.recreate_missing_state = true makes them anew, empty"
                )
        for partition_id in sorted(partitions - wanted):
            folder = self._layout.partition(PartitionId(stream_id, document.id, partition_id))
            found.problems.append(
                f"{folder}: {TOPIC_FILE} does not know this partition; it is left alone and not served"
            )
        return sorted(wanted & partitions)

    def _load_groups(self, stream_id: int, topic_id: int, found: Found) -> dict[int, GroupDocument]:
        folder = self._layout.groups(stream_id, topic_id)
        groups: dict[int, GroupDocument] = {}
        for name, group_id in self._numbered_documents(folder, found):
            group = self._read(f"{folder}/{name}", GroupDocument, found)
            if group is None:
                found.reserved.setdefault(folder, set()).add(group_id)
            else:
                groups[group_id] = msgspec.structs.replace(group, id=group_id)
        return groups

    def _numbered(self, folder: str, found: Found) -> list[int]:
        """The ids of the folders in a folder; anything else in there is left alone and mentioned."""
        ids = []
        try:
            items = self._files.list(folder)
        except FileNotFoundError:
            return []
        except NotADirectoryError:
            found.problems.append(f"{folder}: not a folder; nothing in it is served")
            return []
        for item in items:
            identity = number(item.name) if item.is_folder else None
            if identity is None:
                found.problems.append(f"{folder}/{item.name}: not ours, left alone")
            else:
                ids.append(identity)
        return sorted(ids)

    def _numbered_documents(self, folder: str, found: Found) -> list[tuple[str, int]]:
        try:
            items = self._files.list(folder)
        except FileNotFoundError:
            return []
        named = []
        for item in items:
            if item.name.endswith(".json") and item.is_folder:
                found.problems.append(f"{folder}/{item.name}: a folder, left alone")
            elif item.name.endswith(".json"):
                named.append((item.name, number(item.name.removesuffix(".json"))))
        return sorted(((name, identity) for name, identity in named if identity is not None), key=lambda pair: pair[1])

    def _documents(self, folder: str, found: Found) -> dict[int, bytes]:
        path = self._layout.below(folder)
        return {
            identity: self._content(f"{path}/{name}", found) for name, identity in self._numbered_documents(path, found)
        }

    def _content(self, path: str, found: Found) -> bytes:
        """Nothing where it cannot be read: its number is taken all the same."""
        try:
            return read_all(self._files, path)
        except OSError as error:
            found.problems.append(f"{path}: cannot be read: {error.strerror}")
            return b""

    def _read(self, path: str, kind: type[Document], found: Found) -> Document | None:
        try:
            return msgspec.json.decode(read_all(self._files, path), type=kind)
        except FileNotFoundError:
            found.problems.append(f"{path}: missing")
        except IsADirectoryError:
            found.problems.append(f"{path}: a folder")
        except NOT_UNDERSTOOD as error:
            found.problems.append(f"{path}: cannot be understood: {error}")
        return None

    def _read_or_make(
        self, path: str, kind: type[Document], make: Callable[[], Document], found: Found, recreate: bool
    ) -> Document | None:
        try:
            document = self._read(path, kind, found)
        except OSError as error:
            # It is there and may be read another day: nothing is made up in its place.
            found.problems.append(f"{path}: cannot be read: {error.strerror}; this folder is not served")
            return None
        if document is not None:
            if document.id != (identity := int(path.rpartition("/")[0].rpartition("/")[2])):
                found.problems.append(f"{path}: says id {document.id}; its folder is {identity}, and that counts")
            return document
        if not recreate:
            found.problems[-1] += (
                "; this folder is not served; system.recovery.recreate_missing_state = true makes up what it can"
            )
            return None
        if self._files.exists(path):
            self._files.rename(path, self._free_name(f"{path}.damaged"))
        document = make()
        found.made_up.add(path)
        self._write(path, document)
        found.problems[-1] += f"; made up as {document.name!r}"
        return document

    def _free_name(self, path: str) -> str:
        """What is kept already stays."""
        free, copy = path, 0
        while self._files.exists(free):
            copy += 1
            free = f"{path}.{copy}"
        return free

    def _make_names_unique(self, found: Found) -> None:
        """A made-up name may be one that somebody has chosen for another stream or topic."""
        streams = {f"{self._layout.stream(i)}/{STREAM_FILE}": whole.document for i, whole in found.streams.items()}
        for path, stream in self._renamed(streams, found):
            found.streams[stream.id].document = stream
            self.write_stream(stream)
            found.problems.append(f"{path}: another stream has its name; it is {stream.name!r} now")
        for stream_id, whole in found.streams.items():
            folder = self._layout.topics(stream_id)
            topics = {f"{folder}/{i}/{TOPIC_FILE}": topic.document for i, topic in whole.topics.items()}
            for path, topic in self._renamed(topics, found):
                whole.topics[topic.id].document = topic
                self.write_topic(stream_id, topic)
                found.problems.append(f"{path}: another topic has its name; it is {topic.name!r} now")

    def _renamed(self, documents: dict[str, Document], found: Found) -> list[tuple[str, Document]]:
        """Those that need another name: of two with one name a made-up one, or else the later one."""
        names: set[str] = set()
        taken = {document.name for document in documents.values()}
        renamed = []
        for path in sorted(documents, key=lambda path: path in found.made_up):
            document = documents[path]
            name = document.name
            while name in names or (name != document.name and name in taken):
                name += "-found"
            if name != document.name:
                renamed.append((path, msgspec.structs.replace(document, name=name)))
            names.add(name)
        return renamed

    # -------------------------------------------------------------------------------------------------------- changing

    def write_stream(self, document: StreamDocument) -> None:
        self._write(f"{self._layout.stream(document.id)}/{STREAM_FILE}", document)

    def write_topic(self, stream_id: int, document: TopicDocument) -> None:
        self._write(f"{self._layout.topic(stream_id, document.id)}/{TOPIC_FILE}", document)

    def write_group(self, stream_id: int, topic_id: int, document: GroupDocument) -> None:
        folder = self._layout.groups(stream_id, topic_id)
        make_folders(self._files, folder)
        self._sync_folder(folder.rpartition("/")[0])
        self._write(f"{folder}/{document.id}.json", document)

    def remove_group(self, stream_id: int, topic_id: int, group_id: int) -> None:
        self._remove(f"{self._layout.groups(stream_id, topic_id)}/{group_id}.json")

    def write_user(self, user_id: int, document: bytes) -> None:
        self._replace(f"{self._layout.below(USERS_FOLDER)}/{user_id}.json", document)

    def remove_user(self, user_id: int) -> None:
        self._remove(f"{self._layout.below(USERS_FOLDER)}/{user_id}.json")

    def read_numbers(self) -> tuple[int, str | None]:
        """How far numbers have been reserved, 0 if that is not known; and what is wrong with the document."""
        path = self._layout.below(NUMBERS_FILE)
        try:
            return msgspec.json.decode(read_all(self._files, path), type=NumbersDocument).reserved, None
        except FileNotFoundError:
            return 0, None
        except (*NOT_UNDERSTOOD, OSError) as error:
            return 0, f"{path}: cannot be used, numbers go on from the clock: {error}"

    def write_numbers(self, reserved: int) -> None:
        self._replace(self._layout.below(NUMBERS_FILE), _encoded(NumbersDocument(reserved=reserved)))

    def write_token(self, token_id: int, document: bytes) -> None:
        self._replace(f"{self._layout.below(TOKENS_FOLDER)}/{token_id}.json", document)

    def remove_token(self, token_id: int) -> None:
        self._remove(f"{self._layout.below(TOKENS_FOLDER)}/{token_id}.json")

    def create_stream(self, document: StreamDocument) -> None:
        target = self._layout.stream(document.id)
        staged = self._stage()
        # The document comes last: it is what syncs the names of both.
        self._files.make_folder(f"{staged}/{self._layout.topics(document.id).rpartition('/')[2]}")
        self._replace(f"{staged}/{STREAM_FILE}", _encoded(document))
        self._move_in(staged, target)

    def create_topic(self, stream_id: int, document: TopicDocument) -> None:
        """The topic with all its partitions, or nothing."""
        target = self._layout.topic(stream_id, document.id)
        staged = self._stage()
        partitions = f"{staged}/{self._layout.partitions(stream_id, document.id).rpartition('/')[2]}"
        self._files.make_folder(partitions)
        for partition_id in range(document.partitions_count):
            self._make_partition(f"{partitions}/{partition_id}")
        self._sync_folder(partitions)
        self._replace(f"{staged}/{TOPIC_FILE}", _encoded(document))
        self._move_in(staged, target)

    def create_partitions(self, stream_id: int, document: TopicDocument, first: int) -> None:
        """Those from `first` on that the document, which is the new one, counts."""
        for partition_id in range(first, document.partitions_count):
            self._place_partition(PartitionId(stream_id, document.id, partition_id))
        self.write_topic(stream_id, document)

    def remove_partitions(self, stream_id: int, document: TopicDocument, count: int) -> TopicDocument:
        """Decides that the `count` highest go; the answer is the document that says so. `finish_removing` does it."""
        left = document.partitions_count - count
        removing = (*document.removing, *range(left, document.partitions_count))
        decided = msgspec.structs.replace(
            document, partitions_count=left, removing=removing, incarnations=document.incarnations[:left]
        )
        self.write_topic(stream_id, decided)
        return decided

    def finish_removing(self, stream_id: int, document: TopicDocument) -> TopicDocument:
        for partition_id in document.removing:
            self._discard(self._layout.partition(PartitionId(stream_id, document.id, partition_id)))
        document = msgspec.structs.replace(document, removing=())
        self.write_topic(stream_id, document)
        return document

    def restore(self, folder: str) -> None:
        """Returns when a folder that was not removed after all is sure to be there; raises OSError if it is not."""
        self._files.list(folder)
        self._sync_folder(folder.rpartition("/")[0])

    def remove_topic(self, stream_id: int, topic_id: int) -> None:
        self._discard(self._layout.topic(stream_id, topic_id))

    def remove_stream(self, stream_id: int) -> None:
        self._discard(self._layout.stream(stream_id))

    def empty_trash(self) -> None:
        """Frees the space of what was removed, and of what was being made when a crash came."""
        for folder in (TRASH_FOLDER, STAGING_FOLDER):
            path = self._layout.below(folder)
            make_folders(self._files, path)
            for item in self._files.list(path):
                if item.is_folder:
                    self._files.remove_tree(f"{path}/{item.name}")
                else:
                    self._files.remove(f"{path}/{item.name}")

    # ---------------------------------------------------------------------------------------------------------- pieces

    def _place_partition(self, place: PartitionId) -> None:
        staged = self._stage()
        self._make_partition(staged)
        target = self._layout.partition(place)
        if self._files.exists(target):
            self._set_aside(target)
        for above in make_folders(self._files, target.rpartition("/")[0]):
            self._sync_folder(above)
        self._move_in(staged, target)

    def _set_aside(self, folder: str) -> None:
        """A folder that no document knows is in the way: with messages in it, it is kept under another name."""
        if any(segment_of(item.name) and item.size for item in self._files.list(folder)):
            self._files.rename(folder, f"{folder}.found-{uuid.uuid4().hex[:8]}")
        else:
            self._discard(folder)

    def _make_partition(self, folder: str) -> None:
        make_folders(self._files, folder)
        self._files.close(self._files.open_for_writing(log_file(folder, 0)))
        self._sync_folder(folder)

    def _stage(self) -> str:
        self._staged += 1
        path = f"{self._layout.below(STAGING_FOLDER)}/{self._staged}"
        if self._files.exists(path):
            self._files.remove_tree(path)
        self._files.make_folder(path)
        return path

    def _move_in(self, staged: str, target: str) -> None:
        if self._files.exists(target):
            raise CatalogueError(f"{target}: already there")
        self._files.rename(staged, target)
        try:
            self._sync_folder(target.rpartition("/")[0])
        except OSError:
            # Nobody is told that it is there, so it must not be in the way of the next attempt.
            with contextlib.suppress(OSError):
                self._files.rename(target, staged)
            raise

    def _discard(self, folder: str) -> None:
        """Into the trash; when that cannot be made durable, back to where it was."""
        above = folder.rpartition("/")[0]
        if not self._files.exists(folder):
            # An attempt before this one may have come that far and failed to sync it.
            with contextlib.suppress(FileNotFoundError):
                self._sync_folder(above)
            return
        trash = f"{self._layout.below(TRASH_FOLDER)}/{uuid.uuid4().hex}"
        self._files.rename(folder, trash)
        try:
            self._sync_folder(above)
        except OSError:
            with contextlib.suppress(OSError):
                self._files.rename(trash, folder)
                self._sync_folder(above)
            raise

    def _write(self, path: str, document: StreamDocument | TopicDocument | GroupDocument) -> None:
        self._replace(path, _encoded(document))

    def _replace(self, path: str, content: bytes) -> None:
        replace(self._files, path, content, sync=self._sync)

    def _remove(self, path: str) -> None:
        if self._files.exists(path):
            self._files.remove(path)
        # Also when it was gone: an attempt before this one may have failed at this.
        with contextlib.suppress(FileNotFoundError):
            self._sync_folder(path.rpartition("/")[0])

    def _sync_folder(self, path: str) -> None:
        if self._sync:
            self._files.sync_folder(path)


def _runs(numbers: list[int]) -> list[list[int]]:
    """Neighbours together."""
    runs: list[list[int]] = []
    for value in numbers:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return runs


def _encoded(document: StreamDocument | TopicDocument | GroupDocument | NumbersDocument) -> bytes:
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
