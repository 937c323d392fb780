"""Objects in a folder and in a bucket: the same promises. A bucket's service also makes every mistake that services
make."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.storage.archive.support.archives import archived, restore
from tests.storage.archive.support.buckets import Bucket, Fault, bucket
from tests.storage.support.world import opened, sized, with_topic
from tests.support.running import HANGS_S
from tests.support.sizes import mostly_long
from whippet.storage.archive.objects import PART_BYTES, Objects, open_objects
from whippet.storage.errors import ArchiveConflict, ArchiveError, ArchiveUnavailable
from whippet.storage.files import Files
from whippet.storage.options import ArchiveOptions, StoreOptions
from whippet.storage.survey import survey


@pytest.fixture(scope="module")
def service() -> Iterator[Bucket]:
    with bucket() as found:
        yield found


@pytest.fixture
def fault(service: Bucket) -> Iterator[Fault]:
    """The proxy in front of the service, which makes no mistakes at the beginning of each test."""
    yield service.fault
    service.fault.__init__()  # type: ignore[misc]


@pytest.fixture
def prefix() -> str:
    return f"tests/{uuid.uuid4().hex}"


@pytest.fixture(params=["disk", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path, prefix: str) -> Objects:
    if request.param == "disk":
        return open_objects(ArchiveOptions(path=str(tmp_path / "archive")), Files())
    return open_objects(request.getfixturevalue("service").options(prefix), Files())


def test_an_object_is_read_back_as_it_was_stored(objects: Objects) -> None:
    objects.put("a/b/c", b"content")
    found = objects.get("a/b/c")
    assert found is not None
    assert found.content == b"content"
    assert objects.read("a/b/c", 2, 3) == b"nte"
    assert objects.read("a/b/c", 2, 0) == b""
    assert objects.size("a/b/c") == 7


def test_what_does_not_exist_is_none(objects: Objects) -> None:
    assert (objects.get("nothing"), objects.size("nothing"), objects.digest("nothing")) == (None, None, None)
    objects.remove(["nothing"])
    with pytest.raises(ArchiveUnavailable, match="nothing"):
        objects.read("nothing", 0, 1)


def test_large_objects_are_stored_and_read_in_parts(objects: Objects) -> None:
    parts = [bytes([number]) * PART_BYTES for number in range(3)] + [b"end"]
    objects.put_parts("large", iter(parts))
    assert objects.size("large") == 3 * PART_BYTES + 3
    assert list(objects.parts("large", 3 * PART_BYTES + 3)) == parts
    objects.put("the same", b"".join(parts))
    assert objects.digest("large") == objects.digest("the same")


def test_an_error_while_parts_are_taken_stores_nothing(objects: Objects) -> None:
    def parts() -> Iterator[bytes]:
        yield bytes(PART_BYTES)
        raise ArchiveUnavailable("the source is gone")

    with pytest.raises(ArchiveUnavailable, match="the source is gone"):
        objects.put_parts("large", parts())
    assert objects.get("large") is None


def test_an_object_is_replaced_only_if_it_is_what_was_expected(objects: Objects) -> None:
    first = objects.replace("x", b"one", None)
    with pytest.raises(ArchiveConflict):
        objects.replace("x", b"again", None)
    second = objects.replace("x", b"two", first)
    with pytest.raises(ArchiveConflict):
        objects.replace("x", b"three", first)
    found = objects.get("x")
    assert found is not None
    assert (found.content, found.version) == (b"two", second)
    objects.remove(["x"])
    with pytest.raises(ArchiveConflict):
        objects.replace("x", b"three", second)


def test_of_many_who_replace_an_object_at_once_one_succeeds(objects: Objects) -> None:
    version = objects.replace("x", b"first", None)
    won: list[int] = []

    def compete(number: int) -> None:
        try:
            objects.replace("x", str(number).encode(), version)
            won.append(number)
        except ArchiveConflict:
            return

    threads = [threading.Thread(target=compete, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = objects.get("x")
    assert found is not None
    assert [str(number).encode() for number in won] == [found.content]


def test_a_listing_has_everything_below_a_folder(objects: Objects) -> None:
    for name in ("a/1", "a/2/3", "b/1"):
        objects.put(name, b"x")
    assert sorted(objects.list("a/")) == [("a/1", 1), ("a/2/3", 1)]
    objects.remove(["a/1", "a/2/3"])
    assert list(objects.list("a/")) == []


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ArchiveUnavailable, match="file"):
        open_objects(ArchiveOptions(path=str(tmp_path / "file/below")), Files())


def test_two_processes_do_not_replace_at_the_same_time(tmp_path: Path) -> None:
    class Busy(Files):
        tries = 0

        def lock(self, path: str) -> int | None:
            self.tries += 1
            return None if self.tries < 3 else super().lock(path)

    files = Busy()
    open_objects(ArchiveOptions(path=str(tmp_path)), files).replace("x", b"1", None)
    assert files.tries == 3


# --------------------------------------------------------------------------------------------------- services that fail


def s3(service: Bucket, prefix: str, timeout_s: float = 30.0) -> Objects:
    return open_objects(service.options(prefix, timeout_s), Files())


@pytest.mark.parametrize("status", [400, 403, 404, 429, 500, 503])
@pytest.mark.usefixtures("fault")
def test_every_status_is_an_error_of_one_line(service: Bucket, prefix: str, status: int) -> None:
    objects = s3(service, prefix)
    version = objects.replace("there", b"1", None)
    service.fault.answer = lambda method, path: (status, b"<Error><Code>Whatever</Code></Error>")
    calls: list[Callable[[], object]] = [
        lambda: objects.put("x", b"1"),
        lambda: objects.put_parts("x", iter([bytes(PART_BYTES), b"1"])),
        lambda: objects.read("x", 0, 1),
        lambda: list(objects.list("")),
    ]
    if status != 404:
        calls += [
            lambda: objects.get("x"),
            lambda: objects.replace("there", b"2", version),
            lambda: objects.remove(["x"]),
        ]
    for call in calls:
        with pytest.raises(ArchiveUnavailable) as caught:
            call()
        assert "\n" not in str(caught.value)
        assert f"s3://iggy/{prefix}" in str(caught.value)


@pytest.mark.usefixtures("fault")
def test_a_service_that_does_not_respond_costs_the_time_of_a_request(service: Bucket, prefix: str) -> None:
    going = threading.Event()

    def hold(method: str, path: str) -> None:
        assert going.wait(HANGS_S)

    service.fault.hold = hold
    try:
        with pytest.raises(ArchiveUnavailable):
            s3(service, prefix, timeout_s=0.2).put("x", b"1")
    finally:
        going.set()


def test_a_missing_bucket_and_a_closed_port_are_named(service: Bucket, prefix: str) -> None:
    options = service.options(prefix)
    with pytest.raises(ArchiveUnavailable, match="s3://none"):
        open_objects(ArchiveOptions(kind="s3", bucket="none", endpoint=options.endpoint, region="r"), Files()).put(
            "x", b""
        )
    with pytest.raises(ArchiveUnavailable, match="s3://iggy"):
        nowhere = ArchiveOptions(kind="s3", bucket="iggy", endpoint="http://127.0.0.1:9", region="r", access_key_id="k")
        open_objects(nowhere, Files()).put("x", b"")


def test_credentials_come_from_the_environment_unless_they_are_configured(
    service: Bucket, fault: Fault, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "AWS_ACCESS_KEY_ID", "from-the-environment")
    monkeypatch.setitem(os.environ, "AWS_SECRET_ACCESS_KEY", "secret")
    options = ArchiveOptions(kind="s3", bucket="iggy", key_prefix=prefix, endpoint=service.endpoint, region="r")
    open_objects(options, Files()).put("x", b"1")
    assert s3(service, prefix).get("x") is not None
    assert ["from-the-environment" in each for each in fault.authorizations] == [True, False]
    assert "Credential=key/" in fault.authorizations[1]


FAULTS: dict[str, Callable[[Fault, int], None]] = {}


def made(name: str) -> Callable[[Callable[[Fault, int], None]], Callable[[Fault, int], None]]:
    def keep(function: Callable[[Fault, int], None]) -> Callable[[Fault, int], None]:
        FAULTS[name] = function
        return function

    return keep


class Every:
    """True for every n-th request."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._count = 0

    def __call__(self, *_: object) -> bool:
        self._count += 1
        return self._count % self._number == 0


