"""Subscriptions to a topic: pushes its messages as they are appended, from where the client wants to start.

What many subscribers receive is encoded once (transports/websocket/filters.py): they share the feeds of
app/shared_feeds.py, each as far as its credit allows. Depending on `behind`, a client that falls behind, or whose rate
limit is lower than the rate of the topic, either reads everything at its own pace, or skips to the newest message and
gets the number of messages it has missed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import xxhash
from msgspec import UNSET, UnsetType

from whippet.app.commands import requests
from whippet.app.commands.messages import ReadPositions
from whippet.app.commands.requests import DIGITS_MAX, Consumer, ConsumerKind, Strategy, StrategyKind
from whippet.app.shared_feeds import Cursor, Piece, SharedFeed
from whippet.transports.http.errors import Refused
from whippet.transports.http.forms import parameters
from whippet.transports.http.forms.events import Place, event_id, parse_cursor, resume_position
from whippet.transports.http.forms.field_types import U32, U64, check_u64
from whippet.transports.http.handlers.tails import PARTITIONS_MAX
from whippet.transports.reservations import POLL_BYTES_MIN
from whippet.transports.websocket.filters import EncodedPiece, Filter, encoder
from whippet.transports.websocket.subscription import Subscription

if TYPE_CHECKING:
    from whippet.transports.websocket.channel import Channel

CREDIT = 100
"""The default credit."""
FEW_CREDITS = 64
"""With less credit than this, no more messages are read and encoded than the subscription may push."""
_encode = msgspec.json.Encoder().encode

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=255)] | U32
"""A number or a name, as in a path: a text of digits may be a number too."""


class ToTopic(msgspec.Struct, frozen=True, tag="topic", tag_field="to"):
    stream: Name
    topic: Name
    partition: U32 | Literal["all"] = "all"
    start: Literal["first", "new"] | UnsetType = msgspec.field(default=UNSET, name="from")
    """At most one starting point may be given; without one, the subscription starts with the next message."""
    last: U64 | UnsetType = UNSET
    offset: U64 | UnsetType = UNSET
    offsets: dict[str, U64] | UnsetType = UNSET
    """Keyed by partition."""
    timestamp: U64 | UnsetType = UNSET
    consumer: Name | UnsetType = UNSET
    cursor: str | UnsetType = UNSET
    """The cursor of an earlier message or end, to resume after it."""
    filter: Filter | None = None
    max_rate: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """Messages per second."""
    behind: Literal["hold", "skip"] = "hold"
    credit: U32 = CREDIT

    def __post_init__(self) -> None:
        numbers = (self.last, self.offset, self.timestamp)
        check_u64(*(None if number is UNSET else number for number in numbers))
        beginnings = (self.start, *numbers, self.offsets, self.consumer, self.cursor)
        if sum(each is not UNSET for each in beginnings) > 1:
            raise ValueError("from, last, offset, offsets, timestamp, consumer, cursor: only one of them may be set")
        if self.offsets is not UNSET and len(self.offsets) > PARTITIONS_MAX:
            raise ValueError(
                f"`offsets` names {len(self.offsets)} partitions: a subscription has at most {PARTITIONS_MAX}"
            )


def identifier(name: str | int) -> requests.Identifier:
    return parameters.identifier(name) if isinstance(name, str) else name


# ------------------------------------------------------------------------------------------------- a subscription


class TopicSubscription(Subscription):
    def __init__(self, channel: Channel, number: int, wanted: ToTopic, followed: ReadPositions) -> None:
        super().__init__(channel, number, wanted.credit)
        self._wanted = wanted
        self._followed = followed
        self._numbers = tuple([partition.place.partition for partition in followed.partitions])
        self._position = followed.start
        """Where the client is."""
        self._epochs = tuple([partition.epoch for partition in followed.partitions])
        self._selector = None if wanted.filter is None else wanted.filter.selector
        self._form = "channel", self._selector is not None
        self._skipped: dict[int, int] = {}
        self._feed: SharedFeed[EncodedPiece] | None = None
        self._skips = wanted.behind == "skip"
        self._turn = 0
        """The partition whose newest message comes first after the next skip."""
        self._tokens = max(wanted.max_rate or 0.0, 1.0)
        self._filled_at = time.monotonic()
        self._head = b'{"sub":%d,"messages":[' % number

    def resume_point(self) -> Mapping[str, Any]:
        return {"cursor": event_id(self._numbers, self._position, self._epochs).decode()}

    def on_end(self) -> None:
        feed, self._feed = self._feed, None
        if feed is not None:
            self.channel.api.tails.feeds.leave(self._form, feed)

    async def push_messages(self) -> None:
        encode = encoder(self._numbers, is_indexed=self._selector is not None)
        feed = self._feed = self.channel.api.tails.feeds.join(self._form, self._followed.partitions, encode)
        cursor = feed.cursor(self._position, self._epochs)
        while True:
            has_waited = await self.wait_for_credit()
            has_waited = await self._wait_for_rate() or has_waited
            if has_waited and self._skips:
                self._skip_to_newest(cursor)
            await self.channel.link.room()
            if await self._read(feed, cursor) is not None and self._wanted.max_rate is None:
                # While the reader keeps up and has credit, a piece costs one call and no iteration of the event loop.
                await feed.follow(cursor, partial(self._on_piece, cursor))

    async def _read(self, feed: SharedFeed[EncodedPiece], cursor: Cursor) -> int | None:
        reservation = self.channel.link.response_reservation()
        try:
            if feed.has_more(cursor):
                await reservation.reserve(POLL_BYTES_MIN)
            is_for_few = self._selector is None and self.credit < FEW_CREDITS
            return self._on_piece(cursor, await feed.next_piece(cursor, self.credit if is_for_few else None))
        finally:
            reservation.close()

    def _skip_to_newest(self, cursor: Cursor) -> None:
        """Skips everything but the newest message of one partition that has new ones. So a client that has skipped does
        not stay with an old message, and learns at once how many it has missed. Partitions take turns."""
        position = [partition.readable for partition in self._followed.partitions]
        for i in range(self._turn, self._turn + len(position)):
            turn = i % len(position)
            if position[turn] > cursor.position[turn]:
                position[turn] -= 1
                self._turn = turn + 1
                break
        cursor.position = tuple(position)

    def _on_piece(self, cursor: Cursor, piece: Piece[EncodedPiece]) -> int | None:
        """If another subscription has filled the connection meanwhile, this one reads the piece again later, so that
        not all of them hold one while they wait."""
        if self.channel.link.is_full:
            cursor.position = piece.content.start
            return None
        return self._push(cursor, piece)

    def _push(self, cursor: Cursor, piece: Piece[EncodedPiece]) -> int | None:
        """Pushes as much as the credit allows. Returns its size, or None if there is no credit or no room for more."""
        content, position = piece.content, piece.position
        matching = content.matching(self._selector)
        count = min(len(matching), self.credit, int(self._tokens) if self._wanted.max_rate else len(matching))
        numbers = matching[:count]
        # How many messages of the piece are done with.
        done = len(content.cuts) if count == len(matching) else numbers[-1] + 1 if count else 0
        if self._position != content.start:
            for i, (at, start) in enumerate(zip(self._position, content.start, strict=True)):
                # A partition that was purged starts again, and none of its messages is missing.
                self._skip(i, start - at)
        for before, i, missing in content.gaps:
            if before < done or count == len(matching):
                self._skip(i, missing)
        if count < len(matching):
            reached = list(content.start)
            for _, i, next_offset in islice(content.cuts, done):
                reached[i] = next_offset
            position = cursor.position = tuple(reached)
        self._epochs = cursor.epochs
        if not count:
            self._position = position
            return 0
        cursor_text = event_id(self._numbers, position, self._epochs)
        tail = b'],"cursor":"%b"}' % cursor_text
        if self._skipped:
            skipped = _encode({str(self._numbers[i]): missing for i, missing in self._skipped.items()})
            tail = b'],"cursor":"%b","skipped":%b}' % (cursor_text, skipped)
        octets = content.joined(self._selector, numbers)
        has_room = self.channel.link.push(self._head, octets, tail)
        self._position = position
        self._skipped = {}
        self.credit -= count
        self._tokens -= count
        return len(octets) if has_room and count == len(matching) and self.credit > 0 else None

    def _skip(self, i: int, missing: int) -> None:
        if missing > 0:
            self._skipped[i] = self._skipped.get(i, 0) + missing

    async def _wait_for_rate(self) -> bool:
        """Waits until the rate allows one more message; returns whether it had to."""
        rate = self._wanted.max_rate
        if rate is None:
            return False
        has_waited = False
        while True:
            now = time.monotonic()
            self._tokens = min(self._tokens + (now - self._filled_at) * rate, max(rate, 1.0))
            self._filled_at = now
            if self._tokens >= 1.0:
                return has_waited
            has_waited = True
            await asyncio.sleep((1.0 - self._tokens) / rate)

    async def check(self) -> None:
        followed = await _follow(self.channel, self._wanted, None, None)
        if followed.partitions != self._followed.partitions:
            self.end("changed", "The topic has other partitions now")


async def subscribe(channel: Channel, number: int, wanted: ToTopic) -> TopicSubscription:
    start, consumer = _beginning(wanted)
    followed = await _follow(channel, wanted, start, consumer)
    if len(followed.partitions) > PARTITIONS_MAX:
        sentence = f"The topic has {len(followed.partitions)} partitions: a subscription has at most {PARTITIONS_MAX}"
        raise Refused(HTTPStatus.BAD_REQUEST, sentence, "partition")
    if wanted.cursor is not UNSET:
        followed = _resumed(followed, parse_cursor(wanted.cursor), "cursor")
    elif wanted.offsets is not UNSET:
        named = {int(number): Place(at, None) for number, at in wanted.offsets.items() if _is_number(number)}
        followed = _resumed(followed, named if named and len(named) == len(wanted.offsets) else None, "offsets")
    return TopicSubscription(channel, number, wanted, followed)


async def _follow(
    channel: Channel, wanted: ToTopic, start: Strategy | None, consumer: Consumer | None
) -> ReadPositions:
    stream, topic = identifier(wanted.stream), identifier(wanted.topic)
    partition = None if wanted.partition == "all" else wanted.partition
    key = None if wanted.filter is None else wanted.filter.key
    if key is not None:
        count = len((await channel.ask(requests.FollowMessages(stream, topic, None))).partitions)
        home = xxhash.xxh32_intdigest(key.encode()) % count if count else 0
        if partition not in (None, home):
            raise Refused(HTTPStatus.BAD_REQUEST, f"Messages with this key are in partition {home}", "partition")
        partition = home
    followed: ReadPositions = await channel.ask(requests.FollowMessages(stream, topic, partition, start, consumer))
    return followed


def _beginning(wanted: ToTopic) -> tuple[Strategy | None, Consumer | None]:
    if wanted.start == "first":
        return Strategy(StrategyKind.FIRST), None
    for kind, value in (
        (StrategyKind.LAST, wanted.last),
        (StrategyKind.OFFSET, wanted.offset),
        (StrategyKind.TIMESTAMP, wanted.timestamp),
    ):
        if value is not UNSET:
            return Strategy(kind, value), None
    if wanted.consumer is not UNSET:
        return Strategy(StrategyKind.NEXT), Consumer(ConsumerKind.CONSUMER, identifier(wanted.consumer))
    return None, None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX


def _resumed(followed: ReadPositions, known: Mapping[int, Place] | None, field: str) -> ReadPositions:
    """A partition without a known offset was created since, and is read from its start."""
    numbers = [partition.place.partition for partition in followed.partitions]
    if known is None or (known and not known.keys() & set(numbers)):
        raise Refused(HTTPStatus.BAD_REQUEST, f"`{field}` names none of the partitions of this subscription", field)
    return followed._replace(start=resume_position(followed.partitions, [known.get(number) for number in numbers]))
