"""Reads of a partition: any offset, count and room, from memory and from the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.storage.support.partitions import BUFFERED, SYNCED, found
from tests.storage.support.world import offsets, partition_in, payloads, sized, texts
from tests.support.clocks import NOON, Clock
from whippet.storage.batch import HEADER_BYTES
from whippet.storage.partition import Partition


class Filled:
    """A partition with batches of every shape, and a list of its messages."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.model: list[tuple[int, int, bytes]] = []
        """offset, timestamp, payload"""

    async def fill(self, clock: Clock, shapes: Sequence[Sequence[int]]) -> None:
        for shape in shapes:
            clock.now += 10
            base = len(self.model)
            parts = [b"%d." % (base + i) + b"x" * size for i, size in enumerate(shape)]
            await self.partition.append(texts(*parts))
            self.model += [(base + i, clock.now, part) for i, part in enumerate(parts)]

    def expected(self, offset: int, count: int) -> list[tuple[int, int, bytes]]:
        return [message for message in self.model if message[0] >= offset][:count]


SHAPES = ((10, 20, 30), (5,), (7,) * 14, (400,), (1, 2), (9,) * 3, (50, 1) * 7, (3,))

LAYOUTS: dict[str, dict[str, Any]] = {
    "all in the tail": {},
    "all on the disk": {"tail_bytes_max": 0},
    "begins on the disk, continues in the tail": {"tail_bytes_max": 3000},
    "a segment for every batch, on the disk": {"tail_bytes_max": 0, "segment_bytes": 1},
    "small segments, half in the tail": {"tail_bytes_max": 3000, "segment_bytes": 1500},
    "no index in memory": {"tail_bytes_max": 0, "segment_bytes": 1500, "index_cache": "none"},
    "every index in memory": {"tail_bytes_max": 0, "segment_bytes": 1500, "index_cache": "all"},
    "two files open": {"tail_bytes_max": 0, "segment_bytes": 1, "open_files_max": 2},
    "in memory, not written": BUFFERED,
    "written and in memory": {**BUFFERED, "messages_required_to_save": 20, "tail_bytes_max": 0},
    "synced": {"durability": SYNCED, "tail_bytes_max": 0},
}

every_layout = pytest.mark.parametrize("options", LAYOUTS.values(), ids=LAYOUTS.keys())


@every_layout
@pytest.mark.parametrize("again", [False, True], ids=["as written", "after a restart"])
async def test_a_read_from_any_offset_returns_exactly_the_requested_messages(
    tmp_path: Path, options: dict[str, Any], again: bool
) -> None:
    async def look(filled: Filled) -> None:
        partition, end = filled.partition, len(filled.model)
        for offset in range(end + 2):
            for count in (0, 1, 2, 5, 17, 1000):
                assert found(await partition.read(offset, count)) == filled.expected(offset, count)
        for count in (0, 1, 2, 15, end - 1, end, end + 1):
            assert found(await partition.read_last(count)) == filled.expected(max(end - count, 0), count)
        for time in range(NOON, NOON + 10 * len(SHAPES) + 2, 5):
            start = next((offset for offset, at, _ in filled.model if at >= time), end)
            assert await partition.offset_at(time) == start
            assert found(await partition.read_from_time(time, 7)) == filled.expected(start, 7)

    clock = Clock()
    async with partition_in(tmp_path, clock=clock, **options) as partition:
        filled = Filled(partition)
        await filled.fill(clock, SHAPES)
        if not again:
            await look(filled)
    if again:
        async with partition_in(tmp_path, clock=clock, **options) as partition:
            filled.partition = partition
            await look(filled)