@made("errors")
def errors(fault: Fault, number: int) -> None:
    every = Every(number)
    fault.answer = lambda method, path: (503, b"slow down") if every() else None


@made("responses that are lost")
def lost(fault: Fault, number: int) -> None:
    fault.lose = Every(number)


@made("uploads that are truncated")
def truncated(fault: Fault, number: int) -> None:
    every = Every(number)
    fault.change = lambda method, path, body: body[:-1] if method == "PUT" and ".log" in path and every() else body


@made("uploads that are duplicated")
def duplicated(fault: Fault, number: int) -> None:
    every = Every(number)
    fault.change = lambda method, path, body: body + body if method == "PUT" and ".log" in path and every() else body


@made("uploads that are changed")
def changed(fault: Fault, number: int) -> None:
    every = Every(number)
    fault.change = lambda method, path, body: (
        b"!" + body[1:] if method == "PUT" and ".index" in path and every() else body
    )


def _is_index(method: str, path: str) -> bool:
    return method == "PUT" and ".index" in path


@made("credentials that expire")
def expiring(fault: Fault, number: int) -> None:
    left = number

    def answer(method: str, path: str) -> tuple[int, bytes] | None:
        nonlocal left
        left -= 1
        return (403, b"<Error><Code>ExpiredToken</Code></Error>") if left < 0 else None

    fault.answer = answer


