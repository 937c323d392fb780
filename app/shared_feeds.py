"""Shared feeds: messages are read and encoded once for all readers at the same position.

Tails and subscriptions are the readers. A reader has a cursor, the next offset of each partition that it follows, and
asks for the next piece until it has read everything. Then it follows: it is handed the pieces that arrive, with one
call each and without a task to wake. A round begins when messages arrive, and makes one piece for all followers.
Rounds are spaced a few times as far apart as handing a piece to all readers takes, so that many readers cost a share of
the event loop and not all of it; a single reader has no pause.

A slow reader stops following, costs nothing here, and later reads on from its position. However many readers there are,
they share the event loop with everything else: in one iteration of the loop all feeds together hand out a limited
number of bytes, and then wait for the next. For the event loop only.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence, Sized
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from whippet.storage.batch import Readable
from whippet.storage.engine import Partition
from whippet.storage.errors import StorageError

_log = logging.getLogger(__name__)

Position = tuple[int, ...]
"""The next offset of each partition of a feed."""

Key = tuple[Position, Position, int | None]
"""The epochs of the partitions, a position, and how many messages of each partition to read: what is read there
is always the same."""

Held = TypeVar("Held")
Content = TypeVar("Content", bound=Sized)
"""The encoded messages of a piece. Its length is roughly its size in bytes."""

PIECE_BYTES = 128 * 1024
"""The approximate size of the batches in a piece; a single message may be longer."""
PART_BYTES_MIN = 16 * 1024
"""The least that is read of each partition, if there are several."""
PIECES_KEPT = 4
KEPT_BYTES_MAX = 1 << 20
"""Limit for the pieces that a feed caches for readers that lag a little. With a single reader nothing is cached."""
PAUSE_SECONDS_PER_READER = 0.000_05
PAUSE_SECONDS_MAX = 0.1
BYTES_PER_ITERATION = 1 << 20
"""What all feeds may deliver to all readers in one iteration of the event loop."""
READER_BYTES = BYTES_PER_ITERATION // 200
"""A reader counts as at least this many bytes."""


class Part(NamedTuple):
    """The batches of one partition in a piece."""

    of: int
    """The index of the partition in the feed."""
    buffers: Sequence[Readable]
    next_offset: int

    @property
    def size(self) -> int:
        return sum(map(len, self.buffers))


class Piece(NamedTuple, Generic[Held]):
    content: Held
    position: Position
    """Where a reader continues."""


Receive: TypeAlias = Callable[[Piece[Content]], int | None]
"""Takes a piece and returns the number of bytes written; None means that the reader cannot keep up and stops
following."""
Encode: TypeAlias = Callable[[Position, Sequence[Part]], Awaitable[Content]]
"""Makes the content of a piece that begins at a position."""


class HandoutBudget:
    """How much is handed out in one iteration of the event loop. What exceeds it waits in line for the next."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._spent = 0
        self._line: deque[tuple[asyncio.Future[None], int]] = deque()
        self._is_renewal_scheduled = False

    def spend(self, size: int) -> bool:
        """Returns False when this iteration's budget is spent: the caller waits before it hands out more."""
        self._spent += max(size, READER_BYTES)
        self._schedule_renewal()
        return self._spent < BYTES_PER_ITERATION

    async def wait(self, size: int) -> None:
        """Returns when the budget allows handing out `size` bytes."""
        if not self._line and self._spent < BYTES_PER_ITERATION:
            self.spend(size)
            return
        turn: asyncio.Future[None] = self._loop.create_future()
        self._line.append((turn, size))
        await turn

    def _schedule_renewal(self) -> None:
        if not self._is_renewal_scheduled:
            self._is_renewal_scheduled = True
            self._loop.call_soon(self._renew)

    def _renew(self) -> None:
        self._spent, self._is_renewal_scheduled = 0, False
        while self._line and self._spent < BYTES_PER_ITERATION:
            turn, size = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
                self.spend(size)


class Cursor:
    """The position of a reader of one feed, and the epochs of the partitions in which it is one."""

    __slots__ = ("epochs", "position")

    def __init__(self, position: Position, epochs: Position) -> None:
        self.position = position
        self.epochs = epochs


