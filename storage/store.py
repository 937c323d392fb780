"""The store: a data folder, its shards, its catalogue and its partitions.

`Store.open` takes the lock, reads the catalogue and recovers every partition, each on the shard that owns it; from then
on the store is used from the event loop that opened it. Whoever makes or removes something uses the methods here, so
that the documents on the disk and the partitions in memory always say the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import NamedTuple, TypeVar

import msgspec

from whippet.storage import recovery, retention
from whippet.storage.batch import Limits
from whippet.storage.catalog import (
    FIRST_INCARNATION,
    NOT_UNDERSTOOD,
    Catalog,
    Found,
    GroupDocument,
    Stream,
    StreamDocument,
    Topic,
    TopicDocument,
)
from whippet.storage.completion import to_the_end
from whippet.storage.errors import (
    CatalogueError,
    PartitionFailed,
    StorageError,
    StoreLocked,
    TopicFull,
    UnsupportedFormat,
)
from whippet.storage.files import Files, make_folders, read_all, replace
from whippet.storage.handles import close
from whippet.storage.layout import (
    FORMAT_FILE,
    FORMAT_VERSION,
    LOCK_FILE,
    TOKENS_FOLDER,
    USERS_FOLDER,
    Layout,
    PartitionId,
)
from whippet.storage.log import Log
from whippet.storage.offsets import Key, OffsetFiles
from whippet.storage.options import StoreOptions, TopicSettings, settings_of
from whippet.storage.partition import Partition, Surroundings
from whippet.storage.producers import Bounds, Record
from whippet.storage.segment import Damage, Segment
from whippet.storage.shard import Shard, shard_of
from whippet.storage.tail import TailBudget, UnflushedBudget

_log = logging.getLogger(__name__)

UNLIMITED = 2**64 - 1
"""How a topic's document says that it has no limit of size."""
DAMAGE_KEPT = 1000
"""Reports of damage that are remembered for whoever asks; all of them are logged."""

Answer = TypeVar("Answer")


class Progress(NamedTuple):
    """How far the opening has come."""

    opened: int
    total: int

    def __str__(self) -> str:
        return f"opened {self.opened} of {self.total} partitions"


Listener = Callable[[Progress], None]


def now_us() -> int:
    return time.time_ns() // 1000


class Identity(msgspec.Struct, frozen=True):
    """The file FORMAT: what this folder is."""

    whippet_store: int
    """The format version."""
    id: str
    created_at: int


class Opened(NamedTuple):
    """A partition's files, ready for use, as a shard hands them to the loop."""

    place: PartitionId
    log: Log
    offset_files: OffsetFiles
    offsets: dict[Key, int]
    last_timestamp: int
    records: list[Record]
    """What producers were answered."""


