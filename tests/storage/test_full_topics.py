"""A topic that has reached its size refuses messages if the store is configured not to delete old ones."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.storage.support.world import opened, sized
from whippet.storage.documents import StreamDocument, TopicDocument
from whippet.storage.errors import TopicFull
from whippet.storage.options import Durability
from whippet.storage.partition import Partition
from whippet.storage.producers import Producer
from whippet.storage.store import Store

BATCH = len(sized(1, 100))
UNLIMITED = 2**64 - 1


async def topic_of(store: Store, max_bytes: int, partitions: int = 2) -> list[Partition]:
    await store.create_stream(StreamDocument(id=0, name="s", created_at=1))
    document = TopicDocument(id=0, name="t", created_at=1, partitions_count=partitions, max_topic_size=max_bytes)
    await store.create_topic(0, document)
    return list(store.partitions_of(0, 0))


async def test_a_send_that_would_exceed_the_size_of_all_partitions_is_refused_by_name(tmp_path: Path) -> None:
    async with opened(tmp_path, delete_oldest_segments=False) as store:
        first, second = await topic_of(store, 3 * BATCH)
        for partition in (first, second, first):
            await partition.append(sized(1, 100))
        for partition in (first, second):
            with pytest.raises(TopicFull) as refused:
                await partition.append(sized(1, 100))
            assert str(refused.value) == (
                f"topic 't' of stream 's' is full: it has {3 * BATCH} bytes, its max_topic_size is {3 * BATCH} bytes, "
                f"and {BATCH} more would exceed that (system.topic.delete_oldest_segments is false)"
            )
        assert [partition.appended for partition in (first, second)] == [2, 1]


@pytest.mark.parametrize("durability", Durability)
async def test_concurrent_sends_never_exceed_the_size_together(tmp_path: Path, durability: Durability) -> None:
    async with opened(tmp_path, delete_oldest_segments=False, durability=durability) as store:
        partitions = await topic_of(store, 5 * BATCH)
        sends = [partitions[number % 2].append(sized(1, 100)) for number in range(20)]
        answers = await asyncio.gather(*sends, return_exceptions=True)
        assert sum(isinstance(answer, TopicFull) for answer in answers) == 15
        assert sum(partition.size_bytes for partition in partitions) == 5 * BATCH


async def test_a_full_topic_has_room_after_a_purge_and_after_its_size_is_raised(tmp_path: Path) -> None:
    async with opened(tmp_path, delete_oldest_segments=False) as store:
        (partition,) = await topic_of(store, BATCH, partitions=1)
        await partition.append(sized(1, 100))
        with pytest.raises(TopicFull):
            await partition.append(sized(1, 100))
        await store.purge_topic(0, 0)
        await partition.append(sized(1, 100))
        document = store.streams[0].topics[0].document
        await store.update_topic(
            0, TopicDocument(id=0, name="t", created_at=1, partitions_count=1, max_topic_size=2 * BATCH)
        )
        await partition.append(sized(1, 100))
        with pytest.raises(TopicFull):
            await partition.append(sized(1, 100))
        assert document.max_topic_size == BATCH


async def test_a_repeated_send_gets_its_result_although_the_topic_is_full(tmp_path: Path) -> None:
    async with opened(tmp_path, delete_oldest_segments=False) as store:
        (partition,) = await topic_of(store, BATCH, partitions=1)
        stored = await partition.append_once(sized(1, 100), Producer(b"p", 0, 1))
        again = await partition.append_once(sized(1, 100), Producer(b"p", 0, 1))
        assert (again.base_offset, again.repeated) == (stored.base_offset, True)
        with pytest.raises(TopicFull):
            await partition.append_once(sized(1, 100), Producer(b"p", 0, 2))
        await store.purge_topic(0, 0)
        assert not (await partition.append_once(sized(1, 100), Producer(b"p", 0, 2))).repeated


@pytest.mark.parametrize("max_bytes", [0, UNLIMITED])
async def test_a_topic_without_a_size_is_never_full(tmp_path: Path, max_bytes: int) -> None:
    async with opened(tmp_path, delete_oldest_segments=False) as store:
        (partition,) = await topic_of(store, max_bytes, partitions=1)
        for _ in range(3):
            await partition.append(sized(1, 100))


async def test_no_send_is_refused_if_old_segments_are_deleted_instead(tmp_path: Path) -> None:
    async with opened(tmp_path, delete_oldest_segments=True) as store:
        (partition,) = await topic_of(store, BATCH, partitions=1)
        for _ in range(3):
            await partition.append(sized(1, 100))
