"""Changes of the catalogue on a simulated disk: what a power failure right after each one leaves, and a failed sync."""

from __future__ import annotations

import errno
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.storage.support.disk import SimulatedDisk
from whippet.storage.catalog import Catalog
from whippet.storage.documents import GroupDocument, StreamDocument, TopicDocument
from whippet.storage.files import Files, make_folders, read_all, write_all
from whippet.storage.layout import Layout, PartitionId
from whippet.storage.options import StoreOptions

LAYOUT = Layout(StoreOptions(path="/data"))
FIRST_LOG = "00000000000000000000.log"


def stream(identity: int, name: str = "s") -> StreamDocument:
    return StreamDocument(id=identity, name=name, created_at=1)


def topic(identity: int, partitions: int, name: str = "t") -> TopicDocument:
    return TopicDocument(id=identity, name=name, created_at=1, partitions_count=partitions)


GROUP = GroupDocument(id=3, name="g", created_at=1)


def names(disk: Files, path: str) -> set[str]:
    return {item.name for item in disk.list(f"/data/{path}")}


def document(disk: Files, path: str) -> dict[str, object]:
    found = json.loads(read_all(disk, f"/data/{path}"))
    assert isinstance(found, dict)
    return found


def put(disk: SimulatedDisk, path: str, content: bytes = b"") -> None:
    make_folders(disk, f"/data/{path}".rpartition("/")[0])
    handle = disk.open_for_writing(f"/data/{path}")
    write_all(disk, handle, [content] if content else [], 0)
    disk.close(handle)


@pytest.fixture
def disk() -> SimulatedDisk:
    """It has stream 0 with topic 0 of two partitions, a group, a user and a token, all on the disk."""
    made = SimulatedDisk()
    for folder in ("streams", "users", "tokens", "trash", "staging"):
        make_folders(made, f"/data/{folder}")
    catalog = Catalog(made, LAYOUT, sync=True)
    catalog.create_stream(stream(0))
    catalog.create_topic(0, topic(0, 2))
    catalog.create_topic(0, topic(1, 1))
    catalog.write_group(0, 0, GROUP)
    catalog.write_user(1, b"{}")
    catalog.write_token(1, b"{}")
    made.sync_filesystem("/data")
    made.trace = []
    return made


@pytest.fixture
def catalog(disk: SimulatedDisk) -> Catalog:
    return Catalog(disk, LAYOUT, sync=True)


@dataclass
class Change:
    act: Callable[[Catalog], object]
    holds: Callable[[Files], bool]


TOPIC = "streams/0/topics/0"

CHANGES = {
    "a new stream": Change(
        lambda catalog: catalog.create_stream(stream(7)),
        lambda disk: names(disk, "streams/7") == {"stream.json", "topics"},
    ),
    "a new topic": Change(
        lambda catalog: catalog.create_topic(0, topic(7, 2)),
        lambda disk: (
            names(disk, "streams/0/topics/7") == {"topic.json", "partitions"}
            and names(disk, "streams/0/topics/7/partitions") == {"0", "1"}
            and names(disk, "streams/0/topics/7/partitions/1") == {FIRST_LOG}
        ),
    ),
    "new partitions": Change(
        lambda catalog: catalog.create_partitions(0, topic(0, 4), 2),
        lambda disk: (
            names(disk, f"{TOPIC}/partitions") == {"0", "1", "2", "3"}
            and names(disk, f"{TOPIC}/partitions/3") == {FIRST_LOG}
            and document(disk, f"{TOPIC}/topic.json")["partitions_count"] == 4
        ),
    ),
    "the first partition of a topic without a folder for them": Change(
        lambda catalog: catalog.create_partition(PartitionId(0, 9, 0)),
        lambda disk: names(disk, "streams/0/topics/9/partitions/0") == {FIRST_LOG},
    ),
    "the first group of a topic": Change(
        lambda catalog: catalog.write_group(0, 1, GROUP),
        lambda disk: document(disk, "streams/0/topics/1/groups/3.json")["name"] == "g",
    ),
    "a renamed stream": Change(
        lambda catalog: catalog.write_stream(stream(0, "anew")),
        lambda disk: document(disk, "streams/0/stream.json")["name"] == "anew",
    ),
    "a renamed topic": Change(
        lambda catalog: catalog.write_topic(0, topic(0, 2, "anew")),
        lambda disk: document(disk, f"{TOPIC}/topic.json")["name"] == "anew",
    ),
    "a removed group": Change(
        lambda catalog: catalog.remove_group(0, 0, 3), lambda disk: names(disk, f"{TOPIC}/groups") == set()
    ),
    "a user": Change(
        lambda catalog: catalog.write_user(2, b"[2]"), lambda disk: names(disk, "users") == {"1.json", "2.json"}
    ),
    "a removed user": Change(lambda catalog: catalog.remove_user(1), lambda disk: names(disk, "users") == set()),
    "a token": Change(
        lambda catalog: catalog.write_token(2, b"[2]"), lambda disk: names(disk, "tokens") == {"1.json", "2.json"}
    ),
    "a removed token": Change(lambda catalog: catalog.remove_token(1), lambda disk: names(disk, "tokens") == set()),
    "numbers": Change(
        lambda catalog: catalog.write_numbers(99), lambda disk: document(disk, "numbers.json")["reserved"] == 99
    ),
    "a removed topic": Change(
        lambda catalog: catalog.remove_topic(0, 0), lambda disk: names(disk, "streams/0/topics") == {"1"}
    ),
    "a removed stream": Change(lambda catalog: catalog.remove_stream(0), lambda disk: names(disk, "streams") == set()),
    "a partition that is decided to go": Change(
        lambda catalog: catalog.remove_partitions(0, topic(0, 2), 1),
        lambda disk: document(disk, f"{TOPIC}/topic.json")["removing"] == [1],
    ),
    "a removed partition": Change(
        lambda catalog: catalog.finish_removing(0, catalog.remove_partitions(0, topic(0, 2), 1)),
        lambda disk: (
            names(disk, f"{TOPIC}/partitions") == {"0"}
            and document(disk, f"{TOPIC}/topic.json")["removing"] == []
            and document(disk, f"{TOPIC}/topic.json")["partitions_count"] == 1
        ),
    ),
}
every_change = pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)


