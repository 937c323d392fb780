"""Shared feeds: every reader gets everything once and in order, however readers come and go."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from tests.storage.support.world import opened, split
from tests.support.turns import TurnCounter
from whippet.app.client.batching import pack
from whippet.app.shared_feeds import BYTES_PER_ITERATION, Cursor, Part, Piece, Position, SharedFeed, SharedFeeds
from whippet.storage.batch import messages
from whippet.storage.documents import StreamDocument, TopicDocument
from whippet.storage.errors import PartitionClosed
from whippet.storage.partition import Partition
from whippet.storage.store import Store


async def encode(position: Position, parts: Sequence[Part]) -> bytes:
    """`partition:payload` of each message."""
    found = [
        b"%d:%b " % (part.of, one.payload) for part in parts for each in split(part.buffers) for one in messages(each)
    ]
    return b"".join(found)


@contextlib.asynccontextmanager
async def started(
    tmp_path: Path, partitions: int = 1
) -> AsyncIterator[tuple[SharedFeeds, tuple[Partition, ...], Store]]:
    async with opened(tmp_path) as store:
        await store.create_stream(StreamDocument(id=0, name="s", created_at=1))
        await store.create_topic(0, TopicDocument(id=0, name="t", created_at=1, partitions_count=partitions))
        found = [store.partition(0, 0, number) for number in range(partitions)]
        yield SharedFeeds(), tuple(each for each in found if each is not None), store


class Reader:
    """Reads everything; now and then it is full, and can continue a little later."""

    def __init__(self, feed: SharedFeed[bytes], cursor: Cursor, chance: random.Random) -> None:
        self.found: list[str] = []
        self._feed = feed
        self._cursor = cursor
        self._chance = chance

    def take(self, piece: Piece[bytes]) -> int | None:
        self.found += piece.content.decode().split()
        return len(piece.content) if self._chance.random() > 0.2 else None

    async def read(self) -> None:
        while True:
            if self.take(await self._feed.next_piece(self._cursor)) is None:
                await asyncio.sleep(self._chance.random() / 1000)
            await self._feed.follow(self._cursor, self.take)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("partitions", [1, 3])
async def test_all_readers_get_everything_once_and_in_order(tmp_path: Path, seed: int, partitions: int) -> None:
    chance = random.Random(seed)

    async with started(tmp_path, partitions) as (feeds, them, _):
        feed = feeds.join("x", them, encode)
        readers: list[Reader] = []
        reading: list[asyncio.Task[None]] = []
        expected: dict[int, list[str]] = {i: [] for i in range(partitions)}
        for number in range(300):
            if number % 20 == 0:
                feeds.join("x", them, encode)
                readers.append(Reader(feed, feed.cursor((0,) * partitions), chance))
                reading.append(asyncio.create_task(readers[-1].read()))
            of = chance.randrange(partitions)
            payloads = [b"%d.%d" % (number, i) for i in range(chance.randrange(1, 4))]
            await them[of].append(pack(payloads))
            expected[of] += [f"{of}:{payload.decode()}" for payload in payloads]
            if chance.random() < 0.1:
                await asyncio.sleep(chance.random() / 500)
        total = sum(map(len, expected.values()))
        while any(len(reader.found) < total for reader in readers):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        for reader in readers:
            for of, each in expected.items():
                assert [text for text in reader.found if text.startswith(f"{of}:")] == each
        for task in reading:
            task.cancel()
        for _ in range(len(readers) + 1):
            feeds.leave("x", feed)
        assert len(feeds) == 0


async def test_a_purge_moves_followers_to_the_new_beginning(tmp_path: Path) -> None:
    async with started(tmp_path) as (feeds, them, _):
        feed = feeds.join("x", them, encode)
        reader = Reader(feed, feed.cursor((0,)), random.Random(1))
        reading = asyncio.create_task(reader.read())
        for number in range(20):
            await them[0].append(pack([b"%d" % number]))
            while len(reader.found) <= number:  # noqa: ASYNC110
                await asyncio.sleep(0)
            await them[0].purge()
        assert reader.found == [f"0:{number}" for number in range(20)]
        reading.cancel()
        feeds.leave("x", feed)


async def test_closing_a_partition_ends_all_readers(tmp_path: Path) -> None:
    async with started(tmp_path, 2) as (feeds, them, store):
        feed = feeds.join("x", them, encode)
        readers = [Reader(feed, feed.cursor((0,) * 2), random.Random(1)) for _ in range(3)]
        reading = [asyncio.create_task(reader.read()) for reader in readers]
        await them[0].append(pack([b"x"]))
        while not all(reader.found for reader in readers):  # noqa: ASYNC110
            await asyncio.sleep(0)
        await store.remove_topic(0, 0)
        for task in reading:
            with pytest.raises(PartitionClosed):
                await task
        feeds.leave("x", feed)


async def test_readers_get_the_error_of_a_failed_encoding(tmp_path: Path) -> None:
    async def broken(position: Position, parts: Sequence[Part]) -> bytes:
        raise ZeroDivisionError

    async with started(tmp_path) as (feeds, them, _):
        feed = feeds.join("broken", them, broken)
        waiting = asyncio.create_task(feed.next_piece(feed.cursor((0,))))
        await asyncio.sleep(0)
        await them[0].append(pack([b"x"]))
        with pytest.raises(ZeroDivisionError):
            await waiting
        feeds.leave("broken", feed)


@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.parametrize(("size", "together"), [(1, 200), (BYTES_PER_ITERATION // 4, 4)])
async def test_many_readers_do_not_starve_the_event_loop(tmp_path: Path, stays: bool, size: int, together: int) -> None:
    """Those of two topics, which share the budget."""

    async def encode_as_much(position: Position, parts: Sequence[Part]) -> bytes:
        return bytes(size)

    async with started(tmp_path, 2) as (feeds, them, _):
        reading: list[asyncio.Task[None]] = []
        joined: list[SharedFeed[bytes]] = []
        counted, taken = TurnCounter(), [0]

        def take(piece: Piece[bytes]) -> int | None:
            counted.note(1)
            taken[0] += 1
            return len(piece.content) if stays else None

        async def read(feed: SharedFeed[bytes]) -> None:
            cursor = feed.cursor((0,))
            while True:
                take(await feed.next_piece(cursor))
                await feed.follow(cursor, take)

        for partition in them:
            for _ in range(500):
                joined.append(feeds.join("x", (partition,), encode_as_much))
                reading.append(asyncio.create_task(read(joined[-1])))
        for number in range(1, 4):
            for partition in them:
                await partition.append(pack([b"x"]))
            while taken[0] < 1000 * number:  # noqa: ASYNC110
                await asyncio.sleep(0)
        counted.stop()
        # What fits into one iteration may be handed out in the next, together with what arrives then.
        assert max(counted.done.values()) <= 2 * together
        for task in reading:
            task.cancel()
        for feed in joined:
            feeds.leave("x", feed)
