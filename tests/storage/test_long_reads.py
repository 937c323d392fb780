"""Long reads: the bytes of a read that is held in memory, but in pieces, from files that may be deleted meanwhile."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.storage.support.partitions import BUFFERED
from tests.storage.support.world import partition_in, sized, texts
from whippet.storage import long_reads
from whippet.storage.errors import ReadFailed
from whippet.storage.files import Files
from whippet.storage.long_reads import LongRead
from whippet.storage.partition import Partition

EVERYTHING = 1 << 40
SHAPES = ((10, 20, 30), (5,), (7,) * 14, (400,), (1, 2), (9,) * 3, (50, 1) * 7, (3,))
MESSAGES = sum(map(len, SHAPES))

PIECE_BYTES = long_reads.PIECE_BYTES

LAYOUTS: dict[str, dict[str, Any]] = {
    "all in the tail": {},
    "all on the disk": {"tail_bytes_max": 0},
    "only the newest in the tail": {"tail_bytes_max": 2500},
    "a segment for every batch": {"tail_bytes_max": 0, "segment_bytes": 1},
    "no index in memory": {"tail_bytes_max": 0, "segment_bytes": 1500, "index_cache": "none"},
    "in memory, not written": BUFFERED,
    "partly written": {**BUFFERED, "messages_required_to_save": 20},
}


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_reads, "PIECE_BYTES", 100)


async def fill(partition: Partition, shapes: Sequence[Sequence[int]] = SHAPES) -> None:
    for shape in shapes:
        await partition.append(texts(*(b"x" * size for size in shape)))


async def long_read(partition: Partition, offset: int, count: int, room: int = EVERYTHING) -> LongRead:
    found = await partition.read_long(offset, count, room)
    assert found is not None
    return found


async def drained(long: LongRead) -> bytes:
    size, pieces = len(long), []
    while (piece := long.next_piece()) is not None:
        pieces.append(bytes(await piece))
    assert sum(map(len, pieces)) == size
    return b"".join(pieces)


@pytest.mark.parametrize("again", [False, True], ids=["as written", "after a restart"])
@pytest.mark.parametrize("options", LAYOUTS.values(), ids=LAYOUTS.keys())
async def test_a_long_read_has_exactly_the_bytes_of_a_read_that_is_held(
    tmp_path: Path, options: dict[str, Any], again: bool
) -> None:
    async def compare(partition: Partition) -> None:
        choice = random.Random(1)
        for offset in range(MESSAGES):
            count, room = choice.choice((1, 2, 5, 17, 1000)), choice.choice((1, 500, 1500, EVERYTHING))
            held = await partition.read(offset, count, room)
            long = await long_read(partition, offset, count, room)
            assert (long.messages, long.next_offset) == (held.messages, held.next_offset)
            assert await drained(long) == b"".join(held.buffers)

    async with partition_in(tmp_path, **options) as partition:
        await fill(partition)
        if not again:
            await compare(partition)
    if again:
        async with partition_in(tmp_path, **options) as partition:
            await compare(partition)


async def test_a_long_read_continues_in_memory_after_what_is_written(tmp_path: Path) -> None:
    async with partition_in(tmp_path, **BUFFERED, tail_bytes_max=0) as partition:
        await fill(partition, SHAPES[:3])
        await partition.flush()
        await fill(partition, SHAPES[3:])
        written = partition.written
        assert 0 < written < partition.readable == MESSAGES
        for count in range(1, MESSAGES + 2):
            held = await partition.read(0, count)
            expected, size = b"".join(held.buffers), sum(map(len, held.buffers))
            assert await drained(await long_read(partition, 0, count)) == expected
            for room in (size - 1, size, size + 1):
                held = await partition.read(0, MESSAGES, room)
                long = await long_read(partition, 0, MESSAGES, room)
                assert (long.messages, long.next_offset) == (held.messages, held.next_offset)
                assert await drained(long) == b"".join(held.buffers)
        assert partition.written == written


async def test_what_a_long_read_takes_from_memory_is_limited(tmp_path: Path) -> None:
    batch = sized(1, (1 << 20) - len(sized(1, 0)))
    assert len(batch) == 1 << 20
    options = {**BUFFERED, "bytes_required_to_save": 1 << 30}
    async with partition_in(tmp_path, **options) as partition:
        for _ in range(10):
            await partition.append(bytearray(batch))
        long = await long_read(partition, 0, 1000)
        assert (long.messages, len(long)) == (8, 8 << 20)


async def test_a_long_read_is_read_a_mebibyte_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_reads, "PIECE_BYTES", PIECE_BYTES)
    batch = sized(1, 2_500_000)
    async with partition_in(tmp_path, tail_bytes_max=0) as partition:
        await partition.append(bytearray(batch))
        long = await long_read(partition, 0, 1000)
        pieces = []
        while (piece := long.next_piece()) is not None:
            pieces.append(len(await piece))
        assert pieces == [1 << 20, 1 << 20, len(batch) - (2 << 20)]


async def test_what_is_read_for_long_is_read_in_pieces(tmp_path: Path) -> None:
    async with partition_in(tmp_path, tail_bytes_max=0) as partition:
        await fill(partition)
        long = await long_read(partition, 0, 1000)
        pieces = []
        while (piece := long.next_piece()) is not None:
            pieces.append(len(await piece))
        assert max(pieces) == 100


async def test_a_long_read_goes_on_when_its_segments_are_deleted(tmp_path: Path) -> None:
    async with partition_in(tmp_path, tail_bytes_max=0, segment_bytes=1) as partition:
        await fill(partition)
        expected = b"".join((await partition.read(0, 1000)).buffers)
        long = await long_read(partition, 0, 1000)
        first = long.next_piece()
        assert first is not None
        beginning = bytes(await first)
        assert await partition.trim(MESSAGES)
        rest = []
        while (piece := long.next_piece()) is not None:
            rest.append(bytes(await piece))
        assert beginning + b"".join(rest) == expected


async def test_a_long_read_goes_on_when_the_partition_is_purged(tmp_path: Path) -> None:
    async with partition_in(tmp_path, tail_bytes_max=0) as partition:
        await fill(partition)
        expected = b"".join((await partition.read(0, 1000)).buffers)
        long = await long_read(partition, 0, 1000)
        await partition.purge()
        assert await drained(long) == expected


async def test_a_file_that_is_cut_off_meanwhile_is_an_error_and_never_wrong_bytes(tmp_path: Path) -> None:
    async with partition_in(tmp_path, tail_bytes_max=0) as partition:
        await fill(partition)
        long = await long_read(partition, 0, 1000)
        (log,) = tmp_path.rglob("*.log")
        os.truncate(log, 50)
        with pytest.raises(ReadFailed, match="No data available"):
            await drained(long)


async def test_damage_found_before_a_long_read_is_left_out_of_it(tmp_path: Path) -> None:
    async with partition_in(tmp_path, segment_bytes=1500) as partition:
        await fill(partition)
    first, *_ = sorted(tmp_path.rglob("*.log"))
    content = bytearray(first.read_bytes())
    content[300] ^= 1
    first.write_bytes(content)
    async with partition_in(tmp_path, segment_bytes=1500) as partition:
        long = await long_read(partition, 0, 1000)
        assert await drained(long) == b"".join((await partition.read(0, 1000)).buffers)
        assert long.messages < MESSAGES


class Counting(Files):
    def __init__(self) -> None:
        self.open = 0

    def open_for_reading(self, path: str) -> int:
        handle = super().open_for_reading(path)
        self.open += 1
        return handle

    def open_for_writing(self, path: str) -> int:
        handle = super().open_for_writing(path)
        self.open += 1
        return handle

    def close(self, handle: int) -> None:
        self.open -= 1
        super().close(handle)


async def test_a_long_read_that_is_dropped_closes_its_files(tmp_path: Path) -> None:
    files = Counting()
    async with partition_in(tmp_path, files=files, tail_bytes_max=0, segment_bytes=1) as partition:
        await fill(partition)
        await partition.read(0, 1000)
        before = files.open
        long = await long_read(partition, 0, 1000)
        assert files.open > before
        ahead = long.next_piece()
        assert ahead is not None
        ahead.cancel()
        del long, ahead
        gc.collect()
        # The shard closes them as soon as it has let go of the last call that used them.
        while files.open > before:
            await partition.closed_segments()


async def test_a_file_of_a_long_read_is_closed_once_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_reads, "PIECE_BYTES", 1000)
    files = Counting()
    async with partition_in(tmp_path, files=files, tail_bytes_max=0, segment_bytes=1) as partition:
        await fill(partition)
        await partition.read(0, 1000)
        long = await long_read(partition, 0, 1000)
        opened = [files.open]
        while (piece := long.next_piece()) is not None:
            await piece
            del piece
            gc.collect()
            await partition.closed_segments()
            opened.append(files.open)
        assert opened[-1] == opened[0] - len(SHAPES)
        assert len(set(opened)) == len(SHAPES) + 1


async def test_a_long_read_that_is_dropped_after_the_store_is_closed_closes_its_files(tmp_path: Path) -> None:
    files = Counting()
    async with partition_in(tmp_path, files=files, tail_bytes_max=0, segment_bytes=1) as partition:
        await fill(partition)
        long = await long_read(partition, 0, 1000)
    assert files.open == len(SHAPES)
    del long
    gc.collect()
    assert files.open == 0


async def test_a_long_read_is_refused_while_others_have_too_many_files_open(tmp_path: Path) -> None:
    async with partition_in(tmp_path, tail_bytes_max=0, segment_bytes=1, open_files_max=8, shards=1) as partition:
        await fill(partition)
        few = await long_read(partition, 0, 4)
        assert await partition.read_long(0, 1000, EVERYTHING) is None
        assert await drained(await long_read(partition, 0, 4)) == await drained(few)
