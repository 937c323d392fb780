"""Ended tokens in their file: what counts at which second, how many lines there are, and what is on the disk when."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from whippet.app.access.ended_tokens import NAME, PER_USER_MAX, End, EndedTokens, Entry
from whippet.storage import files


def revoked(number: int, given_at: int = 0, ends_at: int = 1000, mark: str = "alice") -> Entry:
    return Entry(End.REVOKED, mark, str(number), given_at, ends_at)


def lines(folder: Path) -> int:
    return len((folder / NAME).read_bytes().splitlines())


async def test_an_entry_counts_until_the_second_in_which_its_token_ends(tmp_path: Path) -> None:
    ended = EndedTokens.read(str(tmp_path), now=0)
    await ended.add(revoked(1, ends_at=1000), now=0)
    await ended.add(revoked(2, ends_at=1001), now=0)
    assert len(EndedTokens.read(str(tmp_path), now=999)) == 2
    found = EndedTokens.read(str(tmp_path), now=1000)
    assert [found.has(End.REVOKED, "alice", str(number), 0) for number in (1, 2)] == [False, True]
    assert lines(tmp_path) == 1


async def test_the_longer_of_two_entries_for_a_token_counts(tmp_path: Path) -> None:
    ended = EndedTokens.read(str(tmp_path), now=0)
    for ends_at in (500, 1000, 700):
        await ended.add(revoked(1, ends_at=ends_at), now=0)
    assert len(ended) == 1
    assert EndedTokens.read(str(tmp_path), now=999).has(End.REVOKED, "alice", "1", 0)


async def test_as_many_entries_as_are_allowed_stay_apart_and_one_more_folds_the_older_half(tmp_path: Path) -> None:
    assert PER_USER_MAX == 1000
    ended = EndedTokens.read(str(tmp_path), now=0, per_user_max=10)
    for number in range(10):
        await ended.add(revoked(number, given_at=number), now=0)
    assert len(ended) == 10
    assert not ended.has(End.REVOKED, "alice", "never ended", 0)
    await ended.add(revoked(10, given_at=10, ends_at=2000), now=0)
    # Five of eleven went, and one came that stands for them until the last of all has ended.
    assert len(ended) == 7
    assert ended.has(End.REVOKED, "alice", "never ended", 4)
    assert not ended.has(End.REVOKED, "alice", "never ended", 5)
    assert all(ended.has(End.REVOKED, "alice", str(number), number) for number in range(11))
    folded = EndedTokens.read(str(tmp_path), now=1999, per_user_max=10)
    assert not folded.has(End.REVOKED, "alice", "5", 5)
    assert folded.has(End.REVOKED, "alice", "10", 10)


@pytest.mark.parametrize("seed", range(5))
async def test_no_token_comes_back_in_whatever_order_they_were_given(tmp_path: Path, seed: int) -> None:
    ended = EndedTokens.read(str(tmp_path), now=0, per_user_max=4)
    given = list(range(30))
    if seed:
        random.Random(seed).shuffle(given)
    else:
        given.reverse()
    for i, number in enumerate(given):
        await ended.add(revoked(number, given_at=number), now=0)
        assert len(ended) <= 4
        assert all(ended.has(End.REVOKED, "alice", str(older), older) for older in given[: i + 1])
    found = EndedTokens.read(str(tmp_path), now=0, per_user_max=4)
    assert all(found.has(End.REVOKED, "alice", str(number), number) for number in given)


async def test_what_was_folded_is_folded_further(tmp_path: Path) -> None:
    ended = EndedTokens.read(str(tmp_path), now=0, per_user_max=4)
    for number in range(30):
        await ended.add(revoked(number, given_at=number), now=0)
        assert len(ended) <= 4
        assert all(ended.has(End.REVOKED, "alice", str(older), older) for older in range(number + 1))
        assert not ended.has(End.REVOKED, "alice", "newer", number + 1)
    assert ended.has(End.REVOKED, "alice", "never ended", 0)


async def test_the_file_is_written_anew_when_most_of_its_lines_say_nothing_any_more(tmp_path: Path) -> None:
    ended = EndedTokens.read(str(tmp_path), now=0, per_user_max=3)
    seen = []
    for number in range(14):
        await ended.add(revoked(7, ends_at=1000 + number), now=0)
        seen.append(lines(tmp_path))
    # One entry: twice the limit and four more lines may be there before the next.
    assert seen == [*range(1, 12), 1, 2, 3]


async def test_entries_whose_tokens_have_ended_go_when_the_file_is_written_anew(tmp_path: Path) -> None:
    ended = EndedTokens.read(str(tmp_path), now=0, per_user_max=3)
    await ended.add(revoked(1, ends_at=500, mark="bob"), now=0)
    await ended.add(revoked(2, ends_at=501, mark="carol"), now=0)
    for number in range(20):
        await ended.add(revoked(7, ends_at=1000 + number), now=500)
    assert len(ended) == 2
    assert not ended.has(End.REVOKED, "bob", "1", 0)
    assert ended.has(End.REVOKED, "carol", "2", 0)


async def test_nothing_is_left_of_a_file_when_all_has_ended(tmp_path: Path) -> None:
    ended = EndedTokens.read(str(tmp_path), now=0)
    await ended.add(revoked(1, ends_at=1000), now=0)
    assert len(EndedTokens.read(str(tmp_path), now=1000)) == 0
    assert not (tmp_path / NAME).exists()
    assert len(EndedTokens.read(str(tmp_path), now=1000)) == 0


async def test_after_an_entry_that_could_not_be_written_the_file_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a line may be at its end, and what comes behind that would be lost with it."""
    ended = EndedTokens.read(str(tmp_path), now=0)
    await ended.add(revoked(1), now=0)

    def half(disk: files.Files, handle: int, buffers: list[bytes], position: int) -> None:
        os.pwrite(handle, buffers[0][:5], position)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(files, "write_all", half)
        with pytest.raises(OSError, match="No space left"):
            await ended.add(revoked(2), now=0)
    await ended.add(revoked(3), now=0)
    assert lines(tmp_path) == 3
    found = EndedTokens.read(str(tmp_path), now=0)
    assert all(found.has(End.REVOKED, "alice", str(number), 0) for number in (1, 2, 3))


async def test_every_entry_is_synced_and_the_folder_is_when_the_file_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(files.Files, "sync", lambda self, handle: done.append("file"))
    monkeypatch.setattr(files.Files, "sync_folder", lambda self, path: done.append(Path(path).name))
    folder = tmp_path / "access"
    ended = EndedTokens.read(str(folder), now=0)
    await ended.add(revoked(1), now=0)
    assert done[-2:] == ["file", "access"]
    done.clear()
    open_before = len(os.listdir("/proc/self/fd"))
    for number in range(2, 6):
        await ended.add(revoked(number), now=0)
    assert done == ["file"] * 4
    assert len(os.listdir("/proc/self/fd")) == open_before
