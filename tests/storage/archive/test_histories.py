"""Messages that are only in the archive are read as if they were local."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.storage.archive.support.archives import Flaky, unavailable
from tests.storage.support.documents import content
from tests.storage.support.ways import WAYS
from tests.storage.support.world import offsets, opened, payloads, sized, texts, with_topic
from tests.support.clocks import NOON
from whippet.storage.archive.archiver import Archiver
from whippet.storage.archive.blocks import BLOCK_BYTES
from whippet.storage.archive.checking import survey
from whippet.storage.archive.histories import CACHE_FOLDER
from whippet.storage.documents import StreamDocument, TopicDocument
from whippet.storage.errors import ArchiveDamaged, ArchiveUnavailable, StorageError
from whippet.storage.files import Buffer, Files
from whippet.storage.layout import HISTORY_FILE
from whippet.storage.offsets import Kind
from whippet.storage.options import ArchiveOptions, TopicOptions
from whippet.storage.store import Store

SECOND = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> int:
        return self.now


@contextlib.asynccontextmanager
async def archiving(
    folder: Path, archive: Flaky, clock: Clock, *, cache_bytes: int = 1 << 30, segment_bytes: int = 1024, **more: Any
) -> AsyncIterator[tuple[Store, Archiver]]:
    # Without memory for recent batches, everything is read from files.
    async with opened(folder / "data", clock=clock, segment_bytes=segment_bytes, tail_bytes_max=0, **more) as store:
        options = ArchiveOptions(interval_s=1e6, cache_bytes=cache_bytes)
        archiver = Archiver(store, options, Files(), archive)
        await archiver.start()
        try:
            yield store, archiver
        finally:
            archiver.refused = True
            await archiver.stop(seconds=10)


async def filled(store: Store, archiver: Archiver, clock: Clock, batches: int = 20) -> Any:
    """One batch of one message for each second, three to a segment; all but the last two segments are only in the
    archive."""
    (partition,) = await with_topic(store)
    for number in range(batches):
        clock.now += SECOND
        await partition.append(sized(1, 100, b"%03d" % number))
    assert await archiver.round()
    assert await archiver.retain_locally(0, 0, time_us=4 * SECOND, max_bytes=None)
    return partition


def expected(numbers: range) -> list[bytes]:
    return [(b"%03d" % number * 34)[:100] for number in numbers]


async def test_every_offset_is_read_across_the_border(tmp_path: Path) -> None:
    clock = Clock()
    async with archiving(tmp_path, Flaky(tmp_path / "archive"), clock) as (store, archiver):
        partition = await filled(store, archiver, clock)
        assert (partition.first_offset, partition.local_first_offset) == (0, 15)
        assert len(list((tmp_path / "data").rglob("*.log"))) == 2
        assert payloads(await partition.read(0, 99)) == expected(range(20))
        for start in range(20):
            for count in (1, 2, 7):
                found = await partition.read(start, count)
                assert offsets(found) == list(range(start, min(start + count, 20)))
        assert offsets(await partition.read(0, 99, room=500)) == [0]
        assert partition.messages_count == 20


@pytest.mark.parametrize("way", ["plain", "encrypted"])
@pytest.mark.parametrize("compression", [1, 2, 3])
async def test_compressed_and_encrypted_messages_are_read_from_the_archive(
    tmp_path: Path, compression: int, way: str
) -> None:
    clock = Clock()
    archive = Flaky(tmp_path / "archive")
    async with archiving(tmp_path, archive, clock, **WAYS[way]) as (store, archiver):
        await store.create_stream(StreamDocument(id=0, name="s", created_at=1))
        topic = TopicDocument(id=0, name="t", created_at=1, partitions_count=1, compression_algorithm=compression)
        await store.create_topic(0, topic)
        (partition,) = store.partitions_of(0, 0)
        for number in range(20):
            clock.now += SECOND
            await partition.append(sized(5, 1000, b"%03d" % number))
        assert await archiver.round()
        assert await archiver.retain_locally(0, 0, time_us=4 * SECOND, max_bytes=None)
        border = partition.local_first_offset
        assert border > 20
        for start in (0, 3, border - 1, border):
            found = await partition.read(start, 7)
            assert offsets(found) == list(range(start, start + 7))
            assert payloads(found) == [(b"%03d" % (offset // 5) * 334)[:1000] for offset in offsets(found)]
        (checked,) = survey(archive)
        assert (checked.messages, checked.damage) == (100, [])
        if way == "encrypted":
            content = b"".join(path.read_bytes() for path in (tmp_path / "archive").rglob("*.log"))
            assert b"001001001" not in content


async def test_every_time_is_found_across_the_border(tmp_path: Path) -> None:
    clock = Clock()
    async with archiving(tmp_path, Flaky(tmp_path / "archive"), clock) as (store, archiver):
        partition = await filled(store, archiver, clock)
        assert await partition.offset_at(0) == 0
        for number in range(20):
            assert await partition.offset_at(NOON + (number + 1) * SECOND) == number
            assert await partition.offset_at(NOON + (number + 1) * SECOND - 1) == number
        assert await partition.offset_at(NOON + 21 * SECOND) == 20


async def test_a_restarted_server_still_reads_everything(tmp_path: Path) -> None:
    clock = Clock()
    archive = Flaky(tmp_path / "archive")
    async with archiving(tmp_path, archive, clock) as (store, archiver):
        await filled(store, archiver, clock)
    async with archiving(tmp_path, archive, clock) as (store, _):
        (partition,) = await with_topic(store)
        assert (partition.first_offset, partition.messages_count) == (0, 20)
        assert payloads(await partition.read(0, 99)) == expected(range(20))
        await partition.append(texts("more"))
        assert offsets(await partition.read(19, 99)) == [19, 20]


async def test_an_archive_that_is_out_of_reach_is_an_error_and_nothing_is_skipped(tmp_path: Path) -> None:
    clock = Clock()
    archive = Flaky(tmp_path / "archive")
    async with archiving(tmp_path, archive, clock) as (store, archiver):
        await filled(store, archiver, clock)
    archive.before = unavailable
    async with archiving(tmp_path, archive, clock) as (store, _):
        (partition,) = await with_topic(store)
        assert partition.first_offset == 0
        with pytest.raises(ArchiveUnavailable):
            await partition.read(0, 99)
        assert offsets(await partition.read(15, 99)) == list(range(15, 20))
        archive.before = lambda operation: None
        assert offsets(await partition.read(0, 99)) == list(range(20))


async def test_only_what_is_archived_is_deleted_here(tmp_path: Path) -> None:
    clock = Clock()
    async with archiving(tmp_path, Flaky(tmp_path / "archive"), clock) as (store, archiver):
        (partition,) = await with_topic(store)
        for _ in range(20):
            await partition.append(sized(1, 100))
        assert await archiver.retain_locally(0, 0, time_us=0, max_bytes=0) == 0
        assert await archiver.round()
        assert await archiver.retain_locally(0, 0, time_us=None, max_bytes=partition.size_bytes) == 0
        assert await archiver.retain_locally(0, 0, time_us=None, max_bytes=partition.size_bytes - 1) == 1
        assert await archiver.retain_locally(0, 0, time_us=None, max_bytes=0) == 5
        assert partition.local_first_offset == 18


async def test_a_crash_before_the_deletion_changes_nothing(tmp_path: Path) -> None:
    clock = Clock()
    archive = Flaky(tmp_path / "archive")
    async with archiving(tmp_path, archive, clock) as (store, archiver):
        await filled(store, archiver, clock)
        shutil.copytree(tmp_path / "data", tmp_path / "later")
    history = next((tmp_path / "data").rglob(HISTORY_FILE))
    assert content(history) == {"first_offset": 0}


async def test_expired_messages_are_not_read_from_the_archive_either(tmp_path: Path) -> None:
    clock = Clock()
    async with archiving(tmp_path, Flaky(tmp_path / "archive"), clock) as (store, archiver):
        partition = await filled(store, archiver, clock)
        await store.retain(0, 0, expiry_us=12 * SECOND, max_bytes=None)
        assert partition.first_offset == 6
        assert offsets(await partition.read(0, 99)) == list(range(6, 20))
        await store.retain(0, 0, expiry_us=1 * SECOND, max_bytes=None)
        assert partition.first_offset == partition.local_first_offset == 18
    async with archiving(tmp_path, Flaky(tmp_path / "archive"), clock) as (store, _):
        (partition,) = await with_topic(store)
        assert partition.first_offset == 18


async def test_expired_history_stays_until_groups_have_read_it(tmp_path: Path) -> None:
    clock = Clock()
    async with archiving(tmp_path, Flaky(tmp_path / "archive"), clock) as (store, archiver):
        partition = await filled(store, archiver, clock)
        await partition.store_offset(Kind.CONSUMER, 1, 0)
        await partition.store_offset(Kind.GROUP, 1, 1)
        await store.retain(0, 0, expiry_us=1 * SECOND, max_bytes=None)
        assert (partition.first_offset, offsets(await partition.read(0, 2))) == (2, [2, 3])
        await partition.store_offset(Kind.GROUP, 1, 19)
        await store.retain(0, 0, expiry_us=1 * SECOND, max_bytes=None)
        assert partition.first_offset > 2


async def test_deleted_segments_are_not_read_from_the_archive(tmp_path: Path) -> None:
    clock = Clock()
    async with archiving(tmp_path, Flaky(tmp_path / "archive"), clock) as (store, archiver):
        partition = await filled(store, archiver, clock)
        assert await store.delete_segments(partition.place, 1) == 1
        assert partition.first_offset == partition.local_first_offset == 18


async def test_a_purge_ends_the_history(tmp_path: Path) -> None:
    clock = Clock()
    async with archiving(tmp_path, Flaky(tmp_path / "archive"), clock) as (store, archiver):
        partition = await filled(store, archiver, clock)
        await partition.purge()
        assert partition.first_offset == 0
        await partition.append(texts("new"))
        assert payloads(await partition.read(0, 99)) == [b"new"]
        partition = await filled(store, archiver, clock)
        assert partition.first_offset == 0
        assert len(offsets(await partition.read(0, 99))) == 21


async def test_the_archive_forgets_what_has_expired_there(tmp_path: Path) -> None:
    clock = Clock()
    archive = Flaky(tmp_path / "archive")
    async with archiving(tmp_path, archive, clock) as (store, archiver):
        partition = await filled(store, archiver, clock)
        document = store.streams[0].topics[0].document
        chosen = TopicOptions(archive_retention=10 * SECOND)
        await store.update_topic(0, document.__class__(**{**_fields(document), "options": chosen}))
        assert await archiver.round()
        assert partition.first_offset == 9
        assert offsets(await partition.read(0, 99)) == list(range(9, 20))
        assert not [item.name for item in archive.list("streams/") if f"/{0:020}." in item.name]


def _fields(document: Any) -> dict[str, Any]:
    return {name: getattr(document, name) for name in document.__struct_fields__}


async def test_damage_in_the_archive_is_an_error_that_names_it(tmp_path: Path) -> None:
    clock = Clock()
    async with archiving(tmp_path, Flaky(tmp_path / "archive"), clock) as (store, archiver):
        partition = await filled(store, archiver, clock)
        victim = min((tmp_path / "archive").rglob("*.log"))
        victim.write_bytes(victim.read_bytes()[:-1] + b"?")
        with pytest.raises(ArchiveDamaged, match=victim.name):
            await partition.read(0, 3)
        assert offsets(await partition.read(3, 3)) == [3, 4, 5]


async def test_pieces_that_were_joined_meanwhile_are_found_again(tmp_path: Path) -> None:
    clock = Clock()
    archive = Flaky(tmp_path / "archive")
    async with archiving(tmp_path, archive, clock) as (store, archiver):
        partition = await filled(store, archiver, clock)
        assert offsets(await partition.read(0, 3)) == [0, 1, 2]
        for number in range(20, 40):
            clock.now += SECOND
            await partition.append(sized(1, 100, b"%03d" % number))
            assert await archiver.round()
        assert await archiver.retain_locally(0, 0, time_us=4 * SECOND, max_bytes=None)
        assert payloads(await partition.read(0, 99)) == expected(range(40))


@pytest.mark.parametrize("cache_bytes", [1 << 30, 5 * BLOCK_BYTES // 2, 0])
async def test_large_logs_are_read_in_blocks_and_kept_within_the_limit(tmp_path: Path, cache_bytes: int) -> None:
    clock = Clock()
    archive = Flaky(tmp_path / "archive")
    async with archiving(tmp_path, archive, clock, cache_bytes=cache_bytes, segment_bytes=1 << 20) as (store, archiver):
        (partition,) = await with_topic(store)
        for number in range(9):
            await partition.append(sized(10, 300_000, b"%d" % number))
        assert await archiver.round()
        assert await archiver.retain_locally(0, 0, time_us=0, max_bytes=0) == 9
        for _ in range(2):
            offset = 0
            while offset < 90:
                found = await partition.read(offset, 4)
                assert [each[:1] for each in payloads(found)] == [b"%d" % (n // 10) for n in offsets(found)]
                offset = found.next_offset
        if cache_bytes == 1 << 30:
            archive.before = unavailable
            assert offsets(await partition.read(0, 90)) == list(range(90))
    used = sum(path.stat().st_size for path in (tmp_path / "data" / CACHE_FOLDER).iterdir())
    assert used <= cache_bytes


async def test_readers_see_no_gap_while_segments_are_deleted_here(tmp_path: Path) -> None:
    clock = Clock()
    async with archiving(tmp_path, Flaky(tmp_path / "archive"), clock) as (store, archiver):
        (partition,) = await with_topic(store)
        done = False

        async def follow() -> int:
            offset = 0
            while not done or offset < partition.readable:
                found = await partition.read(offset, 5)
                assert offsets(found) == list(range(offset, offset + found.messages))
                offset = found.next_offset if found.messages else offset
                if offset == partition.readable:
                    offset = 0 if not done else offset
                await asyncio.sleep(0)
            return offset

        followers = [asyncio.create_task(follow()) for _ in range(3)]
        for _ in range(10):
            for _ in range(6):
                clock.now += SECOND
                await partition.append(sized(1, 100))
            assert await archiver.round()
            await archiver.retain_locally(0, 0, time_us=0, max_bytes=0)
        done = True
        assert await asyncio.gather(*followers) == [60, 60, 60]


class Dying(Files):
    """Fails at a change from some number on, counted from 0, and at all later ones."""

    def __init__(self, number: int) -> None:
        self.left = number

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.EIO, "the test wants it")

    def write(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        self._count()
        return super().write(handle, buffers, position)

    def rename(self, source: str, target: str) -> None:
        self._count()
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self._count()
        super().remove(path)

    def sync_folder(self, path: str) -> None:
        self._count()
        super().sync_folder(path)


async def test_a_deletion_that_ends_anywhere_hides_no_message(tmp_path: Path) -> None:
    clock = Clock()
    archive = Flaky(tmp_path / "archive")
    async with archiving(tmp_path, archive, clock) as (store, archiver):
        (partition,) = await with_topic(store)
        for number in range(12):
            clock.now += SECOND
            await partition.append(sized(1, 100, b"%03d" % number))
        assert await archiver.round()
    number, finished = 0, False
    while not finished:
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(tmp_path / "data", tmp_path / "copy/data")
        files = Dying(1_000_000)
        with contextlib.suppress(StorageError):
            async with opened(
                tmp_path / "copy/data", files=files, clock=clock, segment_bytes=1024, tail_bytes_max=0
            ) as store:
                archiver = Archiver(store, ArchiveOptions(interval_s=1e6), files, archive)
                await archiver._load_histories()
                archiver._local._covered = lambda place: 9
                files.left = number
                with contextlib.suppress(StorageError, OSError):
                    await archiver.retain_locally(0, 0, time_us=0, max_bytes=None)
                    finished = files.left >= 0
                archiver.refused = True
                files.left = 1_000_000
                await archiver.stop(seconds=10)
        async with opened(tmp_path / "copy/data", clock=clock, segment_bytes=1024, tail_bytes_max=0) as store:
            (partition,) = await with_topic(store)
            reader = Archiver(store, ArchiveOptions(interval_s=1e6), Files(), archive)
            await reader._load_histories()
            assert payloads(await partition.read(0, 99)) == expected(range(12)), number
            reader.refused = True
            await reader.stop(seconds=10)
        number += 1
    assert partition.local_first_offset == 9
    assert number > 5
