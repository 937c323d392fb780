"""A shard: the thread that owns the files of the partitions assigned to it.

The event loop posts work items to the shard's mailbox and never waits. In a write round the shard takes everything in
the mailbox, writes the batches of each partition with one call, syncs each partition once however many commands wait
for it (group commit), and reports to the loop once. Of a partition that is far behind, a round writes only a part, so
that those who wait for room wait for that part and not for all. Items of one partition are executed in the order in
which they were posted.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import mmh3

from whippet.storage.entry import Entry
from whippet.storage.errors import PartitionClosed
from whippet.storage.files import Files
from whippet.storage.handles import Handles, IndexCache
from whippet.storage.layout import PartitionId
from whippet.storage.log import Log, LogState
from whippet.storage.options import StoreOptions
from whippet.storage.producers import Record

_log = logging.getLogger(__name__)

Result = TypeVar("Result")

Outcome: TypeAlias = "tuple[Call, Any, BaseException | None]"
"""A call, and its result or its error."""

OUTCOMES_TOGETHER = 4
"""How many brief calls are reported together: waking the loop costs a third as much as reading a megabyte."""


STEP_BYTES = 2 << 20
"""How much of one partition a round writes, unless a sync is to follow. Producers that are faster than the disk would
otherwise wait until everything is written that may be unflushed, which is 64 MiB."""


def shard_of(place: PartitionId, shards: int) -> int:
    """Murmur3 of the packed ids. Its low bits are poor for small numbers such as ids, so the upper half decides."""
    packed = (place.stream << 32 | place.topic << 20 | place.partition) & 0xFFFF_FFFF_FFFF_FFFF
    return (mmh3.hash(packed.to_bytes(8, "little"), 0, signed=False) >> 16) % shards


class Written(NamedTuple):
    """The result of writing for one partition. `next_offset` is the end of the files; a failed sync has its own
    error."""

    next_offset: int
    state: LogState
    generation: int
    error: BaseException | None
    synced: bool
    sync_error: BaseException | None
    number: int
    """The number of the last write item that is completely done; 0 if the round wrote only a part."""


class Owner(Protocol):
    """The owner of a log, on the event loop. While it has write items or calls at the shard, only the shard uses the
    log."""

    calls_at_shard: int

    def on_written(self, result: Written) -> None: ...


class WriteItem(NamedTuple):
    """Entries to write. `generation` is the log's generation as the loop knew it when it posted the item."""

    owner: Owner
    number: int
    """The items of one owner have ascending numbers."""
    log: Log
    generation: int
    entries: list[Entry]
    sync: bool
    records: Sequence[Record]
    """The records of the entries that are numbered sends, in the same order."""
    size: int
    """The bytes of the entries."""


class Call(NamedTuple):
    """Anything else that needs files: a function to run on the shard's thread, and the future of its result."""

    function: Callable[[], Any]
    future: asyncio.Future[Any]
    owner: Owner | None
    """The owner of the log that the function uses; None if it uses no log."""
    brief: bool
    """It never waits for a sync or reads many files, so its result may be reported together with a few others."""


