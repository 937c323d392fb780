"""Entering and leaving a data folder: when everything in it has to be synced first, and which folders are new."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from whippet.storage.data_folder import DataFolder
from whippet.storage.errors import UnsupportedFormat
from whippet.storage.files import Files
from whippet.storage.layout import Layout
from whippet.storage.options import StoreOptions


class Watched(Files):
    """Records what is synced."""

    def __init__(self) -> None:
        self.synced: list[str] = []

    def sync_folder(self, path: str) -> None:
        super().sync_folder(path)
        self.synced.append(path)

    def sync_filesystem(self, path: str) -> None:
        self.synced.append(f"everything on the disk of {path}")


def entered(root: Path, files: Files, *, recreate: bool = False) -> DataFolder:
    folder = DataFolder(files, Layout(StoreOptions(path=str(root))), lambda: 77, recreate=recreate)
    assert folder.enter() == 77
    return folder


def syncs_everything(root: Path) -> bool:
    """Whether entering the folder syncs all of its file system; leaves it like a process that crashed."""
    files = Watched()
    entered(root, files).leave(all_is_synced=False)
    return f"everything on the disk of {root}" in files.synced


def test_a_new_folder_has_its_names_synced_and_nothing_else(tmp_path: Path) -> None:
    files = Watched()
    folder = entered(tmp_path / "new" / "data", files)
    assert folder.is_locked
    assert folder.problems == []
    assert files.synced == [str(tmp_path / "new"), str(tmp_path), *[str(tmp_path / "new/data")] * 2]
    assert sorted(os.listdir(tmp_path / "new/data")) == ["FORMAT", "LOCK", "streams", "tokens", "users"]
    folder.leave(all_is_synced=True)
    assert not folder.is_locked


def test_only_a_folder_that_was_left_with_everything_synced_is_not_synced_again(tmp_path: Path) -> None:
    entered(tmp_path / "data", Watched()).leave(all_is_synced=True)
    assert not syncs_everything(tmp_path / "data")
    assert syncs_everything(tmp_path / "data")
    (tmp_path / "data/LOCK").unlink()
    assert syncs_everything(tmp_path / "data")


def test_a_folder_of_this_version_keeps_its_format_file(tmp_path: Path) -> None:
    first = entered(tmp_path, Watched())
    first.leave(all_is_synced=True)
    before = (tmp_path / "FORMAT").stat().st_ino
    second = entered(tmp_path, Watched())
    second.leave(all_is_synced=True)
    assert ((tmp_path / "FORMAT").stat().st_ino, second.identity) == (before, first.identity)


def test_an_empty_folder_of_streams_without_a_format_is_that_of_a_new_store(tmp_path: Path) -> None:
    """Somebody may have created the folders, to give them to a user or a disk."""
    (tmp_path / "streams").mkdir()
    folder = entered(tmp_path, Watched())
    assert folder.problems == []
    folder.leave(all_is_synced=True)


def test_a_folder_with_streams_and_without_a_format_is_entered_only_if_configured(tmp_path: Path) -> None:
    (tmp_path / "streams/0").mkdir(parents=True)
    refused = DataFolder(Watched(), Layout(StoreOptions(path=str(tmp_path))), lambda: 77, recreate=False)
    with pytest.raises(UnsupportedFormat, match="missing, although there are streams"):
        refused.enter()
    refused.leave(all_is_synced=False)
    folder = entered(tmp_path, Watched(), recreate=True)
    assert folder.problems == [f"{tmp_path}/FORMAT: missing; recreated"]
    folder.leave(all_is_synced=True)
