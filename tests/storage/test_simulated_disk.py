"""The simulated disk: it behaves like the real one, loses only what was not synced, and fails where it should."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.storage.support.disk import Fault, FaultKind, PowerCut, SimulatedDisk
from tests.storage.support.disk_files import SECTOR_BYTES
from whippet.storage.files import Files

NAMES = ("a", "b", "c", "a/x", "a/y", "b/x", "b/y/z", "a/x/w")


def content(disk: Files, path: str) -> bytes:
    handle = disk.open_for_reading(path)
    try:
        return disk.read(handle, 1 << 20, 0)
    finally:
        disk.close(handle)


def write(disk: Files, path: str, piece: bytes, position: int = 0, *, sync: bool = False) -> None:
    handle = disk.open_for_writing(path)
    disk.write(handle, [piece], position)
    if sync:
        disk.sync(handle)
    disk.close(handle)


def outcome(act: Callable[[], Any]) -> object:
    try:
        return act()
    except OSError as error:
        return errno.errorcode[error.errno or 0]


def step(files: Files, rng: random.Random, root: str) -> object:
    """One random operation, the same for the same state of the generator."""
    path, other = f"{root}/{rng.choice(NAMES)}", f"{root}/{rng.choice(NAMES)}"
    size, position = rng.randrange(1, 700), rng.randrange(1000)
    act = rng.randrange(10)
    if act == 0:
        return outcome(lambda: files.make_folder(path))
    if act == 1:
        return outcome(lambda: files.remove(path))
    if act == 2:
        return outcome(lambda: files.rename(path, other))
    if act == 3:
        return outcome(lambda: sorted((i.name, i.is_folder, i.size) for i in files.list(path)))
    if act == 4:
        return files.exists(path)
    if act == 5:
        return outcome(lambda: files.remove_tree(path)) if rng.random() < 0.3 else None
    if act == 6:
        return outcome(lambda: files.sync_folder(path))
    if act == 7:
        return outcome(lambda: content(files, path))
    return outcome(lambda: _rewrite(files, path, bytes([size % 251]) * size, position, act == 8))


def _rewrite(files: Files, path: str, piece: bytes, position: int, truncate: bool) -> object:
    handle = files.open_for_writing(path)
    try:
        if truncate:
            files.truncate(handle, position)
            return files.size(handle)
        taken = files.write(handle, [piece[:10], piece[10:]], position)
        files.sync(handle)
        return taken, files.size(handle), files.read(handle, 2000, 0)
    finally:
        files.close(handle)


def everything(files: Files, folder: str) -> dict[str, object]:
    found: dict[str, object] = {}
    for item in files.list(folder):
        path = f"{folder}/{item.name}"
        found[item.name] = everything(files, path) if item.is_folder else content(files, path)
    return found


@pytest.mark.parametrize("seed", range(40))
def test_any_operations_have_the_same_results_as_on_the_real_disk(seed: int, tmp_path: Path) -> None:
    real, simulated = Files(), SimulatedDisk()
    simulated.make_folder("/d")
    for number in range(300):
        answers = [
            step(files, random.Random(f"{seed} {number}"), root)
            for files, root in ((real, str(tmp_path)), (simulated, "/d"))
        ]
        assert answers[0] == answers[1], number
    assert everything(real, str(tmp_path)) == everything(simulated, "/d")
    assert simulated.open_handles == []


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("at_once", [False, True], ids=["one by one", "the file system"])
def test_a_power_failure_keeps_everything_synced(seed: int, at_once: bool) -> None:
    disk = SimulatedDisk()
    disk.make_folder("/d")
    for number in range(200):
        step(disk, random.Random(f"{seed} {number}"), "/d")
    if at_once:
        disk.sync_filesystem("/d")
    else:
        _sync_all(disk, "/d")
        disk.sync_folder("")
    synced = everything(disk, "/d")
    assert everything(disk.power_cut(random.Random(seed)), "/d") == synced
    for number in range(50):
        step(disk, random.Random(f"{seed} after {number}"), "/d")
    assert everything(disk.process_kill(), "/d") == everything(disk, "/d")


def _sync_all(disk: SimulatedDisk, folder: str) -> None:
    for item in disk.list(folder):
        path = f"{folder}/{item.name}"
        if item.is_folder:
            _sync_all(disk, path)
        else:
            handle = disk.open_for_writing(path)
            disk.sync(handle)
            disk.close(handle)
    disk.sync_folder(folder)


def test_a_power_failure_keeps_any_part_of_unsynced_writes_and_nothing_else() -> None:
    disk = SimulatedDisk()
    write(disk, "/f", b"s" * 600, sync=True)
    disk.sync_folder("")
    write(disk, "/f", b"w" * 1400, 600)
    seen = {content(disk.power_cut(random.Random(seed)), "/f") for seed in range(200)}
    assert all(found.startswith(b"s" * 600) for found in seen)
    assert {found[600:] for found in seen} == {
        b"",
        b"w" * 1400,
        bytes(1400),
        b"w" * (2 * SECTOR_BYTES - 600),
        b"w" * (3 * SECTOR_BYTES - 600),
    }


def test_a_power_failure_keeps_any_of_the_unsynced_names() -> None:
    disk = SimulatedDisk()
    write(disk, "/old", b"1", sync=True)
    disk.sync_folder("")
    disk.rename("/old", "/new")
    write(disk, "/more", b"2", sync=True)
    cuts = [disk.power_cut(random.Random(seed)) for seed in range(100)]
    assert {tuple(sorted(everything(cut, ""))) for cut in cuts} == {
        ("old",),
        ("new",),
        ("more", "old"),
        ("more", "new"),
    }
    assert {tuple(sorted(everything(cut, ""))) for cut in (disk.process_kill(),)} == {("more", "new")}


def test_a_rename_between_folders_is_kept_completely_if_either_was_synced() -> None:
    for synced in ("/a", "/b"):
        disk = SimulatedDisk()
        for folder in ("/a", "/b"):
            disk.make_folder(folder)
        disk.sync_folder("")
        write(disk, "/a/f", b"1", sync=True)
        disk.rename("/a/f", "/b/f")
        disk.sync_folder(synced)
        for seed in range(50):
            assert everything(disk.power_cut(random.Random(seed)), "") == {"a": {}, "b": {"f": b"1"}}


def test_writes_before_a_failed_sync_may_be_lost_even_if_the_next_one_succeeds() -> None:
    disk = SimulatedDisk()
    handle = disk.open_for_writing("/f")
    disk.sync_folder("")
    disk.write(handle, [b"1" * 10], 0)
    disk.fault = Fault(disk.operations + 1, FaultKind.EIO)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        disk.sync(handle)
    disk.sync(handle)
    assert disk.read(handle, 10, 0) == b"1" * 10
    assert b"" in {content(disk.power_cut(random.Random(seed)), "/f") for seed in range(50)}
    disk.write(handle, [b"1" * 10], 0)
    disk.sync(handle)
    assert {content(disk.power_cut(random.Random(seed)), "/f") for seed in range(50)} == {b"1" * 10}


def test_a_lock_is_refused_until_its_handle_or_its_process_is_gone() -> None:
    disk = SimulatedDisk()
    first = disk.lock("/LOCK")
    assert first is not None
    assert disk.lock("/LOCK") is None
    assert disk.process_kill().lock("/LOCK") is not None
    disk.close(first)
    assert disk.lock("/LOCK") is not None


def test_a_crashed_disk_refuses_everything_from_then_on() -> None:
    disk = SimulatedDisk()
    write(disk, "/f", b"1")
    disk.fault = Fault(disk.operations + 2, FaultKind.CRASH)
    handle = disk.open_for_writing("/f")
    with pytest.raises(PowerCut):
        disk.write(handle, [b"2" * 100], 1)
    with pytest.raises(PowerCut):
        disk.close(handle)
    found = content(disk.process_kill(), "/f")
    assert (b"1" + b"2" * 100).startswith(found)


def test_a_short_write_writes_a_part_and_the_next_all_or_nothing() -> None:
    for kind in (FaultKind.SHORT, FaultKind.SHORT_ENOSPC):
        disk = SimulatedDisk()
        handle = disk.open_for_writing("/f")
        disk.fault = Fault(disk.operations + 1, kind)
        taken = disk.write(handle, [b"1" * 100], 0)
        assert 0 < taken < 100
        again = outcome(lambda: disk.write(handle, [b"1" * 100], 0))  # noqa: B023 -- called at once
        assert again == (100 if kind is FaultKind.SHORT else "ENOSPC")


def test_an_inaccessible_path_is_not_reported_as_missing(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        Files().exists(str(tmp_path / "loop"))
    assert not Files().exists(str(tmp_path / "nothing"))
