"""A shard: the one thread that touches the files of the partitions assigned to it.

The event loop posts orders to the shard's mailbox and never waits; the shard takes all that is there, writes what each
partition has gathered with one call, syncs each once however many commands wait for it (group commit), and reports to
the loop in one piece. Orders for one partition are carried out in the order in which they were posted.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import mmh3

from whippet.storage.errors import PartitionClosed
from whippet.storage.files import Files
from whippet.storage.handles import Handles, IndexCache
from whippet.storage.layout import PartitionId
from whippet.storage.log import Entry, Log, LogState
from whippet.storage.options import StoreOptions
from whippet.storage.producers import Record

_log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

Told: TypeAlias = "tuple[asyncio.Future[Any], Any, BaseException | None]"
"""Who waits for an answer, the answer, and the error that there is instead."""

ANSWERS_TOGETHER = 4
"""Answers of brief calls that are told at once: waking the loop costs as much as a third of reading a megabyte."""


def shard_of(place: PartitionId, shards: int) -> int:
    """Murmur3 of the packed ids. Its low bits are poor for the small numbers that ids are: the upper half decides."""
    packed = (place.stream << 32 | place.topic << 20 | place.partition) & 0xFFFF_FFFF_FFFF_FFFF
    return (mmh3.hash(packed.to_bytes(8, "little"), 0, signed=False) >> 16) % shards


class Written(NamedTuple):
    """What became of an order. `next_offset` is the end of what the files hold; a failed sync has its own error."""

    next_offset: int
    state: LogState
    generation: int
    error: BaseException | None
    synced: bool
    sync_error: BaseException | None


class Owner(Protocol):
    """Who gave the order and is told of it, on the event loop."""

    def on_written(self, result: Written) -> None: ...


class Order(NamedTuple):
    """Entries to write. `generation` is the one of the log that the loop knew when it gave the order."""

    owner: Owner
    log: Log
    generation: int
    entries: list[Entry]
    sync: bool
    records: Sequence[Record]
    """Of those entries that come from producers who number their sends."""


class Call(NamedTuple):
    """Anything else that needs files: a function that runs on the shard's thread, and who waits for its answer."""

    function: Callable[[], Any]
    future: asyncio.Future[Any]
    brief: bool
    """Never waits for a sync or walks over many files: its answer may wait for a few others of its kind."""