@every_change
def test_a_change_that_returned_survives_a_power_failure(disk: SimulatedDisk, catalog: Catalog, change: Change) -> None:
    change.act(catalog)
    assert change.holds(disk)
    assert disk.open_handles == []
    for seed in range(16):
        assert change.holds(disk.power_cut(random.Random(seed))), seed


@every_change
def test_without_syncs_nothing_is_synced_and_everything_else_is_done(disk: SimulatedDisk, change: Change) -> None:
    change.act(Catalog(disk, LAYOUT, sync=False))
    assert change.holds(disk)
    assert disk.trace is not None
    assert [one for one in disk.trace if one.act.startswith("sync")] == []


def everything(disk: Files, path: str = "/data/streams") -> Iterator[str]:
    for item in disk.list(path):
        yield f"{path}/{item.name}"
        if item.is_folder:
            yield from everything(disk, f"{path}/{item.name}")


@pytest.mark.parametrize(
    "name", ["a new stream", "a new topic", "a removed topic", "a removed stream"], ids=lambda name: name
)
def test_a_change_whose_sync_fails_is_undone_and_can_be_tried_again(
    disk: SimulatedDisk, catalog: Catalog, name: str
) -> None:
    before = sorted(everything(disk))
    above = "/data/streams" if "stream" in name else "/data/streams/0/topics"
    disk.refuse = lambda act, path: errno.EIO if act == "sync_folder" and path == above else None
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error"):
            CHANGES[name].act(catalog)
        assert sorted(everything(disk)) == before
    disk.refuse = lambda act, path: None
    CHANGES[name].act(catalog)
    assert CHANGES[name].holds(disk)


def test_a_removal_that_was_undone_is_synced(disk: SimulatedDisk, catalog: Catalog) -> None:
    """Otherwise what is served again could be gone after a power failure."""
    asked: list[str] = []

    def refuse_first(act: str, path: str) -> int | None:
        if act == "sync_folder":
            asked.append(path)
        return errno.EIO if act == "sync_folder" and len(asked) == 1 else None

    disk.refuse = refuse_first
    with pytest.raises(OSError, match="Input/output error"):
        catalog.remove_topic(0, 0)
    assert asked == ["/data/streams/0/topics"] * 2
    assert "0" in names(disk, "streams/0/topics")


@pytest.mark.parametrize("remove", [Catalog.remove_user, Catalog.remove_token, Catalog.remove_stream])
def test_what_is_gone_already_is_synced_as_removed(
    disk: SimulatedDisk, catalog: Catalog, remove: Callable[[Catalog, int], None]
) -> None:
    """An earlier attempt may have removed it and failed to sync that."""
    assert disk.trace is not None
    remove(catalog, 55)
    assert [one.act for one in disk.trace if one.act != "exists"] == ["sync_folder"]


def test_what_never_had_a_folder_is_removed_without_an_error(disk: SimulatedDisk, catalog: Catalog) -> None:
    catalog.remove_group(0, 1, 3)
    catalog.remove_topic(5, 5)


def test_a_folder_in_the_place_of_a_new_partition_is_kept_only_if_it_has_messages(
    disk: SimulatedDisk, catalog: Catalog
) -> None:
    partitions = f"{TOPIC}/partitions"
    put(disk, f"{partitions}/2/{FIRST_LOG}")
    put(disk, f"{partitions}/2/notes.txt", b"no messages")
    put(disk, f"{partitions}/3/{FIRST_LOG}", b"messages")
    catalog.create_partitions(0, topic(0, 4), 2)
    kept = names(disk, partitions) - {"0", "1", "2", "3"}
    assert len(kept) == 1
    assert kept.pop().startswith("3.found-")
    assert names(disk, f"{partitions}/2") == {FIRST_LOG}
    assert len(names(disk, "trash")) == 1
    catalog.empty_trash()
    assert (names(disk, "trash"), names(disk, "staging")) == (set(), set())


def test_only_partitions_that_are_left_keep_their_incarnations(catalog: Catalog) -> None:
    before = TopicDocument(
        id=0, name="t", created_at=1, partitions_count=4, removing=(9,), incarnations=(10, 11, 12, 13)
    )
    decided = catalog.remove_partitions(0, before, 2)
    assert (decided.partitions_count, decided.removing, decided.incarnations) == (2, (9, 2, 3), (10, 11))
    finished = catalog.finish_removing(0, decided)
    assert (finished.removing, finished.incarnations) == ((), (10, 11))


def test_a_topic_whose_removal_failed_is_served_again_only_if_it_exists(disk: SimulatedDisk, catalog: Catalog) -> None:
    assert disk.trace is not None
    catalog.restore("/data/streams/0/topics/0")
    assert disk.trace[-1][1:] == ("sync_folder", "/data/streams/0/topics")
    with pytest.raises(FileNotFoundError):
        catalog.restore("/data/streams/0/topics/5")
