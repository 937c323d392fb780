"""Numbered sends while the disk fails, the process ends or the power fails at every operation: each is stored once.

A client sends, and repeats sends without a result until they have one. When the disk is off, it continues with what is
left of it, and repeats every send whose result is still remembered. Run with WHIPPET_FAULT_SEEDS=100 for more power
failures at every operation.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from tests.storage.support.disk import TAKES_SPACE, Fault, FaultKind, PowerCut, SimulatedDisk
from tests.storage.support.promises import read_everything
from tests.storage.support.scenario import open_store, run
from tests.support.sizes import mostly_long, sized
from whippet.storage.appended import Appended
from whippet.storage.batch import Message, build
from whippet.storage.documents import StreamDocument, TopicDocument
from whippet.storage.errors import ProducerFenced, StorageError
from whippet.storage.options import Durability
from whippet.storage.partition import Partition
from whippet.storage.producers import Producer
from whippet.storage.store import Store

CHUNKS = 4
ATTEMPTS = 8

chunks = pytest.mark.parametrize("chunk", mostly_long(range(CHUNKS), usual={0}))
levels = pytest.mark.parametrize("level", list(Durability), ids=lambda level: level.name.lower())


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


Act = Callable[[], Awaitable[Any]]


class Ended(Exception):
    """The disk is off, or the store cannot be opened on it."""


class Send:
    """A numbered batch. `answer` is its first result."""

    def __init__(self, producer: Producer, sizes: list[int]) -> None:
        self.producer = producer
        name = f"{producer.id.decode()}/{producer.epoch}/{producer.sequence}"
        self.payloads = [f"{name}/{i}".encode().ljust(size, b".") for i, size in enumerate(sizes)]
        self.answer: Appended | None = None

    def batch(self) -> bytearray:
        return build([Message(payload) for payload in self.payloads], 1, random.randbytes)


class Client:
    """Sends to the only partition of a store, and keeps the results."""

    def __init__(self, disk: SimulatedDisk, level: Durability) -> None:
        self.disk = disk
        self.level = level
        self.sends: list[Send] = []
        """All sends since the last purge that may have been executed."""
        self.store: Store
        self._numbers = itertools.count(1)

    async def live(self) -> None:
        try:
            await self._live()
        except (Ended, PowerCut):
            assert self.disk.off or self.disk.fault is not None

    async def _live(self) -> None:
        await self._open()
        await self._attempt_until_done(self._make_topic)
        for sizes in ([30], [20, 40], [700]):
            await self.send(b"a", 1, sizes)
        await self.send_and_leave(b"d", [100])
        await self.plain(60)
        await asyncio.gather(self.send(b"a", 1, [50]), self.send(b"b", 1, [60, 10]), self.plain(30))
        await self.send(b"a", 1, [900, 20], Durability.SYNCED)
        await self.send_and_leave(b"e", [600, 600])
        await self.plain(40)
        await self.send(b"a", 2, [80])
        await self.send(b"b", 1, [1500])
        await self._attempt_until_done(lambda: self.partition.trim(self.partition.appended))
        await self.send(b"b", 1, [90])
        await self._attempt_until_done(self.store.save)
        self.sends = []
        await self._attempt_until_done(self.partition.purge)
        await self.send(b"a", 2, [33])
        await self.send_and_leave(b"f", [20])
        await self.plain(33)
        await self.plain(33)
        await self._attempt_until_done(lambda: self.partition.flush(sync=True))
        await self.send(b"c", 1, [44, 900])
        await self.send(b"c", 1, [1200])
        await self.close()

    async def _open(self) -> None:
        try:
            self.store = await open_store(self.disk, self.level)
        except (StorageError, OSError, RuntimeError) as error:
            raise Ended from error

    async def _make_topic(self) -> None:
        if 0 not in self.store.streams:
            await self.store.create_stream(StreamDocument(id=0, name="s", created_at=1))
        if 0 not in self.store.streams[0].topics:
            await self.store.create_topic(0, TopicDocument(id=0, name="t", created_at=1, partitions_count=1))

    async def close(self) -> None:
        try:
            await self.store.close()
        except (StorageError, RuntimeError):
            if self.disk.off:
                raise Ended from None

    @property
    def partition(self) -> Partition:
        found = self.store.partition(0, 0, 0)
        if found is None:
            raise Ended
        return found

    async def send(self, identity: bytes, epoch: int, sizes: list[int], durability: Durability | None = None) -> None:
        send = Send(Producer(identity, epoch, next(self._numbers)), sizes)
        self.sends.append(send)
        await self._attempt_until_done(lambda: self.bring(send, durability))

    async def send_and_leave(self, identity: bytes, sizes: list[int]) -> None:
        """A failed send is repeated only when all sends are: by then others have its place."""
        send = Send(Producer(identity, 1, next(self._numbers)), sizes)
        self.sends.append(send)
        await self._attempt(lambda: self.bring(send))

    async def bring(self, send: Send, durability: Durability | None = None) -> None:
        answer = await self.partition.append_once(send.batch(), send.producer, durability)
        first = send.answer or answer
        assert (answer.base_offset, answer.messages, answer.timestamp) == (
            first.base_offset,
            first.messages,
            first.timestamp,
        )
        assert send.answer is None or answer.repeated
        send.answer = first

    async def plain(self, size: int) -> None:
        """A send without numbers, which would take the place of failed ones."""
        payload = f"plain {next(self._numbers)}".encode().ljust(size, b".")
        await self._attempt(lambda: self.partition.append(build([Message(payload)], 1, random.randbytes)))

    async def _attempt_until_done(self, act: Act) -> None:
        for _ in range(ATTEMPTS):
            if await self._attempt(act):
                return
            await self.store.save()
        raise Ended

    async def _attempt(self, act: Act) -> bool:
        try:
            await act()
        except StorageError:
            if self.disk.off:
                raise Ended from None
            return False
        except Exception:
            if not self.disk.off:
                raise
            raise Ended from None
        return True

    async def bring_all_again(self) -> None:
        """Sends without a result may be new. Of ended epochs, only the newest is accepted."""
        for send in self.sends:
            newest = max(other.producer.epoch for other in self.sends if other.producer.id == send.producer.id)
            try:
                await self.bring(send)
            except ProducerFenced:
                assert send.producer.epoch < newest

    async def check(self) -> None:
        partition = self.partition
        found = Counter(payload for _, payload in await read_everything(partition))
        assert not [payload for payload, count in found.items() if count > 1], "something is there twice"
        offsets = {payload: offset for offset, payload in await read_everything(partition)}
        for send in self.sends:
            if send.answer is not None and send.answer.base_offset >= partition.first_offset:
                for i, payload in enumerate(send.payloads):
                    assert offsets.get(payload) == send.answer.base_offset + i, send.producer


def lives(level: Durability, fault: Fault | None) -> tuple[SimulatedDisk, Client]:
    disk = SimulatedDisk()
    disk.trace = []
    disk.fault = fault
    client = Client(disk, level)
    run(client.live())
    return disk, client


def continues(client: Client, disk: SimulatedDisk, *, remembers: bool = True) -> None:
    """Continues with what is left of the disk: every send is repeated twice and stored once."""

    async def main() -> None:
        client.disk = disk
        if not remembers:
            # At level MEMORY, results promise nothing for this case.
            for send in client.sends:
                send.answer = None
        await client._open()
        if not client.store.unavailable and 0 in client.store.streams and client.store.streams[0].topics:
            await client.check()
            await client.plain(20)
            await client.bring_all_again()
            await client.plain(20)
            await client.check()
            await client.close()
            await client._open()
            await client.bring_all_again()
            await client.check()
        await client.close()

    run(main())
    assert disk.open_handles == []


@functools.cache
def operations(level: Durability) -> tuple[str, ...]:
    disk, client = lives(level, None)
    assert all(send.answer is not None for send in client.sends)
    assert disk.trace is not None
    assert disk.open_handles == []
    return tuple(operation.act for operation in disk.trace)


def places(level: Durability, chunk: int, *, step: int = 1) -> range:
    return range((chunk + level) % CHUNKS + 1, len(operations(level)) + 1, step * CHUNKS)


def noted(error: BaseException, level: Durability, at: int, what: str) -> None:
    error.add_note(f"level {level.name}, operation {at}, {operations(level)[at - 1]}: {what}")


@chunks
@levels
def test_a_process_that_ends_at_any_file_operation_stores_repeated_sends_once(level: Durability, chunk: int) -> None:
    for at in places(level, chunk):
        try:
            disk, client = lives(level, Fault(at, FaultKind.CRASH))
            continues(client, disk.process_kill(), remembers=level is not Durability.MEMORY)
        except BaseException as error:
            noted(error, level, at, "killed")
            raise


@sized("seeds", 1, long=3, variable="WHIPPET_FAULT_SEEDS")
@chunks
def test_a_power_failure_at_any_file_operation_stores_repeated_sends_once(chunk: int, seeds: int) -> None:
    level = Durability.SYNCED
    for at in places(level, chunk):
        for seed in range(seeds):
            try:
                disk, client = lives(level, Fault(at, FaultKind.CRASH))
                continues(client, disk.power_cut(random.Random(1_000_003 * seed + at)))
            except BaseException as error:
                noted(error, level, at, f"power cut, seed {seed}")
                raise


@chunks
@levels
@pytest.mark.parametrize("kind", [FaultKind.EIO, FaultKind.ENOSPC, FaultKind.SHORT, FaultKind.SHORT_ENOSPC])
@pytest.mark.parametrize("length", [1, 4])
def test_a_failure_of_any_file_operation_stores_repeated_sends_once(
    length: int, kind: FaultKind, level: Durability, chunk: int
) -> None:
    struck = {FaultKind.EIO: None, FaultKind.ENOSPC: TAKES_SPACE}.get(kind, ("write",))
    for at in places(level, chunk, step=length):
        if struck is not None and operations(level)[at - 1] not in struck:
            continue
        try:
            disk, client = lives(level, Fault(at, kind, length))
            before = disk.process_kill()
            if level is Durability.SYNCED:
                cut = disk.power_cut(random.Random(at))
                answers = {id(send): send.answer for send in client.sends}
                continues(client, cut)
                for send in client.sends:
                    send.answer = answers[id(send)]
            continues(client, before, remembers=level is not Durability.MEMORY)
        except BaseException as error:
            noted(error, level, at, f"{kind.value}, {length} operations")
            raise
