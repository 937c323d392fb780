"""The same archive in every kind of object store: objects, conditions, rounds, takeovers, restores and checks."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.storage.archive.support.archives import archived, archiver_of, restore
from tests.storage.archive.support.google import BUCKET, google
from tests.storage.archive.support.services import SERVICES
from tests.storage.support.world import offsets, opened, sized, with_topic
from whippet.storage.archive.checking import survey
from whippet.storage.archive.documents import ROUND
from whippet.storage.archive.objects import PART_BYTES, Objects, open_objects
from whippet.storage.errors import ArchiveConflict, ArchiveUnavailable
from whippet.storage.files import Files
from whippet.storage.offsets import Kind
from whippet.storage.options import ArchiveOptions
from whippet.storage.survey import Surveyed


@pytest.fixture(scope="module", params=SERVICES)
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ArchiveOptions]:
    with SERVICES[request.param](tmp_path_factory.mktemp(request.param)) as options:
        yield options


@pytest.fixture
def objects(service: ArchiveOptions) -> Objects:
    """A prefix, or a folder, of its own."""
    own = uuid.uuid4().hex
    options = msgspec.structs.replace(service, path=f"{service.path}/{own}", key_prefix=f"{service.key_prefix}/{own}")
    return open_objects(options, Files())


def test_objects_are_stored_read_listed_and_removed(objects: Objects) -> None:
    objects.put("a/b/c", b"content")
    objects.put("a/b/d", b"")
    found = objects.get("a/b/c")
    assert found is not None
    assert found.content == b"content"
    assert (objects.read("a/b/c", 2, 3), objects.size("a/b/d")) == (b"nte", 0)
    assert sorted(objects.list("a/b/")) == [("a/b/c", 7), ("a/b/d", 0)]
    objects.remove(["a/b/c", "a/b/nothing"])
    assert (objects.get("a/b/c"), objects.size("a/b/c")) == (None, None)
    with pytest.raises(ArchiveUnavailable, match="a/b/c"):
        objects.read("a/b/c", 0, 1)


def test_large_objects_are_stored_in_parts(objects: Objects) -> None:
    parts = [bytes([number]) * PART_BYTES for number in range(3)] + [b"end"]
    objects.put_parts("large", iter(parts))
    assert objects.size("large") == 3 * PART_BYTES + 3
    assert b"".join(objects.parts("large", 3 * PART_BYTES + 3)) == b"".join(parts)


def test_an_object_is_replaced_only_if_it_is_the_expected_version(objects: Objects) -> None:
    first = objects.replace("x", b"1", None)
    with pytest.raises(ArchiveConflict, match="somebody else"):
        objects.replace("x", b"2", None)
    second = objects.replace("x", b"2", first)
    with pytest.raises(ArchiveConflict, match="somebody else"):
        objects.replace("x", b"3", first)
    found = objects.get("x")
    assert found is not None
    assert (found.content, found.version) == (b"2", second)
    objects.remove(["x"])
    with pytest.raises(ArchiveConflict):
        objects.replace("x", b"3", second)


async def test_an_archive_is_written_read_taken_over_restored_and_checked(objects: Objects, tmp_path: Path) -> None:
    async with archived(tmp_path, objects, segment_bytes=512) as (store, archiver):
        (partition,) = await with_topic(store)
        for _ in range(8):
            await partition.append(sized(1, 300))
        await partition.store_offset(Kind.CONSUMER, 7, 3)
        assert await archiver.round(), archiver.problem
        assert await archiver.retain_locally(0, 0, time_us=0, max_bytes=None) > 0
        assert offsets(await partition.read(0, 8)) == list(range(8))
        restore(tmp_path, "successor", objects=objects, take_over=True, downloads=False)
        assert not await archiver.round()
        assert archiver.refused
    async with opened(tmp_path / "successor") as store:
        archiver = archiver_of(store, objects, interval_s=1e6)
        await archiver.start()
        (partition,) = await with_topic(store)
        assert offsets(await partition.read(0, 8)) == list(range(8))
        assert partition.offset_of(Kind.CONSUMER, 7) == 3
        await partition.append(sized(1, 300))
        assert await archiver.round(), archiver.problem
        archiver.refused = True
        await archiver.stop(seconds=10)
    assert restore(tmp_path, objects=objects).messages == 9
    found = [one for one in survey(objects) if isinstance(one, Surveyed)]
    assert [(one.messages, one.damage) for one in found] == [(9, [])]
    assert objects.size(ROUND) is not None


async def test_a_service_that_ignores_conditions_is_refused(tmp_path: Path) -> None:
    with google(tmp_path) as (account, stored):
        stored.ignores_conditions = True
        options = ArchiveOptions(kind="gcs", bucket=BUCKET, service_account_file=str(account))
        async with opened(tmp_path / "data") as store:
            archiver = archiver_of(store, open_objects(options, Files()), interval_s=1e6)
            await archiver.start()
            assert archiver.problem is not None
            assert "ignores the conditions" in archiver.problem
            archiver.refused = True
            await archiver.stop(seconds=10)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (ArchiveOptions(kind="gcs", bucket="b", service_account_file="/nothing.json"), r"^gs://b cannot be used"),
        (ArchiveOptions(kind="azure", account="a", bucket="c", secret_access_key="not base64!"), r"^az://a/c cannot"),
    ],
)
def test_settings_that_cannot_be_used_are_named(options: ArchiveOptions, said: str) -> None:
    with pytest.raises(ArchiveUnavailable, match=said):
        open_objects(options, Files())
