"""The segments of a partition on the disk, seen through a partition that keeps nothing in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.storage.support.world import NOON, Clock, offsets, partition_in, sized, texts
from whippet.storage.errors import ReadFailed
from whippet.storage.files import Files

FOLDER = "streams/0/topics/0/partitions/0"


async def one_segment_a_batch(path: Path, batches: int) -> None:
    """Segment n holds the offsets 2 n and 2 n + 1, appended at NOON + 10 n."""
    clock = Clock()
    async with partition_in(path, clock=clock, segment_bytes=1, tail_bytes_max=0) as partition:
        for n in range(batches):
            clock.now = NOON + 10 * n
            await partition.append(texts(f"{n}a", f"{n}b"))


@pytest.mark.parametrize("empty", range(6))
@pytest.mark.parametrize("options", [{}, {"index_cache": "none"}], ids=["cached", "not cached"])
async def test_given_a_segment_without_a_message_when_a_time_is_looked_up_should_be_found_around_it(
    tmp_path: Path, empty: int, options: dict[str, str]
) -> None:
    """Its messages are lost, and with them the times that would tell on which side of it to look."""

    await one_segment_a_batch(tmp_path, 6)
    (tmp_path / FOLDER / f"{2 * empty:020}.log").write_bytes(b"")
    (tmp_path / FOLDER / f"{2 * empty:020}.index").unlink()
    async with partition_in(tmp_path, segment_bytes=1, tail_bytes_max=0, **options) as partition:
        left = [n for n in range(6) if n != empty]
        for time in range(NOON - 5, NOON + 61, 5):
            n = next((n for n in left if NOON + 10 * n >= time), 6)
            found = offsets(await partition.read_from_time(time, 1))
            assert found == ([2 * n] if n < 6 else [])


async def test_given_the_official_example_when_appended_should_roll_as_the_page_of_behaviour_says(
    tmp_path: Path,
) -> None:
    """Segments are closed by the batch that reaches their size; none is ever split."""

    size = len(sized(1, 696))
    assert size == 1000
    async with partition_in(tmp_path, segment_bytes=5120) as partition:
        for _ in range(25):
            await partition.append(sized(1, 696))
        assert [s.start_offset for s in await partition.closed_segments()] == [0, 6, 12, 18]
        assert partition.segments_count == 5
    files = {path.name: path.stat().st_size for path in (tmp_path / FOLDER).glob("*.log")}
    assert files == {f"{6 * n:020}.log": 6000 for n in range(4)} | {f"{24:020}.log": 1000}
    indexes = {path.name: path.stat().st_size for path in (tmp_path / FOLDER).glob("*.index")}
    assert indexes == {f"{6 * n:020}.index": 40 + 6 * 32 for n in range(4)} | {f"{24:020}.index": 40 + 32}


@pytest.mark.parametrize("bytes_", [1, 999, 1000, 1001, 3000])
async def test_given_a_group_of_batches_when_written_together_should_roll_where_single_ones_would(
    tmp_path: Path, bytes_: int
) -> None:
    options = {"messages_required_to_save": 1000, "durability": 0, "segment_bytes": bytes_}
    starts = []
    for together in (False, True):
        async with partition_in(tmp_path / str(together), **options) as partition:
            for _ in range(12):
                await partition.append(sized(2, 100))
                if not together:
                    await partition.flush()
            await partition.flush()
            starts.append([segment.start_offset for segment in await partition.closed_segments()])
    assert starts[0] == starts[1]
    assert starts[0][0] == 0


class Unreadable(Files):
    failing = False

    def read(self, handle: int, length: int, position: int) -> bytes:
        if self.failing:
            raise OSError(5, "Input/output error")
        return super().read(handle, length, position)


async def test_given_a_disk_that_cannot_read_when_read_should_say_so_and_serve_again_when_it_can(
    tmp_path: Path,
) -> None:
    await one_segment_a_batch(tmp_path, 4)
    disk = Unreadable()
    async with partition_in(tmp_path, files=disk, segment_bytes=1, tail_bytes_max=0) as partition:
        disk.failing = True
        for act in (partition.read(0, 9), partition.read_last(3), partition.read_from_time(NOON + 5, 1)):
            with pytest.raises(ReadFailed, match=r"\d\.log cannot be read: Input/output error"):
                await act
        disk.failing = False
        assert offsets(await partition.read(0, 9)) == list(range(8))
