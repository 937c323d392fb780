"""Prepared folders and documents get into their places all together, whatever happens in between."""

from __future__ import annotations

import pytest

from tests.storage.support.disk import Fault, FaultKind, PowerCut, SimulatedDisk
from whippet.storage import placement
from whippet.storage.errors import CatalogueError
from whippet.storage.files import make_folders, read_all, replace
from whippet.storage.layout import PLACEMENT_FILE, Layout
from whippet.storage.options import StoreOptions
from whippet.storage.placement import Move
from whippet.storage.store import Store

LAYOUT = Layout(StoreOptions(path="/data"))
MOVES = [
    Move("staging/import/streams/1", "streams/1"),
    Move("staging/import/streams/2", "streams/2"),
    Move("staging/import/users/0.json", "users/0.json"),
]


def prepared() -> SimulatedDisk:
    """Two folders and a document, of which an older version is in its place."""
    disk = SimulatedDisk()
    for folder in ("/data/users", "/data/streams", "/data/staging/import/users"):
        make_folders(disk, folder)
    for number in (1, 2):
        make_folders(disk, f"/data/staging/import/streams/{number}")
        replace(disk, f"/data/staging/import/streams/{number}/stream.json", b"stream %d" % number)
    replace(disk, "/data/users/0.json", b"old")
    replace(disk, "/data/staging/import/users/0.json", b"new")
    disk.sync_filesystem("/data")
    return disk


def picture(disk: SimulatedDisk) -> tuple[list[str], bytes]:
    return sorted(item.name for item in disk.list("/data/streams")), read_all(disk, "/data/users/0.json")


NOTHING: tuple[list[str], bytes] = ([], b"old")
EVERYTHING = (["1", "2"], b"new")


def test_everything_is_moved_once() -> None:
    disk = prepared()
    assert not placement.finish(disk, LAYOUT)
    placement.decide(disk, LAYOUT, MOVES)
    assert picture(disk) == NOTHING
    assert placement.finish(disk, LAYOUT)
    assert picture(disk) == EVERYTHING
    assert read_all(disk, "/data/streams/2/stream.json") == b"stream 2"
    assert not placement.finish(disk, LAYOUT)


def test_after_an_end_at_any_operation_the_next_start_has_everything_or_nothing() -> None:
    whole = prepared()
    before = whole.operations
    placement.decide(whole, LAYOUT, MOVES)
    placement.finish(whole, LAYOUT)
    for operation in range(before + 1, whole.operations + 1):
        disk = prepared()
        disk.fault = Fault(operation, FaultKind.CRASH)
        with pytest.raises(PowerCut):
            placement.decide(disk, LAYOUT, MOVES)
            placement.finish(disk, LAYOUT)
        after = disk.process_kill()
        placement.finish(after, LAYOUT)
        assert picture(after) in (NOTHING, EVERYTHING), operation
        if picture(after) == EVERYTHING:
            assert not after.exists(LAYOUT.below(PLACEMENT_FILE))


def test_an_error_leaves_what_the_next_attempt_finishes() -> None:
    whole = prepared()
    placement.decide(whole, LAYOUT, MOVES)
    decided = whole.operations
    placement.finish(whole, LAYOUT)
    for operation in range(decided + 1, whole.operations + 1):
        disk = prepared()
        placement.decide(disk, LAYOUT, MOVES)
        disk.fault = Fault(operation, FaultKind.EIO)
        with pytest.raises(OSError, match="error"):
            placement.finish(disk, LAYOUT)
        placement.finish(disk, LAYOUT)
        assert picture(disk) == EVERYTHING


async def test_a_start_of_the_store_finishes_it_before_the_staging_folder_is_emptied() -> None:
    disk = prepared()
    document = b'{"id": 1, "name": "one", "created_at": 5}'
    replace(disk, "/data/staging/import/streams/1/stream.json", document)
    make_folders(disk, "/data/staging/import/streams/1/topics")
    replace(disk, "/data/FORMAT", b'{"whippet_store": 1, "id": "x", "created_at": 1}')
    placement.decide(disk, LAYOUT, [MOVES[0], MOVES[2]])
    store = await Store.open(StoreOptions(path="/data"), files=disk)
    assert {number: stream.document.name for number, stream in store.streams.items()} == {1: "one"}
    assert store.users == {0: b"new"}
    await store.close()


def test_a_decision_that_cannot_be_carried_out_is_an_error() -> None:
    disk = prepared()
    placement.decide(disk, LAYOUT, [Move("staging/import/nothing", "streams/9")])
    with pytest.raises(CatalogueError, match="neither /data/staging/import/nothing nor /data/streams/9 exists"):
        placement.finish(disk, LAYOUT)
    replace(disk, LAYOUT.below(PLACEMENT_FILE), b"{")
    with pytest.raises(CatalogueError, match=r"placement\.json: cannot be decoded"):
        placement.finish(disk, LAYOUT)
