"""A producer: collects messages for a few milliseconds, or until there are enough, and sends them together, in order.

1. `send` adds a message to the open batch of its destination. It waits only while the buffers are full.
2. A batch is closed when it has `batch_messages` or `batch_bytes`, when it was open for `linger_ms`, or by `flush`.
   Closed batches are sent in the order in which they were closed, at most `in_flight` of them without a response.
3. `send` returns the delivery of the whole batch, which all its messages share. A failure that is not awaited is passed
   to `on_failure`, or, without one, raised by the next `flush` or `close`.

A refused batch is not sent again, and later ones, already on their way, may have been accepted: `in_flight=1` keeps the
order even then. A batch whose response was lost with the connection may be stored or not. With `resend`, and a client
that reconnects, it is sent again before all others: it may be stored twice, but in order. Without, it counts as failed.

With `numbered`, every batch has a number under which the server stores it once, however often it is sent: what was
accepted is stored exactly once, in order, even if the connection breaks or the server is killed (but a topic whose
durability is memory may lose it with the server). `producer_id` names the producer: of two with the same id, the server
refuses the one that was started first. Balanced messages of a numbered producer all go to one partition.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from types import TracebackType
from typing import Any

import msgspec

from whippet.app.client.batching import as_batch
from whippet.app.client.client import Client
from whippet.app.client.commands import BALANCED
from whippet.app.client.connection import Disconnected
from whippet.app.commands.requests import Identifier, Partitioning
from whippet.app.errors import Code, CommandError
from whippet.storage.batch import HEADER_BYTES, Message
from whippet.storage.errors import InvalidProducer
from whippet.storage.producers import Bounds
from whippet.storage.producers import Producer as Number

OBJECT_BYTES = 64
"""Counted for each message besides its payload and headers: its overhead on the wire."""

Content = bytes | Message
Contents = Sequence[Content] | bytearray | memoryview
"""Messages, or a finished batch."""


class FailedSend(msgspec.Struct, frozen=True):
    """Messages that were not, or possibly not, accepted, and the reason: to be sent again or stored elsewhere."""

    partitioning: Partitioning
    messages: Contents
    error: Exception


class SendsFailed(Exception):
    """Raised by `flush` and `close` for failures that nobody else has received."""

    def __init__(self, failures: list[FailedSend]) -> None:
        super().__init__(f"{len(failures)} batches were not accepted; the first: {failures[0].error}")
        self.failures = failures


class Delivery:
    """Awaiting it returns when the messages were accepted and raises when they were not, any number of times."""

    __slots__ = ("_outcome", "awaited")

    def __init__(self, outcome: asyncio.Future[None]) -> None:
        self._outcome = outcome
        self.awaited = False

    def __await__(self) -> Generator[Any, None, None]:
        self.awaited = True
        return asyncio.shield(self._outcome).__await__()

    @property
    def done(self) -> bool:
        return self._outcome.done()


class _Batch:
    """Messages with one destination and one delivery."""

    __slots__ = ("delivery", "messages", "number", "outcome", "partitioning", "size", "timer")

    def __init__(self, partitioning: Partitioning, messages: Contents, size: int) -> None:
        self.partitioning = partitioning
        self.messages = messages
        self.size = size
        self.outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.delivery = Delivery(self.outcome)
        self.timer: asyncio.Handle | None = None
        self.number: Number | None = None


IN_FLIGHT_NUMBERED_MAX = Bounds().answers
"""The server remembers so many results of a producer."""


class Producer:
    """Ended by `close`, or as an asynchronous context manager. One topic, any partitioning."""

    def __init__(
        self,
        client: Client,
        stream: Identifier,
        topic: Identifier,
        *,
        partitioning: Partitioning = BALANCED,
        linger_ms: float = 5.0,
        batch_messages: int = 1000,
        batch_bytes: int = 1 << 20,
        buffered_bytes_max: int = 32 << 20,
        in_flight: int = 4,
        resend: bool = False,
        numbered: bool = False,
        producer_id: str | None = None,
        on_failure: Callable[[FailedSend], None] | None = None,
    ) -> None:
        if min(batch_messages, batch_bytes, buffered_bytes_max, in_flight) < 1 or linger_ms < 0:
            raise ValueError("the limits of a producer must be at least 1, and linger_ms at least 0")
        numbered = numbered or producer_id is not None
        if numbered and in_flight > IN_FLIGHT_NUMBERED_MAX:
            raise ValueError(f"a numbered producer has at most {IN_FLIGHT_NUMBERED_MAX} batches in flight")
        self._client = client
        self._stream = stream
        self._topic = topic
        self._partitioning = partitioning
        self._linger_s = linger_ms / 1000
        self._batch_messages = batch_messages
        self._batch_bytes = batch_bytes
        self._buffered_bytes_max = buffered_bytes_max
        self._in_flight_max = in_flight
        self._resend = resend or numbered
        self._next_number = _first_number(producer_id) if numbered else None
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._open: dict[Partitioning, tuple[_Batch, list[Content]]] = {}
        self._queue: deque[_Batch] = deque()
        self._in_flight: deque[tuple[_Batch, asyncio.Future[Any]]] = deque()
        self._receiving: asyncio.Task[None] | None = None
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()
        """Callers that wait for room, and their sizes."""
        self._failures: list[tuple[Delivery, FailedSend]] = []
        self._closed = False
        self.buffered_bytes = 0
        """Collected, queued or without a response."""

    # -------------------------------------------------------------------------------------------------------- sending

    async def send(self, message: Content, partitioning: Partitioning | None = None) -> Delivery:
        """Accepts a message."""
        size = _size(message)
        if self._line or self._closed or not self._has_room(size):
            await self._admission(size)
        else:
            self.buffered_bytes += size
        to = self._partitioning if partitioning is None else partitioning
        found = self._open.get(to)
        if found is not None and found[0].size + size > self._batch_bytes:
            self._close(to)
            found = None
        if found is None:
            found = self._open_batch(to)
        batch, messages = found
        messages.append(message)
        batch.size += size
        if len(messages) >= self._batch_messages or batch.size >= self._batch_bytes:
            self._close(to)
        return batch.delivery

    async def send_all(self, messages: Contents, partitioning: Partitioning | None = None) -> Delivery:
        """Accepts messages as one batch, after what was sent before; a finished batch is sent as it is."""
        if isinstance(messages, bytearray | memoryview):
            size = max(len(messages) - HEADER_BYTES, 0)
        else:
            size = sum(map(_size, messages))
        if self._line or self._closed or not self._has_room(size):
            await self._admission(size)
        else:
            self.buffered_bytes += size
        to = self._partitioning if partitioning is None else partitioning
        self._close(to)
        batch = _Batch(to, messages, size)
        self._queue.append(batch)
        self._dispatch()
        return batch.delivery

    async def flush(self) -> None:
        """Returns when everything accepted before has its response. Raises SendsFailed for failures that nobody has
        received."""
        for to in list(self._open):
            self._close(to)
        waiting = [batch.outcome for batch, _ in self._in_flight] + [batch.outcome for batch in self._queue]
        if waiting:
            await asyncio.wait(waiting)
        failures, self._failures = self._failures, []
        if unreported := [failure for delivery, failure in failures if not delivery.awaited]:
            raise SendsFailed(unreported)

    async def close(self) -> None:
        """Accepts nothing any more, and flushes. Callers that wait for room are refused. Idempotent."""
        self._closed = True
        for _, turn in self._line:
            if not turn.done():
                turn.set_exception(_closed())
        self._line.clear()
        await self.flush()

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ---------------------------------------------------------------------------------------------------- backpressure

    def _has_room(self, size: int) -> bool:
        """A message that is larger than the buffers is accepted when they are empty."""
        return not self.buffered_bytes or self.buffered_bytes + size <= self._buffered_bytes_max

    async def _admission(self, size: int) -> None:
        """Waits for room after earlier callers, and takes it."""
        if self._closed:
            raise _closed()
        for to in list(self._open):
            # Otherwise everybody would wait for batches that linger.
            self._close(to)
        turn: asyncio.Future[None] = self._loop.create_future()
        self._line.append((size, turn))
        self._admit_waiting()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._line = deque(other for other in self._line if other[1] is not turn)
            elif turn.exception() is None:
                self.buffered_bytes -= size
            self._admit_waiting()
            raise

    def _admit_waiting(self) -> None:
        while self._line and self._has_room(self._line[0][0]):
            size, turn = self._line.popleft()
            if not turn.done():
                self.buffered_bytes += size
                turn.set_result(None)

    # --------------------------------------------------------------------------------------------------------- batches

    def _open_batch(self, to: Partitioning) -> tuple[_Batch, list[Content]]:
        messages: list[Content] = []
        batch = _Batch(to, messages, 0)
        self._open[to] = batch, messages
        if self._linger_s:
            batch.timer = self._loop.call_later(self._linger_s, self._close, to)
        else:
            batch.timer = self._loop.call_soon(self._close, to)
        return batch, messages

    def _close(self, to: Partitioning) -> None:
        found = self._open.pop(to, None)
        if found is None:
            return
        batch, _ = found
        if batch.timer is not None:
            batch.timer.cancel()
        self._queue.append(batch)
        self._dispatch()

    # ----------------------------------------------------------------------------------------- requests and responses

    def _dispatch(self) -> None:
        """Sends what may be sent now; the task that waits for responses calls it again for the rest."""
        while self._queue and self._may_send():
            batch = self._queue.popleft()
            if batch.number is None and self._next_number is not None:
                batch.number = number = self._next_number
                self._next_number = msgspec.structs.replace(number, sequence=number.sequence + 1)
            try:
                response = self._client.send_messages(
                    self._stream, self._topic, as_batch(batch.messages), batch.partitioning, number=batch.number
                )
            except Exception as error:  # noqa: BLE001 -- these cannot be encoded: the sender gets the error
                self._settle(batch, error)
            else:
                self._in_flight.append((batch, response))
        if self._receiving is None and (self._in_flight or self._queue):
            self._receiving = self._loop.create_task(self._receive_responses(), name="responses to a producer")

    def _may_send(self) -> bool:
        if len(self._in_flight) >= self._in_flight_max:
            return False
        if self._in_flight and self._in_flight[-1][1].done():
            # These responses were not processed yet. If the connection is lost, their batches go first.
            return False
        return self._client.is_connected or not self._client.comes_back

    async def _receive_responses(self) -> None:
        """Runs while any batch has no response."""
        try:
            while self._in_flight or self._queue:
                if not self._in_flight:
                    await self._connected()
                    continue
                batch, response = self._in_flight[0]
                error = await _outcome(response)
                if isinstance(error, Disconnected) and self._resend and self._client.comes_back:
                    await self._requeue()
                    continue
                self._in_flight.popleft()
                self._settle(batch, error)
                self._dispatch()
        finally:
            self._receiving = None

    async def _connected(self) -> None:
        """Sends as soon as there is a connection; if there will be none, all queued batches have failed."""
        try:
            await self._client.restored()
        except CommandError as error:
            queue, self._queue = self._queue, deque()
            for batch in queue:
                self._settle(batch, error)
        else:
            self._dispatch()

    async def _requeue(self) -> None:
        """The connection is lost: batches without a response are sent again before anything else."""
        pending, self._in_flight = self._in_flight, deque()
        for _, response in pending:
            await _outcome(response)
        self._queue.extendleft(batch for batch, _ in reversed(pending))

    def _settle(self, batch: _Batch, error: Exception | None) -> None:
        self.buffered_bytes -= batch.size
        if error is None:
            batch.outcome.set_result(None)
        else:
            batch.outcome.set_exception(error)
            # Marks the exception as retrieved: otherwise the loop reports a future that nobody awaits.
            batch.outcome.exception()
            failure = FailedSend(batch.partitioning, batch.messages, error)
            if self._on_failure is None:
                self._failures.append((batch.delivery, failure))
            else:
                self._on_failure(failure)
        self._admit_waiting()


def _first_number(producer_id: str | None) -> Number:
    """A producer that is started again under its id has a higher epoch, and fences the earlier one off. Two that start
    in the same second have the same epoch, so they must not have the same sequences."""
    if producer_id is None:
        return Number(secrets.token_hex(16).encode(), 0, 0)
    now_us = time.time_ns() // 1000
    try:
        return Number(producer_id.encode(), now_us // 1_000_000, now_us)
    except InvalidProducer as error:
        raise ValueError(str(error)) from None


def _size(message: Content) -> int:
    if isinstance(message, Message):
        return len(message.payload) + len(message.user_headers) + OBJECT_BYTES
    return len(message) + OBJECT_BYTES


def _closed() -> CommandError:
    return CommandError(Code.INVALID_COMMAND, "the producer is closed")


async def _outcome(response: asyncio.Future[Any]) -> Exception | None:
    try:
        await response
    except CommandError as error:
        return error
    return None
