"""A producer: messages are gathered for a few milliseconds or until there are enough, and sent together, in order.

1. `send` puts a message into the open batch of its destination. It waits only when as much is in hand as may be.
2. A batch is closed when it has `batch_messages` or `batch_bytes`, when it was open for `linger_ms`, or by `flush`.
   Closed batches go out in the order in which they were closed, at most `in_flight` of them without an answer.
3. What `send` gives back is the delivery of the whole batch, one for all its messages. Of failures that nobody awaits
   `on_failure` is told, or, where there is none, the next `flush` or `close` tells.

A refused batch is not sent again, and later ones, already under way, may have been accepted: `in_flight=1` keeps the
order even then. A batch whose answer was lost with the connection may be there or not. With `resend`, and a client that
comes back, it is sent again before all others: it may be there twice, but in order. Without, it counts as failed.
"""

from __future__ import annotations

import asyncio
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

OBJECT_BYTES = 64
"""What a message counts besides its payload and headers: what it takes more on the wire."""

Content = bytes | Message
Contents = Sequence[Content] | bytearray | memoryview
"""Messages, or a batch that is ready."""


class FailedSend(msgspec.Struct, frozen=True):
    """Messages that were not, or perhaps not, accepted, and why: to be sent again or put elsewhere."""

    partitioning: Partitioning
    messages: Contents
    error: Exception


class SendsFailed(Exception):
    """What `flush` and `close` raise for failures that nobody else has heard of."""

    def __init__(self, failures: list[FailedSend]) -> None:
        super().__init__(f"{len(failures)} batches were not accepted; the first: {failures[0].error}")
        self.failures = failures


class Delivery:
    """Awaiting it returns when the messages were accepted and raises when they were not, as often as one likes."""

    __slots__ = ("_answer", "awaited")

    def __init__(self, answer: asyncio.Future[None]) -> None:
        self._answer = answer
        self.awaited = False

    def __await__(self) -> Generator[Any, None, None]:
        self.awaited = True
        return asyncio.shield(self._answer).__await__()

    @property
    def done(self) -> bool:
        return self._answer.done()


