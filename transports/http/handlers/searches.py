"""Searches a topic for messages: "where is my message?".

There is no index of contents, so messages are examined one after the other. A request examines as many as its budget
allows, and at most for a moment: its cursor continues the search where it stopped. So a search of a large topic is a
series of requests, and whoever makes them sees how far it is, and can stop. The server keeps nothing in between.

Messages are read in small chunks and examined on another thread. A user's searches take turns, and only few users are
served at once: everybody else's requests go on meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated, Literal

import msgspec
import xxhash
from msgspec import UNSET, Meta, UnsetType

from whippet.app.commands import requests
from whippet.app.commands.messages import ReadPositions
from whippet.storage.engine import Partition
from whippet.storage.fetched import Fetched
from whippet.transports.http.errors import Refused
from whippet.transports.http.forms import events, search_conditions
from whippet.transports.http.forms.events import TailedMessage
from whippet.transports.http.forms.field_types import U32, U64, Key, check_u64
from whippet.transports.http.forms.search_conditions import Chunk, Condition
from whippet.transports.http.handlers.messages import FRAME_JSON_BYTES
from whippet.transports.http.handlers.tails import PARTITIONS_MAX
from whippet.transports.http.operation import Call

CHUNK_MESSAGES = 1000
CHUNK_BYTES = 1 << 18
SLICE_SECONDS = 0.3
"""A request that has taken this long returns what it has found."""
PAUSE_SECONDS_MAX = 0.02
MATCH_BYTES = 1 << 20
"""Of the payloads that a response has, unless the first one is larger."""
BUDGET_MAX, LIMIT_MAX = 100_000, 100
U64_MAX = 2**64 - 1
Text = Annotated[str, Meta(min_length=1, max_length=1000)]


class SearchQuery(msgspec.Struct, frozen=True):
    """Messages must fulfil all conditions: `message_id`, `header` (with `value`), `text`, `where`, `since`, `until`.
    Without any, every message matches."""

    partition: U32 | UnsetType = UNSET
    """All partitions if absent."""
    key: Key | UnsetType = UNSET
    """Searches the partition that messages with this key are sent to."""
    message_id: Text | UnsetType = UNSET
    """A number or a UUID. On the channel, `id` is that of the command."""
    header: Text | UnsetType = UNSET
    """The key of a user header."""
    value: Text | UnsetType = UNSET
    """The value of that header, as text."""
    text: Text | UnsetType = UNSET
    """What the payload contains, in UTF-8."""
    where: Text | UnsetType = UNSET
    """A condition on a payload that is JSON, such as `$.amount > 100` or `$.customer.country == "de"`."""
    since: U64 = 0
    """In us since 1970."""
    until: U64 = U64_MAX
    """In us since 1970; messages of this time are still included."""
    order: Literal["newest", "oldest"] = "newest"
    """Where to begin."""
    budget: Annotated[int, Meta(ge=1, le=BUDGET_MAX)] = 10_000
    """How many messages to examine at most."""
    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX)] = 20
    """How many matches to return at most."""
    cursor: str | UnsetType = UNSET
    """The cursor of an earlier response, to continue there. The conditions should be the same."""

    def __post_init__(self) -> None:
        check_u64(self.since, self.until)
        if self.partition is not UNSET and self.key is not UNSET:
            raise ValueError("`partition` and `key`: set only one of them")


class SearchResult(msgspec.Struct, frozen=True):
    matches: list[TailedMessage]
    """In the order in which they were found, which is that of their offsets only within a partition."""
    examined: int
    """Messages that this request has examined."""
    examined_bytes: int
    remaining: int
    """Messages that are left to examine."""
    reached: int | None
    """The time of the message that was examined last, in us since 1970; null if there was none."""
    cursor: str | None
    """Continues the search; null if everything was examined."""


async def search_messages(call: Call) -> SearchResult:
    query: SearchQuery = call.query
    given = [
        None if each is UNSET else each
        for each in (query.message_id, query.header, query.value, query.text, query.where)
    ]
    wanted = search_conditions.conditions(*given)
    follow = await _follow(call, query)
    positions: ReadPositions = await call.execute(follow)
    if len(positions.partitions) > PARTITIONS_MAX:
        sentence = f"The topic has {len(positions.partitions)} partitions: a search covers at most {PARTITIONS_MAX}"
        raise Refused(HTTPStatus.BAD_REQUEST, sentence, "partition")
    reservation = call.response_reservation()
    async with call.api.searches.turn(call.login.mark):
        await reservation.reserve(CHUNK_BYTES + MATCH_BYTES)
        search = Search(positions.partitions, query, wanted)
        await search.begin(_known(query, positions))
        await search.run()
    # The user may have lost the permission, or the topic may have been deleted.
    await call.execute(follow)
    found = search.result()
    reservation.hold(sum(len(each.payload) * 4 // 3 + FRAME_JSON_BYTES for each in found.matches))
    return found


async def _follow(call: Call, query: SearchQuery) -> requests.FollowMessages:
    number: int | None = None if query.partition is UNSET else query.partition
    if query.key is not UNSET:
        everything: ReadPositions = await call.execute(requests.FollowMessages(call.stream, call.topic, None))
        count = len(everything.partitions)
        number = xxhash.xxh32_intdigest(query.key.encode()) % count if count else None
    return requests.FollowMessages(call.stream, call.topic, number)


def _known(query: SearchQuery, positions: ReadPositions) -> Mapping[int, events.Place] | None:
    if query.cursor is UNSET:
        return None
    known = events.parse_cursor(query.cursor)
    numbers = {partition.place.partition for partition in positions.partitions}
    if known is None or not known.keys() <= numbers:
        raise Refused(HTTPStatus.BAD_REQUEST, f"{query.cursor[:100]!r} is not the cursor of such a search", "cursor")
    return known


class _Stretch:
    """What is left to examine of a partition: the offsets from `low` up to, and not including, `high`."""

    __slots__ = ("epoch", "high", "low", "number", "partition")

    def __init__(self, partition: Partition, low: int, high: int) -> None:
        self.partition = partition
        self.number = partition.place.partition
        self.epoch = partition.epoch
        self.low = low
        self.high = high

    @property
    def left(self) -> int:
        return max(self.high - max(self.low, self.partition.first_offset), 0)


class Search:
    """One request of a search."""

    def __init__(self, partitions: tuple[Partition, ...], query: SearchQuery, wanted: list[Condition]) -> None:
        self._partitions = partitions
        self._query = query
        self._wanted = wanted
        self._times = range(query.since, query.until + 1)
        self._is_newest_first = query.order == "newest"
        self._stretches: list[_Stretch] = []
        self._matches: list[TailedMessage] = []
        self._match_bytes = 0
        self._examined = self._examined_bytes = 0
        self._reached: int | None = None

    async def begin(self, known: Mapping[int, events.Place] | None) -> None:
        """Finds what is left, in the partitions that a cursor names, or in all."""
        query = self._query
        for partition in self._partitions:
            number = partition.place.partition
            if known is not None and number not in known:
                # It was examined completely, or created since.
                continue
            low = await partition.offset_at(query.since) if query.since else partition.first_offset
            high = partition.readable
            if query.until < U64_MAX:
                high = min(await partition.offset_at(query.until + 1), high)
            at = None if known is None else known[number]
            if at is not None and at.epoch in (None, partition.epoch):
                # Otherwise it was purged or created again, and is examined as a whole.
                low, high = (low, min(high, at.offset)) if self._is_newest_first else (max(low, at.offset), high)
            self._stretches.append(_Stretch(partition, low, high))

    async def run(self) -> None:
        """Examines chunks of the partitions in turn, until there are enough matches or something is used up. At least
        one is examined, and those come first of which most is left: the next request continues with the others."""
        deadline = time.monotonic() + SLICE_SECONDS
        while stretches := [each for each in self._stretches if each.left]:
            for stretch in sorted(stretches, key=lambda each: -each.left):
                budget = self._query.budget - self._examined
                if budget <= 0 or len(self._matches) >= self._query.limit or self._match_bytes >= MATCH_BYTES:
                    return
                await self._examine(stretch, budget)
                if time.monotonic() >= deadline:
                    return

    async def _examine(self, stretch: _Stretch, budget: int) -> None:
        most = min(budget, CHUNK_MESSAGES, stretch.left)
        read = _read_before if self._is_newest_first else _read_after
        bounds, found = await read(stretch, most)
        began = time.perf_counter()
        chunk: Chunk = await asyncio.to_thread(
            search_conditions.examine, found.buffers, stretch.number, bounds, self._times, self._wanted
        )
        # Other requests need the interpreter, too: they get at least half of the time.
        await asyncio.sleep(min(time.perf_counter() - began, PAUSE_SECONDS_MAX))
        matches = chunk.matches[::-1] if self._is_newest_first else chunk.matches
        outermost = chunk.first if self._is_newest_first else chunk.last
        for match in matches:
            if len(self._matches) >= self._query.limit or (self._matches and self._match_bytes >= MATCH_BYTES):
                # The next request finds it again.
                offset = match.header.offset
                bounds = range(offset + 1, bounds.stop) if self._is_newest_first else range(bounds.start, offset)
                break
            self._matches.append(match)
            self._match_bytes += len(match.payload)
        self._examined += len(bounds)
        self._examined_bytes += chunk.size
        if outermost is not None:
            self._reached = outermost.timestamp
        if self._is_newest_first:
            stretch.high = bounds.start
        else:
            stretch.low = bounds.stop

    def result(self) -> SearchResult:
        left = [each for each in self._stretches if each.left]
        ends = [each.high if self._is_newest_first else each.low for each in left]
        cursor = events.event_id([each.number for each in left], ends, [each.epoch for each in left])
        return SearchResult(
            matches=self._matches,
            examined=self._examined,
            examined_bytes=self._examined_bytes,
            remaining=sum(each.left for each in left),
            reached=self._reached,
            cursor=cursor.decode() if left else None,
        )


async def _read_after(stretch: _Stretch, most: int) -> tuple[range, Fetched]:
    low = max(stretch.low, stretch.partition.first_offset)
    found = await stretch.partition.read(low, most, CHUNK_BYTES)
    # Nothing at all: it was deleted meanwhile.
    end = min(found.next_offset, stretch.high) if found.messages else stretch.high
    return range(low, max(end, low)), found


async def _read_before(stretch: _Stretch, most: int) -> tuple[range, Fetched]:
    """Reads the last messages of the stretch. Reads go forward, so if those do not fit, fewer of them are read."""
    high = stretch.high
    while True:
        low = max(high - most, stretch.low, stretch.partition.first_offset)
        found = await stretch.partition.read(low, max(high - low, 1), CHUNK_BYTES)
        if not found.messages or found.next_offset >= high:
            return range(min(low, high), high), found
        most = max(min(found.messages, most // 2), 1)
