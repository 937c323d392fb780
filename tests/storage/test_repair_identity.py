"""A damaged or missing FORMAT comes from the archive if it is certain that this is the archive of the folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.storage.support.repairs import Mirrored, findings, mirrored
from whippet.storage.errors import RepairRefused, UnsupportedFormat
from whippet.storage.files import Files
from whippet.storage.partition_repair import NO_ARCHIVE

CLAIMS = "archive_claims.json"


async def unclaimed(tmp_path: Path) -> tuple[Mirrored, Path, bytes]:
    """A folder that does not say where its archive is, its FORMAT, and what that was."""
    folder = await mirrored(tmp_path)
    (folder.data / CLAIMS).unlink()
    path = folder.data / "FORMAT"
    return folder, path, path.read_bytes()


def changed(content: bytes, count: int) -> bytes:
    """Changes so many of the bytes, from the start."""
    return bytes(octet ^ 1 for octet in content[:count]) + content[count:]


async def test_a_folder_that_names_its_archive_needs_no_format(tmp_path: Path) -> None:
    folder = await mirrored(tmp_path)
    path = folder.data / "FORMAT"
    content = path.read_bytes()
    for wrong in (None, b"", changed(content, len(content))):
        path.unlink()
        if wrong is not None:
            path.write_bytes(wrong)
        (found,) = [each for each in findings(folder.repair()) if each.damage.file == str(path)]
        assert found.repaired
        assert (found.damage.position, found.damage.length) == (0, 0)
        assert path.read_bytes() == content


async def test_otherwise_three_quarters_of_it_have_to_be_the_same(tmp_path: Path) -> None:
    folder, path, content = await unclaimed(tmp_path)
    quarter = len(content) - len(content) * 3 // 4
    for count in (1, quarter):
        path.write_bytes(changed(content, count))
        assert all(each.repaired for each in findings(folder.repair()))
        assert path.read_bytes() == content
    for wrong in (changed(content, quarter + 1), content[: len(content) // 2], content * 2, b""):
        path.write_bytes(wrong)
        with pytest.raises(RepairRefused, match=r"not certain that .* is the archive of this folder"):
            folder.repair()
        assert path.read_bytes() == wrong
    path.unlink()
    with pytest.raises(RepairRefused, match="it is missing, so it is not certain"):
        folder.repair()
    assert not path.exists()


async def test_without_an_archive_there_is_nothing_to_take_it_from(tmp_path: Path) -> None:
    folder, path, content = await unclaimed(tmp_path)
    path.write_bytes(changed(content, 1))
    with pytest.raises(UnsupportedFormat, match=NO_ARCHIVE):
        folder.repair(archive=False)


@pytest.mark.parametrize("archive", [True, False])
async def test_a_damaged_beginning_of_the_history_says_why_it_stays(tmp_path: Path, archive: bool) -> None:
    folder = await mirrored(tmp_path)
    history = folder.partition / "history.json"
    history.write_bytes(b'{"first_offset":0,"xxh3":"0000000000000000"}\n')
    if archive:
        (tmp_path / "archive/streams/0/topics/0/partitions/0/manifest.json").unlink()
    found = [each for each in findings(folder.repair(archive=archive)) if each.damage.file == str(history)]
    assert [each.repaired for each in found] == [False]
    assert found[0].how.startswith("the archive does not have it" if archive else NO_ARCHIVE)


class Recorded(Files):
    """Notes what makes a restored partition durable."""

    def __init__(self) -> None:
        self.acts: list[tuple[str, str]] = []

    def rename(self, source: str, target: str) -> None:
        self.acts.append(("rename", Path(source).parent.name))
        super().rename(source, target)

    def sync_filesystem(self, path: str) -> None:
        self.acts.append(("sync", "all"))
        super().sync_filesystem(path)


async def test_a_partition_appears_only_after_all_of_it_is_on_the_disk(tmp_path: Path) -> None:
    folder = await mirrored(tmp_path)
    for path in sorted(folder.partition.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.partition.rmdir()
    files = Recorded()
    assert all(each.repaired for each in findings(folder.repair(files)))
    appears = files.acts.index(("rename", "staging"))
    assert files.acts[appears - 1] == ("sync", "all")
    assert await folder.readable() == folder.messages
