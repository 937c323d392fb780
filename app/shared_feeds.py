"""SharedFeeds: what those read who stay, each piece of it read and encoded once for all that are at the same place.

A reader has a cursor, the next offset of each partition that it follows, and asks for the piece behind it until it has
read everything. Then it stays, and is handed the pieces that come, as one call for each and no task of its own to wake:
a round begins when something was appended, and makes one piece for all who stay. Rounds are a few times as far apart as
handing out to so many takes, so that many readers cost a share of the loop and not all of it; one alone has no pause.

A reader that is slow goes: it costs nothing here, and later reads on from where it is. However many readers there are,
they share the event loop with everybody else: all feeds together hand out so much in one turn of it, and then wait for
the next. All of this is the event loop's.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence, Sized
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from whippet.storage.batch import Readable
from whippet.storage.errors import StorageError
from whippet.storage.partition import Partition

_log = logging.getLogger(__name__)

Position = tuple[int, ...]
"""The next offset of each partition of a feed."""

Key = tuple[Position, Position, int | None]
"""How often each partition was purged, a position, and how many messages of each partition are wanted: what is read
there is always the same."""

Held = TypeVar("Held")
Content = TypeVar("Content", bound=Sized)
"""A piece's messages are made into this. Its length is about the number of bytes that it takes."""

PIECE_BYTES = 128 * 1024
"""Of batches, about; one message may be longer."""
PART_BYTES_MIN = 16 * 1024
"""Of each partition, where there are several."""
PIECES_KEPT = 4
KEPT_BYTES_MAX = 1 << 20
"""Of the pieces of a feed that are kept for those who come a little later; for a single reader none are."""
PAUSE_SECONDS_PER_READER = 0.000_05
PAUSE_SECONDS_MAX = 0.1
HANDED_OUT_BYTES = 1 << 20
"""In one turn of the event loop, to all readers of all feeds."""
READER_BYTES = HANDED_OUT_BYTES // 200
"""A reader counts as so many at least."""


class Part(NamedTuple):
    """What a piece has of one partition."""

    of: int
    """Which of the partitions of the feed."""
    buffers: Sequence[Readable]
    next_offset: int

    @property
    def size(self) -> int:
        return sum(map(len, self.buffers))


class Piece(NamedTuple, Generic[Held]):
    content: Held
    position: Position
    """Where a reader goes on."""


Take: TypeAlias = Callable[[Piece[Content]], int | None]
"""Takes a piece on, and says how many bytes of it were written; None: the reader is full, and goes."""
Encode: TypeAlias = Callable[[Position, Sequence[Part]], Awaitable[Content]]
"""Makes the content of a piece that begins at a position."""


class Turns:
    """How much is handed out in one turn of the event loop. Whoever comes too late for this one waits in line."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._spent = 0
        self._line: deque[tuple[asyncio.Future[None], int]] = deque()
        self._is_renewing = False

    def spend(self, size: int) -> bool:
        """False: that was all for this turn, and whoever has more to hand out waits for the next."""
        self._spent += max(size, READER_BYTES)
        self._renew_later()
        return self._spent < HANDED_OUT_BYTES

    async def come(self, size: int) -> None:
        """Returns when it is somebody's turn to hand out so much."""
        if not self._line and self._spent < HANDED_OUT_BYTES:
            self.spend(size)
            return
        turn: asyncio.Future[None] = self._loop.create_future()
        self._line.append((turn, size))
        await turn

    def _renew_later(self) -> None:
        if not self._is_renewing:
            self._is_renewing = True
            self._loop.call_soon(self._renew)

    def _renew(self) -> None:
        self._spent, self._is_renewing = 0, False
        while self._line and self._spent < HANDED_OUT_BYTES:
            turn, size = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
                self.spend(size)


class Cursor:
    """Where a reader is. It belongs to one feed."""

    __slots__ = ("emptied", "position")

    def __init__(self, position: Position, emptied: Position) -> None:
        self.position = position
        self.emptied = emptied


