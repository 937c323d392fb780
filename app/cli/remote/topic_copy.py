"""Copies messages between topics exactly once, although the copying may be killed at any moment.

1. Partition n goes to partition n. A round polls some partitions, sends what it gets, and waits for all responses.
2. Then two marks are stored, as offsets of consumers whose names are made from both topics: at the destination, the
   last message that is there; after that, at the source, the last message that is copied. The second one counts: it
   determines under which name the first one is. Before the first message, there is a mark that says so.
3. What was sent after the marks may or may not have arrived when a copy is killed. The next one compares: it reads the
   destination from its mark on, and continues after the messages of the source that it finds there, in their order, by
   id, origin time, headers and payload. Messages of others in between do no harm.
4. Meanwhile no request of the killed one may still be on its way. A copy is the only member of a consumer group at the
   destination; a server has executed what has arrived on a connection when it ends the membership.

It needs only commands that every server since 0.6 has. The destination chooses offsets and times; ids, headers, origin
times and the order within a partition stay.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from whippet.app.cli.remote import topic_reading
from whippet.app.cli.remote.activity import end_of
from whippet.app.cli.remote.failures import Failure
from whippet.app.cli.remote.importing import split_by_origin

if TYPE_CHECKING:
    from whippet.app.client.consumer import Received
    from whippet.app.commands.requests import Consumer

PREFIX = "whippet-copy-"
POLLED = 1000
SLOTS = 16
"""Names of marks at the destination."""
START = "start"
TOGETHER = 16
"""Partitions in one round: their messages are in memory at the same time."""
MARK_S = 1.0
"""The time between two marks. More messages are compared after a kill if there are fewer marks."""
ALONE_S = 60.0
"""How long a copy waits for another one to end. The session of a killed one ends at once, that of a lost machine when
its pings are missing."""
RETRY_S = 0.2

TopicPlace = tuple[int | str, int | str]


class End(msgspec.Struct, frozen=True):
    """A topic on a server."""

    client: Any
    place: TopicPlace
    name: str
    """For messages."""


class Copied(msgspec.Struct):
    """What a copy has done so far."""

    messages: int = 0
    size: int = 0
    found: int = 0
    """Messages that an earlier copy had sent after its last marks."""


class _Partition:
    """The progress in one partition."""

    __slots__ = ("has_begun", "id", "marked", "position")

    def __init__(self, number: int, marked: int | None, *, has_begun: bool) -> None:
        self.id = number
        self.marked = marked
        """The offset of the last mark at the source."""
        self.position = 0 if marked is None else marked + 1
        """The next offset to copy."""
        self.has_begun = has_begun
        """There is a mark from which to compare."""


async def identity(end: End) -> str:
    """Returns a text that is another one for each topic, also if it is created again under its name."""
    stream = await end.client.get_stream(end.place[0])
    topic = await end.client.get_topic(*end.place)
    return f"{stream.info.created_at}-{stream.info.id}-{topic.info.created_at}-{topic.info.id}"


class Copy:
    """One run, from `open` to `close`."""

    def __init__(self, source: End, target: End, on_progress: Callable[[Copied], None] = lambda _: None) -> None:
        self.copied = Copied()
        self._source = source
        self._target = target
        self._on_progress = on_progress
        self._name = ""
        self._is_member = False
        self._partitions: list[_Partition] = []
        self._ahead: dict[int, asyncio.Future[Any]] = {}
        self._sends: list[asyncio.Task[Sequence[Received]]] = []
        self.was_busy = False
        """The last round has copied something."""
        self._marked_at = time.monotonic()

    # ------------------------------------------------------------------------------------------------ open and close

    async def open(self, partitions: Sequence[int], *, restart: bool = False) -> None:
        """Waits until no other copy works on this, and finds out where to continue. `restart` forgets what earlier ones
        have done."""
        texts = (await identity(self._source), await identity(self._target))
        self._name = PREFIX + hashlib.sha256(" ".join(texts).encode()).hexdigest()[:24]
        await self._be_alone()
        source = await self._source.client.get_topic(*self._source.place)
        target = await self._target.client.get_topic(*self._target.place)
        theirs, ours = ({each.id: each for each in topic.partitions} for topic in (source, target))
        for number in partitions:
            # Everything that was appended before is readable after this.
            await self._target.client.flush_unsaved_buffer(*self._target.place, number)
            self._partitions.append(await self._where(theirs[number], ours[number], restart=restart))

    async def close(self) -> None:
        """Leaves the group, also in the middle of a round. The marks stay: a repeated copy continues after them."""
        self._forget_ahead()
        for send in self._sends:
            send.cancel()
        await asyncio.gather(*self._sends, return_exceptions=True)
        if not self._is_member:
            return
        self._is_member = False
        client, place = self._target.client, self._target.place
        await client.leave_consumer_group(*place, self._name)
        await client.delete_consumer_group(*place, self._name)

    async def _be_alone(self) -> None:
        from whippet.app.error_codes import Code  # noqa: PLC0415 -- not for --help
        from whippet.app.errors import CommandError  # noqa: PLC0415

        client, place = self._target.client, self._target.place
        deadline = time.monotonic() + ALONE_S
        while True:
            group = await client.get_consumer_group(*place, self._name)
            try:
                if group is None:
                    await client.create_consumer_group(*place, self._name)
                if group is None or not group.info.members_count:
                    await client.join_consumer_group(*place, self._name)
                    group = await client.get_consumer_group(*place, self._name)
                    if group is not None and group.info.members_count == 1:
                        self._is_member = True
                        return
                    await client.leave_consumer_group(*place, self._name)
            except CommandError as error:
                # Another one has created or deleted the group at the same time.
                if error.code not in (
                    Code.CONSUMER_GROUP_NAME_ALREADY_EXISTS,
                    Code.CONSUMER_GROUP_ID_NOT_FOUND,
                    Code.CONSUMER_GROUP_NAME_NOT_FOUND,
                    Code.CONSUMER_GROUP_MEMBER_NOT_FOUND,
                    Code.RESOURCE_NOT_FOUND,
                ):
                    raise
            if time.monotonic() > deadline:
                raise Failure(
                    f"another `whippet copy` from {self._source.name} to {self._target.name} is running; stop it first"
                )
            await asyncio.sleep(RETRY_S * random.uniform(0.5, 1.5))  # two that wait must not go on in step

    # ------------------------------------------------------------------------------------------ where to continue

    async def _where(self, source: Any, target: Any, *, restart: bool) -> _Partition:
        if restart:
            await self._forget_marks(source.id)
        done = await self._mark_of(self._source, source.id)
        has_begun = done is not None or await self._mark_of(self._source, source.id, START) is not None
        there = await self._mark_of(self._target, source.id, slot(done)) if has_begun else None
        is_purged = done is not None and (there is None or there >= end_of(target))
        if is_purged or (done is not None and done >= end_of(source)):
            end = self._target if is_purged else self._source
            raise Failure(
                f"partition {source.id} of {end.name} has been purged since the last copy; --restart copies it all"
            )
        partition = _Partition(source.id, done, has_begun=has_begun)
        if has_begun:
            await self._skip_what_has_arrived(partition, source, -1 if there is None else there, end_of(target))
        return partition

    async def _begin(self, partition: _Partition) -> None:
        """Marks what is at the destination before anything is sent there."""
        target = await self._target.client.get_topic(*self._target.place)
        end = next(end_of(each) for each in target.partitions if each.id == partition.id)
        if end:
            await self._mark(self._target, partition.id, end - 1, START)
        source = await self._source.client.get_topic(*self._source.place)
        end = next(end_of(each) for each in source.partitions if each.id == partition.id)
        # Which offset this is does not matter, only that it is there.
        await self._mark(self._source, partition.id, end - 1, START)
        partition.has_begun = True

    async def _skip_what_has_arrived(self, partition: _Partition, source: Any, there: int, end: int) -> None:
        if there + 1 >= end:
            return
        ours = _one_by_one(
            topic_reading.messages(
                self._source.client, self._source.place, partition.id, partition.position, end_of(source)
            )
        )
        wanted = await anext(ours, None)
        arrived = topic_reading.messages(self._target.client, self._target.place, partition.id, there + 1, end)
        async for message in _one_by_one(arrived):
            if wanted is None:
                break
            if _same(message, wanted):
                partition.position = wanted.offset + 1
                self.copied.found += 1
                wanted = await anext(ours, None)
        await ours.aclose()

    # ---------------------------------------------------------------------------------------------------- copying

    async def round(self) -> bool:
        """Copies some messages of each partition. Returns False if there was nothing."""
        any_messages = False
        for first in range(0, len(self._partitions), TOGETHER):
            any_messages |= await self._round(self._partitions[first : first + TOGETHER])
        if time.monotonic() - self._marked_at >= MARK_S:
            await self.mark()
        self.was_busy = any_messages
        return any_messages

    async def _round(self, partitions: Sequence[_Partition]) -> bool:
        from whippet.app.client.consumer import received  # noqa: PLC0415 -- not for --help

        polls = [self._ahead.pop(each.id) if each.id in self._ahead else self._poll(each) for each in partitions]
        sends = self._sends = []
        for partition, polled in zip(partitions, await asyncio.gather(*polls), strict=True):
            messages = [each for each in received(polled) if each.offset >= partition.position]
            if messages:
                if not partition.has_begun:
                    await self._begin(partition)
                sends.append(asyncio.create_task(self._send(partition.id, messages)))
                partition.position = messages[-1].offset + 1
                # While the destination works, the source can, too.
                self._ahead[partition.id] = self._poll(partition)
        if sends:
            # One that is refused must not leave the others alone.
            await asyncio.wait(sends)
            for send in sends:
                self.copied.messages += len(send.result())
                self.copied.size += sum(len(each.payload) for each in send.result())
            self._on_progress(self.copied)
        return bool(sends)

    async def _send(self, partition: int, messages: Sequence[Received]) -> Sequence[Received]:
        """One part after the other: if one is refused, what follows it must not be there."""
        from whippet.app.client.commands import to_partition  # noqa: PLC0415
        from whippet.storage.batch import Message  # noqa: PLC0415

        batch = [Message(each.payload, each.id, each.user_headers, each.origin_timestamp) for each in messages]
        for part in split_by_origin(batch):
            await self._target.client.send_messages(*self._target.place, part, to_partition(partition))
        return messages

    def _poll(self, partition: _Partition) -> asyncio.Future[Any]:
        from whippet.app.client.commands import from_offset  # noqa: PLC0415

        start = from_offset(partition.position)
        return topic_reading.poll(self._source.client, self._source.place, partition.id, start, POLLED)

    def _forget_ahead(self) -> None:
        for poll in self._ahead.values():
            if not poll.cancel():
                poll.exception()
        self._ahead.clear()

    # ------------------------------------------------------------------------------------------------------ marks

    async def mark(self) -> None:
        """Stores how far everything that was sent is copied: everything has its response."""
        self._marked_at = time.monotonic()
        # The mark that counts now must not be replaced: a mark that would need its name comes later.
        due = [
            each
            for each in self._partitions
            if each.position > (each.marked or 0) and slot(each.position - 1) != slot(each.marked)
        ]
        if not due:
            return
        target = await self._target.client.get_topic(*self._target.place)
        ends = {each.id: end_of(each) for each in target.partitions}
        for each in due:
            last = each.position - 1
            await self._mark(self._target, each.id, ends[each.id] - 1, slot(last))
            await self._mark(self._source, each.id, last)
            each.marked = last

    def _consumer(self, name: str) -> Consumer:
        from whippet.app.commands.requests import Consumer, ConsumerKind  # noqa: PLC0415

        return Consumer(ConsumerKind.CONSUMER, f"{self._name}-{name}" if name else self._name)

    async def _mark(self, end: End, partition: int, offset: int, name: str = "") -> None:
        await end.client.store_consumer_offset(*end.place, self._consumer(name), offset, partition)

    async def _mark_of(self, end: End, partition: int, name: str = "") -> int | None:
        found = await end.client.get_consumer_offset(*end.place, self._consumer(name), partition)
        return None if found is None else int(found.stored_offset)

    async def _forget_marks(self, partition: int) -> None:
        """The mark that counts is forgotten first: without it, the others mean nothing."""
        target = [START, *(str(number) for number in range(SLOTS))]
        for end, names in ((self._source, ["", START]), (self._target, target)):
            for name in names:
                if await self._mark_of(end, partition, name) is not None:
                    await end.client.delete_consumer_offset(*end.place, self._consumer(name), partition)


def slot(offset: int | None) -> str:
    """Returns the name of the mark at the destination that belongs to a mark at the source."""
    return START if offset is None else str((offset * 2_654_435_761 >> 16) % SLOTS)


async def _one_by_one(lists: AsyncIterator[list[Received]]) -> Any:
    async for found in lists:
        for each in found:
            yield each


def _same(one: Received, other: Received) -> bool:
    return (
        one.id == other.id
        and one.origin_timestamp == other.origin_timestamp
        and one.user_headers == other.user_headers
        and one.payload == other.payload
    )