class SharedFeed(Generic[Content]):
    def __init__(self, partitions: Sequence[Partition], encode: Encode[Content], budget: HandoutBudget) -> None:
        self.partitions = tuple(partitions)
        self.readers = 0
        self._encode = encode
        self._budget = budget
        self._loop = asyncio.get_running_loop()
        self._end = self._readable()
        self._waiting: list[asyncio.Future[None]] = []
        self._following: dict[Cursor, tuple[Receive[Content], asyncio.Future[None]]] = {}
        self._pieces: dict[Key, asyncio.Future[Piece[Content | None]]] = {}
        self._kept_bytes = 0
        self._failure: Exception | None = None
        self._rounds = self._loop.create_task(self._run_rounds(), name="a feed")

    def close(self) -> None:
        self._rounds.cancel()

    def cursor(self, position: Position, epochs: Position | None = None) -> Cursor:
        """`epochs` are those in which the position was found, if that was earlier."""
        return Cursor(position, self._epochs() if epochs is None else epochs)

    def has_more(self, cursor: Cursor) -> bool:
        """Returns True if the next piece is there already."""
        return self._has_messages_after(cursor.position)

    async def next_piece(self, cursor: Cursor, most: int | None = None) -> Piece[Content]:
        """Returns the next piece as soon as there is one, and moves the cursor past it. Raises StorageError, or the
        error of a defect, when the feed has ended. Readers that take few messages set `most`, the number to read of
        each partition."""
        while True:
            self._follow_purges(cursor)
            position = cursor.position
            if not self._has_messages_after(position):
                if self._failure is not None:
                    raise self._failure
                future: asyncio.Future[None] = self._loop.create_future()
                self._waiting.append(future)
                await future
                continue
            key = cursor.epochs, position, most
            piece = await asyncio.shield(self._pieces.get(key) or self._make(key))
            content = piece.content
            if content is not None:
                await self._budget.wait(len(content))
            if cursor.epochs != self._epochs():
                continue
            cursor.position = piece.position
            if content is not None:
                return Piece(content, piece.position)
            if piece.position == position:
                # Nothing can be read there now; perhaps a little later.
                await asyncio.sleep(PAUSE_SECONDS_MAX)

    async def follow(self, cursor: Cursor, receive: Receive[Content]) -> None:
        """Hands over pieces as they arrive, and moves the cursor past each, until `receive` returns None. Returns at
        once if the next piece is there already: `next_piece` returns that one."""
        if cursor.epochs != self._epochs() or cursor.position != self._end or self._failure is not None:
            return
        stopped: asyncio.Future[None] = self._loop.create_future()
        self._following[cursor] = receive, stopped
        try:
            await stopped
        finally:
            self._following.pop(cursor, None)

    async def _hand_out(self, before: Position, piece: Piece[Content]) -> None:
        """Skips readers that began to follow while the piece was made: they have had it."""
        for cursor, (receive, stopped) in list(self._following.items()):
            if cursor.position == before and not stopped.done():
                cursor.position = piece.position
                written = receive(piece)
                if written is None:
                    _set(stopped)
                if not self._budget.spend(len(piece.content) if written is None else written):
                    await self._budget.wait(0)

    async def _stop_following(self) -> None:
        """Makes all readers stop following, because what comes next does not continue at their cursors."""
        await self._wake([stopped for _, stopped in self._following.values()])

    async def _wake(self, sleepers: Iterable[asyncio.Future[None]]) -> None:
        for future in sleepers:
            _set(future)
            if not self._budget.spend(0):
                await self._budget.wait(0)

    def _follow_purges(self, cursor: Cursor) -> None:
        """Moves a cursor to the new beginning of each partition that was purged."""
        now = self._epochs()
        if cursor.epochs != now:
            cursor.position = tuple(
                at if before == after else 0
                for at, before, after in zip(cursor.position, cursor.epochs, now, strict=True)
            )
            cursor.epochs = now

    def _readable(self) -> Position:
        return tuple([partition.readable for partition in self.partitions])

    def _epochs(self) -> Position:
        return tuple([partition.epoch for partition in self.partitions])

    # ---------------------------------------------------------------------------------------------------------- pieces

    def _make(self, key: Key) -> asyncio.Future[Piece[Content | None]]:
        reading = self._loop.create_task(self._read(key[1], key[2]))
        self._pieces[key] = reading
        reading.add_done_callback(lambda _: self._keep(key, reading))
        return reading

    def _keep(self, key: Key, reading: asyncio.Future[Piece[Content | None]]) -> None:
        if self._pieces.get(key) is not reading:
            return
        if (
            reading.cancelled()
            or reading.exception() is not None
            or reading.result().content is None
            or self.readers < 2
        ):
            del self._pieces[key]
            return
        self._kept_bytes += _size(reading)
        while len(self._pieces) > PIECES_KEPT or self._kept_bytes > KEPT_BYTES_MAX:
            oldest = self._pieces.pop(next(iter(self._pieces)))
            if oldest.done():
                self._kept_bytes -= _size(oldest)

    async def _read(self, position: Position, most: int | None) -> Piece[Content | None]:
        end = self._end
        wanted = [i for i, at in enumerate(position) if at < end[i]]
        if not wanted:
            # The partition was purged meanwhile.
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

    async def _run_rounds(self) -> None:
        watches: dict[int, asyncio.Task[None]] = {}
        old_epochs = self._epochs()
        try:
            while True:
                began = self._loop.time()
                await self._wait_for_change(watches, old_epochs)
                # The time that handing out took counts as part of the pause.
                due = min(self.readers * PAUSE_SECONDS_PER_READER, PAUSE_SECONDS_MAX)
                pause = began + due - self._loop.time()
                if self.readers > 1 and pause > 0:
                    await asyncio.sleep(pause)
                before, self._end, epochs = self._end, self._readable(), self._epochs()
                # Readers that do not follow make the pieces that they need themselves.
                is_wanted = self._following and self._has_messages_after(before)
                piece = await self._make((epochs, before, None)) if is_wanted else None
                content = None if piece is None or piece.position != self._end else piece.content
                if content is not None and old_epochs == epochs == self._epochs():
                    await self._hand_out(before, Piece(content, self._end))
                else:
                    await self._stop_following()
                old_epochs = epochs
                waiting, self._waiting = self._waiting, []
                await self._wake(waiting)
        except StorageError as error:
            self._failure = error
        except Exception as error:  # noqa: BLE001 -- a defect, which ends all readers
            _log.exception("a feed has failed; its readers are disconnected")
            self._failure = error
        finally:
            for task in watches.values():
                task.cancel()
            for future in (*self._waiting, *[stopped for _, stopped in self._following.values()]):
                _set(future)

    def _has_messages_after(self, position: Position) -> bool:
        return any(at < end for at, end in zip(position, self._end, strict=True))

    async def _wait_for_change(self, watches: dict[int, asyncio.Task[None]], old_epochs: Position) -> None:
        """Returns as soon as one of the partitions has more than at the last round, or was purged since. Then waiting
        readers are woken; readers that begin to wait later check by themselves."""
        if len(self.partitions) == 1:
            if self._epochs() == old_epochs:
                await self.partitions[0].until(self._end[0])
            return
        if not self.partitions:
            # The topic has no partitions; its followers are notified when it gets some.
            await self._loop.create_future()
        for i, partition in enumerate(self.partitions):
            if i not in watches:
                watches[i] = self._loop.create_task(partition.until(self._end[i]))
        # The tasks begin to wait only now.
        await asyncio.sleep(0)
        if self._epochs() == old_epochs:
            await asyncio.wait(watches.values(), return_when=asyncio.FIRST_COMPLETED)
        for i, task in list(watches.items()):
            if task.done():
                del watches[i]
                task.result()
            elif self._epochs() != old_epochs:
                # It may wait for an offset that is far away now.
                task.cancel()
                del watches[i]


def _size(reading: asyncio.Future[Piece[Content | None]]) -> int:
    content = reading.result().content
    return 0 if content is None else len(content)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class SharedFeeds:
    """The feeds that have readers, by partitions and by the form in which they are read."""

    def __init__(self) -> None:
        self._feeds: dict[tuple[Hashable, tuple[Partition, ...]], SharedFeed[Any]] = {}
        self._budget = HandoutBudget()

    def __len__(self) -> int:
        return len(self._feeds)

    def join(self, form: Hashable, partitions: tuple[Partition, ...], encode: Encode[Content]) -> SharedFeed[Content]:
        """`encode` must make the same for the same form; the one of the first reader is used while there are
        readers."""
        key = form, partitions
        feed = self._feeds.get(key)
        if feed is None:
            feed = self._feeds[key] = SharedFeed(partitions, encode, self._budget)
        feed.readers += 1
        return feed

    def leave(self, form: Hashable, feed: SharedFeed[Any]) -> None:
        feed.readers -= 1
        if not feed.readers:
            feed.close()
            self._feeds.pop((form, feed.partitions), None)