class _Batch:
    """Messages with one destination and one delivery."""

    __slots__ = ("answer", "delivery", "messages", "partitioning", "size", "timer")

    def __init__(self, partitioning: Partitioning, messages: Contents, size: int) -> None:
        self.partitioning = partitioning
        self.messages = messages
        self.size = size
        self.answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.delivery = Delivery(self.answer)
        self.timer: asyncio.Handle | None = None


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
        on_failure: Callable[[FailedSend], None] | None = None,
    ) -> None:
        if min(batch_messages, batch_bytes, buffered_bytes_max, in_flight) < 1 or linger_ms < 0:
            raise ValueError("the limits of a producer are at least 1, and it cannot linger for less than no time")
        self._client = client
        self._stream = stream
        self._topic = topic
        self._partitioning = partitioning
        self._linger_s = linger_ms / 1000
        self._batch_messages = batch_messages
        self._batch_bytes = batch_bytes
        self._buffered_bytes_max = buffered_bytes_max
        self._in_flight_max = in_flight
        self._resend = resend
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._open: dict[Partitioning, tuple[_Batch, list[Content]]] = {}
        self._queue: deque[_Batch] = deque()
        self._flying: deque[tuple[_Batch, asyncio.Future[Any]]] = deque()
        self._answering: asyncio.Task[None] | None = None
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()
        """Who waits for room, and for how much."""
        self._failures: list[tuple[Delivery, FailedSend]] = []
        self._closed = False
        self.buffered_bytes = 0
        """Gathered, waiting or under way."""

    # -------------------------------------------------------------------------------------------------------- sending

    async def send(self, message: Content, partitioning: Partitioning | None = None) -> Delivery:
        """Takes a message on."""
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
        """Takes many on as one batch, behind what was sent before; a batch that is ready goes out as it is."""
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
        """Returns when all that was taken on before has its answer; SendsFailed tells what nobody else was told."""
        for to in list(self._open):
            self._close(to)
        waiting = [batch.answer for batch, _ in self._flying] + [batch.answer for batch in self._queue]
        if waiting:
            await asyncio.wait(waiting)
        failures, self._failures = self._failures, []
        if unheard := [failure for delivery, failure in failures if not delivery.awaited]:
            raise SendsFailed(unheard)

    async def close(self) -> None:
        """Takes nothing on any more, and flushes. Who waits for room is refused. Idempotent."""
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

    # ------------------------------------------------------------------------------------------------------------ room

    def _has_room(self, size: int) -> bool:
        """A message that is larger than all that may be in hand is taken on when nothing else is."""
        return not self.buffered_bytes or self.buffered_bytes + size <= self._buffered_bytes_max

    async def _admission(self, size: int) -> None:
        """Waits for room behind those who came earlier, and has it."""
        if self._closed:
            raise _closed()
        for to in list(self._open):
            # What lingers would be what everybody waits for.
            self._close(to)
        turn: asyncio.Future[None] = self._loop.create_future()
        self._line.append((size, turn))
        self._let_in()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._line = deque(other for other in self._line if other[1] is not turn)
            elif turn.exception() is None:
                self.buffered_bytes -= size
            self._let_in()
            raise

    def _let_in(self) -> None:
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

    # ---------------------------------------------------------------------------------------------- sent and answered

    def _dispatch(self) -> None:
        """Sends what may be sent now; the task that waits for the answers calls it again for the rest."""
        while self._queue and self._may_send():
            batch = self._queue.popleft()
            try:
                answer = self._client.send_messages(
                    self._stream, self._topic, as_batch(batch.messages), batch.partitioning
                )
            except Exception as error:  # noqa: BLE001 -- no batch can be made of these: who sent them is told
                self._settle(batch, error)
            else:
                self._flying.append((batch, answer))
        if self._answering is None and (self._flying or self._queue):
            self._answering = self._loop.create_task(self._answer(), name="answers to a producer")

    def _may_send(self) -> bool:
        if len(self._flying) >= self._in_flight_max:
            return False
        if self._flying and self._flying[-1][1].done():
            # Nobody has looked at the answers yet. Should they say that the connection is lost, these go first.
            return False
        return self._client.is_connected or not self._client.comes_back

    async def _answer(self) -> None:
        """Lives as long as anything has no answer."""
        try:
            while self._flying or self._queue:
                if not self._flying:
                    await self._connected()
                    continue
                batch, answer = self._flying[0]
                error = await _outcome(answer)
                if isinstance(error, Disconnected) and self._resend and self._client.comes_back:
                    await self._take_back()
                    continue
                self._flying.popleft()
                self._settle(batch, error)
                self._dispatch()
        finally:
            self._answering = None

    async def _connected(self) -> None:
        """Sends as soon as there is a connection; if there will be none, all that waits for it has failed."""
        try:
            await self._client.restored()
        except CommandError as error:
            queue, self._queue = self._queue, deque()
            for batch in queue:
                self._settle(batch, error)
        else:
            self._dispatch()

    async def _take_back(self) -> None:
        """The connection is lost: what was under way goes out again before anything else."""
        flying, self._flying = self._flying, deque()
        for _, answer in flying:
            await _outcome(answer)
        self._queue.extendleft(batch for batch, _ in reversed(flying))

    def _settle(self, batch: _Batch, error: Exception | None) -> None:
        self.buffered_bytes -= batch.size
        if error is None:
            batch.answer.set_result(None)
        else:
            batch.answer.set_exception(error)
            # Looked at: the loop would otherwise complain of an answer that nobody awaits.
            batch.answer.exception()
            failure = FailedSend(batch.partitioning, batch.messages, error)
            if self._on_failure is None:
                self._failures.append((batch.delivery, failure))
            else:
                self._on_failure(failure)
        self._let_in()


def _size(message: Content) -> int:
    if isinstance(message, Message):
        return len(message.payload) + len(message.user_headers) + OBJECT_BYTES
    return len(message) + OBJECT_BYTES


def _closed() -> CommandError:
    return CommandError(Code.INVALID_COMMAND, "the producer is closed")


async def _outcome(answer: asyncio.Future[Any]) -> Exception | None:
    try:
        await answer
    except CommandError as error:
        return error
    return None
