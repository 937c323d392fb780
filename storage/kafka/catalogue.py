"""The documents of the catalogue in a compacted topic of one partition: a record for each, under its name.

    stream/<id>   topic/<stream>/<id>   user/<id>   token/<id>   numbers   format

A change is a transaction. Its id belongs to the catalogue, so when another gateway opens the catalogue, this one can
change it no more: Kafka refuses it, and what it says then is in the error. After a change whose outcome is unknown,
nothing more is changed until the next start, which reads what is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from whippet.storage.documents import NOT_UNDERSTOOD, NumbersDocument, Stream, StreamDocument, Topic, TopicDocument
from whippet.storage.errors import CatalogueError, StorageError, UnsupportedFormat
from whippet.storage.kafka import administration, names
from whippet.storage.kafka.cluster import Cluster
from whippet.storage.kafka.transactions import Fenced, Transactions, Undecided
from whippet.storage.kafka.watching import Log, RecentBudget

FORMAT = 1


class Format(msgspec.Struct, frozen=True):
    """The document `format`."""

    whippet_catalogue: int


class Catalogue:
    """Created by `open`."""

    def __init__(self, cluster: Cluster) -> None:
        self.topic = names.catalogue(cluster.options.prefix)
        self.streams: dict[int, Stream] = {}
        self.users: dict[int, bytes] = {}
        self.tokens: dict[int, bytes] = {}
        self.numbers_reserved = 0
        self.problem: str | None = None
        """Why the catalogue cannot be changed any more; None if it can."""
        self._cluster = cluster
        self._has_format = False
        self._lock = asyncio.Lock()
        self._transactions = Transactions(cluster, self.topic)

    @classmethod
    async def open(cls, cluster: Cluster) -> Catalogue:
        catalogue = cls(cluster)
        await catalogue._open()
        return catalogue

    async def _open(self) -> None:
        await self._cluster.follow(self.topic)
        if self._cluster.partitions_of(self.topic) is None:
            await administration.create(self._cluster, self.topic, 1, self._settings(), may_exist=True)
            await self._cluster.until_known(self.topic)
        # From here on no other gateway can change it.
        await self._transactions.begin()
        await self._read()
        if not self._has_format:
            await self.write({"format": msgspec.json.encode(Format(FORMAT))})

    def _settings(self) -> administration.Settings:
        return [
            ("cleanup.policy", "compact"),
            ("min.insync.replicas", str(self._cluster.options.min_insync_replicas)),
        ]

    async def _read(self) -> None:
        log = Log(self._cluster, self.topic, 0, RecentBudget(0))
        await log.refresh()
        documents: dict[str, bytes] = {}
        async for key, value in log.records():
            name = (key or b"").decode(errors="replace")
            if value is None:
                documents.pop(name, None)
            else:
                documents[name] = value
        self._has_format = "format" in documents
        # Streams come before topics.
        for name in sorted(documents):
            try:
                self._take(name.split("/"), documents[name])
            except (*NOT_UNDERSTOOD, ValueError, KeyError) as error:
                raise CatalogueError(f"{self.topic}: the document {name!r} cannot be read: {error}") from error

    def _take(self, name: list[str], content: bytes) -> None:
        match name:
            case ["format"]:
                found = msgspec.json.decode(content, type=Format).whippet_catalogue
                if found > FORMAT:
                    raise UnsupportedFormat(f"{self.topic} has format {found}, this program has {FORMAT}")
            case ["stream", number]:
                self.streams[int(number)] = Stream(msgspec.json.decode(content, type=StreamDocument), {})
            case ["topic", stream, number]:
                document = msgspec.json.decode(content, type=TopicDocument)
                topic = Topic(document, {}, list(range(document.partitions_count)))
                self.streams[int(stream)].topics[int(number)] = topic
            case ["user", number]:
                self.users[int(number)] = content
            case ["token", number]:
                self.tokens[int(number)] = content
            case ["numbers"]:
                self.numbers_reserved = msgspec.json.decode(content, type=NumbersDocument).reserved
            case _:
                raise ValueError("no document of this version has such a name")

    async def write(self, documents: Mapping[str, bytes | None]) -> None:
        """Writes documents, or deletes those that are None, all of them or none."""
        async with self._lock:
            if self.problem is not None:
                raise CatalogueError(self.problem)
            try:
                if not self._transactions.has_begun:
                    await self._transactions.begin()
                await self._transactions.write(documents)
            except Fenced as error:
                self.problem = (
                    f"the catalogue {self.topic} cannot be changed here any more: another gateway has opened it since"
                )
                raise CatalogueError(self.problem) from error
            except Undecided as error:
                self.problem = (
                    f"the catalogue {self.topic} cannot be changed until the next start: the outcome of a change is "
                    f"unknown ({error})"
                )
                raise CatalogueError(self.problem) from error
            except StorageError as error:
                raise CatalogueError(f"the catalogue {self.topic} was not changed: {error}") from error
