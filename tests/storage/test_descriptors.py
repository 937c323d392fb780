"""Reserved file descriptors are available to the store, and to nothing else."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.support.world import opened, payloads, sized, texts, with_topic
from whippet.storage import descriptors
from whippet.storage.descriptors import RESERVED, with_reserve
from whippet.storage.files import Files


@pytest.fixture
def exhausted() -> Iterator[contextlib.ExitStack]:
    """All descriptors of this process are taken, except the reserved ones."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as taken:
        # The lowest free ones are given out next, so everything open is below.
        used = max(map(int, os.listdir("/proc/self/fd"))) + 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 8, before[1]))
        yield taken
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def take_all(taken: contextlib.ExitStack) -> None:
    with pytest.raises(OSError, match="Too many open files"):
        while True:
            taken.callback(os.close, os.open(os.devnull, os.O_RDONLY))


def test_the_store_opens_files_when_no_descriptors_are_left_for_others(
    tmp_path: Path, exhausted: contextlib.ExitStack
) -> None:
    take_all(exhausted)
    files, path = Files(), str(tmp_path / "file")
    handle = files.open_for_writing(path)
    files.write(handle, [b"kept"], 0)
    files.close(handle)
    handle = files.open_for_reading(path)
    assert files.read(handle, 9, 0) == b"kept"
    files.close(handle)
    files.sync_folder(str(tmp_path))
    assert [item.name for item in files.list(str(tmp_path))] == ["file"]
    with pytest.raises(OSError, match="Too many open files"):
        os.open(path, os.O_RDONLY)


async def test_the_store_writes_rolls_and_reads_while_others_hold_all_descriptors(
    tmp_path: Path, exhausted: contextlib.ExitStack
) -> None:
    async with opened(tmp_path, segment_bytes=512, tail_bytes_max=0) as store:
        (partition,) = await with_topic(store)
        await partition.append(texts("first"))
        take_all(exhausted)
        for _ in range(5):
            await partition.append(sized(1, 512))
        assert partition.segments_count > 4
        assert payloads(await partition.read(0, 1)) == [b"first"]
        exhausted.close()


def test_other_errors_are_not_retried(exhausted: contextlib.ExitStack) -> None:
    calls = []

    def refuse() -> None:
        calls.append(1)
        raise OSError(errno.EIO, "broken")

    with pytest.raises(OSError, match="broken"):
        with_reserve(refuse)
    assert calls == [1]


def test_the_limit_is_restored_afterwards(exhausted: contextlib.ExitStack) -> None:
    take_all(exhausted)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(with_reserve(os.open, os.devnull, os.O_RDONLY))
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


def test_a_process_reserves_some_of_its_descriptors(exhausted: contextlib.ExitStack) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert descriptors.reserve() == hard - RESERVED
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard - RESERVED, hard)


@pytest.mark.parametrize(("hard", "usable"), [(100, 75), (256, 192), (260, 196), (1024, 960)])
def test_a_process_with_few_descriptors_reserves_a_quarter_of_them(
    monkeypatch: pytest.MonkeyPatch, hard: int, usable: int
) -> None:
    limits = [(hard // 2, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.append(limit))
    assert descriptors.reserve() == usable
    assert limits[1:] == [(usable, hard)]