class Shard:
    """The loop's methods are `write`, `call` and `stop`; all others run on the shard's own thread."""

    def __init__(self, number: int, files: Files, options: StoreOptions, loop: asyncio.AbstractEventLoop) -> None:
        budgets = {"all": float("inf"), "open_segment": options.index_cache_bytes / options.shards, "none": 0}
        self.handles = Handles(files, options.open_files_max // options.shards)
        self.indexes = IndexCache(budgets[options.index_cache])
        self.syncs = 0
        self.writes = 0
        self._loop = loop
        self._stopped = False
        self._mailbox: SimpleQueue[Order | Call | None] = SimpleQueue()
        self._cpu = options.cpus[number % len(options.cpus)] if options.cpus else None
        self._thread = threading.Thread(target=self._run, name=f"shard-{number}", daemon=True)
        self._thread.start()

    # ---------------------------------------------------------------------------------------------- on the event loop

    def write(self, order: Order) -> None:
        self._mailbox.put(order)

    def call(self, function: Callable[[], Answer], *, brief: bool = False) -> asyncio.Future[Answer]:
        future: asyncio.Future[Answer] = self._loop.create_future()
        if self._stopped:
            future.set_exception(PartitionClosed("the store is closed"))
        else:
            self._mailbox.put(Call(function, future, brief))
        return future

    @property
    def queue_length(self) -> int:
        """Orders and calls that wait for their turn."""
        return self._mailbox.qsize()

    async def stop(self) -> None:
        """Carries out what was posted, closes the files and ends the thread."""
        await self.call(self.handles.close)
        self._stopped = True
        self._mailbox.put(None)
        self._thread.join()

    # ------------------------------------------------------------------------------------------ on the shard's thread

    def _run(self) -> None:
        if self._cpu is not None:
            try:
                os.sched_setaffinity(0, {self._cpu})
            except (OSError, AttributeError) as error:
                _log.warning("%s is not pinned to core %d: %s", self._thread.name, self._cpu, error)
        while self._turn():
            pass

    def _turn(self) -> bool:
        orders: dict[int, Order] = {}
        answers: list[Told] = []
        item = self._mailbox.get()
        for waiting in range(self._mailbox.qsize(), -1, -1):
            if answers and not (isinstance(item, Call) and item.brief and len(answers) < ANSWERS_TOGETHER):
                self._tell(_settle, answers)
                answers = []
            if item is None:
                return False
            if isinstance(item, Order):
                self._gather(orders, item)
            else:
                if orders:
                    self._carry_out(orders)
                    orders = {}
                answers.append(self._answer(item))
            if waiting:
                item = self._mailbox.get()
        if answers:
            self._tell(_settle, answers)
        if orders:
            self._carry_out(orders)
        return True

    def _gather(self, orders: dict[int, Order], order: Order) -> None:
        known = orders.get(id(order.owner))
        if known is None:
            orders[id(order.owner)] = order
        elif known.generation == order.generation:
            known.entries.extend(order.entries)
            if order.records or (order.sync and not known.sync):
                sync, records = known.sync or order.sync, [*known.records, *order.records]
                orders[id(order.owner)] = known._replace(sync=sync, records=records)
        else:
            orders[id(order.owner)] = order

    def _carry_out(self, orders: dict[int, Order]) -> None:
        results: list[tuple[Owner, Written]] = []
        unsynced: list[tuple[Order, Written]] = []
        for order in orders.values():
            log = order.log
            if order.generation != log.generation:
                # A write before this one failed; the loop is about to hear of it and knows what to do with these.
                continue
            error = self._guarded(log.write, order.entries, order.records, order.sync) if order.entries else None
            self.writes += 1
            if error is not None and not isinstance(error, OSError):
                # What comes after it was handed over before the loop has heard of the defect: it must not be written.
                log.generation += 1
            result = Written(log.next_offset, log.state, log.generation, error, False, None)
            # What was written before an error is synced as well: only that tells whether it can be acknowledged.
            if order.sync and (error is None or isinstance(error, OSError)):
                unsynced.append((order, result))
            else:
                results.append((order.owner, result))
        if results:
            self._tell(_deliver, results)
        if unsynced:
            self._tell(_deliver, [(order.owner, self._synced(order.log, result)) for order, result in unsynced])

    def _synced(self, log: Log, result: Written) -> Written:
        error = self._guarded(log.sync)
        self.syncs += 1
        return result._replace(synced=error is None, sync_error=error)

    def _guarded(self, act: Callable[..., OSError | None], *arguments: Any) -> BaseException | None:
        """An error of the disk is an expected outcome; any other is a bug, which fails the partition, not the shard."""
        try:
            return act(*arguments)
        except OSError as error:
            return error
        except BaseException as error:  # noqa: BLE001 -- it is logged, and the owner is told
            _log.exception("%s: a defect in the store", self._thread.name)
            return error

    def _answer(self, call: Call) -> Told:
        try:
            return call.future, call.function(), None
        except BaseException as error:  # noqa: BLE001 -- it is the waiting caller's
            return call.future, None, error

    def _tell(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            # The loop is closed: whoever waited is gone with it.
            _log.warning("%s: an answer came after the event loop was closed", self._thread.name)


def _deliver(results: list[tuple[Owner, Written]]) -> None:
    for owner, result in results:
        owner.on_written(result)


def _settle(answers: list[Told]) -> None:
    for future, answer, error in answers:
        if future.done():
            continue
        if error is None:
            future.set_result(answer)
        else:
            # A future refuses StopIteration, and the others are not for callers: they would end the event loop.
            is_plain = isinstance(error, Exception) and not isinstance(error, StopIteration)
            future.set_exception(error if is_plain else RuntimeError(repr(error)))
