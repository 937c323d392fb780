"""What a full disk deletes here because it is in the archive: the oldest first, nothing that is not, and readers do not
notice."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.storage.archive.support.archives import Flaky, archiver_of, unavailable
from tests.storage.support.scarce_disk import PLENTY, RESERVE, ScarceDisk
from tests.storage.support.world import opened, payloads, sized, with_topic
from tests.support.clocks import Clock
from tests.support.running import HANGS_S
from whippet.storage.archive.archiver import Archiver
from whippet.storage.archive.histories import CACHE_FOLDER
from whippet.storage.archive.local_copies import LocalCopies
from whippet.storage.archive.objects import LocalObjects, Objects
from whippet.storage.archive.ownership import claim
from whippet.storage.documents import TopicDocument
from whippet.storage.errors import DiskFull
from whippet.storage.files import Files
from whippet.storage.options import ArchiveOptions
from whippet.storage.partition import Partition
from whippet.storage.store import Store, now_us

SECOND = 1_000_000
SEGMENT = 3 * len(sized(1, 100))
"""What a segment has: three batches of a message each."""


class Case:
    """Two topics of one partition each, which get messages in turn."""

    def __init__(self, store: Store, archiver: Archiver, clock: Clock, disk: ScarceDisk) -> None:
        self.store = store
        self.archiver = archiver
        self.clock = clock
        self.disk = disk
        self.sent: dict[int, list[bytes]] = {0: [], 1: []}

    @property
    def local(self) -> LocalCopies:
        return self.archiver._local

    @property
    def partitions(self) -> tuple[Partition, ...]:
        return tuple(partition for topic in (0, 1) for partition in self.store.partitions_of(0, topic))

    @property
    def firsts(self) -> list[int]:
        """Where the partitions begin on this machine."""
        return [partition.local_first_offset for partition in self.partitions]

    async def send(self, topic: int, count: int) -> None:
        for _ in range(count):
            self.clock.now += SECOND
            mark = b"%d.%04d" % (topic, len(self.sent[topic]))
            await self.partitions[topic].append(sized(1, 100, mark))
            self.sent[topic].append((mark * 100)[:100])

    async def check(self) -> None:
        """Everything is read, wherever it is."""
        for topic, partition in enumerate(self.partitions):
            assert payloads(await partition.read(0, 1000)) == self.sent[topic]


@contextlib.asynccontextmanager
async def archiving(
    folder: Path, objects: Objects | None = None, *, cache_bytes: int = 1 << 30, hurries: bool = False, **more: Any
) -> AsyncIterator[Case]:
    """Unless it `hurries`, the archiver runs only when a test calls `round`."""
    clock, disk = Clock(), ScarceDisk()
    options = {"segment_bytes": 1024, "tail_bytes_max": 0, "disk_reserve": RESERVE} | more
    async with opened(folder / "data", files=disk, clock=clock, **options) as store:
        chosen = objects or Elsewhere(folder / "archive")
        archiver = archiver_of(store, chosen, cache_bytes=cache_bytes, interval_s=1e6)
        if not hurries:
            archiver._local._on_shortage = lambda: None
        await archiver.start()
        await with_topic(store)
        if 1 not in store.streams[0].topics:
            await store.create_topic(0, TopicDocument(id=1, name="u", created_at=1, partitions_count=1))
        try:
            yield Case(store, archiver, clock, disk)
        finally:
            archiver.refused = True
            await archiver.stop(seconds=10)


class Elsewhere(Flaky):
    """An archive on another disk, as far as the archiver knows."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.folder = None


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing but the test looks at the disk."""
    monkeypatch.setattr("whippet.storage.disk_space.DiskSpace._pause", lambda _: HANGS_S)
    yield


async def test_the_oldest_segments_of_all_topics_go_first_and_stay_readable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with archiving(tmp_path, cache_bytes=0) as case:
        for topic in (1, 0, 0, 1, 0, 1):
            await case.send(topic, 3)
        await case.send(0, 1)
        await case.send(1, 1)
        assert await case.archiver.round()
        for size, freed, firsts in (
            (1, SEGMENT, [0, 3]),
            (SEGMENT + 1, 2 * SEGMENT, [6, 3]),
            (SEGMENT, SEGMENT, [6, 6]),
            (100 * SEGMENT, 2 * SEGMENT, [9, 9]),
            (1, 0, [9, 9]),
        ):
            assert await case.local.free(size) == freed
            assert case.firsts == firsts
            await case.check()
        said = [record.getMessage() for record in caplog.records if "disk: deleted" in record.getMessage()]
        assert said[:2] == [
            f"disk: deleted {count} archived segments ({count * SEGMENT} bytes) here, because it is full"
            for count in (1, 2)
        ]
        assert len(said) == 4
    async with archiving(tmp_path) as again:
        again.sent = case.sent
        await again.check()


async def test_only_closed_segments_that_the_manifest_has_are_deleted(tmp_path: Path) -> None:
    archive = Elsewhere(tmp_path / "archive")
    async with archiving(tmp_path, archive) as case:
        await case.send(0, 7)
        assert await case.local.free(1) == 0
        archive.before = lambda operation: unavailable(operation) if operation.startswith("replace") else None
        assert not await case.archiver.round()
        assert await case.local.free(1) == 0
        assert case.firsts == [0, 0]
        archive.before = lambda operation: None
        assert await case.archiver.round()
        await case.send(0, 7)
        assert await case.local.free(100 * SEGMENT) == 2 * SEGMENT
        assert case.firsts == [6, 0]
        await case.check()


async def test_a_full_disk_makes_room_by_itself_before_a_producer_notices(tmp_path: Path) -> None:
    async with archiving(tmp_path) as case:
        await case.send(0, 10)
        assert await case.archiver.round()
        case.disk.free = RESERVE - 1
        await case.store.disk.check()
        assert case.store.disk._relieving is not None
        await case.send(0, 1)
        await case.store.disk._relieving
        assert case.store.disk.deleted_bytes == 3 * SEGMENT
        assert case.firsts == [9, 0]
        case.disk.free = PLENTY
        await case.store.disk.check()
        await case.send(0, 1)
        await case.check()


async def test_a_shortage_makes_the_archiver_begin_at_once(tmp_path: Path) -> None:
    async with archiving(tmp_path, hurries=True) as case:
        await case.send(0, 10)
        case.disk.free = RESERVE - 1
        await case.store.disk.check()
        assert case.store.disk._relieving is not None
        await case.store.disk._relieving
        async with asyncio.timeout(HANGS_S):
            while not case.local.progress:  # noqa: ASYNC110
                await asyncio.sleep(0)
        await case.store.disk.check()
        with pytest.raises(DiskFull):
            await case.send(0, 1)
        await asyncio.gather(*[task for task in (case.store.disk._relieving,) if task is not None])
        case.sent[0] = case.sent[0][:10]
        assert case.firsts == [9, 0]
        await case.check()


async def test_nothing_is_deleted_once_another_server_has_the_archive(tmp_path: Path) -> None:
    archive = Elsewhere(tmp_path / "archive")
    async with archiving(tmp_path, archive) as case:
        await case.send(0, 10)
        assert await case.archiver.round()
        store = case.store
        claim(LocalObjects(str(tmp_path / "archive"), Files()), Files(), store.layout, store.identity, now_us)
        # The other one has the same folder in this test. What tells them apart is the claim.
        assert await case.local.free(1) == 0
        assert case.archiver.refused
        assert await case.local.free(1) == 0
        assert case.firsts == [0, 0]


async def test_nothing_is_deleted_while_the_archive_does_not_respond(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    archive = Elsewhere(tmp_path / "archive")
    async with archiving(tmp_path, archive) as case:
        await case.send(0, 10)
        assert await case.archiver.round()
        get = archive.get
        archive.get = lambda name: unavailable(f"get {name}")  # type: ignore[method-assign]
        before = case.local.progress
        assert await case.local.free(1) == 0
        assert "archive: nothing is deleted on the full disk, because get archive.json failed" in caplog.text
        assert case.local.progress == before
        archive.get = get  # type: ignore[method-assign]
        # Nothing new is archived, but now it can be asked again.
        assert await case.archiver.round()
        assert case.local.progress == before + 1
        assert await case.archiver.round()
        assert case.local.progress == before + 1
        assert await case.local.free(1) == SEGMENT


async def test_what_was_read_from_the_archive_goes_before_segments_and_is_not_kept_again(tmp_path: Path) -> None:
    async with archiving(tmp_path) as case:
        await case.send(0, 10)
        assert await case.archiver.round()
        await case.local.free(SEGMENT)
        cache = tmp_path / "data" / CACHE_FOLDER
        await case.check()
        kept = sum(each.stat().st_size for each in cache.iterdir())
        assert kept > 0
        assert await case.local.free(kept) == kept
        assert case.firsts == [3, 0]
        assert list(cache.iterdir()) == []
        case.disk.free = RESERVE
        await case.store.disk.check()
        await case.check()
        assert list(cache.iterdir()) == []
        case.disk.free = PLENTY
        await case.store.disk.check()
        # What was read last is still in memory.
        assert await case.local.free(1) == SEGMENT
        await case.check()
        assert len(list(cache.iterdir())) == 1


async def test_a_partition_that_cannot_be_deleted_from_does_not_protect_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with archiving(tmp_path) as case:
        await case.send(0, 10)
        await case.send(1, 10)
        assert await case.archiver.round()
        folder = tmp_path / "data/streams/0/topics/0/partitions/0"
        (folder / "history.json.new").mkdir()
        assert await case.local.free(100 * SEGMENT) == 3 * SEGMENT
        assert case.firsts == [0, 9]
        assert "disk: archived segments cannot be deleted" in caplog.text
        await case.check()


async def test_a_topic_that_is_removed_meanwhile_is_passed_over(tmp_path: Path) -> None:
    async with archiving(tmp_path) as case:
        await case.send(0, 10)
        await case.send(1, 10)
        assert await case.archiver.round()
        freeing = asyncio.ensure_future(case.local.free(100 * SEGMENT))
        await case.store.remove_topic(0, 0)
        assert await freeing >= 3 * SEGMENT
        (partition,) = case.store.partitions_of(0, 1)
        assert partition.local_first_offset == 9


async def test_an_archive_on_the_same_full_disk_gets_nothing_but_what_it_has_is_deleted_here(
    tmp_path: Path,
) -> None:
    archive = Flaky(tmp_path / "archive")
    async with archiving(tmp_path, archive) as case:
        await case.send(0, 10)
        assert await case.archiver.round()
        await case.send(0, 10)
        case.disk.free = 0
        await case.store.disk.use(None)
        await case.store.disk.check()
        archive.done.clear()
        assert not await case.archiver.round()
        assert str(case.archiver.problem) == (
            "stream 0, topic 0, partition 0: the archive is on the disk of the data folder, which is full"
        )
        assert not [operation for operation in archive.done if operation.startswith(("put", "replace"))]
        assert await case.local.free(100 * SEGMENT) == 3 * SEGMENT
        case.disk.free = PLENTY
        await case.store.disk.check()
        assert await case.archiver.round()
        assert await case.local.free(100 * SEGMENT) == 3 * SEGMENT
        await case.check()


async def test_near_the_reserve_uploads_to_the_same_disk_count_like_messages(tmp_path: Path) -> None:
    async with archiving(tmp_path, Flaky(tmp_path / "archive")) as case:
        await case.send(0, 10)
        for room, is_enough in ((0, False), (100 * SEGMENT, True)):
            case.disk.free = RESERVE // 2 + room
            case.store.disk._settles_until = 1e12  # nobody deletes anything
            await case.store.disk.check()
            assert not case.store.disk.is_full
            assert await case.archiver.round() is is_enough


async def test_after_a_start_on_a_full_disk_the_archive_beside_it_is_still_used_to_make_room(tmp_path: Path) -> None:
    options: dict[str, Any] = {"segment_bytes": 1024, "tail_bytes_max": 0, "disk_reserve": RESERVE}
    async with opened(tmp_path / "data", files=ScarceDisk(), **options) as store:
        archiver = archiver_of(store, Flaky(tmp_path / "archive"), interval_s=1e6)
        await archiver.start()
        partitions = await with_topic(store, 20)
        for count, is_archived in ((10, True), (1, False)):
            for partition in partitions:
                for _ in range(count):
                    await partition.append(sized(1, 100))
            assert not is_archived or await archiver.round()
        archiver.refused = True
        await archiver.stop(seconds=10)
    async with opened(tmp_path / "data", files=ScarceDisk(free=0), **options) as store:
        archiver = Archiver(store, ArchiveOptions(interval_s=1e6), Files(), Flaky(tmp_path / "archive"))
        archiver._local._on_shortage = lambda: None
        stored = sum(partition.disk_bytes for partition in store.partitions.values())
        await archiver.start()
        assert store.disk.is_full
        assert not await archiver.round()
        assert str(archiver.problem).endswith(", which is full (and 19 more)")
        # The server may have begun by itself to make room.
        await archiver._local.free(100 * SEGMENT)
        while sum(partition.disk_bytes for partition in store.partitions.values()) != stored - 60 * SEGMENT:  # noqa: ASYNC110
            await asyncio.sleep(0)
        archiver.refused = True
        await archiver.stop(seconds=10)
