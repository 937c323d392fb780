"""Loading a catalogue that is not as it should be: what is loaded, and the exact line about everything else."""

from __future__ import annotations

import errno
import json
from typing import Any

import pytest

from tests.storage.support.disk import SimulatedDisk
from whippet.storage.catalog import Catalog
from whippet.storage.catalog_loading import LoadedCatalog, load, read_numbers
from whippet.storage.documents import GroupDocument, StreamDocument, TopicDocument
from whippet.storage.files import make_folders, read_all, write_all
from whippet.storage.layout import Layout
from whippet.storage.options import StoreOptions

LAYOUT = Layout(StoreOptions(path="/data"))
STREAMS = "/data/streams"
TOPICS = f"{STREAMS}/0/topics"
RECREATES = "system.recovery.recreate_missing_state = true recreates"
NOW = 55


def put(disk: SimulatedDisk, path: str, content: bytes | dict[str, Any] = b"") -> None:
    make_folders(disk, path.rpartition("/")[0])
    octets = content if isinstance(content, bytes) else json.dumps(content).encode()
    handle = disk.open_for_writing(path)
    disk.truncate(handle, 0)
    write_all(disk, handle, [octets] if octets else [], 0)
    disk.close(handle)


def put_stream(disk: SimulatedDisk, identity: int, name: str, folder: int | None = None) -> None:
    folder = identity if folder is None else folder
    put(disk, f"{STREAMS}/{folder}/stream.json", {"id": identity, "name": name, "created_at": 1})


def put_topic(disk: SimulatedDisk, identity: int, name: str, partitions: int, *folders: int, **fields: Any) -> None:
    path = f"{TOPICS}/{identity}"
    document = {"id": identity, "name": name, "created_at": 1, "partitions_count": partitions}
    put(disk, f"{path}/topic.json", document | fields)
    for folder in folders:
        make_folders(disk, f"{path}/partitions/{folder}")


@pytest.fixture
def disk() -> SimulatedDisk:
    """A folder with stream 0."""
    made = SimulatedDisk()
    for folder in ("streams", "users", "tokens"):
        make_folders(made, f"/data/{folder}")
    put_stream(made, 0, "s")
    return made


def loaded(disk: SimulatedDisk, *, recreate: bool = False) -> LoadedCatalog:
    return load(Catalog(disk, LAYOUT, sync=True), disk, LAYOUT, lambda: NOW, recreate=recreate)


def topic_names(found: LoadedCatalog, stream: int = 0) -> dict[int, str]:
    return {identity: topic.document.name for identity, topic in found.streams[stream].topics.items()}


def test_a_catalogue_without_problems_is_loaded_as_it_is(disk: SimulatedDisk) -> None:
    put_topic(disk, 4, "t", 2, 0, 1)
    for identity in (9, 10):
        put(disk, f"{TOPICS}/4/groups/{identity}.json", {"id": identity, "name": f"g{identity}", "created_at": 1})
        put(disk, f"/data/users/{identity}.json", b"user %d" % identity)
        put(disk, f"/data/tokens/{identity}.json", b"token %d" % identity)
    put(disk, "/data/users/notes.txt")
    put(disk, "/data/users/x.json")
    make_folders(disk, "/data/users/old")
    found = loaded(disk)
    assert (found.problems, found.reserved) == ([], {})
    assert found.streams[0].document == StreamDocument(id=0, name="s", created_at=1)
    topic = found.streams[0].topics[4]
    assert topic.document == TopicDocument(id=4, name="t", created_at=1, partitions_count=2)
    assert topic.partitions == [0, 1]
    assert list(topic.groups.items()) == [(i, GroupDocument(id=i, name=f"g{i}", created_at=1)) for i in (9, 10)]
    assert list(found.users.items()) == [(9, b"user 9"), (10, b"user 10")]
    assert list(found.tokens.items()) == [(9, b"token 9"), (10, b"token 10")]
    assert disk.open_handles == []


@pytest.mark.parametrize(
    ("content", "reserved", "problem"),
    [
        (None, 0, None),
        (b'{"reserved": 77}', 77, None),
        (b"{}", 0, "/data/numbers.json: cannot be used, new numbers are taken from the clock: "),
        (b"\xff", 0, "/data/numbers.json: cannot be used, new numbers are taken from the clock: "),
        ("unreadable", 0, "/data/numbers.json: cannot be used, new numbers are taken from the clock: [Errno 5]"),
    ],
)
def test_numbers_that_cannot_be_read_are_reported_and_missing_ones_are_not(
    disk: SimulatedDisk, content: bytes | str | None, reserved: int, problem: str | None
) -> None:
    if content is not None:
        put(disk, "/data/numbers.json", content if isinstance(content, bytes) else b"")
    if content == "unreadable":
        disk.refuse = lambda act, path: errno.EIO if act == "read" else None
    found, said = read_numbers(disk, LAYOUT)
    assert found == reserved
    assert said is None if problem is None else said is not None and said.startswith(problem)


