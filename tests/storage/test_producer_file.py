"""The file of results of numbered sends: its content, how often it is synced, and when it is compacted."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from whippet.storage.files import Files
from whippet.storage.handles import Handles
from whippet.storage.layout import producers_file
from whippet.storage.producer_file import RECORD, ProducerFile
from whippet.storage.producers import Bounds, Producer, Record
from whippet.storage.segment import Damage


def record(sequence: int, identity: bytes = b"p") -> Record:
    """The record of a batch of two messages, at an offset that follows from the sequence."""
    return Record(Producer(identity, 1, sequence), 2 * sequence, 2, 1000, 2000)


class Counted(Files):
    def __init__(self) -> None:
        self.done: list[str] = []
        self.truncates = True
        self.refused = ""
        """The operation that fails."""

    def open_for_writing(self, path: str) -> int:
        self._may("create" if path.endswith(".new") else "open", path)
        return super().open_for_writing(path)

    def open_for_reading(self, path: str) -> int:
        self._may("read", path)
        return super().open_for_reading(path)

    def rename(self, source: str, target: str) -> None:
        self._may("rename", source)
        super().rename(source, target)

    def _may(self, act: str, path: str) -> None:
        if act == self.refused:
            self.done.append(f"{act} refused")
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def truncate(self, handle: int, size: int) -> None:
        if not self.truncates:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().truncate(handle, size)

    def sync(self, handle: int) -> None:
        self._may("sync", "")
        self.done.append("file")

    def sync_folder(self, path: str) -> None:
        self.done.append("folder")


Opening = Callable[[], ProducerFile]


@pytest.fixture
def disk() -> Counted:
    return Counted()


@pytest.fixture
def opening(tmp_path: Path, disk: Counted) -> Iterator[Opening]:
    handles = Handles(disk, 4)
    yield lambda: ProducerFile(disk, handles, str(tmp_path), Bounds())
    handles.close()


def always(record: Record, synced_offset: int) -> bool:
    return True


def records_in(path: Path) -> float:
    return Path(producers_file(str(path))).stat().st_size / RECORD.size


def test_a_new_file_syncs_its_name_once(opening: Opening, disk: Counted) -> None:
    file = opening()
    file.write([record(1)], 0, sync=True)
    assert disk.done == ["file", "folder"]
    disk.done.clear()
    file.write([record(2)], 0, sync=True)
    file.write([record(3)], 0, sync=False)
    assert disk.done == ["file"]
    file.sync()
    file.sync()
    assert disk.done == ["file", "file"]


def test_synced_records_are_not_synced_again(opening: Opening, disk: Counted, tmp_path: Path) -> None:
    def syncs_nothing(file: ProducerFile) -> bool:
        disk.done.clear()
        file.sync()
        file.settle_for_good()
        return disk.done == []

    file = opening()
    assert syncs_nothing(file), "there is no file"
    assert list(tmp_path.iterdir()) == []
    file.write([record(0)], 0, sync=True)
    assert syncs_nothing(file)
    file.write([record(1)], 0, sync=False)
    file.rewrite()
    assert disk.done == ["file", "folder"]
    assert syncs_nothing(file)

    loaded = opening()
    assert loaded.load(always) == ([record(0), record(1)], [])
    assert syncs_nothing(loaded)
    loaded.take_back(0)
    assert syncs_nothing(loaded), "nothing was noted since"
    loaded.write([record(2)], 0, sync=False)
    loaded.take_back(0)
    loaded.close()
    Path(loaded.path).unlink()
    loaded.forget()
    assert syncs_nothing(loaded)
    assert list(tmp_path.iterdir()) == []
    loaded.write([record(3)], 0, sync=True)
    assert disk.done == ["file", "folder"]
    assert opening().load(always) == ([record(3)], [])


def test_records_of_written_batches_need_no_sync_before_a_deletion(opening: Opening, disk: Counted) -> None:
    file = opening()
    file.write([record(0)], 0, sync=False)
    file.settle_for_good()
    assert disk.done == []


def test_a_file_created_after_a_purge_is_compacted_when_it_is_long_again(opening: Opening, tmp_path: Path) -> None:
    file = opening()
    file.write([record(i, str(i % 500).encode()) for i in range(4200)], 0, sync=False)
    file.write([record(4200)], 0, sync=False)
    Path(file.path).unlink()
    file.forget()
    file.write([record(i) for i in range(4096)], 0, sync=False)
    file.write([record(4096)], 0, sync=False)
    assert records_in(tmp_path) == 17


def test_a_file_that_a_purge_removed_is_not_written_to(opening: Opening, tmp_path: Path) -> None:
    file = opening()
    file.write([record(0)], 0, sync=False)
    Path(file.path).unlink()
    file.forget()
    file.write([record(1)], 0, sync=False)
    assert records_in(tmp_path) == 1
    assert opening().load(always) == ([record(1)], [])


def test_no_file_is_created_without_records(opening: Opening, tmp_path: Path) -> None:
    file = opening()
    file.write([], 0, sync=True)
    file.settle_for_good()
    file.take_back(0)
    assert list(tmp_path.iterdir()) == []
    assert file.load(always) == ([], [])


@pytest.mark.parametrize(("next_offset", "left"), [(0, 1), (2, 1), (3, 2), (4, 2), (5, 3), (6, 3), (100, 4)])
def test_batches_that_are_taken_back_leave_the_records_of_the_others(
    opening: Opening, tmp_path: Path, next_offset: int, left: int
) -> None:
    """Only the records written last can be taken back."""
    file = opening()
    file.write([record(0)], 0, sync=False)
    file.write([record(1), record(2), record(3)], 0, sync=False)
    file.take_back(next_offset)
    assert records_in(tmp_path) == left
    assert opening().load(always) == ([record(i) for i in range(left)], [])
    file.take_back(0)
    assert records_in(tmp_path) == (1 if left == 4 else left)
    file.write([record(9)], 0, sync=False)
    assert opening().load(always)[0][-1] == record(9)


def test_records_that_could_not_be_removed_are_removed_before_the_file_counts_as_settled(
    opening: Opening, disk: Counted, tmp_path: Path
) -> None:
    file = opening()
    file.write([record(0)], 0, sync=True)
    file.write([record(1)], 0, sync=True)
    disk.truncates = False
    file.take_back(0)
    assert (file.in_doubt, records_in(tmp_path)) == (True, 2)
    disk.truncates = True
    disk.done.clear()
    file.settle_for_good()
    assert (file.in_doubt, records_in(tmp_path), disk.done) == (False, 1, ["file"])


def test_records_that_do_not_count_when_loaded_are_void_from_then_on(
    opening: Opening, disk: Counted, tmp_path: Path
) -> None:
    opening().write([record(i) for i in range(5)], 0, sync=False)
    file = opening()
    kept, damage = file.load(lambda one, synced: one.producer.sequence in (1, 2))
    assert (kept, damage) == ([record(1), record(2)], [])
    assert records_in(tmp_path) == 3
    disk.done.clear()
    file.settle_for_good()
    assert disk.done == ["file"]
    assert opening().load(always)[0] == [record(1), record(2)]


@pytest.mark.parametrize(("before", "after"), [(4095, 4096), (4096, 17)])
def test_a_long_file_is_compacted_to_what_is_remembered(
    opening: Opening, tmp_path: Path, before: int, after: int
) -> None:
    file = opening()
    file.write([record(i) for i in range(before)], 0, sync=False)
    file.write([record(before)], 0, sync=False)
    assert records_in(tmp_path) == after
    assert opening().load(always)[0][-16:] == [record(i) for i in range(before - 15, before + 1)]


def test_a_compacted_file_is_left_until_it_is_twice_as_long(opening: Opening, tmp_path: Path) -> None:
    def of_many(start: int, count: int) -> list[Record]:
        return [record(start + i, str(i % 500).encode()) for i in range(count)]

    file = opening()
    file.write(of_many(0, 8000), 0, sync=False)
    file.write(of_many(8000, 1), 0, sync=False)
    assert records_in(tmp_path) == 8001, "all of these are remembered"
    file.write(of_many(8001, 7999), 0, sync=False)
    assert records_in(tmp_path) == 16_000
    file.write(of_many(16_000, 1), 0, sync=False)
    assert records_in(tmp_path) == 8001


def test_a_file_in_which_nothing_counts_is_emptied(opening: Opening, tmp_path: Path) -> None:
    opening().write([record(0)], 0, sync=False)
    file = opening()
    assert file.load(lambda one, synced: False) == ([], [])
    assert records_in(tmp_path) == 0
    file.write([record(1)], 0, sync=False)
    assert opening().load(always) == ([record(1)], [])


def test_a_record_that_was_made_void_is_synced_before_the_file_counts_as_settled_for_good(
    opening: Opening, disk: Counted, tmp_path: Path
) -> None:
    opening().write([record(0), record(1)], 0, sync=False)
    file = opening()
    assert file.load(lambda one, synced: one.producer.sequence == 1) == ([record(1)], [])
    assert records_in(tmp_path) == 2
    disk.done.clear()
    file.settle_for_good()
    assert disk.done == ["file"]


def test_a_damaged_record_is_reported_with_its_position(opening: Opening) -> None:
    file = opening()
    file.write([record(i) for i in range(3)], 0, sync=False)
    content = bytearray(Path(file.path).read_bytes())
    content[RECORD.size] ^= 1
    Path(file.path).write_bytes(content)
    reason = f"the record at position {RECORD.size} is damaged"
    assert opening().load(always) == ([record(0), record(2)], [Damage(file.path, 0, 0, 0, 0, reason)])


def test_a_file_that_cannot_be_read_is_set_aside_and_reported(opening: Opening, disk: Counted, tmp_path: Path) -> None:
    file = opening()
    file.write([record(0)], 0, sync=False)
    disk.refused = "read"
    kept, (damage,) = file.load(always)
    assert kept == []
    assert damage == Damage(file.path, 0, 0, 0, 0, damage.reason, f"{tmp_path}/damaged/producers")
    assert "repeated sends of producers are stored again" in damage.reason
    assert not Path(file.path).exists()


def test_records_whose_sync_failed_are_removed_and_the_others_are_written_again(
    opening: Opening, disk: Counted, tmp_path: Path
) -> None:
    """The system may consider pages clean that never reached the disk."""
    file = opening()
    file.write([record(0)], 0, sync=True)
    disk.refused = "sync"
    with pytest.raises(OSError, match="Input/output error"):
        file.write([record(1)], 0, sync=True)
    assert (file.in_doubt, records_in(tmp_path)) == (True, 1)
    for act in (file.settle, file.sync):
        with pytest.raises(OSError, match="Input/output error"):
            act()
    assert file.in_doubt
    disk.refused = ""
    disk.done.clear()
    before = Path(file.path).stat().st_ino
    file.settle()
    assert (file.in_doubt, disk.done) == (False, ["file", "folder"])
    assert Path(file.path).stat().st_ino != before
    assert opening().load(always) == ([record(0)], [])


def test_after_the_first_sync_of_a_file_failed_records_are_written_to_it_again(opening: Opening, disk: Counted) -> None:
    file = opening()
    disk.refused = "sync"
    with pytest.raises(OSError, match="Input/output error"):
        file.write([record(0)], 0, sync=True)
    disk.refused = ""
    file.write([record(1)], 0, sync=True)
    assert not file.in_doubt
    assert opening().load(always) == ([record(1)], [])


@pytest.mark.parametrize("sync", [False, True])
def test_a_file_whose_sync_failed_is_written_again_by_the_next_sync(
    opening: Opening, disk: Counted, sync: bool
) -> None:
    file = opening()
    file.write([record(0)], 0, sync=False)
    disk.refused = "sync"
    with pytest.raises(OSError, match="Input/output error"):
        file.sync()
    disk.refused = ""
    disk.done.clear()
    before = Path(file.path).stat().st_ino
    if sync:
        file.sync()
    else:
        file.write([], 0, sync=False)
    assert not file.in_doubt
    assert disk.done == ["file", "folder"]
    assert Path(file.path).stat().st_ino != before


def test_a_file_that_could_not_be_replaced_is_in_doubt_until_it_is(opening: Opening, disk: Counted) -> None:
    file = opening()
    file.write([record(0)], 0, sync=True)
    disk.refused = "rename"
    with pytest.raises(OSError, match="Input/output error"):
        file.rewrite()
    assert (file.in_doubt, disk.done[-1]) == (True, "rename refused")
    disk.refused = ""
    file.settle()
    assert not file.in_doubt
    assert opening().load(always) == ([record(0)], [])


def test_a_file_that_cannot_be_compacted_is_tried_again_when_it_has_grown_as_much_again(
    opening: Opening, disk: Counted, tmp_path: Path
) -> None:
    file = opening()
    disk.refused = "create"
    written = 0
    for length, attempts in ((4096, 0), (1, 1), (4094, 0), (1, 0)):
        file.write([record(written + i) for i in range(length)], 0, sync=False)
        written += length
        assert disk.done.count("create refused") == attempts
        disk.done.clear()
    disk.refused = ""
    file.write([record(written)], 0, sync=False)
    assert records_in(tmp_path) == 17
