"""Feeds: what those read who stay, each piece of it read and encoded once for all that are at the same place.

A reader has a cursor, the next offset of each partition that it follows, and asks for the piece behind it until it has
read everything. Then it stays, and is handed the pieces that come, as one call for each and no task of its own to wake:
a round begins when something was appended, and makes one piece for all who stay. Rounds are a few times as far apart as
handing out to so many takes, so that many readers cost a share of the loop and not all of it; one alone has no pause.

A reader that is slow goes: it costs nothing here, and later reads on from where it is. All of this is the event loop's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from whippet.storage.batch import Readable
from whippet.storage.errors import StorageError
from whippet.storage.partition import Partition

_log = logging.getLogger(__name__)

Position = tuple[int, ...]
"""The next offset of each partition of a feed."""

Key = tuple[Position, Position]
"""How often each partition was purged, and a position: what is read there is always the same."""

PIECE_BYTES = 128 * 1024
"""Of batches, about; one message may be longer."""
PART_BYTES_MIN = 16 * 1024
"""Of each partition, where there are several."""
PIECES_KEPT = 4
KEPT_BYTES_MAX = 1 << 20
"""Of the pieces of a feed that are kept for those who come a little later; for a single reader none are."""
PAUSE_SECONDS_PER_READER = 0.000_05
PAUSE_SECONDS_MAX = 0.1
HANDED_OUT_TOGETHER = 200
"""After so many readers the others on the event loop get their turn."""


class Part(NamedTuple):
    """What a piece has of one partition."""

    of: int
    """Which of the partitions of the feed."""
    buffers: Sequence[Readable]
    next_offset: int


class Piece(NamedTuple):
    octets: bytes
    position: Position
    """Where a reader goes on."""


Take = Callable[[Piece], bool]
"""Takes a piece on; False: the reader is full, and goes."""
Encode = Callable[[Position, Sequence[Part]], bytes]
"""Makes the octets of a piece that begins at a position."""


class Cursor:
    """Where a reader is. It belongs to one feed."""

    __slots__ = ("emptied", "position")

    def __init__(self, position: Position, emptied: Position) -> None:
        self.position = position
        self.emptied = emptied


class Feed:
    def __init__(self, partitions: Sequence[Partition], encode: Encode) -> None:
        self.partitions = tuple(partitions)
        self.readers = 0
        self._encode = encode
        self._loop = asyncio.get_running_loop()
        self._end = self._readable()
        self._waiting: list[asyncio.Future[None]] = []
        self._staying: dict[Cursor, tuple[Take, asyncio.Future[None]]] = {}
        self._pieces: dict[Key, asyncio.Future[Piece]] = {}
        self._kept_bytes = 0
        self._failure: Exception | None = None
        self._rounds = self._loop.create_task(self._go_round(), name="a feed")

    def close(self) -> None:
        self._rounds.cancel()

    def cursor(self, position: Position) -> Cursor:
        return Cursor(position, self._emptied())

    async def piece(self, cursor: Cursor) -> Piece:
        """What is behind the cursor, as soon as there is something; the cursor is moved behind it. An error is the end:
        a StorageError, or a defect."""
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
            key = cursor.emptied, position
            piece = await asyncio.shield(self._pieces.get(key) or self._make(key))
            if cursor.emptied != self._emptied():
                continue
            cursor.position = piece.position
            if piece.octets:
                return piece
            if piece.position == position:
                # Nothing can be read there now: perhaps a little later.
                await asyncio.sleep(PAUSE_SECONDS_MAX)

    async def stay(self, cursor: Cursor, take: Take) -> None:
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

    async def _hand_out(self, before: Position, piece: Piece) -> None:
        """To those who were there before it: who has come while it was made has had it."""
        for number, (cursor, (take, gone)) in enumerate(list(self._staying.items()), 1):
            if number % HANDED_OUT_TOGETHER == 0:
                await asyncio.sleep(0)
            if cursor.position == before and not gone.done():
                cursor.position = piece.position
                if not take(piece):
                    _set(gone)

    def _let_go(self) -> None:
        """What comes next is not behind their cursors, or nothing comes."""
        for _, gone in self._staying.values():
            _set(gone)

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

    def _make(self, key: Key) -> asyncio.Future[Piece]:
        made = self._loop.create_task(self._read(key[1]))
        self._pieces[key] = made
        made.add_done_callback(lambda _: self._keep(key, made))
        return made

    def _keep(self, key: Key, made: asyncio.Future[Piece]) -> None:
        if self._pieces.get(key) is not made:
            return
        if made.cancelled() or made.exception() is not None or not made.result().octets or self.readers < 2:
            del self._pieces[key]
            return
        self._kept_bytes += len(made.result().octets)
        while len(self._pieces) > PIECES_KEPT or self._kept_bytes > KEPT_BYTES_MAX:
            gone = self._pieces.pop(next(iter(self._pieces)))
            if gone.done():
                self._kept_bytes -= len(gone.result().octets)

    async def _read(self, position: Position) -> Piece:
        end = self._end
        wanted = [i for i, at in enumerate(position) if at < end[i]]
        if not wanted:
            # It was purged in between.
            return Piece(b"", position)
        room = max(PIECE_BYTES // len(wanted), PART_BYTES_MIN)
        parts = []
        reached = list(position)
        for i in wanted:
            found = await self.partitions[i].read(position[i], end[i] - position[i], room)
            reached[i] = found.next_offset
            if found.messages:
                parts.append(Part(i, found.buffers, found.next_offset))
        return Piece(self._encode(position, parts) if parts else b"", tuple(reached))

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
                piece = await self._make((emptied, before)) if self._is_behind(before) else None
                is_next = piece is not None and bool(piece.octets) and piece.position == self._end
                if piece is not None and is_next and was_emptied == emptied == self._emptied():
                    await self._hand_out(before, piece)
                else:
                    self._let_go()
                was_emptied = emptied
                self._wake()
        except StorageError as error:
            self._failure = error
        except Exception as error:  # noqa: BLE001 -- a defect of ours, which all readers hear of
            _log.exception("a feed ended in a defect")
            self._failure = error
        finally:
            for task in untils.values():
                task.cancel()
            self._let_go()
            self._wake()

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

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            _set(future)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Feeds:
    """The feeds that have readers, by what is read in which form."""

    def __init__(self) -> None:
        self._feeds: dict[tuple[Hashable, tuple[Partition, ...]], Feed] = {}

    def __len__(self) -> int:
        return len(self._feeds)

    def join(self, form: Hashable, partitions: tuple[Partition, ...], encode: Encode) -> Feed:
        """`encode` is always the same for a form."""
        key = form, partitions
        feed = self._feeds.get(key)
        if feed is None:
            feed = self._feeds[key] = Feed(partitions, encode)
        feed.readers += 1
        return feed

    def leave(self, form: Hashable, feed: Feed) -> None:
        feed.readers -= 1
        if not feed.readers:
            feed.close()
            self._feeds.pop((form, feed.partitions), None)
