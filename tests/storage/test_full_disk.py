"""A disk that is really full, under one of two partitions: the error reports it, the other partition is not affected,
and everything resumes when there is room again.

The partition's folder is a link to a small tmpfs (support/small_disk.py).
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from tests.storage.support.segments import messages_in
from tests.storage.support.small_disk import exhaust, on_a_small_disk
from whippet.storage.batch import Message, build
from whippet.storage.documents import StreamDocument, TopicDocument
from whippet.storage.errors import DiskError, StorageError, WriteFailed
from whippet.storage.offsets import Kind
from whippet.storage.options import Durability, StoreOptions
from whippet.storage.partition import Partition
from whippet.storage.store import Store

BATCH_BYTES = 40_000
ROOM_BYTES = 300_000
DEADLINE_S = 20

levels = pytest.mark.parametrize("level", list(Durability), ids=lambda level: level.name.lower())

Served = list[tuple[int, bytes]]


class Case:
    """A store with partition 0 on the large disk and partition 1 on the small one, and what it acknowledged."""

    def __init__(self, root: Path, level: Durability, segment_bytes: int) -> None:
        self.small = root / "small"
        self.options = StoreOptions(
            path=str(root / "data"),
            durability=level,
            messages_required_to_save=3 if level is Durability.MEMORY else 1,
            saver_interval_s=None,
            segment_bytes=segment_bytes,
            write_retry_s=0.01,
            tail_bytes_max=0,
            partition_unflushed_bytes_max=100_000,  # what memory acknowledges fits into the room made
        )
        self.filler = self.small / "room"
        self.acknowledged: dict[int, Served] = {0: [], 1: []}
        self.store: Store
        self._sent = 0

    @property
    def folder(self) -> Path:
        return Path(self.options.path) / "streams/0/topics/0/partitions/1"

    async def make(self) -> None:
        store = await Store.open(self.options)
        await store.create_stream(StreamDocument(id=0, name="s", created_at=1))
        await store.create_topic(0, TopicDocument(id=0, name="t", created_at=1, partitions_count=2))
        await store.close()
        shutil.move(self.folder, self.small / "partition")
        self.folder.symlink_to(self.small / "partition")
        self.filler.write_bytes(bytes(ROOM_BYTES))
        await self.open()

    async def open(self, **changes: object) -> None:
        self.store = await Store.open(msgspec.structs.replace(self.options, **changes))
        assert self.store.unavailable == {}

    def partition(self, number: int = 1) -> Partition:
        partition = self.store.partition(0, 0, number)
        assert partition is not None
        return partition

    async def append(self, number: int = 1, size: int = BATCH_BYTES) -> None:
        """Appends one batch of two messages. An error means that it was not acknowledged."""
        self._sent += 1
        payloads = [f"{self._sent}.{i}/".encode() + os.urandom(size // 2) for i in range(2)]
        answer = await self.partition(number).append(build([Message(payload) for payload in payloads], 1, os.urandom))
        self.acknowledged[number] += [(answer.base_offset + i, payload) for i, payload in enumerate(payloads)]

    async def fill(self) -> StorageError:
        """Appends until the disk is full, and returns the partition's error."""
        for _ in range(1000):
            try:
                await self.append()
            except StorageError as error:
                return error
            await asyncio.sleep(0)
        raise AssertionError("the small disk is not small")

    def make_room(self) -> None:
        self.filler.unlink()
        (self.small / "filler").unlink(missing_ok=True)

    async def until_written(self) -> None:
        """Waits until everything acknowledged has reached the disk by itself."""
        last = self.acknowledged[1][-1][0]
        await asyncio.wait_for(self.partition().until(last, Durability.WRITTEN), DEADLINE_S)

    async def check(self, first: int = 0) -> None:
        """Checks that everything acknowledged from an offset on is served, and nothing else."""
        for number, wanted in self.acknowledged.items():
            served = await everything(self.partition(number))
            assert served == [message for message in wanted if number == 0 or message[0] >= first]

    async def check_reopened(self, first: int = 0) -> None:
        await self.check(first)
        await self.store.close()
        for checked in (False, True):
            await self.open(validate_checksum=checked)
            await self.check(first)
            assert [damage for damage in self.store.damage if damage.next_offset > damage.offset] == []
            await self.store.close()


