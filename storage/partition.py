"""A partition as the event loop sees it: append, read, wait, flush, stored offsets.

Only the event loop calls this; whatever needs a file is posted to the shard that owns the partition. Everything with
state of its own lives elsewhere: the way to the disk and the offsets `synced <= written <= appended` in
write_pipeline.py, the memory tail in tail.py, the files in log.py and offsets.py, stored offsets in
consumer_offsets.py, the results of numbered sends in producers.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from whippet.storage import batch as batches
from whippet.storage import packing, partition_reading
from whippet.storage.appended import Appended
from whippet.storage.consumer_offsets import ConsumerOffsets
from whippet.storage.errors import (
    InvalidOffset,
    PartitionClosed,
    PartitionFailed,
    StorageError,
    TooManyOffsets,
    WriteFailed,
)
from whippet.storage.fetched import Fetched
from whippet.storage.history import History
from whippet.storage.last_flush import last_flush
from whippet.storage.layout import PartitionId
from whippet.storage.log import Log, LogState
from whippet.storage.long_reads import LongRead
from whippet.storage.offsets import Key, Kind, OffsetFiles
from whippet.storage.options import Durability, TopicSettings
from whippet.storage.packing import Compression
from whippet.storage.placing import Placing
from whippet.storage.producers import Producer, Producers, Record
from whippet.storage.retention import RESPECTED, HeldBack, Slowest
from whippet.storage.segment import Segment
from whippet.storage.shard import Shard
from whippet.storage.shielding import shielded
from whippet.storage.single_batch import Single
from whippet.storage.takeover import Coming
from whippet.storage.timestamps import Timestamps
from whippet.storage.waiting import Awaiting, Exclusion, Readers
from whippet.storage.write_pipeline import Shared, WritePipeline

Result = TypeVar("Result")

CLIENT_FRAME_BYTES = 64
"""The message header of the classic protocol, in which sizes are reported to older clients."""


class Partition:
    """See the module."""

    __slots__ = (
        "_exclusive",
        "_next_epoch",
        "_offsets",
        "_pipeline",
        "_placing",
        "_producers",
        "_purging",
        "_readers",
        "_settings",
        "_shared",
        "_timestamps",
        "coming",
        "durability",
        "emptied",
        "epoch",
        "held_back",
        "history",
        "place",
    )

    def __init__(
        self,
        place: PartitionId,
        shard: Shard,
        log: Log,
        offset_files: OffsetFiles,
        offsets: dict[Key, int],
        last_timestamp: int,
        records: list[Record],
        settings: TopicSettings,
        shared: Shared,
    ) -> None:
        self.place = place
        self.durability = settings.durability
        self.emptied = 0
        """How often everything was deleted. Readers that stay need it: after a purge, offsets start over."""
        self.epoch = 0
        """The number of this run of offsets (documents.py), set by the store."""
        self.history: History | None = None
        """What of the log is only in the archive; None if nothing is."""
        self.coming: Coming | None = None  # Set while its files are still to come from the archive.
        self.held_back: HeldBack | None = None
        """What the last round of retention had to keep for a reader."""
        self._settings = settings
        self._shared = shared
        self._readers = Readers()
        self._exclusive = Exclusion()
        self._purging = False
        """A purge failed. Whether it had been decided shows when the partition is reopened."""
        self._next_epoch = 0
        self._timestamps = Timestamps(place, last_timestamp, shared.clock, shared.created_at)
        self._offsets = ConsumerOffsets(shard, offset_files, offsets, shared.options.consumer_offsets_max)
        self._producers = Producers(shared.bounds, records)
        self._pipeline = WritePipeline(
            place, shard, log, settings, shared, self._exclusive, self._readers, self._producers, self._offsets
        )
        self._placing = Placing(place, shared, self._pipeline, self._timestamps)

    # ------------------------------------------------------------------------------------------------------------ state

    @property
    def appended(self) -> int:
        """The offset after the last message accepted in memory."""
        return self._pipeline.appended

    @property
    def written(self) -> int:
        """The offset after the last message handed to the operating system."""
        return self._pipeline.written

    @property
    def synced(self) -> int:
        """The offset after the last message on the disk."""
        return self._pipeline.synced

    @property
    def readable(self) -> int:
        """The offset after the last message that has the partition's durability level; readers see nothing later."""
        return self._pipeline.readable

    @property
    def failed(self) -> StorageError | None:
        """Why appends are refused at the moment."""
        return self._pipeline.failed

    @property
    def first_offset(self) -> int:
        """The oldest retained offset, or that of the next message if there is none."""
        local = self._pipeline.state.first_offset
        return local if self.history is None else min(local, self.history.first_offset)

    @property
    def local_first_offset(self) -> int:
        """Where the log on this machine begins; older messages are in the archive."""
        return self._pipeline.state.first_offset

    @property
    def segments_count(self) -> int:
        return self._pipeline.state.segments

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches as clients get them, including those on their way to the disk."""
        state = self._pipeline.state
        return state.size_bytes + state.saved_bytes + self._pipeline.unflushed_bytes

    @property
    def disk_bytes(self) -> int:
        """Bytes of the log files, and of what is on its way to them, before it is packed."""
        return self._pipeline.state.size_bytes + self._pipeline.unflushed_bytes

    @property
    def message_bytes(self) -> int:
        """The size of the messages for clients before 0.9: 64 bytes each, plus payload and user headers."""
        batches_count = self._pipeline.state.batches + self._pipeline.unwritten_batches
        frames_bytes = self.size_bytes - batches.HEADER_BYTES * batches_count
        local = self.appended - self.local_first_offset - self._pipeline.state.left_out
        return frames_bytes + (CLIENT_FRAME_BYTES - batches.FRAME_BYTES) * local

    @property
    def messages_count(self) -> int:
        return self.appended - self.first_offset - self._pipeline.state.left_out

    @property
    def last_timestamp(self) -> int:
        return self._timestamps.newest

    @property
    def purges(self) -> int:
        """How often everything was deleted, so that a decision from before a purge is not executed after it."""
        return self._pipeline.log.purges

    @property
    def unflushed_bytes(self) -> int:
        return self._pipeline.unflushed_bytes

    @property
    def needs_saver(self) -> bool:
        """Whether the message saver would find something to do here."""
        offsets = self._offsets
        return bool(self.synced < self.appended or offsets.due or offsets.unsynced or self.failed is not None)

    def await_arrival(self) -> Coming:
        """Everything but the offsets at which the log begins and ends has to wait for the arrival from now on."""
        self.coming = Coming(
            self, self._exclusive, self._pipeline, self._timestamps, self._offsets, self._producers, self._readers
        )
        return self.coming

    async def here(self, reader: Key | None = None) -> None:
        """Returns when the files of the partition are here, also those of stored offsets. Raises if it is closed, or if
        they cannot come."""
        if isinstance(self.failed, PartitionClosed):
            raise self.failed.with_traceback(None)
        if self.coming is not None:
            await self._exclusive.over()

    # -------------------------------------------------------------------------------------------------------- appending

    def compress(self, compression: Compression) -> None:
        """From now on batches are compressed in this way. Those that are stored stay as they are."""
        self._pipeline.log.compress(compression)

    def check(self, batch: batches.Readable) -> batches.Checked:
        """Checks a batch as `append` does, for callers that need the result earlier."""
        return batches.check(batch, self._shared.limits)

    def check_room(self, size: int) -> None:
        """Raises an error if there is no room for this many bytes."""
        check_room = self._shared.room.check
        if check_room is not None:
            check_room(self.place, size)

    async def append(
        self,
        batch: batches.Writable,
        durability: Durability | None = None,
        *,
        checked: batches.Checked | None = None,
        producer: Producer | None = None,
    ) -> Appended:
        """Appends a batch. Returns when it has reached the durability of the partition, or a higher one if requested.

        The partition owns the bytes from now on: it stamps the batch's place into them, and readers get views of them.
        Callers that have just built the batch, checksums included, pass `checked`: hashing everything again would be a
        third of the work. Only `append_once` passes a `producer`.
        """
        shared = self._shared
        pipeline = self._pipeline
        if checked is None:
            checked = batches.check(batch, shared.limits)
        elif len(batch) > shared.limits.batch_bytes:
            batches.refuse(batch, shared.limits)
        if self._has_to_wait():
            await pipeline.admission()
        level = self.durability
        if durability is not None and durability > level:
            level = durability
        if producer is not None:
            producer = self._producers.in_order(producer)
            if (record := self._producers.find(producer, pipeline.written)) is not None:
                return await self._again(record, level)
        entry = self._placing.of_batch(batch, checked)
        if producer is not None:
            checksum = packing.checksum_to_show(batch, pipeline.log.seal)
            self._producers.begin(Record(producer, entry.base_offset, checked.message_count, entry.timestamp, checksum))
        reached = pipeline.add(entry, level)
        if reached is not None:
            await reached
        return Appended(entry.base_offset, checked.message_count, entry.timestamp, level)

    def append_at_once(
        self, content: Single | tuple[batches.Writable, batches.Checked], size: int, waiting: Awaiting
    ) -> int | None:
        """Does the same as `append`, without a coroutine, for what the caller has just checked and which makes a batch
        of that size. Returns its first offset; `waiting` is told when it has the durability of the partition, perhaps
        already, or why it will not. None: nothing was done, and `append` has to do it."""
        if size > self._shared.limits.batch_bytes or self._has_to_wait():
            return None
        placing = self._placing
        entry = placing.of_single(content, size) if isinstance(content, Single) else placing.of_batch(*content)
        if self._pipeline.add(entry, self.durability, waiting) is None:
            waiting.set_result(None)
        return entry.base_offset

    def _has_to_wait(self) -> bool:
        pipeline, unflushed = self._pipeline, self._shared.unflushed
        return (
            pipeline.failed is not None
            or self._exclusive.is_held
            or bool(pipeline.line)
            or pipeline.unflushed_bytes >= self._shared.options.partition_unflushed_bytes_max
            or unflushed.used >= unflushed.limit
        )

    @shielded
    async def append_once(
        self,
        batch: batches.Writable,
        producer: Producer,
        durability: Durability | None = None,
        *,
        checked: batches.Checked | None = None,
    ) -> Appended:
        """Appends like `append`, for a producer that numbers its sends. A repeated send gets the result of the first
        one, and nothing is appended. It completes even if the caller is cancelled."""
        async with self._producers.alone(producer):
            return await self.append(batch, durability, checked=checked, producer=producer)

    async def result_of(self, producer: Producer, durability: Durability | None = None) -> Appended | None:
        """The result of a send that was made before; None if it is new. Refuses what `append_once` would refuse."""
        async with self._producers.alone(producer):
            await self._exclusive.over()
            if self.failed is not None:
                raise self.failed.with_traceback(None)
            record = self._producers.find(self._producers.in_order(producer), self.written)
            if record is None:
                return None
            return await self._again(record, max(durability or Durability.MEMORY, self.durability))

    async def _again(self, record: Record, level: Durability) -> Appended:
        """Returns an earlier result once its messages have reached the durability requested now."""
        if record.next_offset > self._pipeline.reached(level):
            await self._pipeline.all_reached(level)
        return Appended(record.base_offset, record.messages, record.timestamp, level, repeated=True)

    def remembers(self, producer: Producer) -> bool:
        """Whether this send has a result, or is in progress."""
        return self._producers.remembers(producer)

    def has_passed(self, producer: Producer) -> bool:
        """Whether a newer send of the same epoch has a result, or is in progress."""
        return self._producers.has_passed(producer)

    def epoch_of(self, producer: Producer) -> int | None:
        """The newest epoch of a producer; None if the producer is unknown."""
        return self._producers.epoch_of(producer)

    # --------------------------------------------------------------------------------------------- flushing and waiting

    async def flush(self, *, sync: bool = False) -> Durability:
        """Writes what is buffered, stored offsets too, and with `sync` returns when all of it is on the disk."""
        await self._exclusive.over()
        return await self._pipeline.flush(sync=sync)

    async def until(self, offset: int, durability: Durability | None = None) -> None:
        """Returns as soon as the message at an offset is readable or has reached a durability, and after a purge, when
        the caller has to check again."""
        if isinstance(self.failed, PartitionClosed):
            raise self.failed.with_traceback(None)
        if offset >= self._pipeline.reached(durability):
            await self._readers.until(offset, durability)

    def readable_at(self, offset: int) -> asyncio.Future[None]:
        """A future that is done when the message at an offset is readable, for callers that wait for several
        partitions. `stop_waiting` gives it up."""
        if isinstance(self.failed, PartitionClosed):
            raise self.failed.with_traceback(None)
        return self._readers.begin(offset, None)

    def stop_waiting(self, future: asyncio.Future[None]) -> None:
        self._readers.end(future)

    # ---------------------------------------------------------------------------------------------------------- reading

    async def read(self, offset: int, count: int, room: int | None = None) -> Fetched:
        """Reads at most `count` messages in at most `room` bytes, from an offset or the first retained one after it.

        At least one message is returned, however large. The buffers are batches exactly as they are sent to clients.
        """
        await self.here()
        limit = self._shared.options.read_bytes_max
        return await partition_reading.read(
            self, self._pipeline, offset, count, limit if room is None else min(room, limit)
        )

    async def read_long(self, offset: int, count: int, room: int) -> LongRead | None:
        """Like `read`, for what is to be read while it is sent. None if too many files are open for that already, or
        if some of it may be in the archive."""
        await self.here()
        if self.history is not None:
            return None
        return await self._pipeline.read_long(max(offset, self.first_offset), count, room)

    async def read_last(self, count: int, room: int | None = None) -> Fetched:
        """Reads the newest `count` messages, in ascending order."""
        return await self.read(max(self.readable - count, 0), count, room)

    async def read_from_time(self, timestamp: int, count: int, room: int | None = None) -> Fetched:
        """Reads from the first message that was appended at a time (in us) or later."""
        return await self.read(await self.offset_at(timestamp), count, room)

    async def offset_at(self, timestamp: int) -> int:
        """The first offset whose message has this time or a later one; the next offset if there is none."""
        await self.here()
        return await partition_reading.offset_at(self, self._pipeline, timestamp)

    # ------------------------------------------------------------------------------------------------- consumer offsets

    def offset_of(self, kind: Kind, identity: int) -> int | None:
        """The stored offset of a consumer or a group; None if there is none."""
        return self._offsets.get((kind, identity))

    def readers(self, kind: Kind) -> list[int]:
        """The ids of the consumers, or of the groups, that have stored an offset."""
        return self._offsets.identities(kind)

    def reader_name(self, kind: Kind, identity: int) -> str | None:
        """The name under which a consumer or group has stored its offset; None if it used a number, or stored it before
        the start."""
        return self._offsets.name((kind, identity))

    @property
    def slowest_reader(self) -> Slowest | None:
        """The reader for which retention keeps the most, of those that it respects; None if there is none."""
        return self._offsets.slowest(RESPECTED[self._shared.options.respects_consumers])

    async def store_offset(self, kind: Kind, identity: int, offset: int, name: str | None = None) -> None:
        """Commits an offset, and returns when it has the durability that stored offsets of this topic have."""
        await self._shared_use()
        key = kind, identity
        if offset < 0 or (offset >= self.readable and kind is not Kind.EXTERNAL_GROUP):
            newest = f"the newest message has {self.readable - 1}" if self.readable else "the partition is empty"
            raise InvalidOffset(f"{self.place}: offset {offset} cannot be stored, {newest}")
        if not self._offsets.has_room_for(key):
            # There is no await between this and the change, so concurrent requests cannot exceed the limit.
            limit = self._shared.options.consumer_offsets_max
            raise TooManyOffsets(str(self.place), kind.name.lower().replace("_", " "), limit)
        await self._change_offset(key, offset, name)

    async def delete_offset(self, kind: Kind, identity: int) -> bool:
        """Deletes a stored offset; False if there was none."""
        await self._shared_use()
        if self._offsets.get((kind, identity)) is None:
            return False
        await self._change_offset((kind, identity), None)
        return True

    async def _shared_use(self) -> None:
        """Waits while another operation has the partition exclusively: it may be about to delete everything."""
        await self._exclusive.over()
        if isinstance(self.failed, PartitionFailed | PartitionClosed):
            raise self.failed.with_traceback(None)

    async def _change_offset(self, key: Key, offset: int | None, name: str | None = None) -> None:
        self._offsets.change(key, offset, name)
        if self._settings.offset_durability is Durability.MEMORY:
            if self._offsets.is_long:
                self._pipeline.schedule_hand_over()
            return
        written = self._offsets.written()
        self._pipeline.schedule_hand_over()
        await written

    # ---------------------------------------------------------------------------------- deleting, reopening and closing

    @shielded
    async def trim(self, before: int, purges: int | None = None) -> int:
        """Deletes the closed segments that end at or before an offset, and returns how many. Deletes none if the log
        was purged, and perhaps filled again, since the caller read `purges`."""

        def trim_files(log: Log) -> tuple[int, LogState, OSError | None]:
            if purges is not None and log.purges != purges:
                return 0, log.state, None
            try:
                return log.trim(before), log.state, None
            except OSError as error:
                return 0, log.state, error

        count, self._pipeline.state, failure = await self.with_log(trim_files)
        if failure is not None:
            raise WriteFailed(str(self.place), failure) from failure
        return count

    async def with_log(self, function: Callable[[Log], Result]) -> Result:
        """Calls a function on the shard's thread, with the log as it is then."""
        if isinstance(self.failed, PartitionClosed):
            raise self.failed.with_traceback(None)
        pipeline = self._pipeline
        return await pipeline.call(lambda: function(pipeline.log))

    async def closed_segments(self) -> list[Segment]:
        """Copies of the segments that may be deleted, oldest first, with times corrected where the clock was wrong."""
        return self._timestamps.correct(*await self.with_log(lambda log: log.closed_segments()))

    @shielded
    async def purge(self, epoch: int = 0) -> None:
        """Deletes all messages, stored offsets and results of numbered sends. The next message gets offset 0. The epoch
        changes at the moment in which nothing can be read any more."""
        pipeline, log, offset_files = self._pipeline, self._pipeline.log, self._offsets.files

        def purge_files() -> tuple[LogState, int]:
            log.purge()
            offset_files.forget()
            return log.state, log.generation

        await self._enter()
        try:
            if self.failed is not None and not isinstance(self.failed, WriteFailed):
                raise self.failed.with_traceback(None)
            pipeline.hand_over()
            self._next_epoch = epoch
            try:
                state, generation = await self._pipeline.call(purge_files)
            except OSError as error:
                self._purging = True
                pipeline.failed = PartitionFailed(
                    f"{self.place}: a purge was interrupted ({error.strerror}); reopen it"
                )
                raise WriteFailed(str(self.place), error) from error
            pipeline.use(log, state, generation)
            self._forget_everything()
            pipeline.accept_again()
        finally:
            self._exclusive.leave()

    def _forget_everything(self) -> None:
        """After a purge."""
        self.emptied += 1
        self.epoch = self._next_epoch or self.epoch + 1
        self.history = None
        self.held_back = None
        self._pipeline.start_over()
        self._offsets.forget()
        self._producers.forget()
        self._readers.wake_all()

    @shielded
    async def reopen(self, recovered: Callable[[], tuple[Log, int, list[Record]]]) -> None:
        """Replaces the files of a failed partition. `recovered` opens and checks them again, on the shard's thread."""
        await self._enter()
        try:
            pipeline, old, offset_files = self._pipeline, self._pipeline.log, self._offsets.files
            synced, purging = self.synced, self._purging
            kept = pipeline.kept_in_memory()
            lowest = kept[0].base_offset if kept else self.readable

            def recover_files() -> tuple[Log, int, list[Record], bool]:
                old.forget()
                log, last_timestamp, records = recovered()
                # Recovery has just finished a purge that had been decided; nothing from before it may come back.
                purged = purging and log.next_offset == 0
                if purged:
                    offset_files.forget()
                elif log.next_offset < lowest:
                    log.begin_segment(lowest)
                log.rewrite_unsynced(synced)
                return log, last_timestamp, records, purged

            try:
                log, last_timestamp, records, purged = await self._pipeline.call(recover_files)
            except OSError as error:
                pipeline.failed = PartitionFailed(f"{self.place}: cannot be reopened: {error.strerror or error}")
                raise pipeline.failed from error
            pipeline.use(log, log.state, log.generation)
            self._timestamps.newest = max(self._timestamps.newest, last_timestamp)
            if purged:
                self._forget_everything()
            else:
                pipeline.resume(log.next_offset, kept)
                self._producers.restore(records, log.next_offset if kept else None)
            self._purging = False
            pipeline.accept_again()
        finally:
            self._exclusive.leave()

    @shielded
    async def close(self, reason: str = "the store is stopping", *, keep: bool = True) -> None:
        """Writes and syncs everything (unless it is being deleted), closes the files, and refuses all further calls.

        If something that was acknowledged could not be written, it raises after closing the files.
        """
        if self.coming is not None and await self.coming.closed(reason):
            return
        await self._enter()
        try:
            pipeline, log = self._pipeline, self._pipeline.log
            problem: StorageError | None = None
            if keep:
                problem = await last_flush(self.place, pipeline)
            else:
                # What is under way has to reach the files before they are closed; later it would create some again.
                pipeline.hand_over()
            pipeline.failed = closed = PartitionClosed(f"{self.place}: {reason}")
            try:
                await self._pipeline.call(log.close if keep and problem is None else log.forget)
            except OSError as error:
                problem = WriteFailed(str(self.place), error)
            pipeline.refuse_waiting(closed)
            self._readers.refuse(closed)
            pipeline.discard()
            if problem is not None:
                raise problem
        finally:
            self._exclusive.leave()

    async def _enter(self) -> None:
        """Takes the partition exclusively: appends and other exclusive operations wait until it is released."""
        await self._exclusive.over()
        if isinstance(self.failed, PartitionClosed):
            raise self.failed.with_traceback(None)
        self._exclusive.enter()
