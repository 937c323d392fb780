"""Subscriptions to a consumer group: the connection is a member of the group while the subscription lasts.

Messages are pushed as they are polled; `ack` commits their offsets. When the assignment changes, the client is sent its
partitions. Those that are `finishing` are not read any further, and move to the next member as soon as everything that
was pushed of them is acknowledged. With `ack` set to `auto`, offsets are committed when messages are polled.
"""

from __future__ import annotations

import asyncio
import contextlib
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from whippet.app.commands import requests, responses
from whippet.app.commands.messages import ReadPositions
from whippet.app.commands.requests import Consumer, ConsumerKind, Strategy, StrategyKind
from whippet.app.errors import Code, CommandError
from whippet.app.shared_feeds import PIECE_BYTES
from whippet.storage.engine import Partition
from whippet.transports.http.errors import Refused
from whippet.transports.http.forms import request_bodies
from whippet.transports.http.forms.batch_decoder import decode_messages
from whippet.transports.http.forms.events import TailedMessage
from whippet.transports.http.forms.field_types import U32, U64, check_u64
from whippet.transports.websocket.subscription import Subscription
from whippet.transports.websocket.topic_subscription import CREDIT, Name, identifier

if TYPE_CHECKING:
    from whippet.transports.websocket.channel import Channel
    from whippet.transports.websocket.commands import Members

CHECK_SECONDS = 0.25
"""How long a change of the assignment may go unnoticed."""
MESSAGES_MAX = 1000
"""The most messages of one poll."""
_encode = msgspec.json.Encoder().encode


class ToGroup(msgspec.Struct, frozen=True, tag="group", tag_field="to"):
    stream: Name
    topic: Name
    group: Name
    ack: Literal["client", "auto"] = "client"
    credit: U32 = CREDIT


class Ack(msgspec.Struct, frozen=True):
    partition_id: U32
    offset: U64
    """The offset of the last message that is processed."""

    def __post_init__(self) -> None:
        check_u64(self.offset)


class GroupSubscription(Subscription):
    def __init__(self, channel: Channel, number: int, wanted: ToGroup, what: object) -> None:
        super().__init__(channel, number, wanted.credit)
        self.what = what
        self._place = identifier(wanted.stream), identifier(wanted.topic)
        self._group = identifier(wanted.group)
        self._consumer = Consumer(ConsumerKind.GROUP, self._group)
        self._stores = wanted.ack == "auto"
        self._generation: int | None = None
        self._sent_assignment: tuple[object, object] = ((), ())
        self._cursors: dict[int, int] = {}
        """The next offset of each partition that was read before."""
        self._turn = 0

    def on_end(self) -> None:
        self.channel.api.run_in_background(self._leave())

    async def _leave(self) -> None:
        with contextlib.suppress(CommandError):
            await self.channel.ask(requests.LeaveConsumerGroup(*self._place, self._group))

    async def ack(self, members: Members) -> None:
        try:
            ack = msgspec.json.decode(_encode(members), type=Ack)
        except msgspec.ValidationError as error:
            raise request_bodies.wrong_type(error, Ack) from None
        await self.channel.ask(requests.StoreConsumerOffset(self._consumer, *self._place, ack.partition_id, ack.offset))

    async def push_messages(self) -> None:
        while True:
            own = await self._assignment()
            if not self.credit:
                # A client without credit still receives its assignment.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.wait_for_credit(), CHECK_SECONDS)
            elif not await self._poll(own):
                await self._wait(own)

    async def _assignment(self) -> tuple[int, ...]:
        """Returns the partitions that may be read now, and sends them to the client if they have changed."""
        found: responses.GroupAssignment | None = await self.channel.ask(
            requests.SyncConsumerGroup(*self._place, self._group)
        )
        if found is None:
            raise CommandError(
                Code.CONSUMER_GROUP_MEMBER_NOT_FOUND, "the connection is no longer a member of the group"
            )
        message = found.partitions, found.finishing
        if message != self._sent_assignment or self._generation is None:
            assigned = {
                "generation": found.generation,
                "partitions": found.partitions,
                "finishing": found.finishing,
            }
            await self.channel.link.send(_encode({"sub": self.number, "assigned": assigned}))
            self._sent_assignment = message
        if found.generation != self._generation:
            self._generation = found.generation
            kept = {*found.partitions, *found.finishing}
            self._cursors = {number: at for number, at in self._cursors.items() if number in kept}
        return found.partitions

    async def _poll(self, own: tuple[int, ...]) -> bool:
        """Returns whether there were messages."""
        found = False
        for i in range(len(own)):
            number = own[(self._turn + i) % len(own)]
            if not self.credit:
                break
            found = await self._poll_partition(number) or found
        self._turn += 1
        return found

    async def _poll_partition(self, number: int) -> bool:
        at = self._cursors.get(number)
        strategy = Strategy(StrategyKind.NEXT) if at is None else Strategy(StrategyKind.OFFSET, at)
        count = min(self.credit, MESSAGES_MAX)
        polled: responses.Polled = await self.channel.ask(
            requests.PollMessages(self._consumer, *self._place, number, strategy, count, self._stores, PIECE_BYTES)
        )
        if not polled.owned or not polled.messages_count:
            return False
        messages: Any = await decode_messages(polled.batches, for_0_6=False)
        message: dict[str, Any] = {
            "sub": self.number,
            "messages": [TailedMessage(number, each.header, each.payload, each.user_headers) for each in messages],
        }
        first = messages[0].header.offset
        if at is not None and first > at:
            message["skipped"] = {number: first - at}
        await self.channel.link.send(_encode(message))
        self.credit -= len(messages)
        self._cursors[number] = polled.next_offset
        return True

    async def _wait(self, own: tuple[int, ...]) -> None:
        """Waits for a message in one of the partitions, or until the assignment has to be checked."""
        followed: ReadPositions = await self.channel.ask(requests.FollowMessages(*self._place, None))
        waits = [
            asyncio.ensure_future(_until(partition, self._cursors.get(partition.place.partition)))
            for partition in followed.partitions
            if partition.place.partition in own
        ]
        if not waits:
            await asyncio.sleep(CHECK_SECONDS)
            return
        try:
            await asyncio.wait(waits, timeout=CHECK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()


async def _until(partition: Partition, cursor: int | None) -> None:
    await partition.until(partition.readable if cursor is None else max(cursor, partition.readable))


async def subscribe(channel: Channel, number: int, wanted: ToGroup) -> GroupSubscription:
    names = identifier(wanted.stream), identifier(wanted.topic), identifier(wanted.group)
    what = _ids(channel, *names)
    if what is not None and channel.is_subscribed(what):
        raise Refused(HTTPStatus.CONFLICT, "The connection has subscribed to this group already", "group")
    await channel.ask(requests.JoinConsumerGroup(*names))
    return GroupSubscription(channel, number, wanted, _ids(channel, *names))


def _ids(
    channel: Channel, stream_name: requests.Identifier, topic_name: requests.Identifier, group_name: requests.Identifier
) -> tuple[int, int, int] | None:
    stream = channel.api.gateway.streams.find(stream_name)
    topic = None if stream is None else stream.topics.find(topic_name)
    group = None if topic is None else topic.groups.find(group_name)
    return None if stream is None or topic is None or group is None else (stream.id, topic.id, group.id)
