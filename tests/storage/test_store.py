"""The store: one folder with one owner, and everything is there again after a start."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path

import pytest

from tests.storage.support.world import opened, payloads, settled, sized, texts, with_topic
from tests.support.clocks import NOON, Clock
from whippet.storage import store as stores
from whippet.storage.documents import StreamDocument, TopicDocument
from whippet.storage.errors import CatalogueError, PartitionClosed, StoreLocked, UnsupportedFormat
from whippet.storage.layout import LOCK_FILE, PartitionId
from whippet.storage.offsets import Kind
from whippet.storage.options import Durability, StoreOptions
from whippet.storage.segment import Damage
from whippet.storage.store import Store
from whippet.storage.tail import OBJECT_BYTES


async def test_a_new_folder_has_a_format_file(tmp_path: Path) -> None:
    async with opened(tmp_path / "a/b", clock=Clock(77)):
        pass
    identity = json.loads((tmp_path / "a/b/FORMAT").read_text())
    assert (identity["whippet_store"], identity["created_at"]) == (2, 77)
    async with opened(tmp_path / "a/b"):
        pass
    assert json.loads((tmp_path / "a/b/FORMAT").read_text()) == identity


async def test_a_folder_that_is_open_is_refused_with_its_name(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        (partition,) = await with_topic(store)
        with pytest.raises(StoreLocked, match=str(tmp_path)):
            await Store.open(StoreOptions(path=str(tmp_path)))
        assert (await partition.append(texts("a"))).base_offset == 0
    async with opened(tmp_path):
        pass


def test_the_stores_clock_counts_whole_microseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: NOON * 1000 + 999)
    assert stores.now_us() == NOON


async def test_of_many_reports_of_damage_the_newest_thousand_are_kept(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        for offset in range(1001):
            store.opener.report(Damage("a file", 0, 0, offset, offset + 1, "a test"))
        assert [damage.offset for damage in store.damage] == list(range(1, 1001))


@pytest.mark.parametrize("content", ['{"whippet_store": 3, "id": "x", "created_at": 1}', "", "[]", "\x00" * 50, "{}"])
async def test_a_folder_of_another_format_is_refused_and_not_touched(tmp_path: Path, content: str) -> None:
    (tmp_path / "FORMAT").write_text(content)
    with pytest.raises(UnsupportedFormat, match=f"{tmp_path}/FORMAT"):
        await Store.open(StoreOptions(path=str(tmp_path)))
    assert (tmp_path / "FORMAT").read_text() == content
    assert {path.name for path in tmp_path.iterdir()} <= {"FORMAT", "LOCK"}


async def test_streams_without_a_format_are_opened_only_if_configured(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as store:
        (partition,) = await with_topic(store)
        await partition.append(texts("a"))
    (tmp_path / "FORMAT").unlink()
    with pytest.raises(UnsupportedFormat, match="recreate_missing_state"):
        await Store.open(StoreOptions(path=str(tmp_path)))
    async with opened(tmp_path, recreate_missing_state=True) as store:
        assert len(store.problems) == 1
        (partition,) = await with_topic(store)
        assert payloads(await partition.read(0, 9)) == [b"a"]


@pytest.mark.parametrize("shards", [1, 3])
async def test_each_of_200_partitions_holds_the_same_after_a_restart(tmp_path: Path, shards: int) -> None:
    async with opened(tmp_path, shards=shards, catalog_syncs=False, open_files_max=30) as store:
        for stream in range(2):
            await store.create_stream(StreamDocument(id=stream, name=f"s{stream}", created_at=1))
            await store.create_topic(stream, TopicDocument(id=0, name="t", created_at=1, partitions_count=100))
        await asyncio.gather(*(p.append(texts(str(p.place), "x")) for p in store.partitions.values()))
        chosen = set(list(store.partitions)[::7])
        for place in chosen:
            partition = store.partitions[place]
            await partition.store_offset(Kind.GROUP, 3, 1)
    said: list[str] = []
    # With another number of shards: the files do not depend on which shard owns a partition.
    options = StoreOptions(path=str(tmp_path), shards=2, saver_interval_s=None)
    store = await Store.open(options, lambda progress: said.append(str(progress)))
    assert said[-1] == "opened 200 of 200 partitions"
    assert len(store.partitions) == 200
    for place, partition in store.partitions.items():
        assert payloads(await partition.read(0, 9)) == [str(place).encode(), b"x"]
        assert partition.offset_of(Kind.GROUP, 3) == (1 if place in chosen else None)
    await store.close()


async def test_a_closed_store_refuses_every_use_and_has_released_its_folder(tmp_path: Path) -> None:
    threads = threading.active_count()
    async with opened(tmp_path, shards=3) as store:
        (partition,) = await with_topic(store)
        await store.close()
        await asyncio.gather(store.close(), store.close())
        assert threading.active_count() == threads
        for act in (
            partition.append(texts("a")),
            store.create_stream(StreamDocument(id=9, name="x", created_at=1)),
            store.retain(0, 0, expiry_us=1, max_bytes=1),
            store.delete_segments(partition.place, 1),
            store.remove_stream(0),
        ):
            with pytest.raises(PartitionClosed):
                await act
        await store.save()
    async with opened(tmp_path) as store:
        assert list(store.streams) == [0]


async def test_a_folder_that_cannot_be_opened_leaves_no_thread_behind(tmp_path: Path) -> None:
    threads = threading.active_count()
    (tmp_path / "FORMAT").write_text("?")
    with pytest.raises(UnsupportedFormat):
        await Store.open(StoreOptions(path=str(tmp_path), shards=4))
    assert threading.active_count() == threads


async def test_an_unknown_partition_is_none(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await with_topic(store)
        assert store.partition(0, 0, 0) is store.partitions[PartitionId(0, 0, 0)]
        assert store.partition(0, 0, 1) is None
        assert store.partition(5, 0, 0) is None
        with pytest.raises(PartitionClosed, match="partition 1: removed"):
            await store.delete_segments(PartitionId(0, 0, 1), 1)


async def test_the_saver_continues_after_a_defect_and_the_store_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, saver_interval_s=0.001) as store:
        (partition,) = await with_topic(store)
        rounds = asyncio.Event()
        once = iter([True])
        save = store.save

        async def defective() -> None:
            if next(once, False):
                raise ZeroDivisionError
            rounds.set()
            await save()

        monkeypatch.setattr(store, "save", defective)
        await partition.append(texts("a"))
        await rounds.wait()
        await settled()
    async with opened(tmp_path) as store:
        assert payloads(await (await with_topic(store))[0].read(0, 9)) == [b"a"]


async def test_a_closed_store_leaves_no_task_behind(tmp_path: Path) -> None:
    async with opened(tmp_path, saver_interval_s=1000.0) as store:
        await with_topic(store)
        await settled()
        assert len(asyncio.all_tasks()) == 2
    await settled()
    assert asyncio.all_tasks() == {asyncio.current_task()}


# ------------------------------------------------------------------------------------------------------------ retention


async def test_old_segments_are_deleted_by_age_up_to_the_barrier(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path, clock=clock, segment_bytes=1, respects_consumers="all") as store:
        reader, free = await with_topic(store, 2)
        for _ in range(5):
            for partition in (reader, free):
                await partition.append(sized(2, 50))
            clock.now += 100
        await reader.store_offset(Kind.CONSUMER, 1, 4)
        assert await store.retain(0, 0, expiry_us=301, max_bytes=None) == 4
        assert (reader.first_offset, free.first_offset) == (4, 4)
        assert await store.retain(0, 0, expiry_us=0, max_bytes=None) == 3
        assert (reader.first_offset, free.first_offset) == (4, 10)
        await reader.store_offset(Kind.CONSUMER, 1, 9)
        assert await store.retain(0, 0, expiry_us=0, max_bytes=None) == 3
        assert (reader.first_offset, reader.appended) == (10, 10)


@pytest.mark.parametrize(
    ("respects", "readers", "first"),
    [
        ("none", {Kind.GROUP: 0, Kind.CONSUMER: 0}, 4),
        ("groups", {Kind.CONSUMER: 0}, 4),
        ("groups", {Kind.GROUP: 2, Kind.CONSUMER: 0}, 3),
        ("all", {Kind.GROUP: 2, Kind.CONSUMER: 0}, 1),
        ("all", {Kind.GROUP: 1, Kind.CONSUMER: 3}, 2),
        ("all", {Kind.EXTERNAL_GROUP: 0}, 4),
    ],
)
async def test_retention_keeps_what_the_readers_that_it_respects_have_not_read(
    tmp_path: Path, respects: str, readers: dict[Kind, int], first: int
) -> None:
    clock = Clock()
    async with opened(tmp_path, clock=clock, segment_bytes=1, respects_consumers=respects) as store:
        (partition,) = await with_topic(store)
        for _ in range(4):
            await partition.append(sized(1, 50))
        for kind, offset in readers.items():
            await partition.store_offset(kind, 7, offset)
        clock.now += 100
        assert await store.retain(0, 0, expiry_us=50, max_bytes=None) == first
        assert partition.first_offset == first
        held = partition.held_back
        if first == 4:
            assert held is None
            return
        assert held is not None
        assert (
            held.reader
            == min(((kind, 7, offset) for kind, offset in readers.items()), key=lambda each: (each[2], each[0]))
            or respects == "groups"
        )
        assert held.reader.offset == first - 1
        assert (held.segments, held.bytes) == (4 - first, (4 - first) * len(sized(1, 50)))
        assert await store.retain(0, 0, expiry_us=None, max_bytes=1) == 0
        assert partition.held_back == held
        await partition.store_offset(held.reader.kind, 7, 3)
        for kind in readers:
            await partition.store_offset(kind, 7, 3)
        assert await store.retain(0, 0, expiry_us=None, max_bytes=1) == 4 - first
        assert partition.held_back is None


async def test_a_topic_that_exceeds_its_size_loses_the_oldest_segments_of_all_partitions(
    tmp_path: Path,
) -> None:
    clock = Clock(NOON)
    async with opened(tmp_path, clock=clock, segment_bytes=1) as store:
        partitions = await with_topic(store, 3)
        size = len(sized(1, 100))
        for _ in range(4):
            for partition in partitions:
                clock.now += 10
                await partition.append(sized(1, 100))
        assert await store.retain(0, 0, expiry_us=None, max_bytes=12 * size) == 0
        # Down to less than 90 % of 9 batches: 8.
        assert await store.retain(0, 0, expiry_us=None, max_bytes=9 * size) == 4
        assert [partition.first_offset for partition in partitions] == [2, 1, 1]
        assert sum(partition.size_bytes for partition in partitions) == 8 * size
        assert await store.retain(0, 0, expiry_us=None, max_bytes=1) == 8
        assert [partition.appended for partition in partitions] == [4, 4, 4]


async def test_a_deletion_of_segments_stops_at_the_barrier(tmp_path: Path) -> None:
    async with opened(tmp_path, segment_bytes=1) as store:
        (partition,) = await with_topic(store)
        for _ in range(6):
            await partition.append(texts("a", "b"))
        await partition.store_offset(Kind.GROUP, 1, 5)
        assert await store.delete_segments(partition.place, 2) == 2
        assert await store.delete_segments(partition.place, 99) == 1
        assert await store.delete_segments(partition.place, 99) == 0
        assert (partition.first_offset, partition.messages_count) == (6, 6)


async def test_a_catalogue_change_refused_by_the_disk_changes_nothing(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as store:
        await with_topic(store)
        (tmp_path / "streams/0/topics").rename(tmp_path / "away")
        with pytest.raises(CatalogueError, match="No such file"):
            await store.create_topic(0, TopicDocument(id=1, name="x", created_at=1, partitions_count=1))
        assert list(store.streams[0].topics) == [0]
        (tmp_path / "away").rename(tmp_path / "streams/0/topics")
        await store.create_topic(0, TopicDocument(id=1, name="x", created_at=1, partitions_count=1))


async def test_a_trim_after_a_purge_deletes_nothing_new(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, segment_bytes=1024) as store:
        (partition,) = await with_topic(store)
        for _ in range(8):
            await partition.append(sized(1, 700))
        purges, before = partition.purges, (await partition.closed_segments())[-1].next_offset
        await partition.purge()
        for _ in range(8):
            await partition.append(sized(1, 700))
        assert await partition.trim(before, purges) == 0
        assert (partition.first_offset, partition.messages_count) == (0, 8)
        assert await partition.trim(before, partition.purges) > 0


async def test_bytes_accepted_and_not_yet_written_are_counted(tmp_path: Path) -> None:
    batch = sized(1, 1000)
    async with opened(tmp_path, durability=Durability.MEMORY, messages_required_to_save=1000) as store:
        (partition,) = await with_topic(store)
        assert store.unflushed_bytes == 0
        for times in (1, 2):
            await partition.append(sized(1, 1000))
            assert store.unflushed_bytes == times * len(batch)
        await partition.flush()
        assert store.unflushed_bytes == 0


async def test_bytes_that_are_written_and_still_in_memory_are_counted(tmp_path: Path) -> None:
    size = len(sized(1, 1000)) + OBJECT_BYTES
    async with opened(tmp_path, tail_bytes_max=4 * size) as store:
        first, second = await with_topic(store, 2)
        for partition, expected in ((first, 1), (second, 2), (first, 3), (first, 4), (second, 4)):
            await partition.append(sized(1, 1000))
            assert store.tail_bytes == expected * size
        await store.remove_topic(0, 0)
        assert store.tail_bytes == 0


async def test_reserved_numbers_are_known_after_a_restart_and_a_document_that_is_damaged_is_named(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as store:
        assert store.numbers_reserved == 0
        await store.reserve_numbers(5000)
        assert store.numbers_reserved == 5000
    async with opened(tmp_path) as store:
        assert (store.numbers_reserved, store.problems) == (5000, [])
    (tmp_path / "numbers.json").write_text("{}")
    async with opened(tmp_path) as store:
        assert store.numbers_reserved == 0
        (problem,) = store.problems
        assert problem.startswith(f"{tmp_path}/numbers.json: cannot be used")


async def test_a_start_that_fails_does_not_count_as_a_clean_stop(tmp_path: Path) -> None:
    """The next start still has to sync what an unclean stop left in the system's memory."""
    async with opened(tmp_path):
        pass
    assert (tmp_path / LOCK_FILE).read_bytes() == b""

    def fail() -> None:
        raise CatalogueError("no")

    with pytest.raises(CatalogueError, match="no"):
        await Store.open(StoreOptions(path=str(tmp_path)), on_locked=fail)
    assert (tmp_path / LOCK_FILE).read_bytes() != b""
    async with opened(tmp_path):
        pass
