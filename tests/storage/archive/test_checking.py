"""What `whippet check` finds in an archive."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.storage.archive.support.archives import Flaky, archived, restore
from tests.storage.support.numbered_sends import by
from tests.storage.support.world import opened, sized, texts, with_topic
from whippet.storage.archive.checking import survey
from whippet.storage.archive.documents import Manifest, encode
from whippet.storage.errors import ArchiveDamaged, RestoreRefused
from whippet.storage.layout import PartitionId
from whippet.storage.survey import Surveyed

MANIFEST = "streams/0/topics/0/partitions/0/manifest.json"


async def archive_of(tmp_path: Path) -> None:
    """Three segments, the last one in two pieces, and a second partition without messages."""
    async with archived(tmp_path, segment_bytes=1024) as (store, archiver):
        partition, _ = await with_topic(store, partitions=2)
        await partition.append_once(texts("numbered"), by(0))
        for _ in range(7):
            await partition.append(sized(1, 100))
        assert await archiver.round()
        await partition.append(sized(1, 50))
        assert await archiver.round()


def checked(tmp_path: Path) -> Surveyed:
    first, _ = survey(Flaky(tmp_path / "archive"))
    return first


async def test_a_sound_archive_is_reported_with_its_content(tmp_path: Path) -> None:
    await archive_of(tmp_path)
    first, second = survey(Flaky(tmp_path / "archive"))
    assert first.place == PartitionId(0, 0, 0)
    assert (first.segments, first.messages, first.first_offset, first.next_offset) == (3, 9, 0, 9)
    assert first.damage == second.damage == []
    assert (second.messages, second.next_offset) == (0, 0)


@pytest.mark.parametrize("kind", ["log", "index", "producers*"])
@pytest.mark.parametrize("spoil", [lambda content: content[:-1], lambda content: content[:-1] + b"?", None])
async def test_every_damaged_object_is_named(tmp_path: Path, kind: str, spoil: Callable[[bytes], bytes] | None) -> None:
    await archive_of(tmp_path)
    pattern = kind if kind.endswith("*") else f"*.{kind}"
    victims = sorted((tmp_path / "archive").rglob(pattern))
    assert victims
    for victim in victims:
        content = victim.read_bytes()
        if spoil is None:
            victim.unlink()
        else:
            victim.write_bytes(spoil(content))
        damage = checked(tmp_path).damage
        assert any(victim.name in str(each) or victim.name in each.reason for each in damage), victim.name
        victim.write_bytes(content)
    assert checked(tmp_path).damage == []


async def test_every_changed_byte_of_a_log_is_found(tmp_path: Path) -> None:
    await archive_of(tmp_path)
    victim = min((tmp_path / "archive").rglob("*.log"))
    content = victim.read_bytes()
    for position in range(0, len(content), 7):
        victim.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        assert checked(tmp_path).damage, position


async def test_the_messages_that_are_lost_are_named_as_exactly_as_in_a_folder(tmp_path: Path) -> None:
    await archive_of(tmp_path)
    victim = min((tmp_path / "archive").rglob("*.log"))
    content = victim.read_bytes()
    victim.write_bytes(content[:-60] + bytes(60))
    (lost,) = [each for each in checked(tmp_path).damage if "message 0: its checksum" in each.reason]
    assert (lost.file, lost.position + lost.length) == (str(victim), len(content))
    assert (lost.length, lost.offset, lost.next_offset) == (404, 2, 3)


def change_manifest(tmp_path: Path, change: Callable[[Manifest], Manifest]) -> None:
    path = tmp_path / "archive" / MANIFEST
    path.write_bytes(encode(change(msgspec.json.decode(path.read_bytes(), type=Manifest))))


async def test_pieces_that_do_not_fit_together_are_reported(tmp_path: Path) -> None:
    await archive_of(tmp_path)
    change_manifest(tmp_path, lambda old: msgspec.structs.replace(old, pieces=(*old.pieces[:-2], old.pieces[-1])))
    assert any("should begin at position 0" in each.reason for each in checked(tmp_path).damage)


async def test_a_manifest_that_cannot_be_decoded_is_reported(tmp_path: Path) -> None:
    await archive_of(tmp_path)
    (tmp_path / "archive" / MANIFEST).write_bytes(b"{")
    (damage,) = checked(tmp_path).damage
    assert "cannot be decoded" in damage.reason


async def test_what_is_not_an_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RestoreRefused):
        next(survey(Flaky(tmp_path / "archive")))
    await archive_of(tmp_path)
    (tmp_path / "archive/catalogue.json").unlink()
    with pytest.raises(ArchiveDamaged, match=r"catalogue\.json is missing"):
        next(survey(Flaky(tmp_path / "archive")))


async def test_offsets_that_were_left_out_are_not_damage(tmp_path: Path) -> None:
    await archive_of(tmp_path)
    restore(tmp_path, "data2", take_over=True)
    (tmp_path / "data").rename(tmp_path / "old")
    (tmp_path / "data2").rename(tmp_path / "data")
    async with archived(tmp_path) as (store, archiver):
        partition, _ = await with_topic(store, partitions=2)
        await partition.append(sized(1, 50))
        assert await archiver.round()
    found = checked(tmp_path)
    assert (found.messages, found.damage) == (10, [])
    async with opened(tmp_path / "data") as store:
        assert list(store.damage) == []