# ------------------------------------------------------------------------------------------------------------ documents


def test_a_stream_or_topic_without_its_document_is_reported_and_keeps_its_id(disk: SimulatedDisk) -> None:
    make_folders(disk, f"{STREAMS}/3")
    make_folders(disk, f"{TOPICS}/5")
    make_folders(disk, f"{TOPICS}/7/topic.json")
    found = loaded(disk)
    assert found.problems == [
        f"{TOPICS}/5/topic.json: missing; this folder is not served; {RECREATES} what it can",
        f"{TOPICS}/7/topic.json: a folder; this folder is not served; {RECREATES} what it can",
        f"{STREAMS}/3/stream.json: missing; this folder is not served; {RECREATES} what it can",
    ]
    assert found.reserved == {STREAMS: {3}, TOPICS: {5, 7}}
    assert (list(found.streams), found.streams[0].topics) == ([0], {})


def test_a_document_that_cannot_be_read_is_neither_served_nor_recreated(disk: SimulatedDisk) -> None:
    put_stream(disk, 3, "other")
    path = f"{STREAMS}/3/stream.json"
    disk.refuse = lambda act, asked: errno.EIO if asked == path else None
    found = loaded(disk, recreate=True)
    assert found.problems == [f"{path}: cannot be read: Input/output error; this folder is not served"]
    assert (list(found.streams), found.reserved) == ([0], {STREAMS: {3}})


@pytest.mark.parametrize(("folders", "count"), [((), 0), ((0,), 1), ((0, 1, 2), 3)])
def test_what_is_recreated_has_all_folders_the_time_and_a_name_of_its_id(
    disk: SimulatedDisk, folders: tuple[int, ...], count: int
) -> None:
    disk.remove(f"{STREAMS}/0/stream.json")
    make_folders(disk, f"{TOPICS}/6/partitions")
    for folder in folders:
        make_folders(disk, f"{TOPICS}/6/partitions/{folder}")
    found = loaded(disk, recreate=True)
    stream = StreamDocument(id=0, name="stream-0", created_at=NOW)
    topic = TopicDocument(id=6, name="topic-6", created_at=NOW, partitions_count=count)
    assert (found.streams[0].document, found.streams[0].topics[6].document) == (stream, topic)
    assert found.problems == [
        f"{STREAMS}/0/stream.json: missing; recreated as 'stream-0'",
        f"{TOPICS}/6/topic.json: missing; recreated as 'topic-6'",
    ]
    again = loaded(disk)
    assert (again.problems, again.streams) == ([], found.streams)


def test_every_damaged_document_is_kept_under_a_name_of_its_own(disk: SimulatedDisk) -> None:
    for n in range(3):
        put(disk, f"{STREAMS}/0/stream.json", b"damaged %d" % n)
        (problem,) = loaded(disk, recreate=True).problems
        assert problem.startswith(f"{STREAMS}/0/stream.json: cannot be decoded: ")
        assert problem.endswith("; recreated as 'stream-0'")
    kept = {ending: read_all(disk, f"{STREAMS}/0/stream.json.damaged{ending}") for ending in ("", ".1", ".2")}
    assert kept == {"": b"damaged 0", ".1": b"damaged 1", ".2": b"damaged 2"}


def test_the_id_in_the_name_of_the_folder_counts(disk: SimulatedDisk) -> None:
    put_stream(disk, 8, "moved", folder=3)
    found = loaded(disk)
    assert found.problems == [f"{STREAMS}/3/stream.json: has id 8, but its folder is 3; the folder counts"]
    assert found.streams[3].document == StreamDocument(id=3, name="moved", created_at=1)


def test_a_damaged_group_keeps_its_id_and_affects_no_other(disk: SimulatedDisk) -> None:
    put_topic(disk, 0, "t", 0)
    groups = f"{TOPICS}/0/groups"
    put(disk, f"{groups}/1.json", b"{")
    put(disk, f"{groups}/2.json", {"id": 99, "name": "g", "created_at": 1})
    make_folders(disk, f"{groups}/3.json")
    found = loaded(disk)
    assert sorted(line.partition(": ")[0] for line in found.problems) == [f"{groups}/1.json", f"{groups}/3.json"]
    assert f"{groups}/3.json: a folder, left alone" in found.problems
    assert found.reserved == {groups: {1}}
    assert found.streams[0].topics[0].groups == {2: GroupDocument(id=2, name="g", created_at=1)}


def test_a_user_that_cannot_be_read_keeps_its_id(disk: SimulatedDisk) -> None:
    put(disk, "/data/users/1.json", b"{}")
    disk.refuse = lambda act, path: errno.EIO if path.endswith("1.json") else None
    found = loaded(disk)
    assert found.users == {1: b""}
    assert found.problems == ["/data/users/1.json: cannot be read: Input/output error"]


