"""Subscriptions to rates, every second, and to events about the catalogue. Users receive only what they may read."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType

from whippet.app.access import permissions as may
from whippet.app.catalogue_events import Event
from whippet.app.errors import Code, CommandError
from whippet.app.model.catalogue import Stream, Topic
from whippet.transports.http.forms.field_types import U32
from whippet.transports.websocket.subscription import Subscription
from whippet.transports.websocket.topic_subscription import CREDIT, Name, identifier

if TYPE_CHECKING:
    from whippet.app.access.permissions import Permissions
    from whippet.transports.websocket.channel import Channel

EVENTS_MAX = 256
"""Events that wait for credit, or for a slow reader; above this the oldest are skipped."""
_encode = msgspec.json.Encoder().encode


class ToStats(msgspec.Struct, frozen=True, tag="stats", tag_field="to"):
    stream: Name | UnsetType = UNSET
    """Only this stream; without it, all streams."""
    topic: Name | UnsetType = UNSET
    credit: U32 = CREDIT

    def __post_init__(self) -> None:
        if self.topic is not UNSET and self.stream is UNSET:
            raise ValueError("`topic` needs `stream`")


class ToEvents(msgspec.Struct, frozen=True, tag="events", tag_field="to"):
    stream: Name | UnsetType = UNSET
    topic: Name | UnsetType = UNSET
    credit: U32 = CREDIT

    def __post_init__(self) -> None:
        if self.topic is not UNSET and self.stream is UNSET:
            raise ValueError("`topic` needs `stream`")


class _Watch(Subscription):
    """A subscription to everything, to a stream, or to a topic."""

    def __init__(self, channel: Channel, number: int, wanted: ToStats | ToEvents) -> None:
        super().__init__(channel, number, wanted.credit)
        self._stream, self._topic = self._find(wanted)
        self._skipped = 0

    def _find(self, wanted: ToStats | ToEvents) -> tuple[Stream | None, Topic | None]:
        if wanted.stream is UNSET:
            return None, None
        stream = self.channel.api.gateway.streams.find(identifier(wanted.stream))
        if stream is None:
            raise CommandError(Code.STREAM_ID_NOT_FOUND, about=(wanted.stream,))
        if wanted.topic is UNSET:
            return stream, None
        topic = stream.topics.find(identifier(wanted.topic))
        if topic is None:
            raise CommandError(Code.TOPIC_ID_NOT_FOUND, about=(wanted.topic, stream.name))
        return stream, topic

    @property
    def _permissions(self) -> Permissions | None:
        user = self.channel.api.gateway.users.by_login(self.channel.session.login)
        if user is None:
            raise CommandError(Code.UNAUTHENTICATED)
        return user.permissions

    def may_read(self, stream_id: int, topic_id: int | None) -> bool:
        permissions = self._permissions
        if permissions is None:
            return False
        if topic_id is None:
            return may.read_stream(permissions, stream_id, 0)
        return may.read_topic(permissions, stream_id, topic_id)

    def _is_there(self) -> bool:
        stream, topic = self._stream, self._topic
        if stream is None:
            return True
        found = self.channel.api.gateway.streams.find(stream.id)
        return found is stream and (topic is None or stream.topics.find(topic.id) is topic)

    async def check(self) -> None:
        if not self._is_there():
            self.end("gone", "It was deleted")
        elif self._stream is not None and not self.may_read(
            self._stream.id, None if self._topic is None else self._topic.id
        ):
            raise CommandError(Code.UNAUTHORIZED)

    async def push(self, member: str, what: bytes) -> None:
        skipped, self._skipped = self._skipped, 0
        tail = b',"skipped":%d}' % skipped if skipped else b"}"
        await self.channel.link.send(b'{"sub":%d,"%b":' % (self.number, member.encode()), what, tail)
        self.credit -= 1


class StatsSubscription(_Watch):
    async def check(self) -> None:
        await super().check()
        permissions = self._permissions
        if self._stream is None and (permissions is None or not may.read_streams(permissions, 0, 0)):
            raise CommandError(Code.UNAUTHORIZED, "the rates of all streams need the permission to read all streams")

    async def push_messages(self) -> None:
        rates = self.channel.api.gateway.rates
        while True:
            measurement = await rates.next()
            if not self._is_there():
                self.end("gone", "It was deleted")
            elif self.credit:
                stream_id = None if self._stream is None else self._stream.id
                topic_id = None if self._topic is None else self._topic.id
                await self.push("stats", measurement.encoded(stream_id, topic_id))
            else:
                self._skipped += 1


class EventsSubscription(_Watch):
    def __init__(self, channel: Channel, number: int, wanted: ToEvents) -> None:
        super().__init__(channel, number, wanted)
        self._events: deque[Event] = deque()
        self._has_events = asyncio.Event()
        channel.api.gateway.catalogue_events.subscribe(self._on_event)

    def on_end(self) -> None:
        self.channel.api.gateway.catalogue_events.unsubscribe(self._on_event)

    def _on_event(self, event: Event) -> None:
        if self._stream is not None and event.stream.id != self._stream.id:
            return
        if self._topic is not None and (event.topic is None or event.topic.id != self._topic.id):
            return
        if not self._may_see(event):
            # It must neither count as skipped nor displace an event that the user may see.
            return
        if len(self._events) == EVENTS_MAX:
            self._events.popleft()
            self._skipped += 1
        self._events.append(event)
        self._has_events.set()

    def _may_see(self, event: Event) -> bool:
        try:
            return self.may_read(event.stream.id, None if event.topic is None else event.topic.id)
        except CommandError:
            return False

    async def check(self) -> None:
        if self._is_there():
            await super().check()
        elif not self._events:
            # The event of the deletion has been sent.
            self.end("gone", "It was deleted")

    async def push_messages(self) -> None:
        while True:
            await self._has_events.wait()
            await self.wait_for_credit()
            event = self._events.popleft()
            if not self._events:
                self._has_events.clear()
            # The permission may have changed during the wait.
            if self._may_see(event):
                await self.push("event", _encode(event))


async def subscribe_to_stats(channel: Channel, number: int, wanted: ToStats) -> StatsSubscription:
    found = StatsSubscription(channel, number, wanted)
    await found.check()
    return found


async def subscribe_to_events(channel: Channel, number: int, wanted: ToEvents) -> EventsSubscription:
    found = EventsSubscription(channel, number, wanted)
    try:
        await found.check()
    except CommandError:
        found.on_end()
        raise
    return found
