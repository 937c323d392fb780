"""The engine that keeps messages in a cluster that speaks Kafka's protocol (storage/engine.py; docs/engines/kafka.md).

Nothing is on this machine but what the gateway itself needs: its keys, its logs, and a lock that keeps other processes
out of its folder. The catalogue has one gateway that may change it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence

import msgspec

from whippet.storage.batch import Limits
from whippet.storage.data_folder import DataFolder
from whippet.storage.documents import GroupDocument, NumbersDocument, Stream, StreamDocument, Topic, TopicDocument
from whippet.storage.engine import Reading
from whippet.storage.errors import StorageError, Unsupported, UnsupportedFormat
from whippet.storage.files import Files
from whippet.storage.kafka import administration, names
from whippet.storage.kafka.catalogue import Catalogue
from whippet.storage.kafka.cluster import Cluster
from whippet.storage.kafka.options import KafkaOptions
from whippet.storage.kafka.partition import KafkaPartition
from whippet.storage.kafka.producing import Budget
from whippet.storage.kafka.watching import RecentBudget
from whippet.storage.layout import Layout, PartitionId
from whippet.storage.options import StoreOptions
from whippet.storage.room import Room
from whippet.storage.shielding import shielded

_log = logging.getLogger(__name__)

MEASURED_TOGETHER = 64
MEASURED_S = 2.0
"""The most that a description waits for numbers."""


class Shared(msgspec.Struct, frozen=True):
    """What all partitions share."""

    cluster: Cluster
    options: StoreOptions
    limits: Limits
    recent: RecentBudget
    unsent: Budget


class KafkaEngine:
    """Created by `open`, ended by `close`."""

    appends_at_once = False
    disk = None

    def __init__(self, options: StoreOptions, cluster: Cluster, catalogue: Catalogue, clock: Callable[[], int]) -> None:
        self.options = options
        self.clock = clock
        self.room = Room()
        self.cluster = cluster
        self.partitions: dict[PartitionId, KafkaPartition] = {}
        self._catalogue = catalogue
        self._shared = Shared(
            cluster=cluster,
            options=options,
            limits=Limits.of(options),
            recent=RecentBudget(options.tail_bytes_max),
            unsent=Budget(options.unflushed_bytes_max),
        )
        for stream_id, stream in self.streams.items():
            for topic_id in stream.topics:
                self._serve(stream_id, topic_id)

    @classmethod
    async def open(
        cls,
        options: StoreOptions,
        kafka: KafkaOptions,
        clock: Callable[[], int],
        *,
        files: Files | None = None,
        on_locked: Callable[[], None] = lambda: None,
    ) -> KafkaEngine:
        """Waits until a broker can be reached. `on_locked` is called on a thread as soon as no other process can use
        the folder."""
        folder = _Folder(options, files or Files(), clock)
        await asyncio.to_thread(folder.enter)
        try:
            await asyncio.to_thread(on_locked)
            cluster = await Cluster.open(kafka)
            try:
                catalogue = await Catalogue.open(cluster)
                engine = cls(options, cluster, catalogue, clock)
                engine._folder = folder
                await cluster.follow(*{each.topic for each in engine.partitions.values()})
            except BaseException:
                await cluster.close()
                raise
        except BaseException:
            await asyncio.to_thread(folder.leave)
            raise
        return engine

    _folder: _Folder

    async def close(self) -> None:
        """Waits for what is on its way to the brokers."""
        await asyncio.gather(*(partition.close("the gateway is stopping") for partition in self.partitions.values()))
        await self.cluster.close()
        await asyncio.to_thread(self._folder.leave)

    @property
    def lines(self) -> dict[str, str]:
        """What the banner says of it."""
        kafka = self.cluster.options
        return {
            "engine": f"kafka: topics {kafka.prefix}* at {self.cluster.servers}",
            "durability": "replicated: acknowledged messages are on all replicas in sync",
            "sign in": "the users of the catalogue in Kafka",
        }

    def problem(self) -> str | None:
        """What does not prevent serving; anybody may read it."""
        if self._catalogue.problem is not None:
            return "the catalogue cannot be changed here: restart this gateway"
        return "Kafka does not answer everything" if self.cluster.problem is not None else None

    def readings(self) -> Iterator[Reading]:
        for name, sentence, value in (
            ("unsent_bytes", "Bytes of batches that brokers have not acknowledged yet.", self._shared.unsent.used),
            ("recent_bytes", "Bytes of recent batches in memory.", self._shared.recent.used),
            ("healthy", "Whether brokers have answered what was last asked.", self.cluster.problem is None),
        ):
            yield Reading(f"whippet_kafka_{name}", sentence, [((), value)])

    async def catch_up(self, places: Sequence[PartitionId]) -> None:
        await asyncio.gather(*(self.partitions[place].catch_up() for place in places if place in self.partitions))

    async def measure(self, stream_id: int | None = None, topic_id: int | None = None) -> None:
        found = [
            partition
            for place, partition in self.partitions.items()
            if stream_id in (None, place.stream) and topic_id in (None, place.topic)
        ]
        if not found:
            return
        line = iter(found)

        async def measure_some() -> None:
            for partition in line:
                # A partition without a leader must not hide the others; `problem` says that something is wrong.
                with contextlib.suppress(StorageError):
                    await partition.catch_up()

        tasks = [asyncio.create_task(measure_some()) for _ in range(min(MEASURED_TOGETHER, len(found)))]
        try:
            await asyncio.wait(tasks, timeout=MEASURED_S)
        finally:
            for task in tasks:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------------------------------------------------- catalogue

    @property
    def streams(self) -> dict[int, Stream]:
        return self._catalogue.streams

    @property
    def users(self) -> dict[int, bytes]:
        return self._catalogue.users

    @property
    def tokens(self) -> dict[int, bytes]:
        return self._catalogue.tokens

    @property
    def numbers_reserved(self) -> int:
        return self._catalogue.numbers_reserved

    def reserved_ids(self, stream_id: int | None = None, topic_id: int | None = None) -> set[int]:
        return set()

    @shielded
    async def create_stream(self, document: StreamDocument) -> None:
        await self._catalogue.write({f"stream/{document.id}": msgspec.json.encode(document)})
        self.streams[document.id] = Stream(document, {})

    async def update_stream(self, document: StreamDocument) -> None:
        raise Unsupported("to rename a stream, whose name is part of the names of its topics in Kafka")

    @shielded
    async def remove_stream(self, stream_id: int) -> None:
        stream = self.streams[stream_id]
        await self._remove(
            stream_id,
            list(stream.topics),
            [f"stream/{stream_id}", *(f"topic/{stream_id}/{each}" for each in stream.topics)],
        )
        del self.streams[stream_id]

    @shielded
    async def create_topic(self, stream_id: int, document: TopicDocument) -> None:
        if not document.partitions_count:
            raise Unsupported("a topic without partitions")
        topic = self._topic_name(stream_id, document)
        chosen = administration.settings(document, self.cluster, self.options)
        await administration.create(self.cluster, topic, document.partitions_count, chosen)
        try:
            await self._catalogue.write({f"topic/{stream_id}/{document.id}": msgspec.json.encode(document)})
        except StorageError as failure:
            try:
                await administration.delete(self.cluster, [topic])
            except StorageError as error:
                _log.warning(
                    "Kafka keeps the topic %s, although it was not created here (%s): %s", topic, failure, error
                )
            raise
        await self.cluster.until_known(topic)
        partitions = list(range(document.partitions_count))
        self.streams[stream_id].topics[document.id] = Topic(document, {}, partitions)
        self._serve(stream_id, document.id)

    async def update_topic(self, stream_id: int, document: TopicDocument) -> None:
        raise Unsupported("to change a topic")

    @shielded
    async def remove_topic(self, stream_id: int, topic_id: int) -> None:
        await self._remove(stream_id, [topic_id], [f"topic/{stream_id}/{topic_id}"])
        del self.streams[stream_id].topics[topic_id]

    async def _remove(self, stream_id: int, topics: list[int], documents: list[str]) -> None:
        """Nobody finds the topics any more before Kafka deletes them. Some that it keeps nevertheless have to be
        deleted there."""
        found = self.streams[stream_id].topics
        in_kafka = [self._topic_name(stream_id, found[each].document) for each in topics]
        await self._catalogue.write(dict.fromkeys(documents))
        for topic_id in topics:
            for number in found[topic_id].partitions:
                await self.partitions.pop(PartitionId(stream_id, topic_id, number)).close("removed")
        try:
            await administration.delete(self.cluster, in_kafka)
        except StorageError as error:
            _log.warning("Kafka may keep some of the topics %s, which are removed here: %s", ", ".join(in_kafka), error)

    async def create_partitions(self, stream_id: int, topic_id: int, count: int, incarnation: int) -> None:
        raise Unsupported("to add partitions")

    async def remove_partitions(self, stream_id: int, topic_id: int, count: int) -> None:
        raise Unsupported("to remove partitions")

    async def write_group(self, stream_id: int, topic_id: int, document: GroupDocument) -> None:
        raise Unsupported("consumer groups")

    async def remove_group(self, stream_id: int, topic_id: int, group_id: int) -> None:
        raise Unsupported("consumer groups")

    @shielded
    async def write_user(self, user_id: int, document: bytes) -> None:
        await self._catalogue.write({f"user/{user_id}": document})
        self.users[user_id] = document

    @shielded
    async def remove_user(self, user_id: int) -> None:
        await self._catalogue.write({f"user/{user_id}": None})
        del self.users[user_id]

    @shielded
    async def write_token(self, token_id: int, document: bytes) -> None:
        await self._catalogue.write({f"token/{token_id}": document})
        self.tokens[token_id] = document

    @shielded
    async def remove_token(self, token_id: int) -> None:
        await self._catalogue.write({f"token/{token_id}": None})
        del self.tokens[token_id]

    @shielded
    async def reserve_numbers(self, below: int) -> None:
        await self._catalogue.write({"numbers": msgspec.json.encode(NumbersDocument(reserved=below))})
        self._catalogue.numbers_reserved = below

    # ------------------------------------------------------------------------------------------------------ partitions

    def _topic_name(self, stream_id: int, document: TopicDocument) -> str:
        return names.topic(self.cluster.options.prefix, self.streams[stream_id].document.name, document.name)

    def _serve(self, stream_id: int, topic_id: int) -> None:
        document = self.streams[stream_id].topics[topic_id].document
        topic = self._topic_name(stream_id, document)
        for number in range(document.partitions_count):
            place = PartitionId(stream_id, topic_id, number)
            self.partitions[place] = KafkaPartition(place, topic, document.epoch(number), self._shared)

    @property
    def partitions_count(self) -> int:
        return len(self.partitions)

    def partition(self, stream_id: int, topic_id: int, partition_id: int) -> KafkaPartition | None:
        return self.partitions.get(PartitionId(stream_id, topic_id, partition_id))

    def partitions_of(self, stream_id: int, topic_id: int) -> Iterator[KafkaPartition]:
        for number in self.streams[stream_id].topics[topic_id].partitions:
            yield self.partitions[PartitionId(stream_id, topic_id, number)]

    async def purge_topic(self, stream_id: int, topic_id: int, epoch: int | None = None) -> None:
        raise Unsupported("to purge a topic")

    async def delete_segments(self, place: PartitionId, count: int) -> int:
        raise Unsupported("to delete segments, which are Kafka's own")

    async def retain(self, stream_id: int, topic_id: int, *, expiry_us: int | None, max_bytes: int | None) -> int:
        """Kafka applies the limits of topics by itself."""
        return 0


class _Folder:
    """The folder of the gateway, which has no messages."""

    def __init__(self, options: StoreOptions, files: Files, clock: Callable[[], int]) -> None:
        self._layout = Layout(options)
        self._files = files
        self._folder = DataFolder(files, self._layout, clock, recreate=False)

    def enter(self) -> None:
        self._folder.enter()
        if self._files.list(self._layout.streams):
            self.leave()
            raise UnsupportedFormat(
                f"{self._layout.root} has streams of the store on this machine, which the engine kafka would not show: "
                "give it a folder of its own (system.path)"
            )

    def leave(self) -> None:
        self._folder.leave(all_is_synced=True)