async def everything(partition: Partition) -> Served:
    found: Served = []
    offset = partition.first_offset
    while offset < partition.readable:
        fetched = await partition.read(offset, 1000)
        found += messages_in(fetched)
        assert fetched.next_offset > offset
        offset = fetched.next_offset
    return found


def live(root: Path, level: Durability, segment_bytes: int, act: Callable[[Case], Awaitable[None]]) -> None:
    async def life() -> None:
        case = Case(root, level, segment_bytes)
        await case.make()
        await act(case)

    asyncio.run(life())


@pytest.mark.parametrize("segment_bytes", [100_000, 1 << 30], ids=["many segments", "one segment"])
@levels
@on_a_small_disk
def test_a_full_disk_is_reported_and_writing_resumes_when_there_is_room(
    tmp_path: Path, request: pytest.FixtureRequest, level: Durability, segment_bytes: int
) -> None:
    async def act(case: Case) -> None:
        await case.append(0)
        error = await case.fill()
        assert isinstance(error, WriteFailed)
        assert str(error) == "stream 0, topic 0, partition 1 cannot be written: No space left on device"
        # The other one is not affected, and this one serves what it has.
        for _ in range(3):
            await case.append(0)
        await case.check()
        # A retried write may be in progress: until it fails too, memory accepts more.
        assert "No space left on device" in str(await case.fill())
        case.make_room()
        if level is Durability.MEMORY:
            await case.until_written()
        for _ in range(3):
            await case.append()
            await case.append(0)
        await case.check_reopened()

    live(tmp_path, level, segment_bytes, act)


@levels
@on_a_small_disk
def test_a_disk_without_a_single_byte_left_can_be_opened_and_closed(
    tmp_path: Path, request: pytest.FixtureRequest, level: Durability
) -> None:
    """An index is only a hint: having no room for it prevents neither closing nor serving."""

    async def act(case: Case) -> None:
        for _ in range(7):
            await case.append()
        await case.partition().flush()
        exhaust(case.small)
        await case.store.close()
        for path in (case.small / "partition").glob("*.index"):
            path.unlink()
        exhaust(case.small, "more")
        await case.open()
        await case.check()
        await case.store.close()
        case.make_room()
        await case.open()
        await case.append()
        await case.check_reopened()

    live(tmp_path, level, 100_000, act)


