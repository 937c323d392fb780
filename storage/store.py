"""The store: a data folder, its shards, its catalogue and its partitions.

`Store.open` locks the folder, reads the catalogue and recovers every partition on the shard that owns it. From then on
the store is used only on the event loop that opened it. Everything is created and removed through the methods here, so
that the documents on disk and the partitions in memory always agree.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import ClassVar, TypeVar

import msgspec

from whippet.storage import catalog_loading, collector, removal, retention, sealed_documents, store_readings, takeover
from whippet.storage.batch import Limits
from whippet.storage.catalog import Catalog
from whippet.storage.catalog_loading import LoadedCatalog
from whippet.storage.data_folder import DataFolder
from whippet.storage.disk_space import DiskSpace
from whippet.storage.documents import FIRST_INCARNATION, GroupDocument, Stream, StreamDocument, Topic, TopicDocument
from whippet.storage.encryption import Seal
from whippet.storage.engine import Reading
from whippet.storage.errors import CatalogueError, PartitionClosed, PartitionFailed, StorageError, TopicFull
from whippet.storage.files import Files
from whippet.storage.layout import TOKENS_FOLDER, USERS_FOLDER, Layout, PartitionId
from whippet.storage.log import Log
from whippet.storage.opening_progress import Listener, ProgressCounter
from whippet.storage.options import StoreOptions, TopicSettings, settings_of
from whippet.storage.packing import Compression
from whippet.storage.partition import Partition
from whippet.storage.partition_opener import Opened, PartitionOpener, Unavailable
from whippet.storage.producers import Bounds, Record
from whippet.storage.room import Room
from whippet.storage.segment import Damage
from whippet.storage.shard import Shard, shard_of
from whippet.storage.shielding import shielded
from whippet.storage.tail import TailBudget, UnflushedBudget
from whippet.storage.takeover import Ends, NoArrival, Takeover
from whippet.storage.write_pipeline import Shared

_log = logging.getLogger(__name__)

UNLIMITED = 2**64 - 1
"""The maximum size in the document of a topic without a limit."""
DAMAGE_KEPT = 1000
"""Reports of damage that are kept in `Store.damage`. All of them are logged."""
NAMED_MAX = 20
"""How many topics a log line names."""
OPENED_TOGETHER = 64
"""Partitions that a shard opens in one call: enough progress reports, and no mailbox full of thousands of calls."""

Result = TypeVar("Result")


def now_us() -> int:
    return time.time_ns() // 1000


class Store:
    """See the module. Created by `open`, ended by `close`."""

    appends_at_once = True
    lines: ClassVar[Mapping[str, str]] = {}

    def __init__(self, options: StoreOptions, files: Files, clock: Callable[[], int]) -> None:
        loop = asyncio.get_running_loop()
        self.options = options
        self.layout = Layout(options)
        self.clock = clock
        self.damage: deque[Damage] = deque(maxlen=DAMAGE_KEPT)
        self.problems: list[str] = []
        self.partitions: dict[PartitionId, Partition] = {}
        self.unavailable: dict[PartitionId, str] = {}
        """Partitions that could not be opened, and why."""
        self.awaited: dict[PartitionId, Ends] = {}
        """Partitions whose files are still to come from the archive; they are served all the same (takeover.py)."""
        self.streams: dict[int, Stream] = {}
        self.users: dict[int, bytes] = {}
        self.tokens: dict[int, bytes] = {}
        self.reserved: dict[str, set[int]] = {}
        """Keyed by parent folder: the ids that must not be assigned again."""
        self.numbers_reserved = 0
        """Numbers below this one may have been given away; see app/unique_numbers.py."""
        self.catalog = Catalog(files, self.layout, sync=options.catalog_syncs)
        self.shards = [Shard(number, files, options, loop) for number in range(options.shards)]
        bounds = Bounds(options.producers_max, options.producer_answers_max)
        self.archived_before: Callable[[PartitionId], int] | None = None
        """Set if retention may delete only what is archived: returns the offset before which that is so."""
        self.room = Room(None if options.delete_oldest_segments else self._check_topic)
        self.opener = PartitionOpener(
            files,
            self.layout,
            bounds,
            options.validate_checksum,
            self._settings_of,
            self._compression_of,
            self._seal,
            self._report,
            self._note,
        )
        self._files = files
        self._folder = DataFolder(
            files, self.layout, clock, recreate=options.recreate_missing_state, keyring=options.keyring
        )
        self.disk = DiskSpace(options.path, options.disk_reserve, files, self.room, lambda: self.unflushed_bytes)
        self._saver: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._shared = Shared(
            options=options,
            limits=Limits.of(options),
            tails=TailBudget(options.tail_bytes_max),
            unflushed=UnflushedBudget(options.unflushed_bytes_max),
            bounds=bounds,
            clock=clock,
            loop=loop,
            created_at=0,
            room=self.room,
        )

    # ------------------------------------------------------------------------------------------------- opening, closing

    @classmethod
    async def open(
        cls,
        options: StoreOptions,
        progress: Listener | None = None,
        *,
        files: Files | None = None,
        clock: Callable[[], int] = now_us,
        on_locked: Callable[[], None] = lambda: None,
    ) -> Store:
        """Opens the folder, creating it if necessary. Damage is not raised: it is logged, and kept in `damage`.

        `on_locked` is called on a thread as soon as no other process can open the folder.
        """
        store = cls(options, files or Files(), clock)
        call = store.shards[0].call
        try:
            created_at = await call(store._folder.enter)
            await call(on_locked)
            store._shared = msgspec.structs.replace(store._shared, created_at=created_at)
            loaded, taken = await call(store._load_catalog)
            store.numbers_reserved, problem = await call(
                lambda: catalog_loading.read_numbers(store._files, store.layout)
            )
            if problem is not None:
                store._note(problem)
            with collector.paused():
                await store._open_partitions(loaded, progress or (lambda _: None))
                for place in loaded.awaited:
                    store.await_partition(taken.awaited[place], taken.location)
            await store.disk.start()
        except BaseException:
            await store.disk.stop()
            await store._stop_shards()
            raise
        if options.saver_interval_s is not None:
            store._saver = asyncio.create_task(store._save_regularly(options.saver_interval_s))
        return store

    def _load_catalog(self) -> tuple[LoadedCatalog, Takeover]:
        recreate = self.options.recreate_missing_state
        found = takeover.read(self._files, self.layout)
        return (
            catalog_loading.load(
                self.catalog, self._files, self.layout, self.clock, recreate=recreate, awaited=found.awaited
            ),
            found,
        )

    def await_partition(self, ends: Ends, location: str) -> None:
        """Serves a partition whose files are still to come from the archive. Without an archiver they never do."""
        shard = self.shard(ends.place)
        self.serve(self.opener.open_awaited(ends, shard), shard)
        self.awaited[ends.place] = ends
        coming = self.partitions[ends.place].await_arrival()
        coming.by(NoArrival(coming, location), None)

    async def _open_partitions(self, loaded: LoadedCatalog, progress: Listener) -> None:
        self.streams = loaded.streams
        for user_id, document in loaded.users.items():
            await self._take(USERS_FOLDER, user_id, document, self.users, self.write_user)
        for token_id, document in loaded.tokens.items():
            await self._take(TOKENS_FOLDER, token_id, document, self.tokens, self.write_token)
        self.reserved = loaded.reserved
        self.problems += self._folder.problems + loaded.problems
        for problem in self.problems:
            _log.warning("%s", problem)
        if not self.options.compression_override:
            self._report_overridden()
        by_shard: dict[int, list[PartitionId]] = {number: [] for number in range(len(self.shards))}
        total = 0
        awaited = set(loaded.awaited)
        for stream_id, stream in loaded.streams.items():
            for topic_id, topic in stream.topics.items():
                for partition_id in topic.partitions:
                    place = PartitionId(stream_id, topic_id, partition_id)
                    if place in awaited:
                        continue
                    by_shard[shard_of(place, len(self.shards))].append(place)
                    total += 1
        counter = ProgressCounter(total, progress)
        await asyncio.gather(*(self._open_on(self.shards[n], places, counter) for n, places in by_shard.items()))

    async def _take(
        self,
        folder: str,
        identity: int,
        stored: bytes,
        documents: dict[int, bytes],
        write: Callable[[int, bytes], Awaitable[None]],
    ) -> None:
        """Takes a document that may be encrypted, and encrypts it if it is not, or not with the key in use."""
        documents[identity], is_due = sealed_documents.opened(stored, f"{folder}/{identity}.json", self._seal())
        if is_due:
            await write(identity, documents[identity])

    def _seal(self, part: str = "") -> Seal | None:
        """Binds what is encrypted to this folder, and to a part of it. May be called on any thread."""
        keyring = self.options.keyring
        if keyring is None:
            return None
        whole = Seal(keyring, b"whippet\0" + self._folder.identity.encode() + b"\0")
        return whole.for_part(part) if part else whole

    async def _open_on(self, shard: Shard, places: list[PartitionId], counter: ProgressCounter) -> None:
        for start in range(0, len(places), OPENED_TOGETHER):
            group = places[start : start + OPENED_TOGETHER]
            for opened in await shard.call(
                lambda group=group: [self.opener.try_to_open(place, shard) for place in group]  # type: ignore[misc]
            ):
                self.serve(opened, shard)
            counter.add(len(group))

    def serve(self, opened: Opened | Unavailable, shard: Shard) -> None:
        """Serves a partition from now on, or reports why it is not served."""
        if isinstance(opened, Unavailable):
            self.unavailable[opened.place] = opened.reason
            _log.error("%s is not served: %s", opened.place, opened.reason)
            return
        place = opened.place
        self.partitions[place] = partition = Partition(
            place,
            shard,
            opened.log,
            opened.offset_files,
            opened.offsets,
            opened.last_timestamp,
            opened.records,
            self._settings_of(place),
            self._shared,
        )
        partition.epoch = self.streams[place.stream].topics[place.topic].document.epoch(place.partition)

    def shard(self, place: PartitionId) -> Shard:
        """The shard that owns a partition."""
        return self.shards[shard_of(place, len(self.shards))]

    def _settings_of(self, place: PartitionId) -> TopicSettings:
        """May be called on any thread: the options in a document never change while a partition of the topic is
        open."""
        return settings_of(self.streams[place.stream].topics[place.topic].document.options, self.options)

    def _compression_of(self, place: PartitionId) -> Compression:
        """How a partition compresses what is appended from now on. May be called on any thread."""
        options = self.options
        if not options.compression_override:
            return Compression[options.compression.upper()]
        try:
            return Compression(self.streams[place.stream].topics[place.topic].document.compression_algorithm)
        except ValueError:
            # A number that only a later version knows.
            return Compression.NONE

    def _report_overridden(self) -> None:
        """Logs for which topics another compression was chosen than the one that all topics have."""
        forced = Compression[self.options.compression.upper()]
        named = [
            f"{stream.document.name}/{topic.document.name}"
            for stream in self.streams.values()
            for topic in stream.topics.values()
            if topic.document.compression_algorithm != forced
        ]
        if named:
            more = f" and {len(named) - NAMED_MAX} more" if len(named) > NAMED_MAX else ""
            _log.warning(
                "system.compression.allow_override is false, so %d %s compressed with system.compression."
                "default_algorithm = %s from now on, although another choice was made for %s: %s%s",
                len(named),
                "topic is" if len(named) == 1 else "topics are",
                self.options.compression,
                "it" if len(named) == 1 else "them",
                ", ".join(named[:NAMED_MAX]),
                more,
            )

    def _report(self, damage: Damage) -> None:
        # Called on any thread: both operations are safe there.
        self.damage.append(damage)
        _log.warning("%s", damage)

    def _note(self, problem: str) -> None:
        # Called on any thread, like `_report`.
        self.problems.append(problem)
        _log.warning("%s", problem)

    async def close(self) -> None:
        """Writes and syncs everything, then releases the folder. Raises if something could not be written.

        May be called again: all callers wait for the same closing and get the same result.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await self.disk.stop()
        if self._saver is not None:
            self._saver.cancel()
        failures = await asyncio.gather(
            *(partition.close() for partition in self.partitions.values()), return_exceptions=True
        )
        await self._stop_shards(all_is_synced=not any(failures))
        for failure in failures:
            if isinstance(failure, BaseException):
                raise failure

    async def _stop_shards(self, *, all_is_synced: bool = False) -> None:
        for shard in self.shards[1:]:
            await shard.stop()
        if self._folder.is_locked:
            await self.shards[0].call(lambda: self._folder.leave(all_is_synced=all_is_synced))
        await self.shards[0].stop()

    @property
    def identity(self) -> str:
        """The id of the data folder."""
        return self._folder.identity

    @property
    def unflushed_bytes(self) -> int:
        """Bytes accepted but not yet written, over all partitions."""
        return self._shared.unflushed.used

    @property
    def tail_bytes(self) -> int:
        """Bytes of recent, already written batches in memory, over all partitions."""
        return self._shared.tails.used

    def readings(self) -> Iterator[Reading]:
        return store_readings.of(self)

    async def catch_up(self, places: Sequence[PartitionId]) -> None:
        """Everything that was appended is known here."""

    async def measure(self, stream_id: int | None = None, topic_id: int | None = None) -> None:
        """Everything is known here."""

    # ------------------------------------------------------------------------------------------------------- partitions

    def partition(self, stream_id: int, topic_id: int, partition_id: int) -> Partition | None:
        return self.partitions.get(PartitionId(stream_id, topic_id, partition_id))

    @property
    def partitions_count(self) -> int:
        """All partitions, including the unavailable ones."""
        return len(self.partitions) + len(self.unavailable)

    def partitions_of(self, stream_id: int, topic_id: int) -> Iterator[Partition]:
        """The partitions that can be used; the others are in `unavailable`."""
        for partition_id in self.streams[stream_id].topics[topic_id].partitions:
            partition = self.partition(stream_id, topic_id, partition_id)
            if partition is not None:
                yield partition

    async def reopen(self, partition: Partition) -> None:
        """Checks the files of a failed partition, writes again what may be lost, and resumes from there."""
        place, shard = partition.place, self.shard(partition.place)

        def recovered() -> tuple[Log, int, list[Record]]:
            opened = self.opener.recover(place, shard)
            return opened.log, opened.last_timestamp, opened.records

        await partition.reopen(recovered)
        # The topic may have been changed meanwhile.
        partition.compress(self._compression_of(place))
        _log.warning("%s: reopened and checked; the next offset is %d", place, partition.appended)

    async def _save_regularly(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self.save()
            except Exception:  # noqa: BLE001 -- without the saver, nothing would be written from now on
                _log.exception("the message saver met a defect; it will run again")

    async def save(self) -> None:
        """Runs the message saver once: writes what is buffered, syncs it if so configured, reopens failed
        partitions."""
        for partition in list(self.partitions.values()):
            if not partition.needs_saver:
                continue
            try:
                if isinstance(partition.failed, PartitionFailed):
                    await self.reopen(partition)
                await partition.flush(sync=self.options.saver_syncs)
            except StorageError as error:
                _log.warning("the message saver: %s", error)

    # -------------------------------------------------------------------------------------------- creating and removing

    def reserved_ids(self, stream_id: int | None = None, topic_id: int | None = None) -> set[int]:
        """The ids that must not be assigned again: of streams, of the topics of a stream, of the groups of a topic."""
        layout = self.layout
        if stream_id is None:
            folder = layout.streams
        else:
            folder = layout.topics(stream_id) if topic_id is None else layout.groups(stream_id, topic_id)
        return self.reserved.get(folder, set())

    @shielded
    async def create_stream(self, document: StreamDocument) -> None:
        self.room.require_disk()
        await self.change(lambda: self.catalog.create_stream(document))
        self.streams[document.id] = Stream(document, {})

    @shielded
    async def update_stream(self, document: StreamDocument) -> None:
        await self.change(lambda: self.catalog.write_stream(document))
        self.streams[document.id].document = document

    @shielded
    async def remove_stream(self, stream_id: int) -> None:
        await removal.remove_stream(self, stream_id)

    @shielded
    async def create_topic(self, stream_id: int, document: TopicDocument) -> None:
        self.room.require_disk()
        await self.change(lambda: self.catalog.create_topic(stream_id, document))
        self.streams[stream_id].topics[document.id] = Topic(document, {}, [])
        self._serve_new(stream_id, document.id, range(document.partitions_count))

    @shielded
    async def update_topic(self, stream_id: int, document: TopicDocument) -> None:
        await self.change(lambda: self.catalog.write_topic(stream_id, document))
        self.streams[stream_id].topics[document.id].document = document
        for partition in self.partitions_of(stream_id, document.id):
            partition.compress(self._compression_of(partition.place))

    @shielded
    async def remove_topic(self, stream_id: int, topic_id: int) -> None:
        await removal.remove_topic(self, stream_id, topic_id)

    @shielded
    async def create_partitions(
        self, stream_id: int, topic_id: int, count: int, incarnation: int = FIRST_INCARNATION
    ) -> None:
        self.room.require_disk()
        topic = self.streams[stream_id].topics[topic_id]
        await removal.finish_removing(self, stream_id, topic)
        first = topic.document.partitions_count
        document = topic.document.with_partitions(count, incarnation)
        await self.change(lambda: self.catalog.create_partitions(stream_id, document, first))
        topic.document = document
        self._serve_new(stream_id, topic_id, range(first, first + count))

    @shielded
    async def remove_partitions(self, stream_id: int, topic_id: int, count: int) -> None:
        await removal.remove_partitions(self, stream_id, topic_id, count)

    def _serve_new(self, stream_id: int, topic_id: int, partition_ids: range) -> None:
        for partition_id in partition_ids:
            place = PartitionId(stream_id, topic_id, partition_id)
            shard = self.shard(place)
            self.serve(self.opener.open_new(place, shard), shard)
            self.streams[stream_id].topics[topic_id].partitions.append(partition_id)

    @shielded
    async def purge_topic(self, stream_id: int, topic_id: int, epoch: int | None = None) -> None:
        await removal.purge_topic(self, stream_id, topic_id, epoch)

    @shielded
    async def write_group(self, stream_id: int, topic_id: int, document: GroupDocument) -> None:
        await self.change(lambda: self.catalog.write_group(stream_id, topic_id, document))
        self.streams[stream_id].topics[topic_id].groups[document.id] = document

    @shielded
    async def remove_group(self, stream_id: int, topic_id: int, group_id: int) -> None:
        await self.change(lambda: self.catalog.remove_group(stream_id, topic_id, group_id))
        del self.streams[stream_id].topics[topic_id].groups[group_id]

    @shielded
    async def write_user(self, user_id: int, document: bytes) -> None:
        stored = sealed_documents.sealed(document, f"{USERS_FOLDER}/{user_id}.json", self._seal())
        await self.change(lambda: self.catalog.write_user(user_id, stored))
        self.users[user_id] = document

    @shielded
    async def remove_user(self, user_id: int) -> None:
        await self.change(lambda: self.catalog.remove_user(user_id))
        del self.users[user_id]

    @shielded
    async def write_token(self, token_id: int, document: bytes) -> None:
        stored = sealed_documents.sealed(document, f"{TOKENS_FOLDER}/{token_id}.json", self._seal())
        await self.change(lambda: self.catalog.write_token(token_id, stored))
        self.tokens[token_id] = document

    @shielded
    async def remove_token(self, token_id: int) -> None:
        await self.change(lambda: self.catalog.remove_token(token_id))
        del self.tokens[token_id]

    @shielded
    async def reserve_numbers(self, below: int) -> None:
        await self.change(lambda: self.catalog.write_numbers(below))
        self.numbers_reserved = below

    async def change(self, function: Callable[[], Result]) -> Result:
        """Changes the catalogue on disk. The first shard makes all such changes, one after the other."""
        try:
            return await self.shards[0].call(function)
        except OSError as error:
            raise CatalogueError(f"the catalogue cannot be changed: {error.strerror}: {error.filename}") from error

    # -------------------------------------------------------------------------------------------------------- retention

    def _check_topic(self, place: PartitionId, more_bytes: int) -> None:
        """Refuses bytes that would exceed the size of a topic whose old segments are not deleted."""
        stream = self.streams[place.stream]
        document = stream.topics[place.topic].document
        if document.max_topic_size in (0, UNLIMITED):
            return
        size = sum(partition.disk_bytes for partition in self.partitions_of(place.stream, place.topic))
        if size + more_bytes > document.max_topic_size:
            raise TopicFull(stream.document.name, document.name, size, document.max_topic_size, more_bytes)

    async def retain(self, stream_id: int, topic_id: int, *, expiry_us: int | None, max_bytes: int | None) -> int:
        """Deletes the segments that exceed a topic's limits, by age and then by size. Returns how many."""
        # What is still to come from the archive may be deleted once it is here.
        partitions = [each for each in self.partitions_of(stream_id, topic_id) if each.coming is None]
        held: dict[Partition, retention.HeldBack | None] = dict.fromkeys(partitions)
        deleted = 0
        if expiry_us is not None:
            for partition in partitions:
                seen, now = await self._closed(partition), self.clock()
                before = retention.expired(seen, now, expiry_us)
                wanted = retention.expired(retention.without_barrier(seen), now, expiry_us)
                held[partition] = retention.held_back(seen, partition.slowest_reader, before, wanted)
                if partition.history is not None:
                    until, slowest = partition.local_first_offset, partition.slowest_reader
                    unread = until if slowest is None else slowest.offset + 1
                    await partition.history.expire(now - expiry_us, until, unread)
                deleted += await self._trim(partition, before, seen.purges)
        if max_bytes is not None and sum(partition.disk_bytes for partition in partitions) > max_bytes:
            closed = [await self._closed(partition) for partition in partitions]
            size = sum(partition.disk_bytes for partition in partitions)
            befores = retention.oversize(closed, size, max_bytes)
            wanteds = retention.oversize([retention.without_barrier(seen) for seen in closed], size, max_bytes)
            for partition, seen, before, wanted in zip(partitions, closed, befores, wanteds, strict=True):
                larger = retention.held_back(seen, partition.slowest_reader, before, wanted)
                held[partition] = larger or held[partition]
                deleted += await self._trim(partition, before, seen.purges)
        for partition, found in held.items():
            partition.held_back = found
        return deleted

    async def delete_segments(self, place: PartitionId, count: int) -> int:
        """Deletes the oldest closed segments of a partition, fewer if the consumer barrier protects some of them, or if
        some must be archived first."""
        partition = self.partitions.get(place)
        if partition is None:
            raise PartitionClosed(f"{place}: removed")
        await partition.here()
        seen = await self._closed(partition)
        return await self._trim(partition, retention.oldest(seen, count), seen.purges)

    async def _trim(self, partition: Partition, before: int, purges: int) -> int:
        if self.archived_before is not None:
            before = min(before, self.archived_before(partition.place))
        if partition.history is not None and before > partition.history.first_offset:
            await partition.history.keep_from(before)
        return await partition.trim(before, purges)

    async def _closed(self, partition: Partition) -> retention.Closed:
        purges = partition.purges
        segments = await partition.closed_segments()
        slowest = partition.slowest_reader
        return retention.Closed(segments, None if slowest is None else slowest.offset, purges)