@pytest.mark.parametrize("name", list(FAULTS))
@pytest.mark.parametrize("number", mostly_long([2, 3, 5], usual={3}))
async def test_a_bucket_that_fails_in_any_way_is_complete_once_it_works(
    service: Bucket, fault: Fault, prefix: str, tmp_path: Path, name: str, number: int
) -> None:
    objects = s3(service, prefix)
    async with archived(tmp_path, objects, protects_expired=True, segment_bytes=512) as (store, archiver):
        (partition,) = await with_topic(store)
        FAULTS[name](fault, number)
        for _ in range(4):
            for _ in range(2):
                await partition.append(sized(1, 100))
            await archiver.round()
            await store.retain(0, 0, expiry_us=0, max_bytes=None)
        fault.__init__()  # type: ignore[misc]
        assert partition.first_offset <= 8
        assert not archiver.refused
        assert await archiver.round()
    restore(tmp_path, objects=objects)
    (found,) = survey(StoreOptions(path=str(tmp_path / "restored")))
    assert (found.messages, found.damage) == (8, [])


async def test_restoring_from_a_bucket_that_fails_can_be_repeated(
    service: Bucket, fault: Fault, prefix: str, tmp_path: Path
) -> None:
    objects = s3(service, prefix)
    async with archived(tmp_path, objects, segment_bytes=512) as (store, archiver):
        (partition,) = await with_topic(store)
        for _ in range(8):
            await partition.append(sized(1, 100))
        assert await archiver.round()
    for number in (1, 3, 6, 9):
        expiring(fault, number)
        with pytest.raises(ArchiveError):
            restore(tmp_path, objects=objects)
    fault.__init__()  # type: ignore[misc]
    assert restore(tmp_path, objects=objects, take_over=True).messages == 8
    async with opened(tmp_path / "restored") as store:
        assert list(store.damage) == []
