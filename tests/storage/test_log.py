"""The segments of a partition on the disk, seen through a partition that keeps nothing in memory."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.storage.support.segments import FIRST_SEGMENT, FilesInMemoryOfTheSystem, joined, open_log, pieces, stamped
from tests.storage.support.world import offsets, partition_in, reached, settled, sized, texts
from tests.support.clocks import NOON, Clock
from tests.support.running import HANGS_S
from whippet.storage.batch import header
from whippet.storage.errors import ReadFailed, WriteFailed
from whippet.storage.files import Buffer, Files
from whippet.storage.options import Durability
from whippet.storage.producers import Producer, Record

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
async def test_a_time_is_found_around_a_segment_without_a_message(
    tmp_path: Path, empty: int, options: dict[str, str]
) -> None:
    """Its messages are lost, and with them the times that tell on which side of it to search."""

    await one_segment_a_batch(tmp_path, 6)
    (tmp_path / FOLDER / f"{2 * empty:020}.log").write_bytes(b"")
    (tmp_path / FOLDER / f"{2 * empty:020}.index").unlink()
    async with partition_in(tmp_path, segment_bytes=1, tail_bytes_max=0, **options) as partition:
        left = [n for n in range(6) if n != empty]
        for time in range(NOON - 5, NOON + 61, 5):
            n = next((n for n in left if NOON + 10 * n >= time), 6)
            found = offsets(await partition.read_from_time(time, 1))
            assert found == ([2 * n] if n < 6 else [])


async def test_a_segment_is_closed_by_the_batch_that_reaches_its_size(
    tmp_path: Path,
) -> None:
    """No batch is ever split."""

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
async def test_batches_written_together_roll_where_single_ones_would(tmp_path: Path, bytes_: int) -> None:
    options = {"messages_required_to_save": 1000, "durability": Durability.MEMORY, "segment_bytes": bytes_}
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


async def test_a_read_refused_by_the_disk_is_an_error_and_later_reads_are_served(
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


class Rewriting(FilesInMemoryOfTheSystem):
    """Records which bytes of which log are written, and which files are synced."""

    def __init__(self) -> None:
        self.written: dict[str, tuple[int, bytes]] = {}
        self.synced: list[str] = []
        self._names: dict[int, str] = {}

    def open_for_writing(self, path: str) -> int:
        handle = super().open_for_writing(path)
        self._names[handle] = path.rpartition("/")[2]
        return handle

    def write(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        name = self._names[handle]
        start, before = self.written.get(name, (position, b""))
        assert position == start + len(before)
        self.written[name] = (start, before + b"".join(bytes(buffer) for buffer in buffers))
        return super().write(handle, buffers, position)

    def sync(self, handle: int) -> None:
        self.synced.append(self._names[handle])

    def sync_folder(self, path: str) -> None:
        self.synced.append("the folder")


FRONT = pieces([[9, 9], [30], [5] * 20])
SECOND_SEGMENT = f"{FRONT[-1].next_offset:020}"
REAR = pieces([[7, 8], [40], [6] * 14], FRONT[-1].next_offset)
NEXT_OFFSET = REAR[-1].next_offset


@pytest.mark.parametrize("synced", range(NEXT_OFFSET + 1))
def test_a_rewrite_after_a_failed_sync_writes_and_syncs_every_batch_not_synced(tmp_path: Path, synced: int) -> None:
    (tmp_path / f"{FIRST_SEGMENT}.log").write_bytes(joined(FRONT))
    (tmp_path / f"{SECOND_SEGMENT}.log").write_bytes(joined(REAR))
    files = Rewriting()
    opened = open_log(tmp_path, files=files)
    files.written.clear()
    files.synced.clear()
    opened.log.rewrite_unsynced(synced)
    expected = {}
    for name, batches in ((FIRST_SEGMENT, FRONT), (SECOND_SEGMENT, REAR)):
        again = [piece for piece in batches if piece.next_offset > synced]
        if again:
            expected[f"{name}.log"] = (again[0].position, joined(again))
    assert files.written == expected
    assert files.synced == [*expected, "the folder"]
    opened.abandon()


def test_a_rewrite_leaves_a_segment_with_a_lost_end_unchanged(tmp_path: Path) -> None:
    """Everything in it is older than what was not synced."""
    (tmp_path / f"{FIRST_SEGMENT}.log").write_bytes(joined(FRONT[:-1]))
    (tmp_path / f"{SECOND_SEGMENT}.log").write_bytes(stamped([7], FRONT[-1].next_offset))
    files = Rewriting()
    opened = open_log(tmp_path, files=files)
    files.written.clear()
    opened.log.rewrite_unsynced(FRONT[-1].next_offset - 1)
    assert list(files.written) == [f"{SECOND_SEGMENT}.log"]
    assert (tmp_path / f"{FIRST_SEGMENT}.log").read_bytes() == joined(FRONT[:-1])
    opened.abandon()


@pytest.mark.parametrize(
    ("base", "messages", "checksum_is_right", "synced", "counts"),
    [
        (0, 3, False, 0, True),  # it was deleted, so its result was right
        (5, 2, True, 0, True),
        (5, 2, False, 0, False),
        (5, 2, False, 5, False),
        (5, 2, False, 6, True),  # synced batches may be damaged since, but were written
        (5, 1, True, 0, False),
        (6, 1, True, 0, False),
        (7, 1, True, 0, True),
        (7, 1, True, 8, True),
        (7, 2, True, 100, False),  # its end is not in the log
        (8, 1, True, 100, False),
    ],
)
def test_a_record_counts_if_the_log_has_or_had_its_batch(
    tmp_path: Path, base: int, messages: int, checksum_is_right: bool, synced: int, counts: bool
) -> None:
    found = pieces([[9, 9], [30]], 5)
    (tmp_path / f"{5:020}.log").write_bytes(joined(found))
    opened = open_log(tmp_path)
    checksums = {piece.base_offset: header(piece.content).checksum for piece in found}
    checksum = checksums.get(base, 0) ^ (not checksum_is_right)
    record = Record(Producer(b"p", 1, 1), base, messages, NOON, checksum)
    assert opened.log._counts(record, synced) is counts
    opened.abandon()


class Reads(Files):
    """Records how many bytes each read of a log returned."""

    def __init__(self) -> None:
        super().__init__()
        self.log_bytes: list[int] = []

    def read(self, handle: int, length: int, position: int) -> bytes:
        octets = super().read(handle, length, position)
        if os.readlink(f"/proc/self/fd/{handle}").endswith(".log"):
            self.log_bytes.append(len(octets))
        return octets

    def read_cached(self, handle: int, length: int, position: int) -> Buffer | None:
        return self.read(handle, length, position)


async def test_a_read_reads_from_the_disk_only_the_batches_that_it_returns(tmp_path: Path) -> None:
    """The first read after a start, which checks what it returns, and every later one."""
    batch = sized(2, 300)
    async with partition_in(tmp_path, tail_bytes_max=0, segment_bytes=10 * len(batch)) as partition:
        for _ in range(12):
            await partition.append(sized(2, 300))
    disk = Reads()
    async with partition_in(tmp_path, files=disk, tail_bytes_max=0, segment_bytes=10 * len(batch)) as partition:
        for count in (1, 2, 3, 4, 7):
            for first in (4, 5):
                disk.log_bytes.clear()
                assert offsets(await partition.read(first, count)) == list(range(first, first + count))
                batches = (first + count - 1) // 2 - first // 2 + 1
                assert disk.log_bytes == [batches * len(batch)]
        for fitting in (1, 2, 3):
            disk.log_bytes.clear()
            assert len(offsets(await partition.read(4, 9, fitting * len(batch)))) == 2 * fitting
            assert disk.log_bytes == [fitting * len(batch)]


class Full(Files):
    """Once it is full, writes the beginning of the next write, and then nothing."""

    full = False

    def write(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        if not self.full:
            return super().write(handle, buffers, position)
        if position % 1000 == 0:
            return super().write(handle, [memoryview(buffers[0])[:10]], position)
        raise OSError(errno.ENOSPC, "No space left on device")


async def test_the_beginning_of_a_batch_that_did_not_fit_is_cut_off_the_file(tmp_path: Path) -> None:
    batch = sized(1, 696)
    assert len(batch) == 1000
    disk, file = Full(), tmp_path / FOLDER / "00000000000000000000.log"
    async with partition_in(tmp_path, files=disk) as partition:
        await partition.append(sized(1, 696))
        disk.full = True
        with pytest.raises(WriteFailed):
            await partition.append(sized(1, 696))
        assert file.stat().st_size == 1000
        disk.full = False
        await partition.append(sized(1, 696))
        assert file.stat().st_size == 2000


class Held(Files):
    """A sync waits for a signal."""

    def __init__(self) -> None:
        super().__init__()
        self.let, self.asked = threading.Event(), threading.Event()
        self.let.set()

    def sync(self, handle: int) -> None:
        self.asked.set()
        self.let.wait(HANGS_S)
        super().sync(handle)


async def test_a_read_from_the_disk_ends_where_messages_were_readable_when_it_began(tmp_path: Path) -> None:
    disk = Held()
    async with partition_in(tmp_path, files=disk, tail_bytes_max=0, durability=Durability.SYNCED) as partition:
        await partition.append(texts("a", "b"))
        disk.let.clear()
        disk.asked.clear()
        more = asyncio.create_task(partition.append(texts("c")))
        await reached(disk.asked)
        assert partition.readable == 2
        await settled()
        early = asyncio.create_task(partition.read(0, 10))
        await settled()
        disk.let.set()
        assert offsets(await early) == [0, 1]
        await more
        assert offsets(await partition.read(0, 10)) == [0, 1, 2]


async def test_an_interrupted_deletion_is_finished_by_the_next_one(tmp_path: Path) -> None:
    class Stubborn(Files):
        refuses = True

        def remove(self, path: str) -> None:
            if self.refuses and path.endswith(f"{2:020}.log"):
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            super().remove(path)

    files = Stubborn()
    async with partition_in(tmp_path, files=files, segment_bytes=1) as partition:
        for n in range(5):
            await partition.append(texts(f"{n}a", f"{n}b"))
        with pytest.raises(WriteFailed):
            await partition.trim(6)
        assert partition.first_offset == 6
        files.refuses = False
        assert await partition.trim(6) == 0
        left = {path.name for path in (tmp_path / FOLDER).glob("*.log")}
        assert left == {f"{2 * n:020}.log" for n in range(3, 6)}
