"""Blocks of archived objects: read once for all who need them, read ahead, and kept on the disk if that helps."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.storage.archive.support.archives import Flaky, unavailable
from tests.storage.support.world import random_bytes
from whippet.storage.archive.blocks import AHEAD, BLOCK_BYTES, MEMORY_MAX, Blocks, Object
from whippet.storage.errors import ArchiveUnavailable
from whippet.storage.files import Files
from whippet.storage.options import GIB

SIZE = BLOCK_BYTES * (AHEAD + 3) + 7


class AtOnce(ThreadPoolExecutor):
    """Does everything that is submitted before it returns."""

    def submit(self, function, /, *args, **chosen):  # type: ignore[no-untyped-def]
        done: Future[None] = Future()
        done.set_result(function(*args, **chosen))
        return done


class Remote(Flaky):
    """An archive that is not on this machine."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.folder = None

    @property
    def blocks_read(self) -> int:
        return sum(operation.startswith("read ") for operation in self.done)


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Remote]:
    remote = Remote(tmp_path / "archive")
    for name in ("first", "second"):
        remote.put(name, content_of(name))
    remote.done.clear()
    yield remote


def content_of(name: str) -> bytes:
    block = random_bytes(BLOCK_BYTES + len(name))
    return (block * (SIZE // len(block) + 1))[:SIZE]


def blocks_of(archive: Flaky, tmp_path: Path) -> Blocks:
    return Blocks(archive, Files(), str(tmp_path / "cache"), GIB, AtOnce(1))


def cached(tmp_path: Path) -> int:
    return len(list((tmp_path / "cache").iterdir()))


def read_on(blocks: Blocks, name: str, following: Object | None = None, step: int = BLOCK_BYTES // 2) -> bytes:
    return b"".join(
        blocks.read(name, SIZE, position, min(step, SIZE - position), following) for position in range(0, SIZE, step)
    )


def test_a_reader_that_goes_on_causes_one_read_of_each_block(archive: Remote, tmp_path: Path) -> None:
    blocks = blocks_of(archive, tmp_path)
    assert read_on(blocks, "first") == content_of("first")
    assert archive.blocks_read == -(-SIZE // BLOCK_BYTES)


def test_a_reader_that_goes_on_is_expected_in_the_next_object(archive: Remote, tmp_path: Path) -> None:
    blocks = blocks_of(archive, tmp_path)
    read_on(blocks, "first", Object("second", SIZE))
    assert "read second" in archive.done
    before = archive.blocks_read
    blocks.read("second", SIZE, 0, 1)
    assert archive.blocks_read - before <= 1, "the first blocks are here, and the reader still goes on"


def test_reads_here_and_there_read_nothing_ahead(archive: Remote, tmp_path: Path) -> None:
    blocks = blocks_of(archive, tmp_path)
    for number in (5, 0, 3):
        assert blocks.read("first", SIZE, number * BLOCK_BYTES, 10) == content_of("first")[number * BLOCK_BYTES :][:10]
    assert archive.blocks_read == 3
    assert cached(tmp_path) == 3


def test_what_is_passed_through_is_kept_on_the_disk_from_the_second_time_on(archive: Remote, tmp_path: Path) -> None:
    blocks = blocks_of(archive, tmp_path)
    others = [f"other {number}" for number in range(MEMORY_MAX)]
    for name in others:
        archive.put(name, b"x")
    counts = []
    for _ in range(2):
        read_on(blocks, "first")
        counts.append(cached(tmp_path))
        for name in others:
            blocks.read(name, 1, 0, 1)
    assert counts == [2, len(others) + -(-SIZE // BLOCK_BYTES)]


def test_nothing_is_kept_of_an_archive_in_a_folder(tmp_path: Path) -> None:
    archive = Flaky(tmp_path / "archive")
    archive.put("first", content_of("first"))
    blocks = blocks_of(archive, tmp_path)
    assert read_on(blocks, "first") == content_of("first")
    assert cached(tmp_path) == 0


def test_a_small_part_does_not_keep_its_block_in_memory(archive: Remote, tmp_path: Path) -> None:
    blocks = blocks_of(archive, tmp_path)
    assert isinstance(blocks.read("first", SIZE, 0, 100), bytes)
    assert isinstance(blocks.read("first", SIZE, 0, BLOCK_BYTES // 2), memoryview)


def test_a_failure_is_raised_and_the_next_read_tries_again(archive: Remote, tmp_path: Path) -> None:
    blocks = blocks_of(archive, tmp_path)
    archive.before = unavailable
    with pytest.raises(ArchiveUnavailable):
        blocks.read("first", SIZE, 0, 10)
    archive.before = lambda _: None
    assert blocks.read("first", SIZE, 0, 10) == content_of("first")[:10]


def test_two_readers_of_one_block_cause_one_read(archive: Remote, tmp_path: Path) -> None:
    blocks = blocks_of(archive, tmp_path)
    begun, go = threading.Event(), threading.Event()

    def hold(_: str) -> None:
        begun.set()
        go.wait()

    archive.before = hold
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(blocks.read, "first", SIZE, 0, 10)
        begun.wait()
        second = threads.submit(blocks.read, "first", SIZE, 0, 20)
        go.set()
        assert (first.result(), second.result()) == (content_of("first")[:10], content_of("first")[:20])
    assert archive.blocks_read == 1
