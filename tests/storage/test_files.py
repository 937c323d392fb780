"""The real disk: content, permissions, open handles, and what remains after an error."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.open_files import count_open_files
from whippet.storage import files as disk
from whippet.storage.files import Buffer, Files, Item


@pytest.fixture(autouse=True)
def _nothing_stays_open() -> Iterator[None]:
    before = count_open_files()
    yield
    assert count_open_files() <= before


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_files_and_folders_are_not_readable_by_everybody(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        files = Files()
        files.close(files.open_for_writing(str(tmp_path / "file")))
        files.make_folder(str(tmp_path / "folder"))
    finally:
        os.umask(before)
    assert (mode(tmp_path / "file"), mode(tmp_path / "folder")) == (0o640, 0o750)


@pytest.mark.parametrize("count", [0, 1, 1023, 1024, 1025, 3000])
def test_any_number_of_buffers_is_written(tmp_path: Path, count: int) -> None:
    """The operating system writes 1024 buffers a call."""
    files = Files()
    buffers = [b"%d/" % i for i in range(count)]
    handle = files.open_for_writing(str(tmp_path / "file"))
    disk.write_all(files, handle, [b"head"], 0)
    assert disk.write_some(files, handle, buffers, 4) == (sum(map(len, buffers)), None)
    files.close(handle)
    assert disk.read_all(files, str(tmp_path / "file")) == b"head" + b"".join(buffers)


def test_a_file_is_replaced_by_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"the old content")
    disk.replace(Files(), str(tmp_path / "file"), b"")
    assert (tmp_path / "file").read_bytes() == b""


class Hesitant(Files):
    """Reads and writes a few bytes at a time, and none once a limit is reached."""

    def __init__(self, at_once: int, room: int = 1 << 30) -> None:
        self.at_once = at_once
        self.room = room

    def write(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        taken = b"".join(buffers)[: min(self.at_once, self.room)]
        self.room -= len(taken)
        return super().write(handle, [taken], position) if taken else 0

    def read(self, handle: int, length: int, position: int) -> bytes:
        return super().read(handle, min(length, self.at_once), position)


@pytest.mark.parametrize("at_once", [1, 3, 4, 5, 8, 100])
def test_partial_reads_and_writes_are_completed(tmp_path: Path, at_once: int) -> None:
    files, path = Hesitant(at_once), str(tmp_path / "file")
    handle = files.open_for_writing(path)
    assert disk.write_some(files, handle, [b"0123", b"", b"4567", b"89"], 2) == (10, None)
    assert files.size(handle) == 12
    assert disk.read_fully(files, handle, 8, 3) == b"12345678"
    assert disk.read_fully(files, handle, 100, 3) == b"123456789"
    files.truncate(handle, 4)
    files.close(handle)
    assert disk.read_all(files, path) == b"\0\0" + b"01"


@pytest.mark.parametrize(
    ("taken", "left"),
    [(0, [b"ab", b"", b"cde"]), (1, [b"b", b"", b"cde"]), (2, [b"cde"]), (4, [b"e"]), (5, [])],
)
def test_what_is_left_of_buffers_begins_with_a_byte(taken: int, left: list[bytes]) -> None:
    assert disk.after([b"ab", b"", b"cde"], taken) == left


def test_a_disk_that_stops_writing_is_an_error_with_the_bytes_written(tmp_path: Path) -> None:
    files = Hesitant(4, room=6)
    handle = files.open_for_writing(str(tmp_path / "file"))
    written, error = disk.write_some(files, handle, [b"0123", b"4567"], 0)
    assert (written, error and error.errno) == (6, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        disk.write_all(files, handle, [b"more"], 6)
    files.close(handle)


class Watched(Files):
    def __init__(self) -> None:
        self.done: list[str] = []

    def sync(self, handle: int) -> None:
        super().sync(handle)
        self.done.append("file synced")

    def sync_folder(self, path: str) -> None:
        super().sync_folder(path)
        self.done.append(f"{Path(path).name} synced")

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        self.done.append("renamed")


@pytest.mark.parametrize("sync", [False, True])
def test_a_file_is_replaced_by_one_that_is_on_the_disk(tmp_path: Path, sync: bool) -> None:
    files, path = Watched(), tmp_path / "file"
    path.write_bytes(b"the old content")
    (tmp_path / "file.new").write_bytes(b"left over by a crash, and longer than the content")
    disk.replace(files, str(path), b"the new content", sync=sync)
    assert path.read_bytes() == b"the new content"
    assert os.listdir(tmp_path) == ["file"]
    assert files.done == (["file synced", "renamed", f"{tmp_path.name} synced"] if sync else ["renamed"])
    disk.replace(files, str(path), b"and once more")
    assert files.done[-3:] == ["file synced", "renamed", f"{tmp_path.name} synced"]
    files.done.clear()
    assert disk.write_beside(files, str(path), b"beside") == f"{path}.new"
    assert (files.done, path.read_bytes()) == (["file synced"], b"and once more")


def test_missing_folders_are_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Files()
    assert disk.make_folders(files, f"{tmp_path}/a/b/c") == [f"{tmp_path}/a/b", f"{tmp_path}/a", str(tmp_path)]
    assert (tmp_path / "a/b/c").is_dir()
    assert disk.make_folders(files, f"{tmp_path}/a/b/c") == []
    monkeypatch.chdir(tmp_path)
    assert disk.make_folders(files, "x/y") == ["x", "."]
    assert (tmp_path / "x/y").is_dir()


def test_a_folder_lists_its_entries(tmp_path: Path) -> None:
    files = Files()
    (tmp_path / "file").write_bytes(b"1234")
    (tmp_path / "folder").mkdir()
    (tmp_path / "gone").symlink_to(tmp_path / "nothing")
    assert sorted(files.list(str(tmp_path))) == [Item("file", False, 4), Item("folder", True, 0)]
    with pytest.raises(FileNotFoundError):
        files.list(str(tmp_path / "nothing"))


def test_a_missing_file_is_distinguished_from_an_inaccessible_one(tmp_path: Path) -> None:
    files = Files()
    (tmp_path / "file").write_bytes(b"")
    assert files.exists(str(tmp_path / "file"))
    assert files.exists(str(tmp_path))
    assert not files.exists(str(tmp_path / "nothing"))
    assert not files.exists(str(tmp_path / "file" / "below a file"))
    with pytest.raises(OSError, match="File name too long"):
        files.exists(str(tmp_path / ("x" * 300)))


def test_a_folder_is_removed_with_its_content_and_a_link_without_its_target(tmp_path: Path) -> None:
    files = Files()
    (tmp_path / "kept/below").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    files.remove_tree(str(tmp_path / "link"))
    assert os.listdir(tmp_path) == ["kept"]
    files.remove_tree(str(tmp_path / "kept"))
    assert os.listdir(tmp_path) == []


def test_a_lock_is_held_while_its_handle_is_open_and_contains_the_process_id(tmp_path: Path) -> None:
    files, path = Files(), str(tmp_path / "LOCK")
    (tmp_path / "LOCK").write_bytes(b"an earlier process")
    held = files.lock(path)
    assert held is not None
    assert files.lock(path) is None
    files.sign(held)
    assert (tmp_path / "LOCK").read_bytes() == b"pid %d\n" % os.getpid()
    files.close(held)
    again = files.lock(path)
    assert again is not None
    files.close(again)


def test_reserved_blocks_do_not_lengthen_a_file_and_are_freed(tmp_path: Path) -> None:
    files, path = Files(), tmp_path / "file"
    handle = files.open_for_writing(str(path))
    files.write(handle, [b"x" * 5000], 0)
    files.reserve(handle, 1 << 20)
    assert path.stat().st_size == 5000
    assert path.stat().st_blocks * 512 >= 1 << 20
    files.truncate(handle, 5000)
    assert path.stat().st_blocks * 512 < 1 << 19
    with pytest.raises(OSError, match="Invalid argument"):
        files.reserve(handle, 0)
    files.close(handle)


def test_the_names_in_a_folder_are_on_the_disk_once_it_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.readlink(f"/proc/self/fd/{handle}")))
    Files().sync_folder(str(tmp_path))
    assert synced == [str(tmp_path)]


def test_a_sync_of_a_file_or_a_file_system_reaches_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []

    def sync(handle: int) -> int:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        return 0

    def sync_everything() -> None:
        synced.append("everything")

    monkeypatch.setattr(os, "fdatasync", sync)
    monkeypatch.setattr(os, "sync", sync_everything)
    files, path = Files(), str(tmp_path / "file")
    handle = files.open_for_writing(path)
    files.sync(handle)
    files.close(handle)
    for syncfs in (sync, None):
        monkeypatch.setattr(disk, "_syncfs", syncfs)
        files.sync_filesystem(str(tmp_path))
    assert synced == [path, str(tmp_path), "everything"]
    with pytest.raises(NotADirectoryError):
        files.sync_filesystem(path)


def test_a_file_system_that_cannot_be_synced_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(handle: int) -> int:
        ctypes.set_errno(errno.EIO)
        return -1

    monkeypatch.setattr(disk, "_syncfs", fail)
    with pytest.raises(OSError, match="Input/output error") as failed:
        Files().sync_filesystem(str(tmp_path))
    assert failed.value.filename == str(tmp_path)


@pytest.mark.parametrize("cached", [None, b"", b"012", b"0123"])
def test_only_content_that_is_completely_in_memory_is_read_without_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: bytes | None
) -> None:
    asked: list[tuple[int, int]] = []

    def preadv(handle: int, buffers: Sequence[bytearray], position: int, flags: int) -> int:
        asked.append((position, flags))
        if cached is None:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        buffers[0][: len(cached)] = cached
        return len(cached)

    monkeypatch.setattr(os, "preadv", preadv)
    (tmp_path / "file").write_bytes(b"..0123")
    files = Files()
    handle = files.open_for_reading(str(tmp_path / "file"))
    assert files.read_cached(handle, 4, 2) == (b"0123" if cached == b"0123" else None)
    files.close(handle)
    assert asked == [(2, os.RWF_NOWAIT)]


def test_blocks_are_reserved_from_the_start_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def fallocate(handle: int, mode: int, position: int, size: int) -> int:
        asked.append((position, size))
        ctypes.set_errno(errno.EINTR)
        return -1 if len(asked) == 1 else 0

    monkeypatch.setattr(disk, "_fallocate", fallocate)
    Files().reserve(-1, 1 << 20)
    assert asked == [(0, 1 << 20)] * 2


@pytest.mark.skipif(disk._fallocate is None, reason="the C library cannot reserve blocks")
def test_sizes_above_2_gib_reach_the_system_whole() -> None:
    assert disk._fallocate is not None
    assert disk._fallocate.argtypes == (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
