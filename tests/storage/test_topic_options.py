"""Options of a topic apply to its partitions, beside topics with other options, and also after a start."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
from pathlib import Path

import msgspec
import pytest

from tests.storage.support.disk import SimulatedDisk
from tests.storage.support.world import offsets, opened, payloads, settled, sized, texts
from tests.support.running import run
from whippet.storage.documents import StreamDocument, TopicDocument
from whippet.storage.files import Files
from whippet.storage.layout import Layout, log_file
from whippet.storage.offsets import Kind
from whippet.storage.options import MIB, Durability, StoreOptions, TopicOptions, TopicSettings, settings_of
from whippet.storage.partition import Partition
from whippet.storage.store import Store

MEMORY, WRITTEN, SYNCED = Durability

PERSISTED = TopicOptions(durability="persisted")
OFFSETS_PERSISTED = TopicOptions(consumer_offset_durability="persisted")
RESERVING = TopicOptions(preallocate_segments=True, segment_size=MIB)


async def with_topics(store: Store, *chosen: TopicOptions, partitions: int = 1) -> list[Partition]:
    """Stream 0 with a topic for each choice, created if missing. Returns the first partition of each."""
    if 0 not in store.streams:
        await store.create_stream(StreamDocument(id=0, name="s", created_at=1))
        for i, options in enumerate(chosen):
            document = TopicDocument(id=i, name=f"t{i}", created_at=1, partitions_count=partitions, options=options)
            await store.create_topic(0, document)
    return [next(store.partitions_of(0, topic)) for topic in store.streams[0].topics]


# -------------------------------------------------------------------------------------------------------- what it means


@pytest.mark.parametrize(
    ("server", "chosen", "messages", "stored_offsets"),
    [
        (WRITTEN, TopicOptions(), WRITTEN, WRITTEN),
        (WRITTEN, TopicOptions(durability="replicated", consumer_offset_durability="replicated"), WRITTEN, WRITTEN),
        (WRITTEN, PERSISTED, SYNCED, WRITTEN),
        (WRITTEN, OFFSETS_PERSISTED, WRITTEN, SYNCED),
        (WRITTEN, TopicOptions(enforce_fsync=True), SYNCED, WRITTEN),
        (WRITTEN, TopicOptions(enforce_fsync=False), WRITTEN, WRITTEN),
        (WRITTEN, TopicOptions(messages_required_to_save=2), MEMORY, MEMORY),
        (WRITTEN, TopicOptions(messages_required_to_save=1), WRITTEN, WRITTEN),
        (WRITTEN, TopicOptions(messages_required_to_save=2, durability="persisted"), SYNCED, MEMORY),
        (WRITTEN, TopicOptions(size_of_messages_required_to_save=9), WRITTEN, WRITTEN),
        (MEMORY, TopicOptions(), MEMORY, MEMORY),
        (MEMORY, TopicOptions(durability="replicated"), MEMORY, MEMORY),
        (MEMORY, TopicOptions(messages_required_to_save=1), WRITTEN, WRITTEN),
        (MEMORY, PERSISTED, SYNCED, MEMORY),
        (SYNCED, TopicOptions(), SYNCED, SYNCED),
        (SYNCED, TopicOptions(durability="replicated", consumer_offset_durability="replicated"), SYNCED, SYNCED),
        (SYNCED, TopicOptions(messages_required_to_save=100), SYNCED, SYNCED),
    ],
)
def test_a_topic_may_raise_its_level_or_buffer_more_but_never_undo_the_servers_syncs(
    server: Durability, chosen: TopicOptions, messages: Durability, stored_offsets: Durability
) -> None:
    settings = settings_of(chosen, StoreOptions(path="", durability=server))
    assert (settings.durability, settings.offset_durability) == (messages, stored_offsets)


@pytest.mark.parametrize("name", ["segment_size", "messages_required_to_save", "size_of_messages_required_to_save"])
def test_sizes_and_counts_of_a_topic_are_at_least_one(name: str) -> None:
    assert getattr(msgspec.json.decode(b'{"%s":1}' % name.encode(), type=TopicOptions), name) == 1
    with pytest.raises(msgspec.ValidationError, match=">= 1"):
        msgspec.json.decode(b'{"%s":0}' % name.encode(), type=TopicOptions)


def test_a_topic_without_options_uses_those_of_the_server() -> None:
    server = StoreOptions(
        path="", durability=MEMORY, messages_required_to_save=7, bytes_required_to_save=8, segment_bytes=900
    )
    assert settings_of(TopicOptions(), server) == TopicSettings(
        durability=MEMORY,
        offset_durability=MEMORY,
        messages_required_to_save=7,
        bytes_required_to_save=8,
        segment_bytes=900,
        preallocates=False,
    )


# ------------------------------------------------------------------------------------------------------- power failures


def test_a_power_failure_takes_nothing_from_a_persisted_topic_beside_another() -> None:
    async def life(disk: SimulatedDisk) -> None:
        store = await Store.open(StoreOptions(path="/data", saver_interval_s=None), files=disk)
        persisted, neighbour = await with_topics(store, PERSISTED, TopicOptions())
        for i in range(20):
            for partition in (persisted, neighbour):
                await partition.append(texts(f"{i}"))
        assert (persisted.synced, neighbour.synced) == (20, 0)
        assert neighbour.written == 20
        kept.extend(disk.power_cut(random.Random(seed)) for seed in range(20))
        await store.close()

    async def found(disk: SimulatedDisk) -> list[list[bytes]]:
        async with opened("/data", files=disk) as store:
            return [payloads(await partition.read(0, 100)) for partition in await with_topics(store)]

    kept: list[SimulatedDisk] = []
    run(life(SimulatedDisk()))
    sent = [f"{i}".encode() for i in range(20)]
    losses = 0
    for disk in kept:
        mine, others = run(found(disk))
        assert mine == sent
        assert set(others) <= set(sent)
        losses += others != sent
    assert losses


def test_a_power_failure_takes_no_acknowledged_persisted_offset() -> None:
    """Whatever the level of messages. They are synced here, so that no offset has to be lowered."""

    async def life(disk: SimulatedDisk) -> None:
        store = await Store.open(StoreOptions(path="/data", durability=MEMORY, saver_interval_s=None), files=disk)
        both = await with_topics(store, OFFSETS_PERSISTED, TopicOptions(messages_required_to_save=1))
        for partition in both:
            await partition.append(sized(10, 10))
            await partition.flush(sync=True)
        for offset in (3, 7, 5):
            for partition in both:
                await partition.store_offset(Kind.CONSUMER, 1, offset)
                await partition.store_offset(Kind.GROUP, 2, offset)
        for partition in both:
            assert await partition.delete_offset(Kind.GROUP, 2)
        kept.extend(disk.power_cut(random.Random(seed)) for seed in range(30))
        await store.close()

    async def found(disk: SimulatedDisk) -> list[tuple[int | None, int | None]]:
        async with opened("/data", files=disk) as store:
            return [(p.offset_of(Kind.CONSUMER, 1), p.offset_of(Kind.GROUP, 2)) for p in await with_topics(store)]

    kept: list[SimulatedDisk] = []
    run(life(SimulatedDisk()))
    neighbours = set()
    for disk in kept:
        mine, neighbour = run(found(disk))
        assert mine == (5, None)
        neighbours.add(neighbour)
    assert len(neighbours) > 1


async def test_the_saver_syncs_offsets_where_they_alone_are_persisted(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        (partition,) = await with_topics(store, PERSISTED)
        await partition.append(texts("a"))
        needed = [partition.needs_saver]
        await partition.store_offset(Kind.CONSUMER, 1, 0)
        needed.append(partition.needs_saver)
        await store.save()
        assert [*needed, partition.needs_saver] == [False, True, False]


# ------------------------------------------------------------------------------------------------- thresholds, segments


async def test_a_topic_with_its_own_thresholds_buffers_and_its_neighbour_does_not(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as store:
        few, small, neighbour = await with_topics(
            store,
            TopicOptions(messages_required_to_save=3),
            TopicOptions(messages_required_to_save=1000, size_of_messages_required_to_save=2000),
            TopicOptions(),
        )
        for partition in (few, small, neighbour):
            await partition.append(texts("a"))
            await partition.append(texts("b"))
        await settled()
        assert [partition.written for partition in (few, small, neighbour)] == [0, 0, 2]
        await few.append(texts("c"))
        await small.append(sized(1, 2000))
        for partition in (few, small):
            await partition.until(2, WRITTEN)


async def _check_sizes(store: Store) -> None:
    for partition in list(store.partitions_of(0, 0)):
        before = partition.segments_count
        for _ in range(4):
            await partition.append(sized(1, 400))
        assert partition.segments_count == before + 4
    neighbour = store.partition(0, 1, 0)
    assert neighbour is not None
    await neighbour.append(sized(1, 400))
    assert neighbour.segments_count == 1


async def test_a_topics_own_segment_size_and_durability_apply_to_every_partition_and_opening(
    tmp_path: Path,
) -> None:
    chosen = TopicOptions(segment_size=500, durability="persisted", consumer_offset_durability="persisted")
    async with opened(tmp_path, shards=2) as store:
        await with_topics(store, chosen, TopicOptions(), partitions=2)
        await store.create_partitions(0, 0, 2)
        await _check_sizes(store)
        for partition in store.partitions_of(0, 0):
            await store.reopen(partition)
        await _check_sizes(store)
    async with opened(tmp_path, shards=2) as store:
        await _check_sizes(store)
        assert {partition.durability for partition in store.partitions_of(0, 0)} == {SYNCED}
        assert {partition.durability for partition in store.partitions_of(0, 1)} == {WRITTEN}
        assert store.streams[0].topics[0].document.options == chosen


@pytest.mark.parametrize("broken", ['{"durability": "sometimes"}', '{"segment_size": 0}', '{"segment_size": "1 MiB"}'])
async def test_a_topic_whose_options_cannot_be_decoded_is_not_served_with_less(tmp_path: Path, broken: str) -> None:
    async with opened(tmp_path) as store:
        await with_topics(store, PERSISTED)
    path = tmp_path / "streams/0/topics/0/topic.json"
    text = path.read_text()
    assert '"durability": "persisted"' in text
    start = text.index("{", text.index('"options"'))
    path.write_text(text[:start] + broken + text[text.index("}", start) + 1 :])
    async with opened(tmp_path) as store:
        assert store.streams[0].topics == {}
        assert "topic.json" in store.problems[0]


# ------------------------------------------------------------------------------------------------------------ reserving


def _reserves(folder: Path) -> bool:
    path = str(folder / "probe")
    files = Files()
    handle = files.open_for_writing(path)
    try:
        files.reserve(handle, 64 * 1024)
    except OSError:
        return False
    finally:
        files.close(handle)
        files.remove(path)
    return True


def _reserved(folder: Path, start: int) -> tuple[int, int]:
    """The length of a log, and the bytes that the disk has reserved for it."""
    status = os.stat(log_file(str(folder), start))
    return status.st_size, status.st_blocks * 512


def test_reserved_space_does_not_lengthen_a_file_and_is_freed(
    tmp_path: Path,
) -> None:
    if not _reserves(tmp_path):
        pytest.skip("this disk cannot reserve")
    files, path = Files(), str(tmp_path / "file")
    handle = files.open_for_writing(path)
    files.write(handle, [b"x" * 100], 0)
    files.reserve(handle, MIB)
    assert os.stat(path).st_size == 100
    assert os.stat(path).st_blocks * 512 >= MIB
    files.truncate(handle, 100)
    assert os.stat(path).st_size == 100
    assert os.stat(path).st_blocks * 512 < MIB
    assert files.read(handle, 200, 0) == b"x" * 100
    files.close(handle)


async def test_space_for_a_segment_is_reserved_from_its_first_message_until_it_closes(
    tmp_path: Path,
) -> None:
    if not _reserves(tmp_path):
        pytest.skip("this disk cannot reserve")

    folder = Path(Layout(StoreOptions(path=str(tmp_path))).root) / "streams/0/topics/0/partitions/0"
    async with opened(tmp_path) as store:
        (partition,) = await with_topics(store, RESERVING)
        await partition.append(sized(1, 1000))
        length, blocks = _reserved(folder, 0)
        assert length == partition.size_bytes < 2000
        assert blocks >= MIB
    async with opened(tmp_path) as store:
        (partition,) = await with_topics(store)
        await partition.append(sized(1, MIB - 4000))
        await partition.append(sized(1, 4000))
        await partition.append(sized(1, 10))
        await partition.flush(sync=True)
        length, blocks = _reserved(folder, 0)
        assert length <= blocks < length + 64 * 1024
        assert _reserved(folder, 3)[1] >= MIB
        await partition.purge()
        await partition.append(texts("again"))
        assert _reserved(folder, 0)[1] >= MIB
    async with opened(tmp_path) as store:
        (partition,) = await with_topics(store)
        assert offsets(await partition.read(0, 10)) == [0]
        assert not store.damage


@pytest.mark.parametrize("error", [errno.EOPNOTSUPP, errno.ENOSPC])
async def test_a_disk_that_cannot_reserve_space_is_logged_once_and_stores_the_messages(
    error: int, caplog: pytest.LogCaptureFixture
) -> None:
    disk = SimulatedDisk()
    with caplog.at_level(logging.WARNING):
        async with opened("/data", files=disk) as store:
            chosen = TopicOptions(preallocate_segments=True, segment_size=500)
            (partition,) = await with_topics(store, chosen)
            disk.refuse = lambda act, path: error if act == "reserve" else None
            for _ in range(5):
                await partition.append(sized(1, 400))
            assert partition.segments_count == 6
            assert offsets(await partition.read(0, 10)) == [0, 1, 2, 3, 4]
    assert len([record for record in caplog.records if "cannot be reserved" in record.getMessage()]) == 1


async def test_space_is_reserved_again_after_a_write_that_failed() -> None:
    """The part of a batch that was written is cut off, and the reserved space with it."""

    disk = SimulatedDisk()
    async with opened("/data", files=disk, durability=MEMORY, write_retry_s=0) as store:
        (partition,) = await with_topics(store, RESERVING)
        await partition.append(texts("a"))
        await partition.flush()
        disk.trace = []
        refused: list[str] = []

        def refuse(act: str, path: str) -> int | None:
            if act == "write":
                refused.append(path)
                return errno.ENOSPC
            return None

        disk.refuse = refuse
        await partition.append(texts("b"))
        flushing = asyncio.ensure_future(partition.flush())
        while not refused:  # noqa: ASYNC110
            await asyncio.sleep(0)
        disk.refuse = lambda act, path: None
        await asyncio.gather(flushing, return_exceptions=True)
        await partition.until(1, WRITTEN)
    assert disk.trace is not None
    acts = [operation.act for operation in disk.trace if operation.path.endswith(".log")]
    assert acts.count("reserve") >= 1
