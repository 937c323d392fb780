"""Appends to one partition in Kafka: one request at a time, with everything that came meanwhile.

The record batches of a partition are numbered, so one that is repeated after a lost answer is stored once. A batch
whose answer is missing at its deadline may be stored or not; then the partition continues with another producer id.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import NamedTuple

from aiokafka import errors
from aiokafka.protocol.produce import ProduceRequest

from whippet.storage.batch import Readable
from whippet.storage.errors import BatchFault, ClusterUnavailable, InvalidBatch, PartitionClosed, StorageError
from whippet.storage.kafka.cluster import Cluster, Refused
from whippet.storage.kafka.records import Producer, encode

TOGETHER_BYTES = 1 << 20
"""Batches are written together up to this size."""
MANY = 4096
"""More messages are encoded in a thread, so that others get their turn."""
SEQUENCES = 2**31
RENEWED = (errors.OutOfOrderSequenceNumber, errors.UnknownProducerId, errors.InvalidProducerEpoch)
"""The broker does not know what came before: nothing of the batch is stored, and a new producer can send it."""
TOO_LARGE = (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError)


class Placed(NamedTuple):
    base_offset: int
    timestamp_us: int


class Budget:
    """Bytes that wait for brokers, over all partitions. Whoever finds no room waits in line for it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size: int, deadline: float) -> bool:
        """Returns False if there is no room before the deadline."""
        if not self._line and self._has_room(size):
            self.used += size
            return True
        loop = asyncio.get_running_loop()
        room: asyncio.Future[None] = loop.create_future()
        self._line.append((size, room))
        try:
            await asyncio.wait([room], timeout=max(deadline - loop.time(), 0))
        except BaseException:
            if room.done():
                self.release(size)
            raise
        finally:
            if not room.done():
                room.cancel()
                self.release(0)
        return not room.cancelled()

    def release(self, size: int) -> None:
        self.used -= size
        while self._line:
            wanted, room = self._line[0]
            if not room.done():
                if not self._has_room(wanted):
                    return
                self.used += wanted
                room.set_result(None)
            self._line.popleft()

    def _has_room(self, size: int) -> bool:
        """One batch is always let through, whatever its size."""
        return not self.used or self.used + size <= self.limit


class _Waiting(NamedTuple):
    batch: Readable
    messages: int
    deadline: float
    placed: asyncio.Future[Placed]


class Appends:
    def __init__(self, cluster: Cluster, topic: str, partition: int, budget: Budget) -> None:
        self.closed: PartitionClosed | None = None
        self._cluster = cluster
        self._topic = topic
        self._partition = partition
        self._budget = budget
        self._waiting: deque[_Waiting] = deque()
        self._sending: asyncio.Task[None] | None = None
        self._producer: Producer | None = None
        self._sequence = 0

    @property
    def where(self) -> str:
        return f"{self._topic}, partition {self._partition}"

    async def append(self, batch: Readable, messages: int) -> Placed:
        """Returns when all replicas in sync have the batch."""
        loop, budget, size = asyncio.get_running_loop(), self._budget, len(batch)
        deadline = loop.time() + self._cluster.options.timeout_s
        if not await budget.take(size, deadline):
            raise ClusterUnavailable(f"{self.where}: too much waits for the brokers; nothing was sent")
        try:
            if self.closed is not None:
                raise self.closed.with_traceback(None)
            placed: asyncio.Future[Placed] = loop.create_future()
            self._waiting.append(_Waiting(batch, messages, deadline, placed))
            if self._sending is None:
                self._sending = asyncio.create_task(self._send_all())
            return await placed
        finally:
            budget.release(size)

    async def close(self, reason: PartitionClosed) -> None:
        """Refuses further appends, and waits for those that were accepted."""
        self.closed = reason
        if self._sending is not None:
            await asyncio.wait([self._sending])

    async def _send_all(self) -> None:
        try:
            # What else is appended in this turn of the event loop goes with it.
            await asyncio.sleep(0)
            while self._waiting:
                await self._send_some(self._next())
        finally:
            self._sending = None
            for left in self._waiting:
                _refuse(left, PartitionClosed(f"{self.where}: stopped before it was sent"))
            self._waiting.clear()

    def _next(self) -> list[_Waiting]:
        taken = [self._waiting.popleft()]
        size = len(taken[0].batch)
        while self._waiting and size + len(self._waiting[0].batch) <= TOGETHER_BYTES:
            taken.append(self._waiting.popleft())
            size += len(taken[-1].batch)
        return taken

    async def _send_some(self, taken: list[_Waiting]) -> None:
        try:
            placed = await self._send([each.batch for each in taken], sum(each.messages for each in taken), taken)
        except Refused as refusal:
            if isinstance(refusal.reason, TOO_LARGE) and len(taken) > 1:
                for each in taken:
                    await self._send_some([each])
                return
            failure: StorageError = refusal
            if isinstance(refusal.reason, TOO_LARGE):
                sentence = f"{self.where}: the batch is larger than the topic's max.message.bytes in Kafka"
                failure = InvalidBatch(BatchFault.BATCH_LIMIT, sentence)
            self._refuse_all(taken, failure)
        except StorageError as failure:
            self._producer = None
            self._refuse_all(taken, failure)
        except BaseException:
            self._producer = None
            self._refuse_all(taken, PartitionClosed(f"{self.where}: stopped while it was sent"))
            raise
        else:
            at = placed.base_offset
            for each in taken:
                if not each.placed.done():
                    each.placed.set_result(Placed(at, placed.timestamp_us))
                at += each.messages

    def _refuse_all(self, taken: list[_Waiting], failure: StorageError) -> None:
        for each in taken:
            _refuse(each, failure)

    async def _send(self, contents: list[Readable], messages: int, taken: list[_Waiting]) -> Placed:
        deadline = max(each.deadline for each in taken)
        if asyncio.get_running_loop().time() >= deadline:
            raise ClusterUnavailable(f"{self.where}: the brokers were not available in time; nothing was sent")
        timeout_ms = max(int(self._cluster.options.timeout_s * 1000), 1)
        now_ms = time.time_ns() // 1_000_000
        while True:
            if self._producer is None:
                try:
                    self._producer = await self._cluster.new_producer(deadline)
                except ClusterUnavailable as error:
                    raise ClusterUnavailable(f"{self.where}: nothing was sent: {error}") from error
                self._sequence = 0
            arguments = contents, self._producer, self._sequence, now_ms
            content = encode(*arguments) if messages <= MANY else await asyncio.to_thread(encode, *arguments)
            topics = [(self._topic, [(self._partition, content)])]
            try:
                response = await self._cluster.at_leader(
                    self._topic,
                    self._partition,
                    lambda topics=topics: ProduceRequest(None, -1, timeout_ms, topics),  # type: ignore[misc]
                    _error_of,
                    until=deadline,
                )
            except Refused as refusal:
                if not isinstance(refusal.reason, RENEWED):
                    raise
                self._producer = None
                continue
            self._sequence = (self._sequence + messages) % SEQUENCES
            _, _, offset, timestamp_ms, *_ = response.topics[0][1][0]
            return Placed(offset, (now_ms if timestamp_ms < 0 else timestamp_ms) * 1000)


def _error_of(response: object) -> int:
    return int(response.topics[0][1][0][1])  # type: ignore[attr-defined]


def _refuse(waiting: _Waiting, failure: StorageError) -> None:
    if not waiting.placed.done():
        waiting.placed.set_exception(failure)
        # The caller may be gone.
        waiting.placed.exception()