class Store:
    """See the module. Made by `open`, ended by `close`."""

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
        self.streams: dict[int, Stream] = {}
        self.users: dict[int, bytes] = {}
        self.tokens: dict[int, bytes] = {}
        self.reserved: dict[str, set[int]] = {}
        self.numbers_reserved = 0
        """Numbers below this one may have been given away; see app/unique_numbers.py."""
        self.catalog = Catalog(files, self.layout, sync=options.catalog_syncs, clock=clock)
        self.shards = [Shard(number, files, options, loop) for number in range(options.shards)]
        self._files = files
        self._lock: int | None = None
        self._saver: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._shared = Surroundings(
            options=options,
            limits=Limits.of(options),
            tails=TailBudget(options.tail_bytes_max),
            unflushed=UnflushedBudget(options.unflushed_bytes_max),
            bounds=Bounds(options.producers_max, options.producer_answers_max),
            clock=clock,
            loop=loop,
            made_at=0,
            check_room=None if options.delete_oldest_segments else self._check_room,
        )

    # ----------------------------------------------------------------------------------------------- opening, closing

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
        """Opens the folder, making it if it is not there. Damage is not raised: it is logged, and kept in `damage`.

        `on_locked` is called on a thread, as soon as no other process can open the folder.
        """
        store = cls(options, files or Files(), clock)
        try:
            made_at = await store.shards[0].call(store._enter_folder)
            await store.shards[0].call(on_locked)
            store._shared = msgspec.structs.replace(store._shared, made_at=made_at)
            found = await store.shards[0].call(lambda: store.catalog.load(recreate=options.recreate_missing_state))
            store.numbers_reserved, problem = await store.shards[0].call(store.catalog.read_numbers)
            if problem is not None:
                store._note(problem)
            await store._open_partitions(found, progress or (lambda _: None))
        except BaseException:
            await store._stop_shards()
            raise
        if options.saver_interval_s is not None:
            store._saver = asyncio.create_task(store._save_regularly(options.saver_interval_s))
        return store

    def _enter_folder(self) -> int:
        """Takes the lock; says when the folder was made."""
        root, path = self.layout.root, self.layout.below(LOCK_FILE)
        made = make_folders(self._files, root)
        for above in made:
            self._files.sync_folder(above)
        is_known = self._files.exists(path)
        self._lock = self._files.lock(path)
        if self._lock is None:
            raise StoreLocked(f"{root}: another process has this data folder open (see {LOCK_FILE} in it)")
        if not made and (not is_known or self._files.size(self._lock)):
            # Whoever had it open last did not close it. What is found now may be in the system's memory only, and it
            # is about to be built upon, read, and called synced.
            self._files.sync_filesystem(root)
        self._files.sign(self._lock)
        made_at = self._check_format()
        for folder in (self.layout.streams, self.layout.below(USERS_FOLDER), self.layout.below(TOKENS_FOLDER)):
            make_folders(self._files, folder)
        self._files.sync_folder(root)
        return made_at

    def _check_format(self) -> int:
        path = self.layout.below(FORMAT_FILE)
        if not self._files.exists(path):
            if self._files.exists(self.layout.streams) and self._files.list(self.layout.streams):
                if not self.options.recreate_missing_state:
                    raise UnsupportedFormat(
                        f"{path}: missing, and there are streams beside it; is this a folder of Whippet? "
                        "system.recovery.recreate_missing_state = true takes it for one"
                    )
                self.problems.append(f"{path}: missing; made anew")
            identity = Identity(FORMAT_VERSION, str(uuid.uuid4()), self.clock())
            replace(self._files, path, msgspec.json.encode(identity) + b"\n")
            return identity.created_at
        try:
            identity = msgspec.json.decode(read_all(self._files, path), type=Identity)
        except NOT_UNDERSTOOD as error:
            raise UnsupportedFormat(f"{path}: cannot be understood: {error}") from error
        except OSError as error:
            raise UnsupportedFormat(f"{path}: cannot be read: {error.strerror}") from error
        if identity.whippet_store != FORMAT_VERSION:
            raise UnsupportedFormat(
                f"{path}: this folder has format version {identity.whippet_store}, this program has {FORMAT_VERSION}"
            )
        return identity.created_at

    async def _open_partitions(self, found: Found, progress: Listener) -> None:
        self.streams, self.users, self.tokens, self.reserved = found.streams, found.users, found.tokens, found.reserved
        self.problems += found.problems
        for problem in self.problems:
            _log.warning("%s", problem)
        by_shard: dict[int, list[PartitionId]] = {number: [] for number in range(len(self.shards))}
        total = 0
        for stream_id, stream in found.streams.items():
            for topic_id, topic in stream.topics.items():
                for partition_id in topic.partitions:
                    place = PartitionId(stream_id, topic_id, partition_id)
                    by_shard[shard_of(place, len(self.shards))].append(place)
                    total += 1
        counted = _Counter(total, progress)
        await asyncio.gather(*(self._open_on(number, places, counted) for number, places in by_shard.items()))

    async def _open_on(self, number: int, places: list[PartitionId], counted: _Counter) -> None:
        """In groups, so that the loop hears of progress and the mailbox is not filled with thousands of calls."""
        shard = self.shards[number]
        for start in range(0, len(places), 64):
            group = places[start : start + 64]
            for opened in await shard.call(lambda group=group: [self._try_to_open(place, shard) for place in group]):  # type: ignore[misc]
                if isinstance(opened, Opened):
                    self._add(opened, shard)
                else:
                    place, reason = opened
                    self.unavailable[place] = reason
                    _log.error("%s is not served: %s", place, reason)
            counted.add(len(group))

    def _try_to_open(self, place: PartitionId, shard: Shard) -> Opened | tuple[PartitionId, str]:
        try:
            opened = self._recover(place, shard)
            for line in opened.offset_files.lower(opened.offsets, opened.log.next_offset):
                self._note(line)
        except (OSError, StorageError) as error:
            return place, str(error)
        return opened

    def _recover(self, place: PartitionId, shard: Shard) -> Opened:
        folder = self.layout.partition(place)
        recovered = recovery.recover(self._files, folder, place.partition, check_all=self.options.validate_checksum)
        for damage in recovered.damage:
            self._report(damage)
        offset_files = OffsetFiles(self._files, folder)
        offsets, unreadable = offset_files.load()
        for path in unreadable:
            self._note(f"{path}: no consumer offset can be read from it; it is ignored")
        log = self._log_of(place, shard, recovered.segments)
        return Opened(place, log, offset_files, offsets, recovered.last_timestamp, log.remembered())

    def _log_of(self, place: PartitionId, shard: Shard, segments: list[Segment]) -> Log:
        settings = self._settings_of(place)
        return Log(
            self._files,
            shard.handles,
            shard.indexes,
            self.layout.partition(place),
            place.partition,
            settings.segment_bytes,
            segments,
            self._report,
            preallocates=settings.preallocates,
            bounds=self._shared.bounds,
        )

    def _settings_of(self, place: PartitionId) -> TopicSettings:
        """On any thread: what of a document it looks at is never changed while a partition of the topic is open."""
        return settings_of(self.streams[place.stream].topics[place.topic].document.options, self.options)

    def _report(self, damage: Damage) -> None:
        # Called on any thread: both are safe there.
        self.damage.append(damage)
        _log.warning("%s", damage)

    def _note(self, problem: str) -> None:
        # As `_report`, on any thread.
        self.problems.append(problem)
        _log.warning("%s", problem)

    def _add(self, opened: Opened, shard: Shard) -> Partition:
        partition = Partition(
            opened.place,
            shard,
            opened.log,
            opened.offset_files,
            opened.offsets,
            opened.last_timestamp,
            opened.records,
            self._settings_of(opened.place),
            self._shared,
        )
        self.partitions[opened.place] = partition
        self.unavailable.pop(opened.place, None)
        return partition

    async def close(self) -> None:
        """Writes and syncs everything, then lets go of the folder. Says so, and raises, if something could not be.

        May be called again, by whoever is not sure that it was: all wait for the one closing and hear the same.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._saver is not None:
            self._saver.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._saver
        failures = await asyncio.gather(
            *(partition.close() for partition in self.partitions.values()), return_exceptions=True
        )
        await self._stop_shards(all_is_synced=not any(failures))
        for failure in failures:
            if isinstance(failure, BaseException):
                raise failure

    async def _stop_shards(self, *, all_is_synced: bool = False) -> None:
        lock, self._lock = self._lock, None
        for shard in self.shards[1:]:
            await shard.stop()
        if lock is not None:
            await self.shards[0].call(lambda: self._leave_folder(lock, all_is_synced))
        await self.shards[0].stop()

    def _leave_folder(self, lock: int, all_is_synced: bool) -> None:
        """A lock file without a name in it says to the next start that nothing is left to be synced."""
        path = self.layout.below(LOCK_FILE)
        if all_is_synced:
            try:
                self._files.truncate(lock, 0)
            except OSError as error:
                _log.warning("%s: the next start takes this for an unclean end: %s", path, error)
        close(self._files, path, lock)

    @property
    def unflushed_bytes(self) -> int:
        """Accepted but not yet written, over all partitions."""
        return self._shared.unflushed.used

    @property
    def tail_bytes(self) -> int:
        """Of recent batches in memory that are written, over all partitions."""
        return self._shared.tails.used

    # ------------------------------------------------------------------------------------------------------ partitions

    def partition(self, stream_id: int, topic_id: int, partition_id: int) -> Partition | None:
        return self.partitions.get(PartitionId(stream_id, topic_id, partition_id))

    @property
    def partitions_count(self) -> int:
        """Those that cannot be used included."""
        return len(self.partitions) + len(self.unavailable)

    def partitions_of(self, stream_id: int, topic_id: int) -> Iterator[Partition]:
        """Those that can be used; the others are in `unavailable`."""
        for partition_id in self.streams[stream_id].topics[topic_id].partitions:
            partition = self.partition(stream_id, topic_id, partition_id)
            if partition is not None:
                yield partition

    async def reopen(self, partition: Partition) -> None:
        """Looks at the files of a failed partition again, writes once more what may be lost, and goes on from there."""
        place = partition.place
        shard = self.shards[shard_of(place, len(self.shards))]

        def recovered() -> tuple[Log, int, list[Record]]:
            opened = self._recover(place, shard)
            return opened.log, opened.last_timestamp, opened.records

        await partition.reopen(recovered)
        _log.warning("%s: re-opened and checked; the next offset is %d", place, partition.appended)

    async def _save_regularly(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self.save()
            except Exception:  # noqa: BLE001 -- without it nothing would be written for the rest of the life
                _log.exception("the message saver: a defect; it comes again")

    async def save(self) -> None:
        """One round of the message saver: writes what is buffered, syncs it if told to, re-opens what has failed."""
        for partition in list(self.partitions.values()):
            if not partition.needs_saver:
                continue
            try:
                if isinstance(partition.failed, PartitionFailed):
                    await self.reopen(partition)
                await partition.flush(sync=self.options.saver_syncs)
            except StorageError as error:
                _log.warning("the message saver: %s", error)

    # ------------------------------------------------------------------------------------------- making and removing

    @to_the_end
    async def create_stream(self, document: StreamDocument) -> None:
        await self._change(lambda: self.catalog.create_stream(document))
        self.streams[document.id] = Stream(document, {})

    @to_the_end
    async def update_stream(self, document: StreamDocument) -> None:
        await self._change(lambda: self.catalog.write_stream(document))
        self.streams[document.id].document = document

    @to_the_end
    async def remove_stream(self, stream_id: int) -> None:
        stream = self.streams[stream_id]
        closed = []
        for topic_id in list(stream.topics):
            closed += await self._close_partitions(stream_id, topic_id, range(2**32))
        async with self._served_again_on_failure(closed, lambda: self.catalog.restore(self.layout.stream(stream_id))):
            await self._change(lambda: self.catalog.remove_stream(stream_id))
        self._forget_unavailable(stream_id)
        del self.streams[stream_id]
        await self._empty_trash()

    @to_the_end
    async def create_topic(self, stream_id: int, document: TopicDocument) -> None:
        await self._change(lambda: self.catalog.create_topic(stream_id, document))
        self.streams[stream_id].topics[document.id] = Topic(document, {}, [])
        self._add_empty(stream_id, document.id, range(document.partitions_count))

    @to_the_end
    async def update_topic(self, stream_id: int, document: TopicDocument) -> None:
        await self._change(lambda: self.catalog.write_topic(stream_id, document))
        self.streams[stream_id].topics[document.id].document = document

    @to_the_end
    async def remove_topic(self, stream_id: int, topic_id: int) -> None:
        closed = await self._close_partitions(stream_id, topic_id, range(2**32))
        folder = self.layout.topic(stream_id, topic_id)
        async with self._served_again_on_failure(closed, lambda: self.catalog.restore(folder)):
            await self._change(lambda: self.catalog.remove_topic(stream_id, topic_id))
        self._forget_unavailable(stream_id, topic_id)
        del self.streams[stream_id].topics[topic_id]
        await self._empty_trash()

    @to_the_end
    async def create_partitions(
        self, stream_id: int, topic_id: int, count: int, incarnation: int = FIRST_INCARNATION
    ) -> None:
        topic = self.streams[stream_id].topics[topic_id]
        await self._finish_removing(stream_id, topic)
        first = topic.document.partitions_count
        document = topic.document.with_partitions(count, incarnation)
        await self._change(lambda: self.catalog.create_partitions(stream_id, document, first))
        topic.document = document
        self._add_empty(stream_id, topic_id, range(first, first + count))

    @to_the_end
    async def remove_partitions(self, stream_id: int, topic_id: int, count: int) -> None:
        topic = self.streams[stream_id].topics[topic_id]
        left = topic.document.partitions_count - count
        if left < 0:
            raise CatalogueError(f"a topic of {topic.document.partitions_count} partitions cannot lose {count}")
        closed = await self._close_partitions(stream_id, topic_id, range(left, left + count))
        before = topic.document
        async with self._served_again_on_failure(closed, lambda: self.catalog.write_topic(stream_id, before)):
            topic.document = await self._change(lambda: self.catalog.remove_partitions(stream_id, before, count))
        self._forget_unavailable(stream_id, topic_id, left)
        try:
            await self._finish_removing(stream_id, topic)
        except CatalogueError as error:
            _log.warning("removed partitions are still on the disk until the next attempt or start: %s", error)
        await self._empty_trash()

    async def purge_topic(self, stream_id: int, topic_id: int) -> None:
        for partition in self.partitions_of(stream_id, topic_id):
            await partition.purge()

    @to_the_end
    async def write_group(self, stream_id: int, topic_id: int, document: GroupDocument) -> None:
        await self._change(lambda: self.catalog.write_group(stream_id, topic_id, document))
        self.streams[stream_id].topics[topic_id].groups[document.id] = document

    @to_the_end
    async def remove_group(self, stream_id: int, topic_id: int, group_id: int) -> None:
        await self._change(lambda: self.catalog.remove_group(stream_id, topic_id, group_id))
        del self.streams[stream_id].topics[topic_id].groups[group_id]

    @to_the_end
    async def write_user(self, user_id: int, document: bytes) -> None:
        await self._change(lambda: self.catalog.write_user(user_id, document))
        self.users[user_id] = document

    @to_the_end
    async def remove_user(self, user_id: int) -> None:
        await self._change(lambda: self.catalog.remove_user(user_id))
        del self.users[user_id]

    @to_the_end
    async def write_token(self, token_id: int, document: bytes) -> None:
        await self._change(lambda: self.catalog.write_token(token_id, document))
        self.tokens[token_id] = document

    @to_the_end
    async def remove_token(self, token_id: int) -> None:
        await self._change(lambda: self.catalog.remove_token(token_id))
        del self.tokens[token_id]

    @to_the_end
    async def reserve_numbers(self, below: int) -> None:
        await self._change(lambda: self.catalog.write_numbers(below))
        self.numbers_reserved = below

    async def _change(self, function: Callable[[], Answer]) -> Answer:
        """Catalogue changes are made one after the other, by the first shard."""
        try:
            return await self.shards[0].call(function)
        except OSError as error:
            raise CatalogueError(f"the catalogue cannot be changed: {error.strerror}: {error.filename}") from error

    def _add_empty(self, stream_id: int, topic_id: int, partition_ids: range) -> None:
        """Partitions whose folders were just made need no recovery."""
        topic = self.streams[stream_id].topics[topic_id]
        for partition_id in partition_ids:
            place = PartitionId(stream_id, topic_id, partition_id)
            shard = self.shards[shard_of(place, len(self.shards))]
            log = self._log_of(place, shard, [Segment.empty(0)])
            self._add(Opened(place, log, OffsetFiles(self._files, log.folder), {}, 0, []), shard)
            topic.partitions.append(partition_id)

    async def _finish_removing(self, stream_id: int, topic: Topic) -> None:
        document = topic.document
        if document.removing:
            topic.document = await self._change(lambda: self.catalog.finish_removing(stream_id, document))

    async def _empty_trash(self) -> None:
        """What was removed is removed, even if its space cannot be freed before the next attempt or start."""
        try:
            await self._change(self.catalog.empty_trash)
        except CatalogueError as error:
            _log.warning("the trash cannot be emptied: %s", error)

    async def _close_partitions(self, stream_id: int, topic_id: int, partition_ids: range) -> list[Partition]:
        topic = self.streams[stream_id].topics[topic_id]
        closed = []
        for partition_id in [identity for identity in topic.partitions if identity in partition_ids]:
            partition = self.partitions.pop(PartitionId(stream_id, topic_id, partition_id), None)
            if partition is None:
                continue
            topic.partitions.remove(partition_id)
            # The removal may fail, and then nothing that was acknowledged may be missing.
            with contextlib.suppress(StorageError):
                await partition.flush()
            await partition.close("it was removed", keep=False)
            closed.append(partition)
        return closed

    def _forget_unavailable(self, stream_id: int, topic_id: int | None = None, first: int = 0) -> None:
        """What could not be opened and was removed now is not missing any more."""
        for place in [place for place in self.unavailable if place.stream == stream_id and place.partition >= first]:
            if topic_id in (None, place.topic):
                del self.unavailable[place]
                self.streams[stream_id].topics[place.topic].partitions.remove(place.partition)

    @contextlib.asynccontextmanager
    async def _served_again_on_failure(
        self, closed: list[Partition], restore: Callable[[], None]
    ) -> AsyncIterator[None]:
        """Partitions were closed to be removed: if that fails, they are opened again once `restore` has made sure that
        the next start will not remove them. If even that fails, that start decides, and nobody writes to them before.
        """
        try:
            yield
        except CatalogueError:
            reason = None
            try:
                await self._change(restore)
            except CatalogueError as error:
                reason = f"its removal failed half-way and could not be undone: {error}"
            for old in closed:
                place = old.place
                shard = self.shards[shard_of(place, len(self.shards))]
                opened: Opened | tuple[PartitionId, str] = place, reason or ""
                if reason is None:
                    opened = await shard.call(lambda place=place, shard=shard: self._try_to_open(place, shard))  # type: ignore[misc]
                if isinstance(opened, Opened):
                    self._add(opened, shard)
                    self.streams[place.stream].topics[place.topic].partitions.append(place.partition)
                else:
                    self.unavailable[place] = opened[1]
                    _log.error("%s is not served: %s", place, opened[1])
            raise

    # ------------------------------------------------------------------------------------------------------- retention

    def _check_room(self, place: PartitionId, more_bytes: int) -> None:
        """For an append, in the same turn of the loop: no other one can take the room in between."""
        stream = self.streams[place.stream]
        document = stream.topics[place.topic].document
        if document.max_topic_size in (0, UNLIMITED):
            return
        size = sum(partition.size_bytes for partition in self.partitions_of(place.stream, place.topic))
        if size + more_bytes > document.max_topic_size:
            raise TopicFull(stream.document.name, document.name, size, document.max_topic_size, more_bytes)

    async def retain(self, stream_id: int, topic_id: int, *, expiry_us: int | None, max_bytes: int | None) -> int:
        """Deletes what a topic's limits allow to go, by age and then by size; says how many segments."""
        partitions = list(self.partitions_of(stream_id, topic_id))
        deleted = 0
        if expiry_us is not None:
            for partition in partitions:
                looked_at = await self._closed(partition)
                before = retention.expired(looked_at, self.clock(), expiry_us)
                deleted += await partition.trim(before, looked_at.purges)
        if max_bytes is not None and sum(partition.size_bytes for partition in partitions) > max_bytes:
            closed = [await self._closed(partition) for partition in partitions]
            size = sum(partition.size_bytes for partition in partitions)
            befores = retention.oversize(closed, size, max_bytes)
            for partition, looked_at, before in zip(partitions, closed, befores, strict=True):
                deleted += await partition.trim(before, looked_at.purges)
        return deleted

    async def delete_segments(self, partition: Partition, count: int) -> int:
        """Deletes the oldest closed segments of a partition, fewer where the consumer barrier is in the way."""
        looked_at = await self._closed(partition)
        return await partition.trim(retention.oldest(looked_at, count), looked_at.purges)

    async def _closed(self, partition: Partition) -> retention.Closed:
        purges = partition.purges
        segments = await partition.closed_segments()
        return retention.Closed(segments, partition.lowest_consumer_offset, purges)


class _Counter:
    """Says now and then how far the opening has come."""

    def __init__(self, total: int, progress: Listener) -> None:
        self._total = total
        self._done = 0
        self._progress = progress
        self._said_at = time.monotonic()
        progress(Progress(0, total))

    def add(self, count: int) -> None:
        self._done += count
        if self._done == self._total or time.monotonic() - self._said_at > 1:
            self._said_at = time.monotonic()
            self._progress(Progress(self._done, self._total))
