"""Consumers: iterate over the messages of a topic, or over polls, and commit offsets.

    async with Consumer(client, "orders", "created", "billing") as consumer:
        async for message in consumer:
            ...

A message counts as processed when the next one is requested, and the last one when the consumer is closed, unless an
error closed it. The classic protocol has no long polls: after the last message the consumer polls again every `idle_s`.

A `Consumer` reads one partition and keeps its own position. A `GroupConsumer` reads the partitions that the server
assigns, from the stored offsets of the group. So the messages returned from a partition are committed before the next
poll, in all modes but `off` and `each_poll`; with `off`, messages that are returned again are skipped while the
partition stays with this member.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from types import TracebackType

import msgspec

from whippet.app.client.auto_commit import AutoCommit
from whippet.app.client.client import Client
from whippet.app.client.commands import FIRST, NEXT, from_offset
from whippet.app.client.connection import Disconnected
from whippet.app.commands import requests
from whippet.app.commands.requests import ConsumerKind, Identifier, Strategy
from whippet.app.commands.responses import Polled
from whippet.app.errors import Code, CommandError
from whippet.storage import batch as batches

IDLE_S = 0.1


class Received(msgspec.Struct, frozen=True):
    """A message with its partition. Times are microseconds since 1970."""

    partition_id: int
    offset: int
    timestamp: int
    origin_timestamp: int
    id: int
    payload: bytes
    user_headers: bytes


class _Reader(ABC):
    """The base of both kinds of consumers, which differ in how they poll."""

    def __init__(
        self,
        client: Client,
        stream: Identifier,
        topic: Identifier,
        consumer: requests.Consumer,
        batch: int,
        auto_commit: AutoCommit,
        follow: bool,
        idle_s: float,
    ) -> None:
        if batch < 1:
            raise ValueError(f"a poll requests at least one message, not {batch}")
        self._client = client
        self._stream = stream
        self._topic = topic
        self._consumer = consumer
        self._batch = batch
        self._mode = auto_commit
        self._follow = follow
        self._idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self._messages: Iterator[Received] = iter(())
        self._returned: Received | None = None
        self._last: Polled | None = None
        """The poll that `polls` returned last."""
        self._processed: dict[int, int] = {}
        """The offset up to which each partition is processed, if it is not committed yet."""
        self._uncommitted: dict[int, int] = {}
        """The number of these messages."""
        self._committed_at = self._loop.time()

    # ------------------------------------------------------------------------------------------------------ iteration

    def __aiter__(self) -> AsyncIterator[Received]:
        return self

    async def __anext__(self) -> Received:
        self._mark_processed()
        await self._commit_if_due()
        while True:
            message = next(self._messages, None)
            if message is not None:
                self._returned = message
                return message
            polled = await self._poll()
            if polled is None:
                raise StopAsyncIteration
            self._messages = received(polled)

    def next_at_once(self) -> Received | None:
        """Returns the next message if nothing has to be awaited for it; None otherwise, also at the end."""
        self._mark_processed()
        message = None if self._due() else next(self._messages, None)
        self._returned = message
        return message

    async def polls(self) -> AsyncIterator[Polled]:
        """Yields whole polls with their batches, for callers that need no object per message. Endless, like the
        messages, unless the consumer does not follow."""
        while True:
            self._mark_processed()
            await self._commit_if_due()
            polled = await self._poll()
            if polled is None:
                return
            self._last = polled
            yield polled

    async def _poll(self) -> Polled | None:
        """Returns the next messages, and waits for them if necessary. Returns None at the end, unless the consumer
        follows."""
        while True:
            if self._mode.after_poll:
                await self.commit()
            polled = await self._poll_once()
            if polled is not None:
                return polled
            if not self._follow:
                return None
            await asyncio.sleep(self._idle_s)
            await self._commit_if_due()

    @abstractmethod
    async def _poll_once(self) -> Polled | None:
        """Polls once, or until it is certain that there are no messages: None."""

    def _poll_server(self, strategy: Strategy, partition_id: int | None) -> asyncio.Future[Polled]:
        return self._client.poll_messages(
            self._stream,
            self._topic,
            self._consumer,
            partition_id=partition_id,
            strategy=strategy,
            count=self._batch,
            auto_commit=self._mode.on_poll,
        )

    # ----------------------------------------------------------------------------------------------------- committing

    def _mark_processed(self) -> None:
        """Counts the returned messages as processed."""
        message, self._returned = self._returned, None
        if message is not None:
            self._record_processed(message.partition_id, message.offset, 1)
        polled, self._last = self._last, None
        if polled is not None:
            self._record_processed(polled.partition_id, last_offset(polled), polled.messages_count)

    def _record_processed(self, partition_id: int, offset: int, count: int) -> None:
        if not self._mode.on_poll:
            self._processed[partition_id] = offset
            self._uncommitted[partition_id] = self._uncommitted.get(partition_id, 0) + count

    async def _commit_if_due(self) -> None:
        if due := self._due():
            await self._commit(due)

    def _due(self) -> list[int]:
        """Returns the partitions to commit now, by the mode."""
        mode = self._mode
        if mode.every is not None:
            return [partition_id for partition_id, count in self._uncommitted.items() if count >= mode.every]
        if mode.interval_s is not None and self._loop.time() - self._committed_at >= mode.interval_s:
            return list(self._processed)
        return []

    async def commit(self) -> None:
        """Commits everything that is processed. For mode `off`, and at any time."""
        await self._commit(list(self._processed))

    async def _commit(self, partition_ids: list[int]) -> None:
        self._committed_at = self._loop.time()
        for partition_id in partition_ids:
            offset = self._processed.pop(partition_id)
            self._uncommitted.pop(partition_id, None)
            try:
                await self._store(partition_id, offset)
            except Disconnected:
                # It remains to be committed.
                self._record_processed(partition_id, offset, 0)
                raise

    async def _store(self, partition_id: int, offset: int) -> None:
        await self._client.store_consumer_offset(self._stream, self._topic, self._consumer, offset, partition_id)

    # --------------------------------------------------------------------------------------------------------- closing

    async def close(self, *, processed: bool = True) -> None:
        """Commits what was processed; `processed` tells whether the message returned last was. The client stays
        open."""
        if processed:
            self._mark_processed()
        self._returned = self._last = None
        self._messages = iter(())
        if not self._mode.is_off:
            await self.commit()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(processed=kind is None)


class Consumer(_Reader):
    """Reads one partition, from `strategy` on. NEXT is the offset after the stored one."""

    def __init__(
        self,
        client: Client,
        stream: Identifier,
        topic: Identifier,
        consumer: Identifier,
        *,
        partition_id: int = 0,
        strategy: Strategy = NEXT,
        batch: int = 1000,
        auto_commit: AutoCommit = AutoCommit.each_poll_processed(),  # noqa: B008 -- a frozen value
        follow: bool = True,
        idle_s: float = IDLE_S,
    ) -> None:
        """`follow` False: the iteration ends at the end of the partition."""
        identity = requests.Consumer(ConsumerKind.CONSUMER, consumer)
        super().__init__(client, stream, topic, identity, batch, auto_commit, follow, idle_s)
        self._partition_id = partition_id
        self._strategy = strategy
        self._position: int | None = None
        """The offset after the last message received."""

    async def __aenter__(self) -> Consumer:
        return self

    async def _poll_once(self) -> Polled | None:
        strategy = self._strategy if self._position is None else from_offset(self._position)
        polled = await self._poll_server(strategy, self._partition_id)
        if polled.messages_count:
            self._position = last_offset(polled) + 1
            return polled
        if self._position is not None and self._position > polled.current_offset + 1:
            # The partition was purged: its offsets start from 0 again.
            self._position, self._strategy = None, FIRST
            self._processed.clear()
        return None


class GroupConsumer(_Reader):
    """Joins a group when it is entered, reads the partitions assigned to it, and leaves the group when it is closed."""

    def __init__(
        self,
        client: Client,
        stream: Identifier,
        topic: Identifier,
        group: Identifier,
        *,
        create: bool = True,
        batch: int = 1000,
        auto_commit: AutoCommit = AutoCommit.each_poll_processed(),  # noqa: B008 -- a frozen value
        follow: bool = True,
        idle_s: float = IDLE_S,
    ) -> None:
        """`create` creates the group if it does not exist. `follow` False: the iteration ends when this member gets no
        more messages; other members may."""
        identity = requests.Consumer(ConsumerKind.GROUP, group)
        super().__init__(client, stream, topic, identity, batch, auto_commit, follow, idle_s)
        self._group = group
        self._create = create
        self._joined = False
        self._positions: dict[int, int] = {}
        """The offset after the last message received, of each partition, since this member owns it."""

    async def __aenter__(self) -> GroupConsumer:
        await self.join()
        return self

    async def join(self) -> None:
        """Idempotent. First creates the group, if it is to be created."""
        if self._create and isinstance(self._group, str):
            try:
                await self._client.create_consumer_group(self._stream, self._topic, self._group)
            except CommandError as error:
                if error.code is not Code.CONSUMER_GROUP_NAME_ALREADY_EXISTS:
                    raise
        await self._client.join_consumer_group(self._stream, self._topic, self._group)
        self._joined = True

    async def close(self, *, processed: bool = True) -> None:
        try:
            await super().close(processed=processed)
        finally:
            if self._joined and self._client.is_connected:
                self._joined = False
                try:
                    await self._client.leave_consumer_group(self._stream, self._topic, self._group)
                except CommandError as error:
                    if error.code not in _NOTHING_TO_LEAVE:
                        raise

    async def _poll_once(self) -> Polled | None:
        """The server polls the partitions of a member in turn: nothing is left when a whole round was empty."""
        empty: set[int] = set()
        while True:
            if not self._mode.is_off:
                await self.commit()
            polled = await self._poll_as_member(NEXT, None)
            if polled.messages_count:
                fresh = await self._unseen(polled) if self._mode.is_off else polled
                if fresh is not None:
                    self._positions[fresh.partition_id] = last_offset(fresh) + 1
                    return fresh
            elif polled.current_offset + 1 < self._positions.get(polled.partition_id, 0):
                del self._positions[polled.partition_id]
            if polled.partition_id in empty:
                return None
            empty.add(polled.partition_id)

    async def _unseen(self, polled: Polled) -> Polled | None:
        """If a poll begins with messages that were returned before, polls again after those."""
        partition_id = polled.partition_id
        position = self._positions.get(partition_id, 0)
        if polled.current_offset + 1 < position:
            del self._positions[partition_id]
            return polled
        if batches.first_offset(polled.batches[0]) >= position:
            return polled
        more = await self._poll_as_member(from_offset(position), partition_id)
        return more if more.messages_count and more.partition_id == partition_id else None

    async def _poll_as_member(self, strategy: Strategy, partition_id: int | None) -> Polled:
        """A member whose connection is new joins again."""
        try:
            return await self._poll_server(strategy, partition_id)
        except CommandError as error:
            if error.code is not Code.CONSUMER_GROUP_MEMBER_NOT_FOUND or not self._joined:
                raise
        self._positions.clear()
        await self._client.join_consumer_group(self._stream, self._topic, self._group)
        return await self._poll_server(strategy, partition_id)

    async def _store(self, partition_id: int, offset: int) -> None:
        """A partition that was reassigned is the other member's to commit."""
        try:
            await super()._store(partition_id, offset)
        except CommandError as error:
            if error.code not in _GONE:
                raise
            self._positions.pop(partition_id, None)


_GONE = frozenset(
    {
        Code.NOT_RESOLVED_CONSUMER,
        Code.CONSUMER_GROUP_MEMBER_NOT_FOUND,
        Code.CONSUMER_GROUP_PARTITION_NOT_OWNED,
        Code.PARTITION_NOT_FOUND,
    }
)

_NOTHING_TO_LEAVE = frozenset(
    {
        Code.CONSUMER_GROUP_MEMBER_NOT_FOUND,
        Code.CONSUMER_GROUP_ID_NOT_FOUND,
        Code.TOPIC_ID_NOT_FOUND,
        Code.STREAM_ID_NOT_FOUND,
        Code.DISCONNECTED,
    }
)


def last_offset(polled: Polled) -> int:
    """Returns the offset of the last message of a poll that returned some."""
    last = polled.batches[-1]
    return batches.first_offset(last) + batches.header(last).message_count - 1


def received(polled: Polled) -> Iterator[Received]:
    """Decodes the messages of a poll."""
    partition_id = polled.partition_id
    for batch in polled.batches:
        for one in batches.messages(batch):
            yield Received(
                partition_id, one.offset, one.timestamp, one.origin_timestamp, one.id, one.payload, one.user_headers
            )
