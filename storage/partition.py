"""A partition as the event loop sees it: append, read, wait, flush, consumer offsets.

Three offsets, each the one *after* the last message it speaks of:

    synced <= written <= appended

`appended` advances on the loop, when a batch has been checked and stamped and is in the memory tail. `written` and
`synced` advance when the shard reports. What readers may see ends at `readable`, which is the one of the three that
the partition's durability level promises: nobody reads a message that could still be taken back.

Only the event loop calls this; what needs a file is posted to the shard. What has state of its own lives elsewhere:
the memory tail and the budgets in tail.py, the files in log.py, the offset files in offsets.py, what producers were
answered in producers.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from whippet.storage import batch as batches
from whippet.storage.batch import Limits
from whippet.storage.consumer_offsets import ConsumerOffsets
from whippet.storage.errors import (
    InvalidOffset,
    PartitionClosed,
    PartitionFailed,
    StorageError,
    TooManyOffsets,
    WriteFailed,
)
from whippet.storage.layout import PartitionId
from whippet.storage.log import Entry, Fetched, Log, LogState
from whippet.storage.offsets import Key, Kind, OffsetFiles
from whippet.storage.options import Durability, StoreOptions, TopicSettings
from whippet.storage.producers import Bounds, Producer, Producers, Record
from whippet.storage.retention import believable
from whippet.storage.segment import Segment
from whippet.storage.shard import Order, Shard, Written
from whippet.storage.shielding import shielded
from whippet.storage.tail import Tail, TailBudget, UnflushedBudget
from whippet.storage.waiting import Exclusion, Readers, Waiting, wake

_log = logging.getLogger(__name__)

CLIENT_FRAME_BYTES = 64
"""The header of a message on the older wire, in which its clients are told sizes."""

AHEAD_MAX_US = 24 * 3600 * 1_000_000
"""The newest message may be ahead of the clock by this much, and later ones get its time. Clocks are off by seconds, or
by hours where a time zone was mistaken; beyond that the clock is taken to have been wrong when the message came."""

HAND_OVER_BYTES = 256 << 10
"""From this much on the shard is given at once what was gathered: it writes while the loop checks what comes next."""


class Appended(msgspec.Struct, frozen=True):
    """Where a batch went, and the durability it had reached when the caller was told."""

    base_offset: int
    messages: int
    timestamp: int
    durability: Durability
    repeated: bool = False
    """Whether this is the answer to an earlier send, of which the one just made is a repetition."""

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.messages


class Shared(msgspec.Struct, frozen=True):
    """What all partitions of a store share."""

    options: StoreOptions
    limits: Limits
    tails: TailBudget
    unflushed: UnflushedBudget
    bounds: Bounds
    clock: Callable[[], int]
    loop: asyncio.AbstractEventLoop
    made_at: int
    """When the data folder was made: a clock that says an earlier time is wrong."""
    check_room: Callable[[PartitionId, int], None] | None
    """Refuses bytes for which the topic of a partition has no room; None: topics have room for everything."""


class Partition:
    """See the module."""

    __slots__ = (
        "_doubted_at",
        "_exclusive",
        "_gathered",
        "_gathered_bytes",
        "_generation",
        "_hand_over_due",
        "_last_timestamp",
        "_line",
        "_log",
        "_offsets",
        "_producers",
        "_purging",
        "_readers",
        "_retry",
        "_room_waiting",
        "_settings",
        "_shard",
        "_shared",
        "_state",
        "_sync_due",
        "_tail",
        "_unflushed_bytes",
        "_unwritten",
        "_waiting_synced",
        "_waiting_written",
        "appended",
        "durability",
        "emptied",
        "failed",
        "place",
        "readable",
        "synced",
        "written",
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
        self.failed: StorageError | None = None
        self.emptied = 0
        """How often everything was deleted, for readers that stay: after it, offsets begin anew."""
        self.appended = self.written = self.synced = self.readable = log.next_offset
        self._shard = shard
        self._log = log
        self._settings = settings
        self._shared = shared
        self._state = log.state
        self._generation = log.generation
        self._last_timestamp = last_timestamp
        self._tail = Tail()
        # Entries that the shard has not been given yet, and what it was given but has not reported.
        self._gathered: list[Entry] = []
        self._gathered_bytes = 0
        self._unwritten: deque[Entry] = deque()
        self._unflushed_bytes = 0
        self._hand_over_due = False
        self._sync_due = False
        self._waiting_written = Waiting()
        self._waiting_synced = Waiting()
        self._readers = Readers()
        self._room_waiting: deque[asyncio.Future[None]] = deque()
        # Appends that could not go on at once, in the order in which they came; only the first looks for room.
        self._line: deque[asyncio.Future[None]] = deque()
        self._exclusive = Exclusion()
        # When retention first met times that cannot be believed, after which nothing has come; 0: it has not.
        self._doubted_at = 0
        # A purge failed: whether it was decided shows when the partition is re-opened.
        self._purging = False
        self._retry: asyncio.TimerHandle | None = None
        self._offsets = ConsumerOffsets(shard, offset_files, offsets, shared.options.consumer_offsets_max)
        self._producers = Producers(shared.bounds, records)

    # -------------------------------------------------------------------------------------------------- what is known

    @property
    def first_offset(self) -> int:
        """The oldest retained offset; where the next message goes when there is none."""
        return self._state.first_offset

    @property
    def segments_count(self) -> int:
        return self._state.segments

    @property
    def size_bytes(self) -> int:
        """Bytes of the log files, and of what is on its way to them."""
        return self._state.size_bytes + self._unflushed_bytes

    @property
    def message_bytes(self) -> int:
        """What the messages count as for clients before 0.9: 64 bytes each, payload and user headers."""
        batches_count = self._state.batches + len(self._unwritten) + len(self._gathered)
        frames_bytes = self.size_bytes - batches.HEADER_BYTES * batches_count
        return frames_bytes + (CLIENT_FRAME_BYTES - batches.FRAME_BYTES) * self.messages_count

    @property
    def messages_count(self) -> int:
        return self.appended - self.first_offset

    @property
    def last_timestamp(self) -> int:
        return self._last_timestamp

    @property
    def purges(self) -> int:
        """How often everything was deleted, so that what was decided before a purge is not done after it."""
        return self._log.purges

    @property
    def unflushed_bytes(self) -> int:
        return self._unflushed_bytes

    # ------------------------------------------------------------------------------------------------------ appending

    def check(self, batch: batches.Readable) -> batches.Checked:
        """As `append` does it, for who has to know before."""
        return batches.check(batch, self._shared.limits)

    def check_room(self, size: int) -> None:
        """Raises TopicFull when the topic may not grow by so many bytes."""
        if self._shared.check_room is not None:
            self._shared.check_room(self.place, size)

    async def append(
        self,
        batch: batches.Writable,
        durability: Durability | None = None,
        *,
        checked: batches.Checked | None = None,
        producer: Producer | None = None,
    ) -> Appended:
        """Appends a batch and returns when it has reached the durability of the partition, or the higher one asked for.

        The bytes belong to the partition from now on: its place is stamped into them, and readers get views of them.
        Who has just made the batch, checksums and all, says so with `checked`: hashing everything once more would be a
        third of the work. A `producer` comes from `append_once` alone.
        """
        size = len(batch)
        shared = self._shared
        if checked is None:
            checked = batches.check(batch, shared.limits)
        elif size > shared.limits.batch_bytes:
            batches.refuse(batch, shared.limits)
        if (
            self.failed is not None
            or self._exclusive.is_held
            or self._line
            or self._unflushed_bytes >= shared.options.partition_unflushed_bytes_max
            or shared.unflushed.full
        ):
            await self._admission()
        level = self.durability
        if durability is not None and durability > level:
            level = durability
        if producer is not None:
            producer = self._producers.in_order(producer)
            if (record := self._producers.find(producer, self.written)) is not None:
                return await self._again(record, level)
        if shared.check_room is not None:
            shared.check_room(self.place, size)
        base = self.appended
        timestamp = shared.clock()
        if timestamp < self._last_timestamp:
            timestamp = self._not_before_the_last(timestamp)
        else:
            self._last_timestamp = timestamp
        batches.stamp(batch, self.place.partition, base, timestamp, checked.checksums)
        self.appended = end = base + checked.message_count
        if producer is not None:
            checksum = batches.header(batch).checksum
            self._producers.begin(Record(producer, base, checked.message_count, timestamp, checksum))
        entry = Entry(batch, base, end, timestamp, checked.frames)
        self._tail.push(entry)
        self._gathered.append(entry)
        self._gathered_bytes += size
        self._unflushed_bytes += size
        shared.unflushed.used += size
        if self.durability is Durability.MEMORY:
            self.readable = end
        if self._readers:
            self._readers.advance(self._reached)
        if level is Durability.MEMORY:
            if self._must_save():
                self._schedule_hand_over()
            else:
                shared.unflushed.buffering[self._schedule_hand_over] = None
        else:
            await self._until_reached(end, level)
        return Appended(base, checked.message_count, timestamp, level)

    def _not_before_the_last(self, now: int) -> int:
        """The time of the newest message, unless the clock must have been ahead when it came: then it is given up, so
        that not all later messages are stamped years ahead and kept for so much longer."""
        ahead_us = self._last_timestamp - now
        if ahead_us > AHEAD_MAX_US and now >= self._shared.made_at:
            _log.warning(
                "%s: the newest message is %.1f days ahead of the clock, which must have been wrong when it came; new "
                "messages get the time that the clock has now",
                self.place,
                ahead_us / AHEAD_MAX_US,
            )
            self._last_timestamp = now
        return self._last_timestamp

    @shielded
    async def append_once(
        self,
        batch: batches.Writable,
        producer: Producer,
        durability: Durability | None = None,
        *,
        checked: batches.Checked | None = None,
    ) -> Appended:
        """As `append`, for a producer who numbers its sends: one that was made before is answered as it was then, and
        nothing is appended. Whether it is answered or not, it is carried out."""
        async with self._producers.alone(producer):
            return await self.append(batch, durability, checked=checked, producer=producer)

    async def answered(self, producer: Producer, durability: Durability | None = None) -> Appended | None:
        """What a send was answered before, if it was. Refuses one that `append_once` would refuse."""
        async with self._producers.alone(producer):
            await self._exclusive.over()
            if self.failed is not None:
                raise self.failed
            record = self._producers.find(self._producers.in_order(producer), self.written)
            if record is None:
                return None
            return await self._again(record, max(durability or Durability.MEMORY, self.durability))

    async def _again(self, record: Record, level: Durability) -> Appended:
        """An answer given once more, when what it speaks of has reached what is asked for now."""
        if record.next_offset > (0, self.written, self.synced)[level] and level is not Durability.MEMORY:
            await self._until_reached(self.appended, level)
        return Appended(record.base_offset, record.messages, record.timestamp, level, repeated=True)

    def remembers(self, producer: Producer) -> bool:
        """Whether this very send was answered, or is on its way."""
        return self._producers.remembers(producer)

    def has_passed(self, producer: Producer) -> bool:
        """Whether a newer send of the same epoch was answered, or is on its way."""
        return self._producers.has_passed(producer)

    def epoch_of(self, producer: Producer) -> int | None:
        """The newest epoch of a producer; None when it is not known."""
        return self._producers.epoch_of(producer)

    def _until_reached(self, end: int, level: Durability) -> asyncio.Future[None]:
        if level is Durability.SYNCED:
            self._sync_due = True
            reached = self._waiting_synced.until(end)
        else:
            reached = self._waiting_written.until(end)
        self._schedule_hand_over()
        return reached

    def _wake_for_room(self) -> None:
        waiting, self._room_waiting = self._room_waiting, deque()
        wake(waiting)

    def _must_save(self) -> bool:
        settings = self._settings
        return (
            self.appended - self._gathered[0].base_offset >= settings.messages_required_to_save
            or self._gathered_bytes >= settings.bytes_required_to_save
        )

    async def _admission(self) -> None:
        """Waits for room behind those who came earlier: who sends without waiting for answers relies on the order."""
        turn: asyncio.Future[None] = self._shared.loop.create_future()
        self._line.append(turn)
        try:
            if self._line[0] is not turn:
                await turn
            await self._room()
        finally:
            self._line.remove(turn)
            if self._line and not self._line[0].done():
                self._line[0].set_result(None)

    async def _room(self) -> None:
        """Waits until there is room and nobody has the partition to himself; refuses when it has failed."""
        shared = self._shared
        while True:
            if self.failed is not None:
                raise self.failed
            if self._exclusive.is_held:
                await self._exclusive.over()
            elif self._unflushed_bytes >= shared.options.partition_unflushed_bytes_max:
                self._schedule_hand_over()
                future: asyncio.Future[None] = shared.loop.create_future()
                self._room_waiting.append(future)
                await future
            elif shared.unflushed.full:
                await shared.unflushed.room()
            else:
                return

    def _schedule_hand_over(self) -> None:
        """Small batches appended in one turn of the loop go to the shard together; large ones need not wait."""
        if self._gathered_bytes >= HAND_OVER_BYTES:
            self._hand_over()
        elif not self._hand_over_due:
            self._hand_over_due = True
            self._shared.loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        self._hand_over_due = False
        self._shared.unflushed.buffering.pop(self._schedule_hand_over, None)
        entries, self._gathered = self._gathered, []
        self._gathered_bytes = 0
        sync, self._sync_due = self._sync_due, False
        if entries or sync:
            records: Sequence[Record] = ()
            if self._producers.due:
                records, self._producers.due = self._producers.due, []
            self._unwritten.extend(entries)
            self._shard.write(Order(self, self._log, self._generation, entries, sync, records))
        if self._offsets.due:
            self._offsets.hand_over(sync=self._settings.offset_durability is Durability.SYNCED)

    # ------------------------------------------------------------------------------------------- the shard's reports

    def on_written(self, result: Written) -> None:
        if result.generation != self._generation and result.error is None:
            return
        self._state = result.state
        if result.next_offset > self.written:
            self._count_written(result.next_offset)
        if result.synced:
            self.synced = max(self.synced, result.next_offset)
        if result.error is not None:
            self._generation = result.generation
            self._on_write_failed(result.error)
        if result.sync_error is not None:
            self._on_sync_failed(result.sync_error)
        self._advance()

    def _count_written(self, next_offset: int) -> None:
        """Written batches stop counting as unflushed and start counting as tail."""
        self.written = next_offset
        unwritten, tails, tail = self._unwritten, self._shared.tails, self._tail
        freed = 0
        while unwritten and unwritten[0].next_offset <= next_offset:
            size = len(unwritten.popleft().batch)
            freed += size
            tails.admit(tail, size)
        self._free(freed)

    def _free(self, size: int) -> None:
        self._unflushed_bytes -= size
        self._shared.unflushed.give_back(size)
        if self._room_waiting and self._unflushed_bytes < self._shared.options.partition_unflushed_bytes_max:
            self._wake_for_room()

    def _advance(self) -> None:
        """Wakes whoever waited for what is true now."""
        assert self.synced <= self.written <= self.appended
        self.readable = (self.appended, self.written, self.synced)[self.durability]
        self._waiting_written.reached(self.written)
        self._waiting_synced.reached(self.synced)
        if self._readers:
            self._readers.advance(self._reached)

    def _on_write_failed(self, error: BaseException) -> None:
        """Nothing after `written` is on the disk. What was acknowledged from memory is kept and tried again; what was
        not acknowledged is taken back, and its offsets with it: nobody could read them."""
        failure: StorageError
        if isinstance(error, OSError):
            failure = WriteFailed(str(self.place), error)
        else:
            failure = PartitionFailed(f"{self.place}: writes are refused after a defect: {error!r}")
        _log.error("%s", failure)
        if self.durability is Durability.MEMORY:
            # The entries go back to the front of what is still to be handed over.
            self._gathered = [*self._unwritten, *self._gathered]
            self._gathered_bytes = sum(len(entry.batch) for entry in self._gathered)
            self._unwritten.clear()
            self._producers.hand_over_again(self.written)
            if self._gathered:
                self.failed = failure
                if self._retry is None:
                    self._retry = self._shared.loop.call_later(self._shared.options.write_retry_s, self._try_again)
        else:
            taken_back = [*self._unwritten, *self._gathered]
            self._unwritten.clear()
            self._gathered, self._gathered_bytes = [], 0
            self._tail.drop_from(self.written)
            self._producers.take_back(self.written)
            self.appended = self.written
            self._free(sum(len(entry.batch) for entry in taken_back))
            if not isinstance(error, OSError):
                self.failed = failure
        self._refuse_waiting(failure)

    def _refuse_waiting(self, failure: StorageError) -> None:
        self._waiting_written.refuse(self.written, failure)
        self._waiting_synced.refuse(self.synced, failure)
        self._wake_for_room()

    def _try_again(self) -> None:
        """After a failed write, with acknowledged messages in memory: the disk may have room again."""
        self._retry = None
        if isinstance(self.failed, WriteFailed):
            self.failed = None
            self._hand_over()

    def _on_sync_failed(self, error: BaseException) -> None:
        """The system may have dropped what it could not write and call it clean: only a new look can tell."""
        reason = error.strerror if isinstance(error, OSError) and error.strerror else repr(error)
        self.failed = PartitionFailed(
            f"{self.place}: a sync failed ({reason}); writes are refused until it was re-opened and checked"
        )
        _log.error("%s", self.failed)
        self._refuse_waiting(self.failed)

    # -------------------------------------------------------------------------------------------------------- flushing

    async def flush(self, *, sync: bool = False) -> Durability:
        """Writes what is still buffered, consumer offsets too, and with `sync` returns when the disk has it all."""
        await self._exclusive.over()
        return await self._flush(sync=sync)

    async def _flush(self, *, sync: bool) -> Durability:
        if self.failed is not None:
            raise self.failed
        end = self.appended
        waiting = []
        if self.written < end:
            waiting.append(self._waiting_written.until(end))
        if self._offsets.awaited:
            waiting.append(self._offsets.written())
        self._hand_over()
        for future in waiting:
            await future
        if not sync:
            return Durability.WRITTEN
        if isinstance(self.failed, PartitionClosed):
            raise self.failed
        await self._sync()
        return Durability.SYNCED

    async def _sync(self) -> None:
        log, offset_files, generation = self._log, self._offsets.files, self._generation
        self._offsets.unsynced = False

        def act() -> int:
            log.sync()
            offset_files.sync()
            return log.next_offset

        try:
            synced = await self._shard.call(act)
        except OSError as error:
            self._offsets.unsynced = True
            self._on_sync_failed(error)
            assert self.failed is not None
            raise self.failed from error
        if generation == self._generation:
            self.synced = max(self.synced, min(synced, self.written))
            self._advance()

    @property
    def needs_saver(self) -> bool:
        """Whether the message saver would find something to do here."""
        offsets = self._offsets
        return bool(self.synced < self.appended or offsets.due or offsets.unsynced or self.failed is not None)

    async def until(self, offset: int, durability: Durability | None = None) -> None:
        """Returns as soon as the message at an offset may be read, or has reached a durability; and after a purge,
        which is a reason to look again."""
        if isinstance(self.failed, PartitionClosed):
            raise self.failed
        if offset >= self._reached(durability):
            await self._readers.until(offset, durability)

    def awaited(self, offset: int) -> asyncio.Future[None]:
        """A future that is done when the message at an offset may be read, for whoever waits for several partitions;
        `not_awaited` ends that early."""
        if isinstance(self.failed, PartitionClosed):
            raise self.failed
        return self._readers.begin(offset, None)

    def not_awaited(self, future: asyncio.Future[None]) -> None:
        self._readers.end(future)

    def _reached(self, durability: Durability | None) -> int:
        return self.readable if durability is None else (self.appended, self.written, self.synced)[durability]

    # --------------------------------------------------------------------------------------------------------- reading

    async def read(self, offset: int, count: int, room: int | None = None) -> Fetched:
        """At most `count` messages in at most `room` bytes from an offset on, or from the first retained one after it.

        One message is returned however large it is. The buffers are batches exactly as they travel.
        """
        if isinstance(self.failed, PartitionClosed):
            raise self.failed
        limit = self._shared.options.read_bytes_max
        left = limit if room is None else min(room, limit)
        end = self.readable
        offset = max(offset, self._state.first_offset)
        found = Fetched([], 0, offset)
        while found.messages < count and offset < end and left > 0:
            tail_start = self._tail.first_offset
            if tail_start is not None and offset >= tail_start:
                more = self._tail.read(offset, count - found.messages, left, end)
            else:
                log, wanted = self._log, count - found.messages
                until = min(end, self.written)
                if offset >= until:
                    break
                act = partial(log.read, offset, wanted, left, until)
                more = await self._shard.call(act, brief=True)
            if found.messages and more.messages and sum(map(len, more.buffers)) > left:
                # The next message alone is larger than what is left: it is the next read's.
                break
            if more.next_offset == offset:
                break
            left -= sum(map(len, more.buffers))
            offset = more.next_offset
            found = Fetched(found.buffers + more.buffers, found.messages + more.messages, offset)
        return found

    async def read_last(self, count: int, room: int | None = None) -> Fetched:
        """The newest `count` messages, in ascending order."""
        return await self.read(max(self.readable - count, 0), count, room)

    async def read_from_time(self, timestamp: int, count: int, room: int | None = None) -> Fetched:
        """From the first message that was appended at a time (in us) or later."""
        return await self.read(await self.offset_at(timestamp), count, room)

    async def offset_at(self, timestamp: int) -> int:
        """The first offset whose message has this time or a later one; the next offset if there is none."""
        if isinstance(self.failed, PartitionClosed):
            raise self.failed
        found, first = self._tail.offset_at(timestamp), self._state.first_offset
        if found is not None:
            return max(found, first)
        log, tail_start = self._log, self._tail.first_offset
        if tail_start is not None and tail_start <= first:
            return first
        return await self._shard.call(lambda: log.offset_at(timestamp), brief=True)

    # ------------------------------------------------------------------------------------------------ consumer offsets

    def offset_of(self, kind: Kind, identity: int) -> int | None:
        """What a consumer or a group has stored; None when nothing is."""
        return self._offsets.get((kind, identity))

    def readers(self, kind: Kind) -> list[int]:
        """The consumers, or the groups, that have stored an offset."""
        return self._offsets.identities(kind)

    def reader_name(self, kind: Kind, identity: int) -> str | None:
        """The name by which a reader has stored its offset; None if it used its number, or stored it before the
        start."""
        return self._offsets.name((kind, identity))

    @property
    def reader_names_count(self) -> int:
        return self._offsets.names_count

    @property
    def lowest_consumer_offset(self) -> int | None:
        """The consumer barrier of retention: nothing after it may be deleted; None when nobody has stored anything."""
        return self._offsets.lowest

    async def store_offset(self, kind: Kind, identity: int, offset: int, name: str | None = None) -> None:
        """Remembers how far somebody has read, and returns when the offsets of this topic have what they promise."""
        await self._shared_use()
        key = kind, identity
        if not 0 <= offset < self.readable and kind is not Kind.EXTERNAL_GROUP:
            newest = f"the newest message has {self.readable - 1}" if self.readable else "the partition is empty"
            raise InvalidOffset(f"{self.place}: offset {offset} cannot be stored, {newest}")
        if not self._offsets.has_room_for(key):
            # Nothing is waited for between this and the change, so requests at the same time cannot exceed the limit.
            limit = self._shared.options.consumer_offsets_max
            raise TooManyOffsets(str(self.place), kind.name.lower().replace("_", " "), limit)
        await self._change_offset(key, offset, name)

    async def delete_offset(self, kind: Kind, identity: int) -> bool:
        """Forgets a stored offset; False when there was none."""
        await self._shared_use()
        if self._offsets.get((kind, identity)) is None:
            return False
        await self._change_offset((kind, identity), None)
        return True

    async def _shared_use(self) -> None:
        """Waits while somebody has the partition to himself: he may be about to take everything away."""
        await self._exclusive.over()
        if isinstance(self.failed, PartitionFailed | PartitionClosed):
            raise self.failed

    async def _change_offset(self, key: Key, offset: int | None, name: str | None = None) -> None:
        self._offsets.change(key, offset, name)
        if self._settings.offset_durability is Durability.MEMORY:
            if self._offsets.is_long:
                self._schedule_hand_over()
            return
        written = self._offsets.written()
        self._schedule_hand_over()
        await written

    # ------------------------------------------------------------------------------ deleting, re-opening and closing

    @shielded
    async def trim(self, before: int, purges: int | None = None) -> int:
        """Deletes the closed segments that end at or before an offset; says how many. None of them if the log was
        purged, and perhaps filled again, since the caller looked at it and its `purges`."""
        if isinstance(self.failed, PartitionClosed):
            raise self.failed
        log = self._log

        def act() -> tuple[int, LogState, OSError | None]:
            if purges is not None and log.purges != purges:
                return 0, log.state, None
            try:
                return log.trim(before), log.state, None
            except OSError as error:
                return 0, log.state, error

        count, self._state, failure = await self._shard.call(act)
        if failure is not None:
            raise WriteFailed(str(self.place), failure) from failure
        return count

    async def closed_segments(self) -> list[Segment]:
        """The segments that may be deleted, oldest first, each with the time until which its messages came, as far as
        the times of the messages can be believed."""
        if isinstance(self.failed, PartitionClosed):
            raise self.failed
        log, clock, made_at = self._log, self._shared.clock, self._shared.made_at
        self._not_before_the_last(clock())
        newest = self._last_timestamp

        def act() -> tuple[list[Segment], int]:
            closed = []
            for segment in log.segments[:-1]:
                copy = Segment(segment.start_offset, segment.log_bytes, segment.next_offset)
                copy.last_timestamp = log.last_timestamp(segment)
                closed.append(copy)
            return closed, log.first_timestamp(log.segments[-1]) or newest

        closed, following = await self._shard.call(act)
        now = clock()
        times = believable([segment.last_timestamp or 0 for segment in closed], following, made_at, now + AHEAD_MAX_US)
        self._doubted_at = min(now, self._doubted_at or now) if None in times else 0
        for segment, time in zip(closed, times, strict=True):
            segment.last_timestamp = self._doubted_at if time is None else time
        return closed

    @shielded
    async def purge(self) -> None:
        """Deletes all messages, consumer offsets and what producers were answered; the next message gets offset 0."""
        log, offset_files = self._log, self._offsets.files

        def act() -> tuple[LogState, int]:
            log.purge()
            offset_files.forget()
            return log.state, log.generation

        await self._enter()
        try:
            if self.failed is not None and not isinstance(self.failed, WriteFailed):
                raise self.failed
            self._hand_over()
            try:
                state, generation = await self._shard.call(act)
            except OSError as error:
                self._purging = True
                self.failed = PartitionFailed(f"{self.place}: a purge was cut short ({error.strerror}); re-open it")
                raise WriteFailed(str(self.place), error) from error
            self._state, self._generation = state, generation
            self._forget_everything()
            self.failed = None
            self._advance()
        finally:
            self._exclusive.leave()

    def _forget_everything(self) -> None:
        """After a purge."""
        self.emptied += 1
        self._forget_unwritten()
        self.appended = self.written = self.synced = 0
        self._offsets.forget()
        self._producers.forget()
        self._readers.look_again()

    @shielded
    async def reopen(self, recovered: Callable[[], tuple[Log, int, list[Record]]]) -> None:
        """Takes the place of what failed: `recovered` opens and checks the files again, on the shard's thread."""
        await self._enter()
        try:
            old, offset_files = self._log, self._offsets.files
            synced, purging = self.synced, self._purging
            kept = [*self._unwritten, *self._gathered] if self.durability is Durability.MEMORY else []
            lowest = kept[0].base_offset if kept else self.readable

            def act() -> tuple[Log, int, list[Record], bool]:
                old.forget()
                log, last_timestamp, records = recovered()
                # A purge that had been decided was finished just now; nothing from before it comes back.
                purged = purging and log.next_offset == 0
                if purged:
                    offset_files.forget()
                elif log.next_offset < lowest:
                    log.begin_segment(lowest)
                log.rewrite_unsynced(0 if purged else synced)
                return log, last_timestamp, records, purged

            try:
                log, last_timestamp, records, purged = await self._shard.call(act)
            except OSError as error:
                self.failed = PartitionFailed(f"{self.place}: cannot be re-opened: {error.strerror or error}")
                raise self.failed from error
            self._log, self._generation, self._state = log, log.generation, log.state
            self._last_timestamp = max(self._last_timestamp, last_timestamp)
            if purged:
                self._forget_everything()
            else:
                self._take_up(log.next_offset, kept)
                self._producers.restore(records, log.next_offset if kept else None)
            self._purging = False
            self.failed = None
            self._advance()
            if self._gathered or self._offsets.due:
                self._schedule_hand_over()
        finally:
            self._exclusive.leave()

    def _take_up(self, next_offset: int, kept: list[Entry]) -> None:
        """Goes on from what the files hold, with the acknowledged entries that they lack."""
        self._forget_unwritten()
        self._gathered = [entry for entry in kept if entry.base_offset >= next_offset]
        self._gathered_bytes = sum(len(entry.batch) for entry in self._gathered)
        self._unflushed_bytes = self._gathered_bytes
        self._shared.unflushed.used += self._gathered_bytes
        for entry in self._gathered:
            self._tail.push(entry)
        self.written = self.synced = next_offset
        self.appended = self._gathered[-1].next_offset if self._gathered else next_offset

    def _forget_unwritten(self) -> None:
        self._shared.tails.release(self._tail)
        self._tail = Tail()
        self._unwritten.clear()
        self._gathered, self._gathered_bytes = [], 0
        self._free(self._unflushed_bytes)

    @shielded
    async def close(self, reason: str = "the store is stopping", *, keep: bool = True) -> None:
        """Writes and syncs everything (unless it is being deleted), lets go of the files and refuses what comes.

        Raises, once it has let go, what kept it from writing all that was acknowledged.
        """
        await self._enter()
        try:
            problem: StorageError | None = None
            if keep:
                problem = await self._last_flush()
            else:
                # What is on its way reaches the files before they are let go of: later it would make some anew.
                self._hand_over()
            self.failed = closed = PartitionClosed(f"{self.place}: {reason}")
            if self._retry is not None:
                self._retry.cancel()
            log = self._log
            try:
                await self._shard.call(log.close if keep and problem is None else log.forget)
            except OSError as error:
                problem = WriteFailed(str(self.place), error)
                await self._shard.call(log.forget)
            self._refuse_waiting(closed)
            self._readers.refuse(closed)
            self._forget_unwritten()
            if problem is not None:
                raise problem
        finally:
            self._exclusive.leave()

    async def _last_flush(self) -> StorageError | None:
        if isinstance(self.failed, PartitionFailed):
            return self.failed
        self.failed = None
        try:
            await self._flush(sync=True)
        except StorageError as error:
            lost = self.appended - self.written
            _log.critical("%s: %d acknowledged messages from memory could not be written: %s", self.place, lost, error)
            return error
        return None

    async def _enter(self) -> None:
        """Keeps appends and others like this one out until they are let in again."""
        await self._exclusive.over()
        if isinstance(self.failed, PartitionClosed):
            raise self.failed
        self._exclusive.enter()
