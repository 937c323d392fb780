"""Offset files: two places written in turn, so that a write that is cut off loses nothing but itself."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from whippet.storage.files import Buffer, Files
from whippet.storage.offsets import PLACE, Kind, OffsetFiles, decode, encode

CONSUMER_7 = (Kind.CONSUMER, 7)


def place(sequence: int, offset: int) -> bytes:
    """A place as defined by the format page."""
    head = struct.pack("<QQ", sequence, offset)
    return head + struct.pack("<Q", xxhash.xxh3_64_intdigest(head))


def file_of(folder: Path, kind: str = "consumers", identity: int = 7) -> Path:
    return folder / "offsets" / kind / str(identity)


def stored(folder: Path, *offsets: int) -> OffsetFiles:
    files = OffsetFiles(Files(), str(folder))
    for offset in offsets:
        files.write({CONSUMER_7: offset}, sync=False)
    return files


def loaded(folder: Path) -> dict[tuple[Kind, int], int]:
    offsets, unreadable = OffsetFiles(Files(), str(folder)).load()
    assert not unreadable
    return offsets


def test_an_encoded_offset_is_the_bytes_of_the_format_page() -> None:
    assert encode(3, 2**64 - 1) == place(3, 2**64 - 1)
    assert PLACE.size == 24


def test_offsets_are_stored_in_two_places_in_turn(tmp_path: Path) -> None:
    stored(tmp_path, 10, 11, 12)
    assert file_of(tmp_path).read_bytes() == place(2, 11) + place(3, 12)


@pytest.mark.parametrize(
    ("content", "known"),
    [
        (b"", None),
        (bytes(24), None),
        (bytes(48), None),
        (place(2, 5), (2, 5)),
        (bytes(24) + place(1, 5), (1, 5)),
        (place(2, 5) + place(1, 9), (2, 5)),
        (place(2, 5) + place(3, 4), (3, 4)),
        (place(2, 5) + place(3, 4)[:-1], (2, 5)),
        (place(2, 5)[:-1] + b"\0" + place(3, 4), (3, 4)),
        (place(2, 5)[:23], None),
        (place(2, 5) + place(3, 4) + b"more", (3, 4)),
    ],
)
def test_the_newest_valid_place_of_a_file_counts(content: bytes, known: tuple[int, int] | None) -> None:
    assert decode(content) == known


@pytest.mark.parametrize("before", [1, 2, 3, 4])
def test_a_write_torn_at_any_byte_leaves_the_value_before_it(tmp_path: Path, before: int) -> None:
    stored(tmp_path, *range(100, 100 + before))
    content = file_of(tmp_path).read_bytes()
    for written in range(24):
        file_of(tmp_path).write_bytes(torn(content, before + 1, written))
        assert loaded(tmp_path) == {CONSUMER_7: 100 + before - 1}


@pytest.mark.parametrize("before", [2, 3])
def test_a_write_after_a_torn_one_does_not_touch_the_good_place(tmp_path: Path, before: int) -> None:
    """After a crash, the torn place is written next. The good one is never at risk."""
    stored(tmp_path, *range(before))
    content = file_of(tmp_path).read_bytes()
    good = slice(24 * (before % 2), 24 * (before % 2) + 24)
    for written in range(24):
        file_of(tmp_path).write_bytes(torn(content, before + 1, written))
        files = OffsetFiles(Files(), str(tmp_path))
        files.load()
        files.write({CONSUMER_7: 55}, sync=False)
        assert file_of(tmp_path).read_bytes()[good] == content[good]
        assert loaded(tmp_path) == {CONSUMER_7: 55}


def torn(content: bytes, sequence: int, written: int) -> bytes:
    """The file after a crash, with only some bytes of the next place."""
    position = 24 * (sequence % 2)
    whole = bytearray(content.ljust(position, b"\0"))
    whole[position : position + written] = place(sequence, 999)[:written]
    return bytes(whole)


def test_an_offset_deleted_before_it_was_written_leaves_nothing(tmp_path: Path) -> None:
    """Stored and deleted before anything was written: there is neither a file nor a folder."""
    files = OffsetFiles(Files(), str(tmp_path))
    files.write({CONSUMER_7: None}, sync=True)
    assert loaded(tmp_path) == {}


def test_a_consumer_and_a_group_with_the_same_id_are_kept_apart(tmp_path: Path) -> None:
    files = OffsetFiles(Files(), str(tmp_path))
    files.write({(Kind.CONSUMER, 1): 10, (Kind.GROUP, 1): 20, (Kind.GROUP, 2**32 - 1): 0}, sync=True)
    assert loaded(tmp_path) == {(Kind.CONSUMER, 1): 10, (Kind.GROUP, 1): 20, (Kind.GROUP, 2**32 - 1): 0}
    assert file_of(tmp_path, "groups", 1).exists()


def test_an_offset_may_be_lowered(tmp_path: Path) -> None:
    stored(tmp_path, 10, 3)
    assert loaded(tmp_path) == {CONSUMER_7: 3}


def test_a_deleted_offset_is_gone_and_may_be_stored_again(tmp_path: Path) -> None:
    files = stored(tmp_path, 10, 11)
    files.write({CONSUMER_7: None}, sync=True)
    files.write({CONSUMER_7: None, (Kind.GROUP, 3): None}, sync=True)
    assert loaded(tmp_path) == {}
    files.write({CONSUMER_7: 1}, sync=True)
    assert loaded(tmp_path) == {CONSUMER_7: 1}


def test_an_offset_deleted_before_it_was_synced_has_no_file(tmp_path: Path) -> None:
    files = stored(tmp_path, 10)
    files.write({CONSUMER_7: None}, sync=False)
    files.sync()
    assert not file_of(tmp_path).exists()


def test_there_are_no_offsets_without_a_folder(tmp_path: Path) -> None:
    assert OffsetFiles(Files(), str(tmp_path)).load() == ({}, [])


def test_files_without_a_valid_value_are_reported_and_the_others_are_loaded(tmp_path: Path) -> None:
    stored(tmp_path, 10)
    odd = [file_of(tmp_path).with_name(name) for name in ("8", "007", "README", "README.new", "4294967296")]
    for path in odd:
        # An offset under a name that no consumer has is nobody's.
        path.write_bytes(b"nothing" if path.name == "8" else place(1, 5))
    # A write that a crash interrupted leaves this.
    file_of(tmp_path).with_name("8.new").write_bytes(b"nothing")
    (file_of(tmp_path).parent / "9").mkdir()
    offsets, unreadable = OffsetFiles(Files(), str(tmp_path)).load()
    assert offsets == {CONSUMER_7: 10}
    assert sorted(unreadable) == sorted(map(str, [*odd, file_of(tmp_path, identity=9)]))


def test_a_file_without_a_valid_value_has_one_after_the_next_write(tmp_path: Path) -> None:
    stored(tmp_path, 10)
    file_of(tmp_path).write_bytes(b"\xff" * 60)
    files = OffsetFiles(Files(), str(tmp_path))
    files.load()
    for offset in (5, 6, 7):
        files.write({CONSUMER_7: offset}, sync=False)
        assert loaded(tmp_path) == {CONSUMER_7: offset}


class CountedSyncs(Files):
    def __init__(self) -> None:
        self.names: list[str] = []
        self.open: set[int] = set()
        self._paths: dict[int, str] = {}

    def open_for_writing(self, path: str) -> int:
        handle = super().open_for_writing(path)
        self._paths[handle] = path.rpartition("/offsets")[2]
        self.open.add(handle)
        return handle

    def close(self, handle: int) -> None:
        self.open.remove(handle)
        super().close(handle)

    def sync(self, handle: int) -> None:
        self.names.append(self._paths[handle])

    def sync_folder(self, path: str) -> None:
        self.names.append(path + "/")


def test_many_changes_sync_each_file_once_and_the_folders_with_new_names(
    tmp_path: Path,
) -> None:
    disk = CountedSyncs()
    files = OffsetFiles(disk, str(tmp_path))
    for offset in range(5):
        files.write({CONSUMER_7: offset}, sync=False)
    files.sync()
    above = [f"{tmp_path}/", f"{tmp_path}/offsets/", f"{tmp_path}/offsets/consumers/"]
    assert sorted(disk.names) == sorted([*above, "/consumers/7"])
    disk.names.clear()
    files.write({CONSUMER_7: 9}, sync=True)
    assert disk.names == ["/consumers/7"]
    disk.names.clear()
    files.write({CONSUMER_7: None}, sync=True)
    assert disk.names == [f"{tmp_path}/offsets/consumers/"]
    disk.names.clear()
    files.sync()
    assert disk.names == []


def test_no_file_stays_open(tmp_path: Path) -> None:
    disk = CountedSyncs()
    files = OffsetFiles(disk, str(tmp_path))
    for offset in range(3):
        files.write({CONSUMER_7: offset}, sync=True)
    assert disk.names
    assert not disk.open


def test_offsets_after_the_newest_message_are_lowered_and_synced(tmp_path: Path) -> None:
    disk = CountedSyncs()
    files = OffsetFiles(disk, str(tmp_path))
    offsets = {(Kind.CONSUMER, 1): 4, CONSUMER_7: 5, (Kind.GROUP, 1): 6, (Kind.EXTERNAL_GROUP, 1): 7}
    files.write(dict(offsets), sync=True)
    disk.names.clear()
    folder = f"{tmp_path}/offsets"
    assert files.lower(offsets, 5) == [
        f"{folder}/consumers/7: offset 5 is after the newest message, lowered to 4",
        f"{folder}/groups/1: offset 6 is after the newest message, lowered to 4",
    ]
    assert disk.names == ["/consumers/7", "/groups/1"]
    kept = {(Kind.CONSUMER, 1): 4, CONSUMER_7: 4, (Kind.GROUP, 1): 4, (Kind.EXTERNAL_GROUP, 1): 7}
    assert loaded(tmp_path) == offsets == kept


class FailingWrites(Files):
    def __init__(self) -> None:
        self.failing = False

    def write(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        if self.failing:
            raise OSError(28, "No space left on device")
        return super().write(handle, buffers, position)


def test_an_offset_whose_write_failed_is_stored_by_the_next_write(tmp_path: Path) -> None:
    disk = FailingWrites()
    files = OffsetFiles(disk, str(tmp_path))
    files.write({CONSUMER_7: 1}, sync=False)
    disk.failing = True
    for _ in range(3):
        with pytest.raises(OSError, match="No space left"):
            files.write({CONSUMER_7: 2, (Kind.GROUP, 1): 3}, sync=False)
        assert loaded(tmp_path) == {CONSUMER_7: 1}
    disk.failing = False
    files.write({CONSUMER_7: 2, (Kind.GROUP, 1): 3}, sync=True)
    assert loaded(tmp_path) == {CONSUMER_7: 2, (Kind.GROUP, 1): 3}


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.sampled_from(Kind), st.integers(0, 3), st.none() | st.integers(0, 2**64 - 1))))
def test_the_last_value_of_each_offset_is_loaded_whatever_changed(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[Kind, int, int | None]]
) -> None:
    folder = tmp_path_factory.mktemp("offsets")
    files = OffsetFiles(Files(), str(folder))
    model: dict[tuple[Kind, int], int] = {}
    for kind, identity, offset in changes:
        files.write({(kind, identity): offset}, sync=False)
        if offset is None:
            model.pop((kind, identity), None)
        else:
            model[kind, identity] = offset
        assert loaded(folder) == model


def test_kinds_have_the_numbers_of_the_protocols() -> None:
    assert [(kind.name, kind.value) for kind in Kind] == [("CONSUMER", 1), ("GROUP", 2), ("EXTERNAL_GROUP", 3)]
