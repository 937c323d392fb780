"""A short and eventful life of a store on a simulated disk: it does everything that changes files, one after another.

Whatever the disk does, the user of the store may get no exception but a StorageError. When the disk is off, the
scenario ends. What was promised until then is in `promises`.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from tests.storage.support.disk import PowerCut, SimulatedDisk
from tests.storage.support.promises import Epoch, PartitionKey, Promises, State, check, facts, served
from tests.storage.support.ways import WAYS
from whippet.storage.batch import Message, build
from whippet.storage.documents import GroupDocument, StreamDocument, TopicDocument
from whippet.storage.errors import StorageError
from whippet.storage.fetched import Fetched
from whippet.storage.files import Files
from whippet.storage.offsets import Key, Kind
from whippet.storage.options import Durability, StoreOptions, TopicOptions
from whippet.storage.partition import Partition
from whippet.storage.store import Store

Answer = TypeVar("Answer")

ROOT = "/data"
CONSUMER: Key = (Kind.CONSUMER, 1)
GROUP: Key = (Kind.GROUP, 1)


class Ended(Exception):
    """The disk is off."""


packed_in: list[str] = ["plain"]
"""How batches are stored, as `packed.WAYS` names it."""


def options(level: Durability) -> StoreOptions:
    return StoreOptions(
        **WAYS[packed_in[0]],
        path=ROOT,
        durability=level,
        messages_required_to_save=5 if level is Durability.MEMORY else 1,
        saver_interval_s=None,
        segment_bytes=1500,
        write_retry_s=0.0,
        open_files_max=4,
        index_cache_bytes=200,
        tail_bytes_max=0,  # written messages are read from the disk
    )


class WatchedStore(Store):
    """A store whose threads can be ended when its disk is off."""

    def __init__(self, options: StoreOptions, files: Files, clock: Callable[[], int]) -> None:
        super().__init__(options, files, clock)
        opened.append(self)


opened: list[Store] = []


def abandon() -> None:
    """Ends the threads of stores that could not be closed, like the end of the process."""
    while opened:
        for shard in opened.pop().shards:
            shard._mailbox.put(None)
            shard._thread.join()


def run(life: Coroutine[Any, Any, Answer]) -> Answer:
    """Runs a coroutine on a loop of its own and leaves no thread behind."""
    try:
        return asyncio.run(life)
    finally:
        abandon()


async def open_store(disk: SimulatedDisk, level: Durability) -> Store:
    ticks = itertools.count(1_000_000)
    return await WatchedStore.open(options(level), files=disk, clock=lambda: next(ticks))


class Scenario:
    def __init__(
        self,
        disk: SimulatedDisk,
        level: Durability,
        *,
        asks_again: bool = True,
        chosen: TopicOptions = TopicOptions(),  # noqa: B008 -- it is frozen
    ) -> None:
        self.disk = disk
        self.chosen = chosen
        """The options of its topics, whatever the level of the server."""
        self.asks_again = asks_again
        """Whether a refused change of the catalogue is tried again, as a client would."""
        self.level = level
        self.promises = Promises()
        self.refused: list[str] = []
        self.closed_cleanly = False
        self.before_close: SimulatedDisk | None = None
        """The disk as a kill before the close would leave it, including what of it is durable."""
        self.store: Store
        self._numbers = itertools.count(1)
        self._random = random.Random(1).randbytes

    async def run(self) -> None:
        """Ends when everything is done and closed, or when the disk is off or the store cannot be opened on it."""
        try:
            await self._live()
        except (Ended, PowerCut):
            assert self.disk.off

    async def _live(self) -> None:
        try:
            self.store = await open_store(self.disk, self.level)
        except (StorageError, OSError) as error:
            # Errors that prevent opening are for the operator: the disk's own error, or the store's.
            self.refused.append(str(error))
            return
        except Exception as error:
            if self.disk.off:
                raise Ended from error
            raise
        await self._grow()
        await self._shrink()
        await self._change_the_catalogue()
        is_lasting = self.disk.fault is not None and self.disk.fault.operations > 1
        if is_lasting:
            self.disk.fault = None
        await self._attempt(self.store.save())
        await self._check_live(is_all_served=not is_lasting)
        self.before_close = self.disk.process_kill()
        self.closed_cleanly = (await self._attempt(self.store.close()))[0]
        assert not any(shard._thread.is_alive() for shard in self.store.shards)

    # ------------------------------------------------------------------------------------------------------- the plot

    async def _grow(self) -> None:
        await self.create_stream(1, "s")
        await self.create_topic(1, "first", 2)
        await self.append(1, 0, [30])
        await self.append(1, 0, [10, 600, 20])
        await self.append(1, 1, [40, 40])
        await self.store_offset(1, 0, CONSUMER, 1)
        await self.append(1, 0, [700], [50], [60, 300])
        await self.append(1, 0, [80])
        await self.append(1, 0, [1700])
        await self.append(1, 0, [40], durability=Durability.SYNCED)
        await self.store_offset(1, 0, CONSUMER, 5)
        await self.store_offset(1, 0, GROUP, 6)
        await self.append(1, 1, [900], [900])
        await self._attempt(self.store.save())
        await self.read(1, 0)

    async def _shrink(self) -> None:
        await self.trim(1, 0, 1)
        await self.append(1, 0, [20], [1200], [1300])
        await self.append(1, 0, [30])
        await self.store_offset(1, 0, GROUP, 9)
        await self.delete_offset(1, 0, CONSUMER)
        await self.trim(1, 0, 3)
        await self.append(1, 0, [44])
        await self.store_offset(1, 1, CONSUMER, 2)
        await self.purge(1, 1)
        await self.append(1, 1, [70], [90, 10])
        await self.store_offset(1, 1, CONSUMER, 1)
        await self.flush(1, 1, sync=True)
        await self._attempt(self.store.save())

    async def _change_the_catalogue(self) -> None:
        await self.create_partitions(1, 1)
        await self.append(1, 2, [100])
        await self.remove_partitions(1, 1)
        await self.create_partitions(1, 1)
        await self.append(1, 2, [110], [20])
        await self.create_topic(2, "second", 1)
        await self.append(2, 0, [5])
        await self.write_group(1, "g")
        await self.update_topic(1, 77)
        await self.remove_topic(2)
        await self.create_topic(2, "third", 1)
        await self.append(2, 0, [6, 7])
        await self.write_user(1, b"{}")
        await self.remove_group(1)
        await self.append(1, 0, [33])
        await self.read(1, 0)

    async def _check_live(self, *, is_all_served: bool) -> None:
        """Checks that the running store serves what it has acknowledged once there are no more faults."""
        try:
            await check(self.store, self.promises, Durability.MEMORY, is_all_served=is_all_served)
        except (StorageError, RuntimeError) as error:
            if self.disk.off:
                raise Ended from error
            assert isinstance(error, StorageError), error
            self.refused.append(str(error))
            await check(self.store, self.promises, Durability.MEMORY, is_all_served=is_all_served)

    async def _attempt(self, act: Awaitable[Answer]) -> tuple[bool, Answer | None]:
        """Runs an operation. Returns whether it succeeded, and its result. Only the store's own errors count as
        refusals."""
        try:
            return True, await act
        except StorageError as error:
            self.refused.append(f"{type(error).__name__}: {error}")
        except Exception:
            if not self.disk.off:
                raise
        if self.disk.off:
            raise Ended
        return False, None

    # ------------------------------------------------------------------------------------------------- in a partition

    def _find(self, topic: int, partition: int) -> tuple[Partition, Epoch, PartitionKey] | None:
        """None if it could not be created."""
        found = self.store.partition(1, topic, partition)
        if found is None:
            return None
        key = (1, topic, self.store.streams[1].topics[topic].document.name, partition)
        return found, self.promises.current(key, found), key

    async def append(self, topic: int, partition: int, *sizes: list[int], durability: Durability | None = None) -> None:
        """Appends batches in one turn of the loop, one for each list of payload sizes."""
        known = self._find(topic, partition)
        if known is None:
            return
        log, epoch, key = known
        base = log.appended
        appends = []
        sent = []
        for payload_sizes in sizes:
            payloads = [f"{key} {next(self._numbers)}".encode().ljust(size, b".") for size in payload_sizes]
            epoch.begin(base, payloads)
            base += len(payloads)
            sent.append(payloads)
            messages = [Message(payload) for payload in payloads]
            appends.append(log.append(build(messages, 1, self._random), durability))
        answers = await asyncio.gather(*map(self._attempt, appends), return_exceptions=True)
        for payloads, answer in zip(sent, answers, strict=True):
            if isinstance(answer, BaseException):
                continue
            is_done, appended = answer
            if is_done and appended is not None:
                epoch.acknowledge(appended.base_offset, payloads, appended.durability)
                if payloads[0] not in epoch.candidates.get(appended.base_offset, ()):
                    # An earlier batch was refused, so this one got its place.
                    epoch.begin(appended.base_offset, payloads)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    async def read(self, topic: int, partition: int) -> None:
        """Reads by offset, by time and from the end, and checks that the messages are those appended there."""
        known = self._find(topic, partition)
        if known is None:
            return
        log, epoch, _ = known
        readings: tuple[Callable[[], Awaitable[Fetched]], ...] = (
            lambda: log.read(2, 9),
            lambda: log.read_last(3),
            lambda: log.read_from_time(1_000_006, 2),
            lambda: log.read(7, 99, 500),
        )
        for reading in readings:
            found = (await self._attempt(reading()))[1]
            for offset, payload in served(found) if found is not None else ():
                assert payload in epoch.candidates[offset], (offset, payload)

    async def store_offset(self, topic: int, partition: int, key: Key, offset: int) -> None:
        known = self._find(topic, partition)
        if known is None:
            return
        epoch = known[1]
        epoch.begin_offset(key, offset)
        if (await self._attempt(known[0].store_offset(*key, offset)))[0]:
            epoch.acknowledge_offset(key, offset)

    async def delete_offset(self, topic: int, partition: int, key: Key) -> None:
        known = self._find(topic, partition)
        if known is None:
            return
        epoch = known[1]
        epoch.begin_offset(key, None)
        if (await self._attempt(known[0].delete_offset(*key)))[0]:
            epoch.acknowledge_offset(key, None)

    async def flush(self, topic: int, partition: int, *, sync: bool) -> None:
        known = self._find(topic, partition)
        if known is None:
            return
        until = known[0].appended
        is_done, level = await self._attempt(known[0].flush(sync=sync))
        if is_done and level is not None:
            known[1].promise(until, level)

    async def trim(self, topic: int, partition: int, count: int) -> None:
        known = self._find(topic, partition)
        if known is None:
            return
        epoch = known[1]
        is_done, closed = await self._attempt(known[0].closed_segments())
        if not is_done or not closed:
            return
        ends = [segment.next_offset for segment in closed[:count]]
        before = epoch.firsts
        # On a full disk they are deleted one by one.
        epoch.firsts = before | {*ends} if self._is_full() else before | {ends[-1]}
        if (await self._attempt(known[0].trim(ends[-1])))[0]:
            epoch.firsts = {ends[-1]}

    def _is_full(self) -> bool:
        return self.disk.fault is not None and "no space" in self.disk.fault.kind.value

    async def purge(self, topic: int, partition: int) -> None:
        known = self._find(topic, partition)
        if known is None:
            return
        if self._is_full():
            known[1].firsts |= {segment.start_offset for segment in known[0]._pipeline.log.segments}
        epoch = self.promises.begin_epoch(known[2])
        if (await self._attempt(known[0].purge()))[0]:
            self.promises.partitions[known[2]] = [epoch]

    # ------------------------------------------------------------------------------------------------- the catalogue

    async def _change(self, act: Callable[[], Coroutine[Any, Any, None]], change: Callable[[State], State]) -> bool:
        """A fault occurs once: a refused change that is tried again must succeed."""
        self.promises.begin_change(change)
        is_done = (await self._attempt(act()))[0]
        if not is_done and self.asks_again and facts(self.store) not in {change(facts(self.store))}:
            is_done = (await self._attempt(act()))[0]
            assert is_done, self.refused
        if is_done:
            self.promises.acknowledge_change(change)
        return is_done

    async def create_stream(self, stream: int, name: str) -> None:
        document = StreamDocument(id=stream, name=name, created_at=1)
        await self._change(lambda: self.store.create_stream(document), lambda state: state | {("stream", stream, name)})

    async def create_topic(self, topic: int, name: str, count: int) -> None:
        if 1 not in self.store.streams or topic in self.store.streams[1].topics:
            return
        document = TopicDocument(id=topic, name=name, created_at=1, partitions_count=count, options=self.chosen)
        made = {
            ("topic", 1, topic, name),
            ("partitions", 1, topic, count),
            ("expiry", 1, topic, document.message_expiry),
        }
        for partition in range(count):
            self.promises.begin_epoch((1, topic, name, partition))
        await self._change(
            lambda: self.store.create_topic(1, document), lambda state: _without_topic(state, topic) | frozenset(made)
        )

    async def remove_topic(self, topic: int) -> None:
        if self._has(topic):
            await self._change(lambda: self.store.remove_topic(1, topic), lambda state: _without_topic(state, topic))

    async def update_topic(self, topic: int, expiry: int) -> None:
        if not self._has(topic):
            return
        document = msgspec.structs.replace(self.store.streams[1].topics[topic].document, message_expiry=expiry)
        await self._change(
            lambda: self.store.update_topic(1, document), lambda state: _with(state, ("expiry", 1, topic), expiry)
        )

    async def create_partitions(self, topic: int, count: int) -> None:
        if not self._has(topic):
            return
        document = self.store.streams[1].topics[topic].document
        first = document.partitions_count
        keys = [(1, topic, document.name, first + i) for i in range(count)]
        epochs = [self.promises.begin_epoch(key) for key in keys]
        if await self._change(
            lambda: self.store.create_partitions(1, topic, count),
            lambda state: _with(state, ("partitions", 1, topic), first + count),
        ):
            self.promises.partitions |= {key: [epoch] for key, epoch in zip(keys, epochs, strict=True)}

    async def remove_partitions(self, topic: int, count: int) -> None:
        if not self._has(topic):
            return
        left = self.store.streams[1].topics[topic].document.partitions_count - count
        await self._change(
            lambda: self.store.remove_partitions(1, topic, count),
            lambda state: _with(state, ("partitions", 1, topic), left),
        )

    async def write_group(self, topic: int, name: str) -> None:
        if self._has(topic):
            document = GroupDocument(id=1, name=name, created_at=1)
            fact = ("group", 1, topic, 1, name)
            await self._change(lambda: self.store.write_group(1, topic, document), lambda state: state | {fact})

    async def remove_group(self, topic: int) -> None:
        if self._has(topic) and 1 in self.store.streams[1].topics[topic].groups:
            await self._change(
                lambda: self.store.remove_group(1, topic, 1),
                lambda state: frozenset(fact for fact in state if fact[0] != "group"),
            )

    async def write_user(self, user: int, document: bytes) -> None:
        await self._change(
            lambda: self.store.write_user(user, document), lambda state: state | {("user", user, document)}
        )

    def _has(self, topic: int) -> bool:
        return 1 in self.store.streams and topic in self.store.streams[1].topics


def _with(state: State, name: tuple[object, ...], value: object) -> State:
    """Sets one fact. A topic that does not exist has none."""
    if not any(fact[:3] == name for fact in state):
        return state
    return frozenset(fact for fact in state if fact[:3] != name) | {(*name, value)}


def _without_topic(state: State, topic: int) -> State:
    return frozenset(fact for fact in state if fact[0] in ("stream", "user") or fact[2] != topic)