@on_a_small_disk
def test_stopping_on_a_full_disk_reports_messages_acknowledged_from_memory(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """What cannot be kept is reported, and what was written is there."""

    async def act(case: Case) -> None:
        await case.fill()
        written = case.partition().written
        with pytest.raises(WriteFailed, match="partition 1 cannot be written: No space left on device"):
            await case.store.close()
        await case.open()
        assert case.partition().appended >= written
        found = await everything(case.partition())
        assert found == case.acknowledged[1][: len(found)]
        await case.store.close()

    live(tmp_path, Durability.MEMORY, 100_000, act)


@levels
@on_a_small_disk
def test_deleting_segments_frees_a_full_disk(tmp_path: Path, request: pytest.FixtureRequest, level: Durability) -> None:
    async def act(case: Case) -> None:
        await case.fill()
        exhaust(case.small)
        partition = case.partition()
        assert await case.store.delete_segments(partition.place, 4) == 4
        first = partition.first_offset
        assert first > 0
        if level is Durability.MEMORY:
            await case.until_written()
        for _ in range(3):
            await case.append()
        await case.check_reopened(first)

    live(tmp_path, level, 100_000, act)


@levels
@on_a_small_disk
def test_retention_frees_a_full_disk(tmp_path: Path, request: pytest.FixtureRequest, level: Durability) -> None:
    async def act(case: Case) -> None:
        await case.fill()
        exhaust(case.small)
        assert await case.store.retain(0, 0, expiry_us=None, max_bytes=300_000) > 1
        if level is Durability.MEMORY:
            await case.until_written()
        await case.append()
        await case.check_reopened(case.partition().first_offset)

    live(tmp_path, level, 100_000, act)


@pytest.mark.parametrize("trimmed", [False, True], ids=["from offset 0", "after a deletion"])
@pytest.mark.parametrize("segment_bytes", [100_000, 1 << 30], ids=["many segments", "one segment"])
@levels
@on_a_small_disk
def test_a_purge_frees_a_full_disk(
    tmp_path: Path, request: pytest.FixtureRequest, level: Durability, segment_bytes: int, trimmed: bool
) -> None:
    async def act(case: Case) -> None:
        partition = case.partition()
        for _ in range(3):
            await case.append()
        if level is Durability.MEMORY:
            await partition.flush()
        await partition.store_offset(Kind.CONSUMER, 1, partition.readable - 1)
        if trimmed:
            await case.store.delete_segments(partition.place, 1)
        await case.fill()
        exhaust(case.small)
        await partition.purge()
        assert (partition.first_offset, partition.appended, partition.size_bytes) == (0, 0, 0)
        assert partition.offset_of(Kind.CONSUMER, 1) is None
        case.acknowledged[1] = []
        for _ in range(3):
            await case.append()
        assert case.acknowledged[1][0][0] == 0
        await case.check_reopened()
        await case.open()
        assert case.partition().offset_of(Kind.CONSUMER, 1) is None
        await case.store.close()

    live(tmp_path, level, segment_bytes, act)


@levels
@on_a_small_disk
def test_stored_offsets_on_a_full_disk_are_refused_or_kept(
    tmp_path: Path, request: pytest.FixtureRequest, level: Durability
) -> None:
    async def act(case: Case) -> None:
        partition = case.partition()
        await case.append()
        await partition.store_offset(Kind.CONSUMER, 1, 0)
        if level is Durability.MEMORY:
            await partition.flush()
        exhaust(case.small)
        # An offset that has its file can still be stored; a new one needs room.
        await partition.store_offset(Kind.CONSUMER, 1, 1)
        if level is Durability.MEMORY:
            await partition.store_offset(Kind.GROUP, 1, 1)
            with pytest.raises(DiskError, match="No space left on device"):
                await partition.flush()
        else:
            with pytest.raises(DiskError, match="No space left on device"):
                await partition.store_offset(Kind.GROUP, 1, 1)
        case.make_room()
        await partition.store_offset(Kind.GROUP, 2, 1)
        await partition.flush()
        await case.store.close()
        await case.open()
        assert case.partition().offset_of(Kind.CONSUMER, 1) == 1
        assert case.partition().offset_of(Kind.GROUP, 2) == 1
        await case.store.close()

    live(tmp_path, level, 100_000, act)


@levels
@on_a_small_disk
def test_a_torn_tail_that_cannot_be_set_aside_stays_where_it_is(
    tmp_path: Path, request: pytest.FixtureRequest, level: Durability
) -> None:
    async def act(case: Case) -> None:
        for _ in range(3):
            await case.append()
        await case.store.close()
        log = max((case.small / "partition").glob("*.log"))
        with log.open("ab") as file:
            file.write(os.urandom(70_000))
        content = log.read_bytes()
        exhaust(case.small)
        await case.open()
        assert any(str(log.name) in str(damage) for damage in case.store.damage)
        await case.check()
        assert log.read_bytes() == content
        case.make_room()
        await case.append()
        await case.check_reopened()
        assert log.read_bytes() == content

    live(tmp_path, level, 1 << 30, act)


@on_a_small_disk
def test_a_topic_with_a_linked_partition_can_be_removed(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    async def act(case: Case) -> None:
        await case.fill()
        await case.store.remove_partitions(0, 0, 1)
        await case.append(0)
        await case.store.close()
        await case.open()
        assert await everything(case.partition(0)) == case.acknowledged[0]
        await case.store.close()

    live(tmp_path, Durability.WRITTEN, 100_000, act)