class Shard:
    """The event loop uses `write`, `call`, `queue_length` and `stop`; everything else runs on the shard's thread."""

    def __init__(self, number: int, files: Files, options: StoreOptions, loop: asyncio.AbstractEventLoop) -> None:
        budgets = {"all": float("inf"), "open_segment": options.index_cache_bytes / options.shards, "none": 0}
        self.handles = Handles(files, options.open_files_max // options.shards)
        self.indexes = IndexCache(budgets[options.index_cache])
        self.syncs = 0
        self.writes = 0
        self.loop_writes = 0
        """Batches that the event loop has written itself."""
        self.slow_loop_writes = 0
        self._loop = loop
        self._stopped = False
        self._mailbox: SimpleQueue[WriteItem | Call | None] = SimpleQueue()
        self._unfinished: dict[int, WriteItem] = {}
        """The part of each owner's work item that the last round has not written."""
        self._cpu = options.cpus[number % len(options.cpus)] if options.cpus else None
        self._thread = threading.Thread(target=self._run, name=f"shard-{number}", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------------------------------------ on the event loop

    def write(self, item: WriteItem) -> None:
        self._mailbox.put(item)

    def call(
        self, function: Callable[[], Result], *, owner: Owner | None = None, brief: bool = False
    ) -> asyncio.Future[Result]:
        future: asyncio.Future[Result] = self._loop.create_future()
        if self._stopped:
            future.set_exception(PartitionClosed("the store is closed"))
        else:
            if owner is not None:
                owner.calls_at_shard += 1
            self._mailbox.put(Call(function, future, owner, brief))
        return future

    def close_apart(self, path: str, handle: int) -> None:
        """Closes the file of a long read; any thread may call this. The blocks of a deleted file are freed when it is
        closed, which takes time, so the shard does it."""
        close = partial(self.handles.close_apart, path, handle)
        if self._stopped:
            close()
        else:
            self._mailbox.put(Call(close, self._loop.create_future(), None, True))

    @property
    def queue_length(self) -> int:
        """How many work items wait for their turn."""
        return self._mailbox.qsize()

    async def stop(self) -> None:
        """Executes everything posted so far, closes the files and ends the thread."""
        await self.call(self.handles.close)
        self._stopped = True
        self._mailbox.put(None)
        self._thread.join()

    # -------------------------------------------------------------------------------------------- on the shard's thread

    def _run(self) -> None:
        if self._cpu is not None:
            try:
                os.sched_setaffinity(threading.get_native_id(), {self._cpu})
            except (OSError, AttributeError) as error:
                _log.warning("%s is not pinned to core %d: %s", self._thread.name, self._cpu, error)
        while self._turn():
            pass

    def _turn(self) -> bool:
        writes, self._unfinished = self._unfinished, {}
        outcomes: list[Outcome] = []
        items = [] if writes else [self._mailbox.get()]
        items += [self._mailbox.get() for _ in range(self._mailbox.qsize())]
        for item in items:
            if outcomes and not (isinstance(item, Call) and item.brief and len(outcomes) < OUTCOMES_TOGETHER):
                self._post_to_loop(_settle, outcomes)
                outcomes = []
            if item is None:
                return False
            if isinstance(item, WriteItem):
                _merge(writes, item)
            else:
                while writes:
                    writes = self._run_write_round(writes)
                outcomes.append(self._run_call(item))
        if outcomes:
            self._post_to_loop(_settle, outcomes)
        self._unfinished = self._run_write_round(writes)
        return True

    def _run_write_round(self, writes: dict[int, WriteItem]) -> dict[int, WriteItem]:
        """Returns what is left to write."""
        results: list[tuple[Owner, Written]] = []
        unsynced: list[tuple[WriteItem, Written]] = []
        left: dict[int, WriteItem] = {}
        for key, whole in writes.items():
            log = whole.log
            if whole.generation != log.generation:
                # An earlier write failed. The loop is about to learn of it, and decides what happens to these entries.
                continue
            item, rest = _step(whole)
            error = self._guarded(log.write, item.entries, item.records, item.sync) if item.entries else None
            self.writes += 1
            if error is not None and not isinstance(error, OSError):
                # Later entries were handed over before the loop knew of the defect, so they must not be written.
                log.generation += 1
            number = whole.number
            if error is None and rest is not None:
                left[key] = rest
                number = 0
            result = Written(log.next_offset, log.state, log.generation, error, False, None, number)
            # Batches written before an error are synced as well, since they can only be acknowledged after that.
            if item.sync and (error is None or isinstance(error, OSError)):
                unsynced.append((item, result))
            else:
                results.append((item.owner, result))
        if results:
            self._post_to_loop(_deliver, results)
        if unsynced:
            self._post_to_loop(_deliver, [(item.owner, self._synced(item.log, result)) for item, result in unsynced])
        return left

    def _synced(self, log: Log, result: Written) -> Written:
        error = self._guarded(log.sync)
        self.syncs += 1
        return result._replace(synced=error is None, sync_error=error)

    def _guarded(self, function: Callable[..., OSError | None], *arguments: Any) -> BaseException | None:
        """A disk error is an expected result. Any other error is a bug, which fails the partition, but not the
        shard."""
        try:
            return function(*arguments)
        except OSError as error:
            return error
        except BaseException as error:  # noqa: BLE001 -- it is logged, and the owner gets it
            _log.exception("%s: a defect in the store", self._thread.name)
            return error

    def _run_call(self, call: Call) -> Outcome:
        try:
            return call, call.function(), None
        except BaseException as error:  # noqa: BLE001 -- the caller gets it
            return call, None, error

    def _post_to_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            # The loop is closed, so nobody waits any more.
            _log.warning("%s: a result came after the event loop was closed", self._thread.name)


def _merge(writes: dict[int, WriteItem], item: WriteItem) -> None:
    """Adds an item to those of the same owner, which are written with one call."""
    known = writes.get(id(item.owner))
    if known is None or known.generation != item.generation:
        writes[id(item.owner)] = item
        return
    known.entries.extend(item.entries)
    sync, records = known.sync or item.sync, [*known.records, *item.records]
    size = known.size + item.size
    writes[id(item.owner)] = known._replace(number=item.number, sync=sync, records=records, size=size)


def _step(item: WriteItem) -> tuple[WriteItem, WriteItem | None]:
    """The part of an item that one round writes, and the rest. With a sync to follow that is everything: while others
    keep appending, the sync would otherwise never come."""
    if item.sync or item.size <= STEP_BYTES:
        return item, None
    size = count = 0
    for entry in item.entries:
        if size >= STEP_BYTES:
            break
        size += len(entry.batch)
        count += 1
    if count == len(item.entries):
        return item, None
    entries, rest = item.entries[:count], item.entries[count:]
    end = rest[0].base_offset
    early = sum(record.base_offset < end for record in item.records)
    return (
        item._replace(entries=entries, records=item.records[:early], size=size),
        item._replace(entries=rest, records=item.records[early:], size=item.size - size),
    )


def _deliver(results: list[tuple[Owner, Written]]) -> None:
    for owner, result in results:
        owner.on_written(result)


def _settle(outcomes: list[Outcome]) -> None:
    for call, result, error in outcomes:
        future = call.future
        if call.owner is not None:
            call.owner.calls_at_shard -= 1
        if future.done():
            continue
        if error is None:
            future.set_result(result)
        else:
            # A future refuses StopIteration, and exceptions like SystemExit would end the event loop.
            is_plain = isinstance(error, Exception) and not isinstance(error, StopIteration)
            future.set_exception(error if is_plain else RuntimeError(repr(error)))
