"""The archive of everything besides the partitions: streams, topics, groups, users and tokens, as one document.

Users and tokens are copied as the bytes of their files, because what they contain is up to the command layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from whippet.storage.archive.documents import (
    CATALOGUE,
    Catalogue,
    Owner,
    StoredStream,
    StoredTopic,
    decode,
    encode,
    manifest_name,
    partition_folder,
)
from whippet.storage.archive.objects import Objects, Version
from whippet.storage.errors import ArchiveConflict, ArchiveUnavailable, ReadFailed
from whippet.storage.files import Files, read_all
from whippet.storage.layout import FORMAT_FILE, TOKENS_FOLDER, USERS_FOLDER, Layout, PartitionId, number

if TYPE_CHECKING:
    from whippet.storage.store import Store


class State(NamedTuple):
    """The catalogue in memory, at one moment."""

    streams: tuple[StoredStream, ...]
    numbers_reserved: int


def state_of(store: Store) -> State:
    """Called on the event loop. The documents are immutable."""
    streams = tuple(
        StoredStream(
            document=stream.document,
            topics=tuple(
                StoredTopic(document=topic.document, groups=tuple(topic.groups.values()))
                for topic in stream.topics.values()
            ),
        )
        for stream in store.streams.values()
    )
    return State(streams, store.numbers_reserved)


def places_in(streams: tuple[StoredStream, ...]) -> list[PartitionId]:
    return [
        PartitionId(stream.document.id, topic.document.id, partition)
        for stream in streams
        for topic in stream.topics
        for partition in range(topic.document.partitions_count)
    ]


def names_in(streams: tuple[StoredStream, ...]) -> dict[tuple[int, int], tuple[str, str]]:
    """The names of stream and topic by their ids."""
    return {
        (stream.document.id, topic.document.id): (stream.document.name, topic.document.name)
        for stream in streams
        for topic in stream.topics
    }


def as_of(streams: tuple[StoredStream, ...], time: int) -> tuple[StoredStream, ...]:
    """Without the streams, topics and groups that were created after a time. Those that were removed since then are
    gone, and names and options are the newest ones."""
    return tuple(
        StoredStream(
            document=stream.document,
            topics=tuple(
                StoredTopic(
                    document=topic.document,
                    groups=tuple(group for group in topic.groups if group.created_at <= time),
                )
                for topic in stream.topics
                if topic.document.created_at <= time
            ),
        )
        for stream in streams
        if stream.document.created_at <= time
    )


class CatalogueArchive:
    """Runs on the archiver's threads."""

    def __init__(self, objects: Objects, files: Files, layout: Layout, owner: Owner) -> None:
        self._objects = objects
        self._files = files
        self._layout = layout
        self._owner = owner
        self._recorded: Catalogue | None = None
        self._version: Version | None = None

    def advance(self, state: State, now: int) -> list[PartitionId]:
        """Records the catalogue if it has changed, and removes the objects of partitions that were removed. Returns
        these partitions."""
        try:
            return self._advance(state, now)
        except BaseException:
            self._recorded = self._version = None
            raise

    def _advance(self, state: State, now: int) -> list[PartitionId]:
        if self._recorded is None:
            self._load()
        old = self._recorded
        before = set() if old is None else {*places_in(old.streams), *old.removed}
        removed = sorted(before.difference(places_in(state.streams)))
        new = Catalogue(
            store=self._owner.store,
            generation=self._owner.generation,
            written_at=now,
            format=self._read(FORMAT_FILE) or b"",
            numbers_reserved=state.numbers_reserved,
            streams=state.streams,
            users=self._documents(USERS_FOLDER),
            tokens=self._documents(TOKENS_FOLDER),
            removed=tuple(removed),
        )
        self._record(new)
        if removed:
            for place in removed:
                self._remove(place)
            self._record(msgspec.structs.replace(new, removed=()))
        return removed

    def _load(self) -> None:
        found = self._objects.get(CATALOGUE)
        if found is None:
            return
        self._recorded, self._version = self._check_owner(found.content), found.version

    def _check_owner(self, content: bytes) -> Catalogue:
        where = f"{self._objects.location}/{CATALOGUE}"
        catalogue = decode(content, Catalogue, where)
        if catalogue.store != self._owner.store or catalogue.generation > self._owner.generation:
            raise ArchiveConflict(f"{where} was written by a server that has claimed the archive later")
        return catalogue

    def _record(self, new: Catalogue) -> None:
        if self._recorded is not None and msgspec.structs.replace(new, written_at=self._recorded.written_at) == (
            self._recorded
        ):
            return
        content = encode(new)
        try:
            self._version = self._objects.replace(CATALOGUE, content, self._version)
        except ArchiveConflict:
            found = self._objects.get(CATALOGUE)
            if found is None:
                raise
            if found.content != content:
                self._check_owner(found.content)
                raise ArchiveUnavailable(
                    f"{self._objects.location}/{CATALOGUE} was written late; it is read again"
                ) from None
            self._version = found.version
        self._recorded = new

    def _remove(self, place: PartitionId) -> None:
        """The manifest goes first: without it, nothing else counts."""
        folder = partition_folder(place)
        names = [item.name for item in self._objects.list(f"{folder}/")]
        self._objects.remove([manifest_name(place), *names])

    def _documents(self, folder: str) -> dict[str, bytes]:
        path = self._layout.below(folder)
        try:
            names = [item.name for item in self._files.list(path) if not item.is_folder]
        except OSError as error:
            raise ReadFailed(path, error) from error
        wanted = [name for name in names if name.endswith(".json") and number(name.removesuffix(".json")) is not None]
        contents = {name: self._read(f"{folder}/{name}") for name in sorted(wanted)}
        # What was removed meanwhile is left out.
        return {name: content for name, content in contents.items() if content is not None}

    def _read(self, name: str) -> bytes | None:
        path = self._layout.below(name)
        try:
            return read_all(self._files, path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ReadFailed(path, error) from error
