"""Removing streams, topics and partitions: what is left is exactly what was not removed."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.storage.support.partitions import BUFFERED
from tests.storage.support.world import opened, payloads, texts, with_topic
from whippet.storage.documents import StreamDocument, TopicDocument
from whippet.storage.errors import CatalogueError, PartitionClosed
from whippet.storage.files import Buffer, Files
from whippet.storage.layout import PartitionId
from whippet.storage.options import Durability

BROKEN = [PartitionId(0, 0, 1), PartitionId(0, 0, 2), PartitionId(0, 1, 0), PartitionId(1, 0, 0)]


async def make_broken(tmp_path: Path) -> None:
    """Makes a data folder of two streams with two topics of three partitions, of which some cannot be opened."""
    async with opened(tmp_path) as store:
        for stream in range(2):
            await store.create_stream(StreamDocument(id=stream, name=f"s{stream}", created_at=1))
            for topic in range(2):
                document = TopicDocument(id=topic, name=f"t{topic}", created_at=1, partitions_count=3)
                await store.create_topic(stream, document)
    for place in BROKEN:
        folder = tmp_path / f"streams/{place.stream}/topics/{place.topic}/partitions/{place.partition}"
        shutil.rmtree(folder)
        folder.mkdir()
        # Even root cannot open a loop of links.
        (folder / "00000000000000000000.log").symlink_to("00000000000000000000.log")


async def test_what_was_removed_is_no_longer_unavailable_and_the_rest_still_is(tmp_path: Path) -> None:
    await make_broken(tmp_path)
    async with opened(tmp_path) as store:
        assert sorted(store.unavailable) == BROKEN
        await store.remove_partitions(0, 0, 1)
        assert sorted(store.unavailable) == [PartitionId(0, 0, 1), PartitionId(0, 1, 0), PartitionId(1, 0, 0)]
        assert (store.streams[0].topics[0].partitions, store.partitions_count) == ([0, 1], 11)
        await store.remove_topic(0, 0)
        assert sorted(store.unavailable) == [PartitionId(0, 1, 0), PartitionId(1, 0, 0)]
        assert (store.streams[0].topics[1].partitions, store.partitions_count) == ([0, 1, 2], 9)
        await store.remove_stream(0)
        assert sorted(store.unavailable) == [PartitionId(1, 0, 0)]
        assert (store.streams[1].topics[0].partitions, store.partitions_count) == ([0, 1, 2], 6)
    async with opened(tmp_path) as store:
        assert sorted(store.unavailable) == [PartitionId(1, 0, 0)]
        assert store.partitions_count == 6


async def test_a_topic_may_lose_all_of_its_partitions_but_no_more(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await with_topic(store, 3)
        with pytest.raises(CatalogueError, match="a topic of 3 partitions cannot lose 4"):
            await store.remove_partitions(0, 0, 4)
        assert len(list(store.partitions_of(0, 0))) == 3
        await store.remove_partitions(0, 0, 3)
        assert (store.streams[0].topics[0].partitions, store.partitions_count) == ([], 0)
    async with opened(tmp_path) as store:
        assert store.partitions_count == 0
        await store.create_partitions(0, 0, 1)
        (partition,) = store.partitions_of(0, 0)
        assert (await partition.append(texts("a"))).base_offset == 0


@pytest.mark.parametrize("what", ["stream", "topic", "partitions"])
async def test_a_removal_that_fails_loses_nothing_that_was_acknowledged_from_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(5, "I/O error", "a folder")

    async with opened(tmp_path, **BUFFERED) as store:
        for number, partition in enumerate(await with_topic(store, 2)):
            await partition.append(texts(f"{number}"))
        with monkeypatch.context() as patch:
            patch.setattr(store.catalog, f"remove_{what}", refuse)
            with pytest.raises(CatalogueError, match="I/O error"):
                if what == "stream":
                    await store.remove_stream(0)
                elif what == "topic":
                    await store.remove_topic(0, 0)
                else:
                    await store.remove_partitions(0, 0, 1)
        assert store.unavailable == {}
        assert sorted(store.streams[0].topics[0].partitions) == [0, 1]
        kept = {partition.place.partition: partition for partition in store.partitions_of(0, 0)}
        for number in range(2):
            assert payloads(await kept[number].read(0, 9)) == [b"%d" % number]
            assert (await kept[number].append(texts("more"))).base_offset == 1


class Failing(Files):
    """A disk that refuses to write to logs, or to sync them."""

    def __init__(self, act: str, failure: Exception) -> None:
        self.fails = False
        self._act = act
        self._failure = failure
        self._logs: set[int] = set()

    def open_for_writing(self, path: str) -> int:
        handle = super().open_for_writing(path)
        (self._logs.add if path.endswith(".log") else self._logs.discard)(handle)
        return handle

    def write(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        if self.fails and self._act == "write" and handle in self._logs:
            raise self._failure
        return super().write(handle, buffers, position)

    def sync(self, handle: int) -> None:
        if self.fails and self._act == "sync" and handle in self._logs:
            raise self._failure
        super().sync(handle)


@pytest.mark.parametrize("level", Durability)
@pytest.mark.parametrize("act", ["write", "sync"])
@pytest.mark.parametrize("failure", [OSError(errno.EIO, "it fails"), ZeroDivisionError("a defect")], ids=repr)
async def test_a_partition_that_is_removed_while_the_disk_fails_is_closed(
    tmp_path: Path, level: Durability, act: str, failure: Exception
) -> None:
    disk = Failing(act, failure)
    async with opened(tmp_path, files=disk, **{**BUFFERED, "durability": level}) as store:
        (partition,) = await with_topic(store)
        await partition.append(texts("a"))
        disk.fails = True
        late = asyncio.create_task(partition.append(texts("b"), Durability.SYNCED if act == "sync" else None))
        await asyncio.sleep(0)
        await store.remove_topic(0, 0)
        await asyncio.gather(late, return_exceptions=True)
        assert isinstance(partition.failed, PartitionClosed)
        for use in (partition.append(texts("c")), partition.read(0, 1), partition.flush()):
            with pytest.raises(PartitionClosed, match="it was removed"):
                await use
        assert (partition.unflushed_bytes, store.unflushed_bytes) == (0, 0)


async def test_a_partition_that_is_created_again_is_empty_although_its_folder_could_not_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(5, "I/O error", "a folder")

    async with opened(tmp_path) as store:
        for partition in await with_topic(store, 2):
            await partition.append(texts("old"))
        with monkeypatch.context() as patch:
            patch.setattr(store.catalog, "finish_removing", refuse)
            await store.remove_partitions(0, 0, 1)
            assert "removed partitions stay on the disk until the next removal or start" in caplog.text
            with pytest.raises(CatalogueError):
                await store.create_partitions(0, 0, 1)
        await store.create_partitions(0, 0, 1)
        new = store.partition(0, 0, 1)
        assert new is not None
        assert (await new.append(texts("new"))).base_offset == 0
    async with opened(tmp_path) as store:
        for partition, text in zip(store.partitions_of(0, 0), (b"old", b"new"), strict=True):
            assert payloads(await partition.read(0, 9)) == [text]
