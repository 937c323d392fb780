"""The catalogue: streams, topics, groups, users and tokens are the same after any start."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.storage.support.disk import SimulatedDisk
from tests.storage.support.documents import change, content
from tests.storage.support.world import SlowDisk, opened, payloads, settled, texts, with_topic
from tests.support.clocks import Clock
from whippet.storage.documents import GroupDocument, StreamDocument, TopicDocument
from whippet.storage.errors import CatalogueError
from whippet.storage.layout import PartitionId
from whippet.storage.options import StoreOptions, TopicOptions
from whippet.storage.store import Store


def stream(identity: int, name: str = "") -> StreamDocument:
    return StreamDocument(id=identity, name=name or f"s{identity}", created_at=7)


def topic(identity: int, partitions: int = 1, name: str = "", **fields: Any) -> TopicDocument:
    return TopicDocument(id=identity, name=name or f"t{identity}", created_at=8, partitions_count=partitions, **fields)


def picture(store: Store) -> dict[str, Any]:
    """The content of the catalogue."""
    return {
        "streams": {
            i: (s.document, {j: (t.document, t.groups, t.partitions) for j, t in s.topics.items()})
            for i, s in store.streams.items()
        },
        "partitions": sorted(store.partitions),
        "users": store.users,
        "tokens": store.tokens,
    }


async def test_nothing_that_was_left_in_the_staging_folder_gets_into_a_stream(tmp_path: Path) -> None:
    """It is emptied at every start, unless that fails."""
    async with opened(tmp_path) as store:
        (tmp_path / "staging" / "1" / "left").mkdir(parents=True)
        await store.create_stream(stream(0))
        assert not (tmp_path / "streams" / "0" / "left").exists()


async def test_changes_of_every_kind_are_the_same_after_a_restart(tmp_path: Path) -> None:
    chosen = TopicOptions(message_expiry=99, durability="persisted", preallocate_segments=False)
    async with opened(tmp_path) as store:
        for i in range(3):
            await store.create_stream(stream(i))
        await store.update_stream(stream(1, "renamed"))
        await store.create_topic(1, topic(0, 3, options=chosen, message_expiry=99))
        await store.create_topic(1, topic(5, 0, max_topic_size=10**10, compression_algorithm=2))
        await store.update_topic(1, topic(0, 3, "anew", replication_factor=3))
        await store.create_topic(2, topic(0, 2))
        await store.create_partitions(1, 0, 4)
        await store.remove_partitions(1, 0, 2)
        await store.create_partitions(1, 5, 1)
        await store.write_group(1, 0, GroupDocument(id=0, name="g", created_at=9))
        await store.write_group(1, 0, GroupDocument(id=1, name="h", created_at=9))
        await store.write_group(1, 0, GroupDocument(id=0, name="g2", created_at=9))
        await store.remove_group(1, 0, 1)
        for i in range(3):
            await store.write_user(i, b'{"n": %d}' % i)
            await store.write_token(i, b'{"t": %d}' % i)
        await store.write_user(0, b'{"n": "new"}')
        await store.remove_user(1)
        await store.remove_token(2)
        await store.remove_topic(2, 0)
        await store.remove_stream(0)
        before = picture(store)
    assert before["users"] == {0: b'{"n": "new"}', 2: b'{"n": 2}'}
    assert before["partitions"] == [PartitionId(1, 0, i) for i in range(5)] + [PartitionId(1, 5, 0)]
    async with opened(tmp_path) as store:
        assert picture(store) == before
        assert not store.problems
        assert not store.unavailable


async def test_documents_are_json_that_a_person_can_read(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.create_stream(stream(3, "grüße"))
        await store.create_topic(3, topic(4, 1))
        await store.write_group(3, 4, GroupDocument(id=5, name="g", created_at=9))
    folder = tmp_path / "streams/3"
    assert content(folder / "stream.json") == {"id": 3, "name": "grüße", "created_at": 7}
    assert json.loads((folder / "topics/4/topic.json").read_text())["max_topic_size"] == 2**64 - 1
    assert json.loads((folder / "topics/4/groups/5.json").read_text())["name"] == "g"
    assert (folder / "topics/4/partitions/0/00000000000000000000.log").exists()


async def test_unknown_fields_are_ignored(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await with_topic(store)
        before = picture(store)
    for document in (tmp_path / "streams/0/stream.json", tmp_path / "streams/0/topics/0/topic.json"):
        change(document, **{"from the future": [1]})
    async with opened(tmp_path) as store:
        assert picture(store) == before
        assert not store.problems


async def test_an_id_that_is_taken_is_refused_and_its_owner_is_unchanged(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        (partition,) = await with_topic(store)
        await partition.append(texts("a"))
        before = picture(store)
        with pytest.raises(CatalogueError, match="already exists"):
            await store.create_stream(stream(0, "other"))
        with pytest.raises(CatalogueError, match="already exists"):
            await store.create_topic(0, topic(0, 4))
        with pytest.raises(CatalogueError, match="cannot lose 2"):
            await store.remove_partitions(0, 0, 2)
        assert picture(store) == before
        assert payloads(await partition.read(0, 9)) == [b"a"]


@pytest.mark.parametrize("what", ["stream", "topic", "partitions"])
async def test_a_stream_topic_or_partition_that_is_created_again_is_empty(tmp_path: Path, what: str) -> None:
    async with opened(tmp_path) as store:
        await store.create_stream(stream(0))
        await store.create_topic(0, topic(0, 2))
        old = store.partition(0, 0, 1)
        assert old is not None
        await old.append(texts("a"))
        if what == "stream":
            await store.remove_stream(0)
            await store.create_stream(stream(0))
            await store.create_topic(0, topic(0, 2))
        elif what == "topic":
            await store.remove_topic(0, 0)
            await store.create_topic(0, topic(0, 2))
        else:
            await store.remove_partitions(0, 0, 1)
            await store.create_partitions(0, 0, 1)
        new = store.partition(0, 0, 1)
        assert new is not None
        assert new is not old
        assert (new.appended, (await new.append(texts("b"))).base_offset) == (0, 0)
        assert not list((tmp_path / "trash").iterdir())
        assert not list((tmp_path / "staging").iterdir())
    async with opened(tmp_path) as store:
        again = store.partition(0, 0, 1)
        assert again is not None
        assert payloads(await again.read(0, 9)) == [b"b"]


async def test_a_removal_interrupted_by_a_crash_is_finished_at_the_next_start(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await with_topic(store, 4)
    document = tmp_path / "streams/0/topics/0/topic.json"
    change(document, partitions_count=2, removing=[2, 3])
    async with opened(tmp_path) as store:
        assert store.streams[0].topics[0].partitions == [0, 1]
        assert not store.problems
        await store.create_partitions(0, 0, 1)
    assert sorted(path.name for path in (document.parent / "partitions").iterdir()) == ["0", "1", "2"]
    assert json.loads(document.read_text())["removing"] == []


async def test_unfinished_folders_are_removed_at_the_next_start(tmp_path: Path) -> None:
    async with opened(tmp_path):
        pass
    for folder in ("trash/abc", "staging/1"):
        (tmp_path / folder / "deep").mkdir(parents=True)
        (tmp_path / folder / "deep/file").write_text("x")
    (tmp_path / "trash/file").write_text("x")
    async with opened(tmp_path):
        assert not list((tmp_path / "trash").iterdir())
        assert not list((tmp_path / "staging").iterdir())


async def test_missing_documents_and_folders_are_recreated_from_what_exists(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as store:
        await store.create_stream(stream(4))
        await store.create_topic(4, topic(6, 3))
        third = store.partition(4, 6, 2)
        assert third is not None
        await third.append(texts("kept"))
    (tmp_path / "streams/4/stream.json").unlink()
    (tmp_path / "streams/4/topics/6/topic.json").unlink()
    folder = tmp_path / "streams/4/topics/6/partitions/0"
    (folder / "00000000000000000000.log").unlink()
    folder.rmdir()
    async with opened(tmp_path) as store:
        assert not store.streams
        assert store.reserved == {f"{tmp_path}/streams": {4}}
    for recreate in (True, False):
        async with opened(tmp_path, recreate_missing_state=recreate, clock=Clock(55)) as store:
            assert store.streams[4].document == StreamDocument(id=4, name="stream-4", created_at=55)
            assert store.streams[4].topics[6].document.name == "topic-6"
            assert store.streams[4].topics[6].partitions == [0, 1, 2]
            third = store.partition(4, 6, 2)
            assert third is not None
            assert payloads(await third.read(0, 9)) == [b"kept"]


async def test_a_recreated_name_gives_way_to_a_chosen_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.create_stream(stream(0))
        await store.create_stream(stream(1, "stream-0"))
        await store.create_stream(stream(2, "stream-0-found"))
        await store.create_topic(1, topic(0))
        await store.create_topic(1, topic(1, 1, "topic-0"))
    (tmp_path / "streams/0/stream.json").unlink()
    (tmp_path / "streams/1/topics/0/topic.json").unlink()
    for _ in range(2):
        async with opened(tmp_path, recreate_missing_state=True) as store:
            names = {i: s.document.name for i, s in store.streams.items()}
            assert (names[1], names[2]) == ("stream-0", "stream-0-found")
            assert len(set(names.values())) == 3
            topics = {i: t.document.name for i, t in store.streams[1].topics.items()}
            assert topics == {0: "topic-0-found", 1: "topic-0"}


async def test_a_change_whose_caller_is_cancelled_is_the_same_in_memory_and_on_the_disk(
    tmp_path: Path,
) -> None:
    disk = SlowDisk()
    async with opened(tmp_path, files=disk) as store:
        (partition,) = await with_topic(store)
        acts = [
            store.create_stream(stream(1)),
            store.update_stream(stream(0, "renamed")),
            store.create_topic(0, topic(1, 2)),
            store.update_topic(0, msgspec.structs.replace(store.streams[0].topics[0].document, name="anew")),
            store.write_group(0, 0, GroupDocument(id=0, name="g", created_at=1)),
            store.write_user(1, b"{}"),
            store.write_token(1, b"{}"),
        ]
        disk.stop()
        busy = asyncio.create_task(partition.append(texts("a")))
        await settled()
        tasks = [asyncio.create_task(act) for act in acts]
        await settled()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        disk.go()
        await busy
        await store.write_user(2, b"{}")
        before = picture(store)
        assert sorted(store.streams) == [0, 1]
        assert sorted(store.streams[0].topics) == [0, 1]
    async with opened(tmp_path) as store:
        assert picture(store) == before


@pytest.mark.parametrize("content", [b"", b"messages of nobody"])
async def test_an_unknown_folder_in_the_way_is_kept_if_it_holds_messages(tmp_path: Path, content: bytes) -> None:
    async with opened(tmp_path) as store:
        await with_topic(store, 1)
        partitions = tmp_path / "streams/0/topics/0/partitions"
        (partitions / "1").mkdir()
        (partitions / "1/00000000000000000000.log").write_bytes(content)
        await store.create_partitions(0, 0, 1)
        kept = list(partitions.glob("1.found-*"))
        assert [(each / "00000000000000000000.log").read_bytes() for each in kept] == ([content] if content else [])


async def test_the_first_group_of_a_topic_survives_a_power_failure(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    group = GroupDocument(id=0, name="g", created_at=9)
    store = await Store.open(StoreOptions(path="/data", saver_interval_s=None), files=disk)
    await with_topic(store, 1)
    await store.write_group(0, 0, group)
    cuts = [disk.power_cut(random.Random(seed)) for seed in range(8)]
    await store.close()
    for cut in cuts:
        async with opened("/data", files=cut) as found:
            assert found.streams[0].topics[0].groups == {0: group}


async def test_a_topic_whose_removal_could_not_be_undone_can_be_removed_by_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(5, "I/O error", "a folder")

    async with opened(tmp_path) as store:
        await with_topic(store, 2)
        with monkeypatch.context() as patch:
            patch.setattr(store.catalog, "remove_topic", refuse)
            patch.setattr(store.catalog, "restore", refuse)
            with pytest.raises(CatalogueError):
                await store.remove_topic(0, 0)
        assert len(store.unavailable) == 2
        await store.remove_topic(0, 0)
        assert (store.streams[0].topics, store.unavailable) == ({}, {})