# -------------------------------------------------------------------------------------------------------------- folders


def test_what_is_no_numbered_folder_is_reported(disk: SimulatedDisk) -> None:
    put(disk, f"{STREAMS}/7")
    make_folders(disk, f"{STREAMS}/x")
    put_topic(disk, 0, "t", 0)
    put(disk, f"{TOPICS}/0/partitions")
    found = loaded(disk)
    assert sorted(found.problems) == [
        f"{TOPICS}/0/partitions: not a folder; nothing in it is served",
        f"{STREAMS}/7: not part of the data folder's format, left alone",
        f"{STREAMS}/x: not part of the data folder's format, left alone",
    ]
    assert (list(found.streams), found.streams[0].topics[0].partitions) == ([0], [])


MISSING = [
    f"{TOPICS}/0/partitions/1: the folder is missing",
    f"{TOPICS}/0/partitions/3: 3 folders from this one on are missing",
]


@pytest.mark.parametrize("recreate", [False, True])
def test_missing_partitions_are_reported_in_a_line_for_each_run_of_them(disk: SimulatedDisk, recreate: bool) -> None:
    put_topic(disk, 0, "t", 7, 0, 2, 6)
    found = loaded(disk, recreate=recreate)
    ending = "; recreated, empty" if recreate else f", not served; {RECREATES} them, empty"
    assert found.problems == [line + ending for line in MISSING]
    assert found.streams[0].topics[0].partitions == (list(range(7)) if recreate else [0, 2, 6])
    assert len(disk.list(f"{TOPICS}/0/partitions")) == (7 if recreate else 3)


def test_partitions_that_the_topic_does_not_have_are_left_alone(disk: SimulatedDisk) -> None:
    put_topic(disk, 0, "t", 1, 0, 1, 3)
    found = loaded(disk)
    assert found.problems == [
        f"{TOPICS}/0/partitions/{i}: topic.json does not list this partition; it is left alone and not served"
        for i in (1, 3)
    ]
    assert found.streams[0].topics[0].partitions == [0]


@pytest.mark.parametrize("folders", [(0, 1, 2, 3), (0, 1, 3), (0, 1)])
def test_a_removal_of_partitions_that_was_decided_is_finished(disk: SimulatedDisk, folders: tuple[int, ...]) -> None:
    put_topic(disk, 0, "t", 2, *folders, removing=[2, 3])
    found = loaded(disk)
    assert found.problems == []
    assert found.streams[0].topics[0].document.removing == ()
    assert found.streams[0].topics[0].partitions == [0, 1]
    assert {item.name for item in disk.list(f"{TOPICS}/0/partitions")} == {"0", "1"}
    assert json.loads(read_all(disk, f"{TOPICS}/0/topic.json"))["removing"] == []


def test_a_partition_that_the_topic_has_is_not_removed(disk: SimulatedDisk) -> None:
    put_topic(disk, 0, "t", 2, 0, 1, 2, removing=[1, 2])
    found = loaded(disk)
    path = f"{TOPICS}/0/topic.json"
    assert found.problems == [f"{path}: `removing` names partitions that the topic has; they are not removed"]
    assert found.streams[0].topics[0].partitions == [0, 1]


# ---------------------------------------------------------------------------------------------------------------- names


def test_the_later_ones_of_the_same_name_get_a_name_that_nobody_has(disk: SimulatedDisk) -> None:
    for identity, name in ((1, "s"), (2, "s-found"), (3, "s")):
        put_stream(disk, identity, name)
    for identity, name in ((0, "t"), (1, "t")):
        put_topic(disk, identity, name, 0)
    found = loaded(disk)
    assert {i: one.document.name for i, one in found.streams.items()} == {
        0: "s",
        1: "s-found-found",
        2: "s-found",
        3: "s-found-found-found",
    }
    assert topic_names(found) == {0: "t", 1: "t-found"}
    assert found.problems == [
        f"{STREAMS}/1/stream.json: another stream has its name; renamed to 's-found-found'",
        f"{STREAMS}/3/stream.json: another stream has its name; renamed to 's-found-found-found'",
        f"{TOPICS}/1/topic.json: another topic has its name; renamed to 't-found'",
    ]
    again = loaded(disk)
    assert (again.problems, again.streams) == ([], found.streams)


def test_a_recreated_one_gives_way_whichever_has_the_lower_id(disk: SimulatedDisk) -> None:
    disk.remove(f"{STREAMS}/0/stream.json")
    put_stream(disk, 1, "stream-0")
    found = loaded(disk, recreate=True)
    assert {i: one.document.name for i, one in found.streams.items()} == {0: "stream-0-found", 1: "stream-0"}
