"""What `whippet doctor` says about the data folder and its disk, and that it leaves nothing there."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from whippet.app.config import Config
from whippet.app.diagnosis import disk
from whippet.app.diagnosis.finding import Finding, Status


def about(path: Path, **changes: Any) -> dict[str, Finding]:
    config = Config()
    system = msgspec.structs.replace(config.system, path=str(path), **changes)
    # A clock that a machine's load does not slow down.
    clock = itertools.count(0, 0.0001)
    every = disk.findings(msgspec.structs.replace(config, system=system), None, lambda: next(clock))
    return {each.check: each for each in every}


def test_a_new_folder_is_ok_and_stays_as_it_is(tmp_path: Path) -> None:
    found = about(tmp_path / "a" / "new")
    assert "the first start creates it" in found["data folder"].found
    assert found["disk speed"].status is Status.OK
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_data_folder_fails(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert about(tmp_path / "file")["data folder"].status is Status.FAIL
    (tmp_path / "streams" / "1").mkdir(parents=True)
    assert "FORMAT is missing" in about(tmp_path)["data folder"].found
    (tmp_path / "FORMAT").write_text('{"whippet_store": 999, "id": "", "created_at": 0}')
    assert "format version 999" in about(tmp_path)["data folder"].found


def test_too_little_space_fails(tmp_path: Path) -> None:
    total = os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize
    reserve = msgspec.structs.replace(Config().system.disk, reserve=total)
    found = about(tmp_path, disk=reserve)
    assert (found["disk space"].status, found["disk speed"].status) == (Status.FAIL, Status.WARN)


@pytest.mark.parametrize(
    ("kind", "options", "status"),
    [
        ("ext4", "rw", Status.OK),
        ("ext4", "ro", Status.FAIL),
        ("tmpfs", "rw", Status.WARN),
        ("nfs4", "rw", Status.WARN),
        ("fuse.sshfs", "rw", Status.WARN),
        ("overlay", "rw", Status.WARN),
    ],
)
def test_each_kind_of_file_system_is_judged(
    kind: str, options: str, status: Status, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "mount_of", lambda _: ("/data", kind, [options]))
    assert about(tmp_path)["file system"].status is status


def test_the_deepest_mount_above_a_folder_counts() -> None:
    assert disk.mount_of("/proc/self")[:2] == ("/proc", "proc")
    assert disk.mount_of("/process")[0] != "/proc"
