"""What is imported into a data folder with encryption is encrypted at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.app.importing.iggy.support import made
from tests.app.importing.iggy.support.made import ORDERS, Classic, Modern
from tests.app.importing.iggy.support.record import Folder, folder_at
from tests.app.importing.iggy.support.running import imported
from tests.storage.support.ways import KEY, WAYS
from whippet.storage.encryption import Keyring
from whippet.storage.errors import CatalogueError, KeyMissing
from whippet.storage.offsets import Kind

OTHER_KEY = bytes(range(1, 33))


@pytest.fixture(params=["classic", "modern"])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Classic | Modern:
    build = made.small_classic if request.param == "classic" else made.small_modern
    return build(tmp_path / "iggy")


def found_in(target: Path, *texts: bytes) -> list[tuple[str, bytes]]:
    """Where any of these texts can be read on the disk."""
    files = [path for path in target.rglob("*") if path.is_file()]
    return [(path.name, text) for path in files for text in texts if text in path.read_bytes()]


def contents(target: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in target.rglob("*") if path.is_file() and path.name != "LOCK"}


def check_content(folder: Folder) -> None:
    kept = folder.partitions["shop", ORDERS, 0]
    assert [message.payload for message in kept.messages] == [b"message %d" % i for i in range(30)]
    assert kept.offsets == {(Kind.CONSUMER, 7): 11, (Kind.GROUP, 0): 29}
    assert "alice" in folder.users
    assert folder.problems == []


@pytest.mark.parametrize("way", ["encrypted", "zstd, encrypted"])
def test_nothing_secret_is_ever_written_in_the_clear(small: Classic | Modern, tmp_path: Path, way: str) -> None:
    target = tmp_path / "data"
    assert imported(small.root, target, **WAYS[way]).lost == []
    assert found_in(target, b"message ", b"alice", b"password_hash", b"argon2") == []
    consumer = target / "streams/0/topics/0/partitions/0/offsets/consumers/7"
    assert len(consumer.read_bytes()) == 176
    before = {path: path.read_bytes() for path in (target / "users").iterdir()}
    check_content(folder_at(target, **WAYS[way]))
    assert {path: path.read_bytes() for path in (target / "users").iterdir()} == before
    with pytest.raises(KeyMissing):
        folder_at(target)


def test_a_target_with_encrypted_users_is_added_to(small: Classic | Modern, tmp_path: Path) -> None:
    target = tmp_path / "data"
    other = made.Classic(tmp_path / "other")
    other.stream(0, "garden")
    imported(other.root, target, **WAYS["encrypted"])
    assert imported(small.root, target, **WAYS["encrypted"]).lost == []
    folder = folder_at(target, **WAYS["encrypted"])
    assert set(folder.streams) == {"garden", "shop"}
    check_content(folder)


def test_a_target_whose_key_is_not_known_is_refused_and_unchanged(small: Classic | Modern, tmp_path: Path) -> None:
    target = tmp_path / "data"
    other = made.Classic(tmp_path / "other")
    other.stream(0, "garden")
    imported(other.root, target, **WAYS["encrypted"])
    before = contents(target)
    with pytest.raises((KeyMissing, CatalogueError)):
        imported(small.root, target)
    with pytest.raises((KeyMissing, CatalogueError)):
        imported(small.root, target, keyring=Keyring([], OTHER_KEY))
    assert contents(target) == before


def test_a_key_that_only_decrypts_encrypts_nothing(small: Classic | Modern, tmp_path: Path) -> None:
    target = tmp_path / "data"
    imported(small.root, target, keyring=Keyring([KEY], None))
    assert found_in(target, b"message 7")
    check_content(folder_at(target))