class SharedFeed(Generic[Content]):
    def __init__(self, partitions: Sequence[Partition], encode: Encode[Content], turns: Turns) -> None:
        self.partitions = tuple(partitions)
        self.readers = 0
        self._encode = encode
        self._turns = turns
        self._loop = asyncio.get_running_loop()
        self._end = self._readable()
        self._waiting: list[asyncio.Future[None]] = []
        self._staying: dict[Cursor, tuple[Take[Content], asyncio.Future[None]]] = {}
        self._pieces: dict[Key, asyncio.Future[Piece[Content | None]]] = {}
        self._kept_bytes = 0
        self._failure: Exception | None = None
        self._rounds = self._loop.create_task(self._go_round(), name="a feed")

    def close(self) -> None:
        self._rounds.cancel()

    def cursor(self, position: Position) -> Cursor:
        return Cursor(position, self._emptied())

    def has_more(self, cursor: Cursor) -> bool:
        """There is something behind the cursor already."""
        return self._is_behind(cursor.position)

    async def next_piece(self, cursor: Cursor, most: int | None = None) -> Piece[Content]:
        """What is behind the cursor, as soon as there is something; the cursor is moved behind it. An error is the end:
        a StorageError, or a defect. `most` is for readers that take few messages: no more of each partition are read.
        """
        while True:
            self._follow_purges(cursor)
            position = cursor.position
            if not self._is_behind(position):
                if self._failure is not None:
                    raise self._failure
                future: asyncio.Future[None] = self._loop.create_future()
                self._waiting.append(future)
                await future
                continue
            key = cursor.emptied, position, most
            piece = await asyncio.shield(self._pieces.get(key) or self._make(key))
            content = piece.content
            if content is not None:
                await self._turns.come(len(content))
            if cursor.emptied != self._emptied():
                continue
            cursor.position = piece.position
            if content is not None:
                return Piece(content, piece.position)
            if piece.position == position:
                # Nothing can be read there now: perhaps a little later.
                await asyncio.sleep(PAUSE_SECONDS_MAX)

    async def follow(self, cursor: Cursor, take: Take[Content]) -> None:
        """Hands over what comes, and moves the cursor behind it, until `take` says that it is full; at once if there
        is something behind the cursor already, which is to be asked for."""
        if cursor.emptied != self._emptied() or cursor.position != self._end or self._failure is not None:
            return
        gone: asyncio.Future[None] = self._loop.create_future()
        self._staying[cursor] = take, gone
        try:
            await gone
        finally:
            self._staying.pop(cursor, None)

    async def _hand_out(self, before: Position, piece: Piece[Content]) -> None:
        """To those who were there before it: who has come while it was made has had it."""
        for cursor, (take, gone) in list(self._staying.items()):
            if cursor.position == before and not gone.done():
                cursor.position = piece.position
                written = take(piece)
                if written is None:
                    _set(gone)
                if not self._turns.spend(len(piece.content) if written is None else written):
                    await self._turns.come(0)

    async def _let_go(self) -> None:
        """Ends the stay of all readers, because what comes next is not behind their cursors."""
        await self._wake([gone for _, gone in self._staying.values()])

    async def _wake(self, sleepers: Iterable[asyncio.Future[None]]) -> None:
        for future in sleepers:
            _set(future)
            if not self._turns.spend(0):
                await self._turns.come(0)

    def _follow_purges(self, cursor: Cursor) -> None:
        """Whoever reads a partition that was purged goes on at its new beginning."""
        now = self._emptied()
        if cursor.emptied != now:
            cursor.position = tuple(
                at if before == after else 0
                for at, before, after in zip(cursor.position, cursor.emptied, now, strict=True)
            )
            cursor.emptied = now

    def _readable(self) -> Position:
        return tuple([partition.readable for partition in self.partitions])

    def _emptied(self) -> Position:
        return tuple([partition.emptied for partition in self.partitions])

    # ---------------------------------------------------------------------------------------------------------- pieces

    def _make(self, key: Key) -> asyncio.Future[Piece[Content | None]]:
        made = self._loop.create_task(self._read(key[1], key[2]))
        self._pieces[key] = made
        made.add_done_callback(lambda _: self._keep(key, made))
        return made

    def _keep(self, key: Key, made: asyncio.Future[Piece[Content | None]]) -> None:
        if self._pieces.get(key) is not made:
            return
        if made.cancelled() or made.exception() is not None or made.result().content is None or self.readers < 2:
            del self._pieces[key]
            return
        self._kept_bytes += _size(made)
        while len(self._pieces) > PIECES_KEPT or self._kept_bytes > KEPT_BYTES_MAX:
            gone = self._pieces.pop(next(iter(self._pieces)))
            if gone.done():
                self._kept_bytes -= _size(gone)

    async def _read(self, position: Position, most: int | None) -> Piece[Content | None]:
        end = self._end
        wanted = [i for i, at in enumerate(position) if at < end[i]]
        if not wanted:
            # It was purged in between.
            return Piece(None, position)
        room = max(PIECE_BYTES // len(wanted), PART_BYTES_MIN)
        parts = []
        reached = list(position)
        for i in wanted:
            ahead = end[i] - position[i]
            found = await self.partitions[i].read(position[i], ahead if most is None else min(ahead, most), room)
            reached[i] = found.next_offset
            if found.messages:
                parts.append(Part(i, found.buffers, found.next_offset))
        return Piece(await self._encode(position, parts) if parts else None, tuple(reached))

    # ---------------------------------------------------------------------------------------------------------- rounds

    async def _go_round(self) -> None:
        untils: dict[int, asyncio.Task[None]] = {}
        was_emptied = self._emptied()
        try:
            while True:
                began = self._loop.time()
                await self._anything(untils, was_emptied)
                # What was handed out last took as long as it took: that time is not waited for once more.
                due = min(self.readers * PAUSE_SECONDS_PER_READER, PAUSE_SECONDS_MAX)
                pause = began + due - self._loop.time()
                if self.readers > 1 and pause > 0:
                    await asyncio.sleep(pause)
                before, self._end, emptied = self._end, self._readable(), self._emptied()
                # Those who do not stay make what they need themselves.
                is_wanted = self._staying and self._is_behind(before)
                piece = await self._make((emptied, before, None)) if is_wanted else None
                content = None if piece is None or piece.position != self._end else piece.content
                if content is not None and was_emptied == emptied == self._emptied():
                    await self._hand_out(before, Piece(content, self._end))
                else:
                    await self._let_go()
                was_emptied = emptied
                waiting, self._waiting = self._waiting, []
                await self._wake(waiting)
        except StorageError as error:
            self._failure = error
        except Exception as error:  # noqa: BLE001 -- a defect of ours, which all readers hear of
            _log.exception("a feed ended in a defect")
            self._failure = error
        finally:
            for task in untils.values():
                task.cancel()
            for future in (*self._waiting, *[gone for _, gone in self._staying.values()]):
                _set(future)

    def _is_behind(self, position: Position) -> bool:
        return any(at < end for at, end in zip(position, self._end, strict=True))

    async def _anything(self, untils: dict[int, asyncio.Task[None]], was_emptied: Position) -> None:
        """Returns as soon as one of the partitions has more than at the last round, or was purged since: who waits then
        is woken, and who comes to wait later has to look."""
        if len(self.partitions) == 1:
            if self._emptied() == was_emptied:
                await self.partitions[0].until(self._end[0])
            return
        if not self.partitions:
            # Those of a topic that has none; who follows it is told when it gets some.
            await self._loop.create_future()
        for i, partition in enumerate(self.partitions):
            if i not in untils:
                untils[i] = self._loop.create_task(partition.until(self._end[i]))
        # Only now they wait.
        await asyncio.sleep(0)
        if self._emptied() == was_emptied:
            await asyncio.wait(untils.values(), return_when=asyncio.FIRST_COMPLETED)
        for i, task in list(untils.items()):
            if task.done():
                del untils[i]
                task.result()
            elif self._emptied() != was_emptied:
                # It may wait for an offset that is far away now.
                task.cancel()
                del untils[i]


def _size(made: asyncio.Future[Piece[Content | None]]) -> int:
    content = made.result().content
    return 0 if content is None else len(content)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class SharedFeeds:
    """The feeds that have readers, by what is read in which form."""

    def __init__(self) -> None:
        self._feeds: dict[tuple[Hashable, tuple[Partition, ...]], SharedFeed[Any]] = {}
        self._turns = Turns()

    def __len__(self) -> int:
        return len(self._feeds)

    def join(self, form: Hashable, partitions: tuple[Partition, ...], encode: Encode[Content]) -> SharedFeed[Content]:
        """`encode` always makes the same for a form; that of the first reader is used as long as there are any."""
        key = form, partitions
        feed = self._feeds.get(key)
        if feed is None:
            feed = self._feeds[key] = SharedFeed(partitions, encode, self._turns)
        feed.readers += 1
        return feed

    def leave(self, form: Hashable, feed: SharedFeed[Any]) -> None:
        feed.readers -= 1
        if not feed.readers:
            feed.close()
            self._feeds.pop((form, feed.partitions), None)
