"""Who may write to an archive: the data folder that claimed it last, and nobody else."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from tests.storage.archive.support.archives import Flaky
from whippet.storage.archive.documents import OWNER, Owner, encode
from whippet.storage.archive.objects import LocalObjects, Objects, Version
from whippet.storage.archive.ownership import Claims, claim, mark_complete, require
from whippet.storage.errors import ArchiveConflict, ArchiveDamaged, ArchiveUnavailable
from whippet.storage.files import Files
from whippet.storage.layout import CLAIMS_FILE, Layout
from whippet.storage.options import StoreOptions


class Folder:
    """A data folder, as far as claims go."""

    def __init__(self, path: Path, store: str = "this store") -> None:
        path.mkdir(exist_ok=True)
        self.path = path
        self.store = store

    def claim(self, objects: Objects, *, take_over: bool = False) -> int:
        layout = Layout(StoreOptions(path=str(self.path)))
        self.ownership = claim(objects, Files(), layout, self.store, lambda: 1, take_over=take_over)
        return self.ownership.owner.generation


@pytest.fixture
def archive(tmp_path: Path) -> Flaky:
    return Flaky(tmp_path / "archive")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "data")


def test_each_start_claims_the_archive_again(archive: Flaky, folder: Folder) -> None:
    assert [folder.claim(archive) for _ in range(3)] == [0, 1, 2]
    require(archive, folder.ownership)


def test_an_archive_of_another_store_is_refused_and_not_changed(archive: Flaky, folder: Folder, tmp_path: Path) -> None:
    folder.claim(archive)
    before = archive.get(OWNER)
    with pytest.raises(ArchiveConflict, match="archive of another data folder"):
        Folder(tmp_path / "other", "another store").claim(archive)
    assert archive.get(OWNER) == before


def test_of_two_copies_of_a_folder_only_the_first_one_to_start_gets_the_archive(
    archive: Flaky, folder: Folder, tmp_path: Path
) -> None:
    folder.claim(archive)
    shutil.copytree(folder.path, tmp_path / "copy")
    copy = Folder(tmp_path / "copy")
    copy.claim(archive)
    with pytest.raises(ArchiveConflict, match="claimed by another server"):
        require(archive, folder.ownership)
    with pytest.raises(ArchiveConflict, match="continued by another copy"):
        folder.claim(archive)
    require(archive, copy.ownership)


def test_whoever_takes_the_archive_over_shuts_the_old_server_out(
    archive: Flaky, folder: Folder, tmp_path: Path
) -> None:
    folder.claim(archive)
    successor = Folder(tmp_path / "successor")
    assert successor.claim(archive, take_over=True) == 1
    with pytest.raises(ArchiveConflict):
        require(archive, folder.ownership)
    with pytest.raises(ArchiveConflict):
        mark_complete(archive, folder.ownership)
    assert successor.claim(archive) == 2


@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_claim_that_fails_anywhere_can_be_repeated(archive: Flaky, folder: Folder, number: int, when: str) -> None:
    folder.claim(archive)
    left = number

    def fail(operation: str) -> None:
        nonlocal left
        left -= 1
        if left == -1:
            raise ArchiveUnavailable(operation)

    setattr(archive, when, fail)
    try:
        folder.claim(archive)
    except ArchiveUnavailable:
        setattr(archive, when, lambda operation: None)
        folder.claim(archive)
    require(archive, folder.ownership)


def test_a_service_that_ignores_conditions_is_refused(tmp_path: Path, folder: Folder) -> None:
    class Careless(LocalObjects):
        def replace(self, name: str, content: bytes, expected: Version | None) -> Version:
            found = self.get(name)
            return super().replace(name, content, None if found is None else found.version)

    with pytest.raises(ArchiveUnavailable, match="ignores the conditions"):
        folder.claim(Careless(str(tmp_path / "archive"), Files()))


def test_a_service_that_ignores_only_the_version_is_refused_by_the_first_claim(tmp_path: Path, folder: Folder) -> None:
    class Creates(LocalObjects):
        def replace(self, name: str, content: bytes, expected: Version | None) -> Version:
            found = self.get(name)
            return super().replace(name, content, expected and found and found.version)

    with pytest.raises(ArchiveUnavailable, match="ignores the conditions"):
        folder.claim(Creates(str(tmp_path / "archive"), Files()))


def test_a_service_that_understands_no_version_is_refused_by_the_first_claim(tmp_path: Path, folder: Folder) -> None:
    """Ceph 16 takes the quotes around a tag for a part of it."""

    class Creates(LocalObjects):
        def replace(self, name: str, content: bytes, expected: Version | None) -> Version:
            if expected is not None:
                raise ArchiveConflict("it is another version")
            return super().replace(name, content, expected)

    with pytest.raises(ArchiveUnavailable, match="although it is the version"):
        folder.claim(Creates(str(tmp_path / "archive"), Files()))


def test_claims_that_cannot_be_decoded_are_no_claims(archive: Flaky, folder: Folder) -> None:
    folder.claim(archive)
    (folder.path / CLAIMS_FILE).write_bytes(b"{")
    with pytest.raises(ArchiveConflict, match=CLAIMS_FILE):
        folder.claim(archive)


def test_an_owner_that_cannot_be_decoded_is_damage(archive: Flaky, folder: Folder) -> None:
    archive.put(OWNER, b"{}")
    with pytest.raises(ArchiveDamaged, match=r"archive\.json cannot be decoded"):
        folder.claim(archive)


def test_an_archive_of_a_later_format_is_not_touched(archive: Flaky, folder: Folder) -> None:
    archive.put(OWNER, b'{"whippet_archive":2,"store":"","generation":0,"claim":"","claimed_at":0}')
    with pytest.raises(ArchiveDamaged, match="format version 2"):
        folder.claim(archive)


def test_a_removed_owner_stops_the_archiver(archive: Flaky, folder: Folder) -> None:
    folder.claim(archive)
    archive.remove([OWNER])
    with pytest.raises(ArchiveConflict, match="was removed"):
        require(archive, folder.ownership)


def test_claims_to_several_archives_are_kept_apart(archive: Flaky, folder: Folder, tmp_path: Path) -> None:
    other = Flaky(tmp_path / "other archive")
    assert (folder.claim(archive), folder.claim(other), folder.claim(archive)) == (0, 0, 1)


def test_a_claim_of_its_own_that_arrives_late_is_no_other_server(archive: Flaky, folder: Folder) -> None:
    folder.claim(archive)
    late: list[bytes] = []

    def lose(operation: str) -> None:
        if operation == f"replace {OWNER}":
            raise ArchiveUnavailable(operation)

    archive.before = lose
    with pytest.raises(ArchiveUnavailable):
        folder.claim(archive)
    known = msgspec.json.decode((folder.path / CLAIMS_FILE).read_bytes(), type=Claims).archives[archive.location]
    late.append(encode(Owner(store="this store", generation=1, claim=known.begun[-1], claimed_at=1)))

    def arrive(operation: str) -> None:
        if operation == f"replace {OWNER}" and late:
            archive.before = lambda operation: None
            archive.put(OWNER, late.pop())

    archive.before = arrive
    with pytest.raises(ArchiveUnavailable, match="has just arrived"):
        folder.claim(archive)
    assert folder.claim(archive) == 2
    require(archive, folder.ownership)
