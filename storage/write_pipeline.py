"""Moves the appended batches of one partition from memory to the disk: the part of this that runs on the event loop.

    add        takes a stamped batch: puts it into the memory tail and gathers it; writes a small one at once, on the
               event loop, if it is the first of this turn of the loop
    hand_over  gives the shard everything gathered so far, at once or at the end of the turn; writes a few bytes itself,
               on the event loop, if the shard has nothing to do for the partition
    on_written takes the result of a write round: wakes the waiting callers, or handles the failure

Three offsets, each the one *after* the last message it covers:

    synced <= written <= appended

`readable` is the one of them that the partition's durability level promises. Readers see nothing from there on, because
it could still be taken back.

After a failed write nothing after `written` is on the disk. Messages acknowledged from memory are kept and written
again later; batches that were not acknowledged are taken back together with their offsets, which nobody could read.
After a failed sync the partition refuses writes until it is reopened.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TypeVar, overload

import msgspec

from whippet.storage import long_reads
from whippet.storage.batch import Limits
from whippet.storage.consumer_offsets import ConsumerOffsets
from whippet.storage.early_sync import sync_early
from whippet.storage.entry import Entry
from whippet.storage.errors import PartitionClosed, PartitionFailed, StorageError, WriteFailed
from whippet.storage.fetched import Fetched
from whippet.storage.layout import PartitionId
from whippet.storage.log import Log, LogState
from whippet.storage.long_reads import LongRead
from whippet.storage.options import Durability, StoreOptions, TopicSettings
from whippet.storage.producers import Bounds, Producers
from whippet.storage.room import Room
from whippet.storage.shard import Shard, WriteItem, Written
from whippet.storage.tail import Tail, TailBudget, UnflushedBudget
from whippet.storage.waiting import Awaiting, Exclusion, Readers, Waiting, wake

_log = logging.getLogger(__name__)

Result = TypeVar("Result")

SLOW_SECONDS = 0.001
"""A write on the event loop that takes longer than this is slow."""
REST_SECONDS = 1.0
CROWDED_SECONDS = 0.01
"""For so long batches are written together after there were several in one turn of the loop."""

HAND_OVER_BYTES = 256 << 10
"""From this size on, collected batches go to the shard at once: it writes while the loop checks the next batch."""


class Shared(msgspec.Struct, frozen=True):
    """What all partitions of a store share."""

    options: StoreOptions
    limits: Limits
    tails: TailBudget
    unflushed: UnflushedBudget
    bounds: Bounds
    clock: Callable[[], int]
    loop: asyncio.AbstractEventLoop
    created_at: int
    """When the data folder was created. A clock with an earlier time is wrong."""
    room: Room


class WritePipeline:
    """See the module. The partition is the only caller, apart from the shard's results."""

    __slots__ = (
        "_crowded_until",
        "_early_syncs",
        "_exclusive",
        "_gathered",
        "_gathered_bytes",
        "_generation",
        "_hand_over_due",
        "_offsets",
        "_place",
        "_producers",
        "_readers",
        "_rests_until",
        "_retry",
        "_room_waiting",
        "_settings",
        "_shard",
        "_shared",
        "_state",
        "_sync_due",
        "_unwritten",
        "_waiting_synced",
        "_waiting_written",
        "_write_items",
        "_write_items_reported",
        "_writer",
        "_wrote_in_turn",
        "appended",
        "calls_at_shard",
        "failed",
        "line",
        "log",
        "readable",
        "synced",
        "tail",
        "unflushed_bytes",
        "written",
    )

    def __init__(
        self,
        place: PartitionId,
        shard: Shard,
        log: Log,
        settings: TopicSettings,
        shared: Shared,
        exclusive: Exclusion,
        readers: Readers,
        producers: Producers,
        offsets: ConsumerOffsets,
    ) -> None:
        self.appended = self.written = self.synced = self.readable = log.next_offset
        self.failed: StorageError | None = None
        """Why appends are refused at the moment."""
        self.log = log
        self.calls_at_shard = 0
        self.tail = Tail()
        self.unflushed_bytes = 0
        """Bytes accepted but not yet written."""
        self.line: deque[asyncio.Future[None]] = deque()
        """Appends that could not continue at once, in order of arrival. Only the first one waits for room."""
        self._place = place
        self._shard = shard
        self._settings = settings
        self._shared = shared
        self._exclusive = exclusive
        self._readers = readers
        self._producers = producers
        self._offsets = offsets
        self._generation = log.generation
        self._state: LogState | None = log.state
        """The log's files as of the last report; None after an append on the event loop."""
        self._write_items = self._write_items_reported = 0
        self._wrote_in_turn = False
        """A batch was written by itself in this turn of the event loop."""
        self._writer: asyncio.Task[object] | None = None
        """The task that wrote it. None: a request without a task."""
        self._crowded_until = 0.0
        """Until then nothing is written before the end of a turn: several clients send at once."""
        self._early_syncs = 0
        """A write on the event loop might wait for them."""
        self._rests_until = 0.0
        """Until then the shard writes everything, because the disk was slow."""
        # Entries not yet handed over, and entries handed over but not yet reported as written.
        self._gathered: list[Entry] = []
        self._gathered_bytes = 0
        self._unwritten: deque[Entry] = deque()
        self._hand_over_due = False
        self._sync_due = False
        self._waiting_written = Waiting()
        self._waiting_synced = Waiting()
        self._room_waiting: deque[asyncio.Future[None]] = deque()
        self._retry: asyncio.TimerHandle | None = None

    @property
    def state(self) -> LogState:
        """The log's files, as far as the event loop knows."""
        if self._state is None:
            self._state = self.log.state
        return self._state

    @state.setter
    def state(self, state: LogState) -> None:
        # There may have been appends on the loop since the shard reported this result.
        if self._state is not None:
            self._state = state

    @property
    def unwritten_batches(self) -> int:
        return len(self._unwritten) + len(self._gathered)

    def reached(self, durability: Durability | None) -> int:
        """The offset after the last message that has a durability; None: that is readable."""
        return self.readable if durability is None else (self.appended, self.written, self.synced)[durability]

    # ------------------------------------------------------------------------------------------ adding and handing over

    @overload
    def add(self, entry: Entry, level: Durability) -> asyncio.Future[None] | None: ...
    @overload
    def add(self, entry: Entry, level: Durability, awaiting: Awaiting) -> Awaiting | None: ...
    def add(self, entry: Entry, level: Durability, awaiting: Awaiting | None = None) -> Awaiting | None:
        """Takes a stamped batch. Returns None if it has reached the level; otherwise a future that is done when it has,
        or `awaiting` instead of one."""
        size = len(entry.batch)
        if level is Durability.WRITTEN and not self._gathered and self._write_alone(entry, size):
            return None
        unflushed = self._shared.unflushed
        self.appended = end = entry.next_offset
        self.tail.push(entry)
        self._gathered.append(entry)
        self._gathered_bytes += size
        self.unflushed_bytes += size
        unflushed.used += size
        settings = self._settings
        if settings.durability is Durability.MEMORY:
            self.readable = end
        if self._readers.waiting:
            self._readers.advance(self.reached)
        if level is Durability.MEMORY:
            if (
                end - self._gathered[0].base_offset >= settings.messages_required_to_save
                or self._gathered_bytes >= settings.bytes_required_to_save
            ):
                self.schedule_hand_over()
            elif len(self._gathered) == 1:
                unflushed.buffering[self.schedule_hand_over] = None
            return None
        waiting = self._waiting_written
        if level is Durability.SYNCED:
            self._sync_due = True
            waiting = self._waiting_synced
        if awaiting is None:
            awaiting = self._shared.loop.create_future()
        waiting.add(end, awaiting)
        if not self._hand_over_due or self._gathered_bytes >= HAND_OVER_BYTES:
            self.schedule_hand_over()
        return awaiting

    def _write_alone(self, entry: Entry, size: int) -> bool:
        """Writes a batch at once if it is the first of this turn of the loop. Those that follow are written together at
        the end of the turn, and so is then everything for a while, because several clients send at once. A task that
        appends one batch after another is a single client, however many it appends in a turn."""
        loop = self._shared.loop
        now = perf_counter()
        if self._wrote_in_turn and (self._writer is None or self._writer is not asyncio.current_task(loop)):
            self._crowded_until = now + CROWDED_SECONDS
            return False
        if now < self._crowded_until or not self._write_on_loop((entry,), size, now):
            return False
        if not self._wrote_in_turn:
            self._wrote_in_turn = True
            self._writer = asyncio.current_task(loop)
            loop.call_soon(self._end_turn)
        self.appended = self.written = self.readable = entry.next_offset
        self.tail.push(entry)
        self._shared.tails.admit(self.tail, size)
        if self._readers.waiting:
            self._readers.advance(self.reached)
        return True

    def _end_turn(self) -> None:
        self._wrote_in_turn = False
        self._writer = None

    def _write_gathered(self) -> None:
        """Writes what was gathered in this turn of the loop, if that is little."""
        entries, size = self._gathered, self._gathered_bytes
        if self._write_on_loop(entries, size, perf_counter()):
            self._gathered, self.written = [], entries[-1].next_offset
            self._shared.tails.admit_several(self.tail, len(entries), size)
            self._free(size)
            self.advance()

    def _write_on_loop(self, entries: Sequence[Entry], size: int, began: float) -> bool:
        """Writes a few bytes on the event loop if nothing else of this partition is in progress. A hop to the shard's
        thread and back takes longer than handing them to the operating system. After a write that was slow, the shard
        writes everything for a while."""
        if (
            size > self._shared.options.loop_append_bytes_max
            or self._write_items_reported != self._write_items
            or self.calls_at_shard
            or self._early_syncs
            or self._producers.due
            or self._settings.durability is not Durability.WRITTEN
        ):
            return False
        if began < self._rests_until or not self.log.write_on_loop(entries, size):
            return False
        shard = self._shard
        if perf_counter() - began > SLOW_SECONDS:
            self._rests_until = began + REST_SECONDS
            shard.slow_loop_writes += 1
        shard.loop_writes += len(entries)
        self._state = None
        return True

    def read_on_loop(self, offset: int, count: int, room: int, end: int) -> Fetched | None:
        """Reads a few messages on the event loop. None if the shard has to read them."""
        return None if self._is_at_shard else self.log.read_on_loop(offset, count, room, end)

    def offset_on_loop(self, timestamp: int) -> int | None:
        """Looks a time up on the event loop. None if the shard has to do it."""
        return None if self._is_at_shard else self.log.offset_on_loop(timestamp)

    async def read_long(self, offset: int, count: int, room: int) -> LongRead | None:
        log, shard, end = self.log, self._shard, min(self.readable, self.written)
        found = await self.call(lambda: long_reads.locate(log, shard, offset, count, room, end))
        if found is not None:
            found.add_from_tail(self.tail, count, room, self.readable)
        return found

    @property
    def _is_at_shard(self) -> bool:
        """Whether the shard has anything to do for this partition, so that the event loop may not use the log."""
        return self._write_items_reported != self._write_items or self.calls_at_shard > 0

    def all_reached(self, level: Durability) -> asyncio.Future[None]:
        """A future that is done when everything appended so far has reached level WRITTEN or SYNCED."""
        waiting = self._waiting_written
        if level is Durability.SYNCED:
            self._sync_due = True
            waiting = self._waiting_synced
        reached = waiting.until(self.appended)
        self.schedule_hand_over()
        return reached

    def schedule_hand_over(self) -> None:
        """Small batches appended in one turn of the loop go to the shard together; large ones do not wait."""
        if self._gathered_bytes >= HAND_OVER_BYTES:
            self.hand_over()
        elif not self._hand_over_due:
            self._hand_over_due = True
            self._shared.loop.call_soon(self.hand_over)

    def hand_over(self) -> None:
        """Gives the shard everything that was gathered. Batches go to the shard here and nowhere else."""
        self._hand_over_due = False
        self._shared.unflushed.buffering.pop(self.schedule_hand_over, None)
        if self._gathered and not self._sync_due:
            self._write_gathered()
        entries, self._gathered = self._gathered, []
        size, self._gathered_bytes = self._gathered_bytes, 0
        sync, self._sync_due = self._sync_due, False
        if entries or sync:
            records, self._producers.due = self._producers.due, []
            self._unwritten.extend(entries)
            self.log.pack_ahead(entries)
            self._write_items += 1
            self._state = self.state
            number, generation = self._write_items, self._generation
            self._shard.write(WriteItem(self, number, self.log, generation, entries, sync, records, size))
        if self._offsets.due:
            self._offsets.hand_over(sync=self._settings.offset_durability is Durability.SYNCED)

    def call(self, function: Callable[[], Result], *, brief: bool = False) -> asyncio.Future[Result]:
        """Runs a function that uses the log on the shard's thread."""
        self._state = self.state
        return self._shard.call(function, owner=self, brief=brief)

    async def admission(self) -> None:
        """Waits for room, after the appends that came earlier: clients that send without waiting rely on the order."""
        turn: asyncio.Future[None] = self._shared.loop.create_future()
        self.line.append(turn)
        try:
            if self.line[0] is not turn:
                await turn
            await self._room()
        finally:
            self.line.remove(turn)
            if self.line and not self.line[0].done():
                self.line[0].set_result(None)

    async def _room(self) -> None:
        """Returns when there is room and nobody has the partition exclusively. Raises if the partition has failed."""
        shared = self._shared
        while True:
            if self.failed is not None:
                raise self.failed.with_traceback(None)
            if self._exclusive.is_held:
                await self._exclusive.over()
            elif self.unflushed_bytes >= shared.options.partition_unflushed_bytes_max:
                self.schedule_hand_over()
                future: asyncio.Future[None] = shared.loop.create_future()
                self._room_waiting.append(future)
                await future
            elif shared.unflushed.full:
                await shared.unflushed.room()
            else:
                return

    async def flush(self, *, sync: bool) -> Durability:
        """Writes what is buffered, stored offsets too, and with `sync` returns when all of it is on the disk."""
        if self.failed is not None:
            raise self.failed.with_traceback(None)
        end = self.appended
        waiting = []
        if self.written < end:
            waiting.append(self._waiting_written.until(end))
        if self._offsets.due:
            waiting.append(self._offsets.written())
        self.hand_over()
        for future in waiting:
            await future
        if not sync:
            return Durability.WRITTEN
        await self._sync()
        return Durability.SYNCED

    async def _sync(self) -> None:
        await self._sync_early()
        log, offset_files, generation = self.log, self._offsets.files, self._generation
        self._offsets.unsynced = False

        def sync_files() -> int:
            log.sync()
            offset_files.sync()
            return log.next_offset

        try:
            synced = await self.call(sync_files)
        except OSError as error:
            self._offsets.unsynced = True
            self._on_sync_failed(error)
            assert self.failed is not None
            raise self.failed from error
        if generation == self._generation:
            self.synced = max(self.synced, min(synced, self.written))
            self.advance()

    async def _sync_early(self) -> None:
        """Brings most of it to the disk while the shard, but not the event loop, goes on writing to the files."""
        log = self.log
        self._early_syncs += 1
        try:
            await sync_early(log, self.call)
        except OSError as error:
            if log is self.log and not isinstance(self.failed, PartitionClosed):
                self._on_sync_failed(error)
                assert self.failed is not None
                raise self.failed from error
        finally:
            self._early_syncs -= 1
        if isinstance(self.failed, PartitionClosed):
            raise self.failed.with_traceback(None)

    # ------------------------------------------------------------------------------------------ results of write rounds

    def on_written(self, result: Written) -> None:
        self._write_items_reported = max(self._write_items_reported, result.number)
        if result.generation != self._generation and result.error is None:
            return
        self.state = result.state
        if result.next_offset > self.written:
            self._count_written(result.next_offset)
        if result.synced:
            self.synced = max(self.synced, result.next_offset)
        if result.error is not None:
            self._generation = result.generation
            self._on_write_failed(result.error)
        if result.sync_error is not None:
            self._on_sync_failed(result.sync_error)
        self.advance()

    def _count_written(self, next_offset: int) -> None:
        """Written batches no longer count as unflushed. From now on they count against the budget of the tails."""
        self.written = next_offset
        unwritten, tails, tail = self._unwritten, self._shared.tails, self.tail
        freed = 0
        while unwritten and unwritten[0].next_offset <= next_offset:
            size = len(unwritten.popleft().batch)
            freed += size
            tails.admit(tail, size)
        self._free(freed)

    def _free(self, size: int) -> None:
        self.unflushed_bytes -= size
        self._shared.unflushed.release(size)
        if self._room_waiting and self.unflushed_bytes < self._shared.options.partition_unflushed_bytes_max:
            self._wake_for_room()

    def _wake_for_room(self) -> None:
        waiting, self._room_waiting = self._room_waiting, deque()
        wake(waiting)

    def advance(self) -> None:
        """Wakes everyone who waited for an offset that has been reached now."""
        assert self.synced <= self.written <= self.appended
        self.readable = (self.appended, self.written, self.synced)[self._settings.durability]
        self._waiting_written.reached(self.written)
        self._waiting_synced.reached(self.synced)
        if self._readers.waiting:
            self._readers.advance(self.reached)

    def _on_write_failed(self, error: BaseException) -> None:
        failure: StorageError
        if isinstance(error, OSError):
            failure = WriteFailed(str(self._place), error)
        else:
            failure = PartitionFailed(f"{self._place}: writes are refused after a defect: {error!r}")
        _log.error("%s", failure)
        if self._settings.durability is Durability.MEMORY:
            self._gather_again()
            if self._gathered:
                self._fail(failure)
                if self._retry is None:
                    self._retry = self._shared.loop.call_later(self._shared.options.write_retry_s, self._try_again)
        else:
            self._take_back()
            if not isinstance(error, OSError):
                self._fail(failure)
        self.refuse_waiting(failure)

    def _fail(self, failure: StorageError) -> None:
        """A partition that was closed while its last bytes were written stays closed."""
        if not isinstance(self.failed, PartitionClosed):
            self.failed = failure

    def _gather_again(self) -> None:
        """Acknowledged entries that could not be written will be handed over again, before all later ones."""
        self._gathered = [*self._unwritten, *self._gathered]
        self._gathered_bytes = sum(len(entry.batch) for entry in self._gathered)
        self._unwritten.clear()
        self._producers.hand_over_again(self.written)

    def _take_back(self) -> None:
        """Entries that could not be written were not acknowledged: they are gone, and their offsets are free again."""
        taken_back = [*self._unwritten, *self._gathered]
        self._unwritten.clear()
        self._gathered, self._gathered_bytes = [], 0
        self.tail.drop_from(self.written)
        self._producers.take_back(self.written)
        self.appended = self.written
        self._free(sum(len(entry.batch) for entry in taken_back))

    def _try_again(self) -> None:
        """After a failed write with acknowledged messages in memory: the disk may have room again."""
        self._retry = None
        if isinstance(self.failed, WriteFailed):
            self.failed = None
            self.hand_over()

    def _on_sync_failed(self, error: BaseException) -> None:
        """The system may have dropped what it could not write and consider it clean. Only a check of the files
        tells."""
        reason = error.strerror if isinstance(error, OSError) and error.strerror else repr(error)
        failure = PartitionFailed(
            f"{self._place}: a sync failed ({reason}); writes are refused until the partition is reopened and checked"
        )
        _log.error("%s", failure)
        self._fail(failure)
        self.refuse_waiting(failure)

    def refuse_waiting(self, failure: StorageError) -> None:
        self._waiting_written.refuse(self.written, failure)
        self._waiting_synced.refuse(self.synced, failure)
        self._wake_for_room()

    # -------------------------------------------------------------------------------------- purging, reopening, closing

    def use(self, log: Log, state: LogState, generation: int) -> None:
        """Continues with the files as they are now: purged, or opened again."""
        self.log, self._state, self._generation = log, state, generation

    def kept_in_memory(self) -> list[Entry]:
        """The entries that were acknowledged from memory and that the disk may not have."""
        return [*self._unwritten, *self._gathered] if self._settings.durability is Durability.MEMORY else []

    def discard(self) -> None:
        """Forgets all entries, and the memory tail."""
        self._shared.tails.release(self.tail)
        self.tail = Tail()
        self._unwritten.clear()
        self._gathered, self._gathered_bytes = [], 0
        self._free(self.unflushed_bytes)

    def start_over(self) -> None:
        """The log is empty: the next message gets offset 0."""
        self.discard()
        self.appended = self.written = self.synced = 0

    def resume(self, next_offset: int, kept: list[Entry]) -> None:
        """Continues after what the files hold, with the acknowledged entries that they lack."""
        self.discard()
        self._gathered = [entry for entry in kept if entry.base_offset >= next_offset]
        self._gathered_bytes = sum(len(entry.batch) for entry in self._gathered)
        self.unflushed_bytes = self._gathered_bytes
        self._shared.unflushed.used += self._gathered_bytes
        for entry in self._gathered:
            self.tail.push(entry)
        self.written = self.synced = next_offset
        self.appended = self._gathered[-1].next_offset if self._gathered else next_offset

    def accept_again(self) -> None:
        """The failure is over."""
        self.failed = None
        self.advance()
        if self._gathered or self._offsets.due:
            self.schedule_hand_over()