@every_layout
async def test_a_read_with_little_room_fills_it_and_returns_at_least_one_message(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    clock = Clock()
    async with partition_in(tmp_path, clock=clock, **options) as partition:
        filled = Filled(partition)
        await filled.fill(clock, SHAPES)
        for room in (1, 256, 320, 400, 700, 1000, 5000):
            for start in range(0, len(filled.model), 3):
                offset = start
                while offset < len(filled.model):
                    fetched = await partition.read(offset, 9, room)
                    got = found(fetched)
                    assert got
                    assert got == filled.expected(offset, len(got))
                    size = sum(map(len, fetched.buffers))
                    assert size <= room or len(got) == 1
                    offset = fetched.next_offset


@every_layout
async def test_a_read_continues_while_there_is_room(tmp_path: Path, options: dict[str, Any]) -> None:
    """The next message does not fit, neither in its batch nor alone."""

    clock = Clock()
    async with partition_in(tmp_path, clock=clock, **options) as partition:
        filled = Filled(partition)
        await filled.fill(clock, SHAPES)
        for room in range(300, 2600, 130):
            for offset in range(0, len(filled.model), 2):
                fetched = await partition.read(offset, 1000, room)
                after = fetched.next_offset
                if after < len(filled.model):
                    left = room - sum(map(len, fetched.buffers))
                    # The next message of the same batch needs no header of its own.
                    needs = 48 + len(filled.model[after][2])
                    same_batch = filled.model[after][1] == filled.model[after - 1][1]
                    assert left < needs + (0 if same_batch else HEADER_BYTES)


@every_layout
async def test_a_read_whose_room_is_exactly_enough_returns_everything_that_fits(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    clock = Clock()
    async with partition_in(tmp_path, clock=clock, **options) as partition:
        filled = Filled(partition)
        await filled.fill(clock, SHAPES)
        assert (await partition.read(0, 1000, 0)).messages == 0
        for count in range(1, len(filled.model) + 1):
            size = sum(map(len, (await partition.read(0, count)).buffers))
            assert found(await partition.read(0, 1000, size)) == filled.expected(0, count)


async def test_a_read_keeps_its_limit_even_if_more_is_requested(tmp_path: Path) -> None:
    async with partition_in(tmp_path, read_bytes_max=2000) as partition:
        for _ in range(10):
            await partition.append(sized(1, 500))
        assert offsets(await partition.read(0, 10)) == [0, 1]
        assert offsets(await partition.read(0, 10, 10**6)) == [0, 1]
        assert offsets(await partition.read(0, 10, 900)) == [0]


@pytest.mark.parametrize("options", [{}, {"tail_bytes_max": 0}], ids=["tail", "disk"])
async def test_a_read_of_an_empty_partition_is_empty(tmp_path: Path, options: dict[str, Any]) -> None:
    async with partition_in(tmp_path, **options) as partition:
        for fetched in (
            await partition.read(0, 10),
            await partition.read(5, 10),
            await partition.read_last(10),
            await partition.read_from_time(0, 10),
        ):
            assert (fetched.buffers, fetched.messages) == ([], 0)
        assert await partition.offset_at(NOON) == 0
        assert (partition.first_offset, partition.messages_count, partition.size_bytes) == (0, 0, 0)


async def test_whole_batches_are_read_as_the_bytes_that_were_stored(tmp_path: Path) -> None:
    for options in ({}, {"tail_bytes_max": 0}):
        async with partition_in(tmp_path / str(len(options)), clock=Clock(), **options) as partition:
            sent = [texts("a", "b"), sized(20, 30), texts("c")]
            for whole in sent:
                await partition.append(whole)
            assert b"".join((await partition.read(0, 100)).buffers) == b"".join(sent)
            log = tmp_path / str(len(options)) / "streams/0/topics/0/partitions/0/00000000000000000000.log"
            assert log.read_bytes() == b"".join(sent)


async def test_readers_see_no_gap_while_others_write(tmp_path: Path) -> None:
    async with partition_in(tmp_path, segment_bytes=3000, tail_bytes_max=2000) as partition:

        async def write(name: int) -> None:
            for i in range(30):
                await partition.append(texts(f"{name}-{i}", "x"))

        async def follow() -> list[bytes]:
            seen: list[bytes] = []
            while len(seen) < 240:
                await partition.until(len(seen))
                seen += payloads(await partition.read(len(seen), 7))
            return seen

        writing = asyncio.gather(*(write(name) for name in range(4)))
        _, first, second = await asyncio.gather(writing, follow(), follow())
        assert first == second
        for name in range(4):
            mine = [text for text in first if text.startswith(b"%d-" % name)]
            assert mine == [b"%d-%d" % (name, i) for i in range(30)]
