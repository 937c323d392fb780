"""A shard's open files and cached indexes stay within their limits; the least recently used go first."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from tests.storage.support.world import opened, partition_in, sized, with_topic
from whippet.storage.files import Files
from whippet.storage.handles import Handles, IndexCache
from whippet.storage.index import Index
from whippet.storage.options import Durability
from whippet.storage.segment import Segment


class Counted(Files):
    def __init__(self) -> None:
        self.open: dict[int, str] = {}
        self.opened: list[str] = []

    def open_for_reading(self, path: str) -> int:
        return self._noted(super().open_for_reading(path), "r", path)

    def open_for_writing(self, path: str) -> int:
        return self._noted(super().open_for_writing(path), "w", path)

    def _noted(self, handle: int, mode: str, path: str) -> int:
        self.open[handle] = mode + path[-1]
        self.opened.append(self.open[handle])
        return handle

    def close(self, handle: int) -> None:
        super().close(handle)
        del self.open[handle]


@pytest.fixture
def disk(tmp_path: Path) -> Counted:
    for name in "abcdef":
        (tmp_path / name).write_text(name)
    return Counted()


def test_the_least_recently_used_file_is_closed_when_too_many_are_open(tmp_path: Path, disk: Counted) -> None:
    handles = Handles(disk, 3)
    for name in "abca":
        handles.reading(f"{tmp_path}/{name}")
    assert disk.opened == ["ra", "rb", "rc"]
    handles.reading(f"{tmp_path}/d")
    assert sorted(disk.open.values()) == ["ra", "rc", "rd"]
    handles.reading(f"{tmp_path}/c")
    handles.writing(f"{tmp_path}/e")
    assert sorted(disk.open.values()) == ["rc", "rd", "we"]
    assert len(handles) == 3


@pytest.mark.parametrize("open_max", [-1, 0, 1, 2])
def test_at_least_two_files_stay_open_and_every_handle_in_use_is_valid(
    tmp_path: Path, disk: Counted, open_max: int
) -> None:
    handles = Handles(disk, open_max)
    for name in "abcabc":
        assert os.pread(handles.reading(f"{tmp_path}/{name}"), 1, 0) == name.encode()
        assert len(handles) <= 2
    assert len(disk.open) == 2


def test_a_handle_for_writing_replaces_one_for_reading_and_serves_both(tmp_path: Path, disk: Counted) -> None:
    handles = Handles(disk, 3)
    handles.reading(f"{tmp_path}/a")
    writing = handles.writing(f"{tmp_path}/a")
    assert list(disk.open.values()) == ["wa"]
    assert handles.reading(f"{tmp_path}/a") == handles.writing(f"{tmp_path}/a") == writing
    assert os.pwrite(writing, b"z", 0) == 1


def test_no_file_is_open_after_all_are_dropped_or_closed(tmp_path: Path, disk: Counted) -> None:
    handles = Handles(disk, 5)
    for name in "abc":
        handles.reading(f"{tmp_path}/{name}")
    handles.drop(f"{tmp_path}/b")
    handles.drop(f"{tmp_path}/b")
    handles.drop(f"{tmp_path}/never opened")
    assert sorted(disk.open.values()) == ["ra", "rc"]
    handles.close()
    assert (len(handles), disk.open) == (0, {})


def test_a_lent_file_is_closed_when_it_is_dropped(tmp_path: Path, disk: Counted) -> None:
    handles = Handles(disk, 5)
    handles.writing(f"{tmp_path}/a")
    assert handles.lend(f"{tmp_path}/a") is not None
    handles.drop(f"{tmp_path}/a")
    assert (len(handles), disk.open) == (0, {})


def test_a_file_that_cannot_be_opened_leaves_the_others_open(tmp_path: Path, disk: Counted) -> None:
    handles = Handles(disk, 2)
    handles.reading(f"{tmp_path}/a")
    with pytest.raises(FileNotFoundError):
        handles.reading(f"{tmp_path}/x")
    assert len(handles) == 1
    handles.close()
    assert not disk.open


def test_a_file_that_is_needed_now_is_open_even_if_all_others_are_in_use_elsewhere(
    tmp_path: Path, disk: Counted
) -> None:
    handles = Handles(disk, 2)
    handles.writing(f"{tmp_path}/a")
    assert handles.lend(f"{tmp_path}/a") is not None
    apart = handles.open_apart(f"{tmp_path}/b")
    assert apart is not None
    for name in "cdc":
        assert os.pread(handles.reading(f"{tmp_path}/{name}"), 1, 0) == name.encode()
        assert (len(handles), len(disk.open)) == (3, 3)
    handles.close_apart(f"{tmp_path}/b", apart)
    handles.close()
    assert not disk.open


def test_a_lent_file_that_was_taken_back_is_still_open_for_writing(tmp_path: Path, disk: Counted) -> None:
    handles = Handles(disk, 5)
    handle = handles.writing(f"{tmp_path}/a")
    assert handles.lend(f"{tmp_path}/a") == handle
    handles.take_back(f"{tmp_path}/a")
    assert handles.writing(f"{tmp_path}/a") == handle
    assert disk.opened == ["wa"]


def test_a_file_that_is_open_for_reading_only_is_not_lent_for_writing(tmp_path: Path, disk: Counted) -> None:
    handles = Handles(disk, 5)
    handles.reading(f"{tmp_path}/a")
    assert handles.lend(f"{tmp_path}/a") is None
    handles.writing(f"{tmp_path}/a")
    assert handles.lend(f"{tmp_path}/a") is not None


def test_long_reads_take_half_of_the_open_files_at_most_and_others_make_room_for_them(
    tmp_path: Path, disk: Counted
) -> None:
    handles = Handles(disk, 4)
    for name in "abcd":
        handles.reading(f"{tmp_path}/{name}")
    apart = [handles.open_apart(f"{tmp_path}/{name}") for name in "aab"]
    assert [handle is None for handle in apart] == [False, False, True]
    assert sorted(disk.open.values()) == ["ra", "ra", "rc", "rd"]
    for handle in apart[:2]:
        assert handle is not None
        handles.close_apart(f"{tmp_path}/a", handle)
    assert handles.open_apart(f"{tmp_path}/f") is not None
    assert sorted(disk.open.values()) == ["rc", "rd", "rf"]


class Unreserving(Counted):
    """A disk that reserves some blocks before it refuses, and on which files cannot be cut."""

    def __init__(self) -> None:
        super().__init__()
        self.cut: list[tuple[str, int]] = []
        self.cutting_fails = False

    def reserve(self, handle: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    def truncate(self, handle: int, size: int) -> None:
        if self.cutting_fails:
            raise OSError(errno.EROFS, "read-only")
        self.cut.append((self.open[handle], size))


def test_blocks_that_could_be_reserved_only_in_part_are_freed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = Unreserving()
    handles = Handles(disk, 5)
    for _ in range(2):
        handles.reserve(f"{tmp_path}/a", 3, 1000)
    assert disk.cut == [("wa", 3)] * 2
    disk.cutting_fails = True
    for _ in range(2):
        handles.reserve(f"{tmp_path}/b", 3, 1000)
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}/a: 1000 bytes cannot be reserved (logged once): [Errno {errno.ENOSPC}] no space",
        f"{tmp_path}/b: reserved blocks that are not needed cannot be freed (logged once): "
        f"[Errno {errno.EROFS}] read-only",
    ]


# -------------------------------------------------------------------------------------------------------------- indexes


def index_of(batches: int) -> Index:
    index = Index()
    for i in range(batches):
        index.add(i, 400 * i, i, 400, 1)
    return index


def test_the_least_recently_used_index_is_dropped_when_the_budget_is_exceeded() -> None:
    cache = IndexCache(3 * 32)
    one, two, three, four = (Segment(start) for start in range(4))
    for segment in (one, two, three):
        cache.put(segment, index_of(1))
    cache.touch(one)
    cache.put(four, index_of(1))
    assert [segment.index is not None for segment in (one, two, three, four)] == [True, False, True, True]
    cache.put(two, index_of(2))
    assert [segment.index is not None for segment in (one, two, three, four)] == [False, True, False, True]


def test_an_index_larger_than_the_whole_budget_is_not_kept() -> None:
    cache = IndexCache(3 * 32)
    small, large = Segment(0), Segment(1)
    cache.put(small, index_of(1))
    cache.put(large, index_of(4))
    assert large.index is None
    assert small.index is not None


def test_a_budget_of_zero_keeps_no_index_and_an_unlimited_one_keeps_all() -> None:
    none, every = IndexCache(0), IndexCache(float("inf"))
    segments = [Segment(start) for start in range(100)]
    for segment in segments:
        none.put(segment, index_of(10))
    assert all(segment.index is None for segment in segments)
    for segment in segments:
        every.put(segment, index_of(10))
    assert all(segment.index is not None for segment in segments)


def test_an_index_that_is_put_or_dropped_twice_counts_once() -> None:
    cache = IndexCache(3 * 32)
    one, two = Segment(0), Segment(1)
    for batches in (3, 1, 2):
        cache.put(one, index_of(batches))
    cache.put(two, index_of(1))
    assert len(one.index or ()) == 2
    cache.drop(one)
    cache.drop(one)
    assert one.index is None
    cache.put(one, index_of(2))
    assert two.index is not None


def test_the_batches_of_a_dropped_index_are_checked_again() -> None:
    cache = IndexCache(32)
    segment, other = Segment(0), Segment(1)
    cache.put(segment, index_of(1))
    segment.checked = bytearray(1)
    cache.put(other, index_of(1))
    assert segment.index is None
    assert segment.checked is None


@pytest.mark.parametrize("options", [{"durability": Durability.SYNCED}, {"saver_interval_s": 0.001}])
async def test_files_of_closed_segments_do_not_stay_open_under_constant_load(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    disk = Counted()
    async with opened(tmp_path, files=disk, segment_bytes=1024, tail_bytes_max=0, **options) as store:
        (partition,) = await with_topic(store)
        for _ in range(30):
            await partition.append(sized(1, 1024))
            await partition.flush(sync=True)
        # The lock, and the segment that grows.
        assert (partition.segments_count, len(disk.open)) == (31, 2)


async def test_reading_through_many_segments_leaves_none_of_them_open(tmp_path: Path) -> None:
    async with partition_in(tmp_path, segment_bytes=1024) as partition:
        for _ in range(30):
            await partition.append(sized(2, 512))
    disk = Counted()
    async with opened(tmp_path, files=disk, segment_bytes=1024) as store:
        (partition,) = await with_topic(store)
        before, offset = len(disk.open), 0
        while offset < 60:
            found = await partition.read(offset, 1)
            assert found.next_offset == offset + 1
            offset = found.next_offset
        assert len(disk.open) <= before + 1
    assert not disk.open
