"""Ended tokens in their file: which entries apply at which second, how many lines there are, and what is on the
disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.open_files import count_open_files
from whippet.app.access.ended_tokens import NAME, End, EndedTokens, Entry
from whippet.app.errors import Code, CommandError
from whippet.storage import files


def revoked(number: int, given_at: int = 0, ends_at: int = 1000, mark: str = "alice") -> Entry:
    return Entry(End.REVOKED, mark, str(number), given_at, ends_at)


def lines(folder: Path) -> int:
    return len((folder / NAME).read_bytes().splitlines())


async def test_an_entry_is_kept_until_the_second_in_which_its_token_expires(tmp_path: Path) -> None:
    ended = EndedTokens.read(str(tmp_path), now=0)
    await ended.add(revoked(1, ends_at=1000), now=0)
    await ended.add(revoked(2, ends_at=1001), now=0)
    assert len(EndedTokens.read(str(tmp_path), now=999)) == 2
    found = EndedTokens.read(str(tmp_path), now=1000)
    assert [found.has(End.REVOKED, "alice", str(number), 0) for number in (1, 2)] == [False, True]
    assert lines(tmp_path) == 1


async def test_the_longer_of_two_entries_for_a_token_is_kept(tmp_path: Path) -> None:
    ended = EndedTokens.read(str(tmp_path), now=0)
    for ends_at in (500, 1000, 700):
        await ended.add(revoked(1, ends_at=ends_at), now=0)
    assert len(ended) == 1
    assert EndedTokens.read(str(tmp_path), now=999).has(End.REVOKED, "alice", "1", 0)


async def test_one_entry_more_than_allowed_is_refused_until_others_expire(tmp_path: Path) -> None:
    ended = EndedTokens.read(str(tmp_path), now=0, per_user_max=10)
    for number in range(10):
        await ended.add(revoked(number, ends_at=1000 + number), now=0)
    for _ in range(2):
        with pytest.raises(CommandError, match="try again in 10 s, or end all sessions") as refused:
            await ended.add(revoked(10), now=990)
        assert (refused.value.code, refused.value.retry_after_s) == (Code.TOO_MANY_ENDED_TOKENS, 10)
    # Tokens that have ended can be ended again, and other users are not affected.
    await ended.add(revoked(3, ends_at=1003), now=990)
    await ended.add(revoked(1, mark="bob"), now=990)
    assert not ended.has(End.REVOKED, "alice", "10", 0)
    assert not ended.has(End.REVOKED, "alice", "never ended", 0)
    await ended.add(revoked(11, ends_at=2000), now=1000)
    found = EndedTokens.read(str(tmp_path), now=1000, per_user_max=10)
    assert [found.has(End.REVOKED, "alice", str(number), 0) for number in range(12)] == [
        False,
        *[True] * 9,
        False,
        True,
    ]


async def test_ending_all_sessions_makes_room(tmp_path: Path) -> None:
    ended = EndedTokens.read(str(tmp_path), now=0, per_user_max=10)
    for number in range(10):
        await ended.add(revoked(number), now=0)
    await ended.add(Entry(End.REVOKED, "alice", "new", 0, 1000, epoch=1), now=0)
    assert len(ended) == 1
    assert ended.has(End.REVOKED, "alice", "new", 0)


async def test_an_entry_for_many_tokens_from_an_older_version_still_applies(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b'[1,"alice","",500,2000]\n[1,"alice","7",600,1500]\n[2,"alice","8",0,1500]\n')
    ended = EndedTokens.read(str(tmp_path), now=0)
    assert ended.has(End.REVOKED, "alice", "any", 500)
    assert not ended.has(End.REVOKED, "alice", "any", 501)
    assert ended.has(End.REVOKED, "alice", "7", 600)
    assert ended.has(End.REFRESHED, "alice", "8", 0)
    assert not ended.has(End.REFRESHED, "alice", "7", 600)


def test_an_invalid_line_is_reported_and_affects_no_other_entry(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / NAME).write_bytes(b'[1,"alice","1",0,1000]\n[1,"alice"\n[1,"alice","3",0,1000]\n')
    ended = EndedTokens.read(str(tmp_path), now=0)
    assert [ended.has(End.REVOKED, "alice", name, 0) for name in ("1", "3")] == [True, True]
    assert "line 2 cannot be understood" in caplog.text


@pytest.mark.parametrize("others", [0, 1, 2])
async def test_the_file_is_rewritten_when_most_of_its_lines_are_obsolete(tmp_path: Path, others: int) -> None:
    ended = EndedTokens.read(str(tmp_path), now=0, per_user_max=3)
    for number in range(others):
        await ended.add(revoked(number, mark="bob"), now=0)
    seen = []
    for number in range(24):
        await ended.add(revoked(7, ends_at=1000 + number), now=0)
        seen.append(lines(tmp_path))
    entries = 1 + others
    # The file may have twice the limit and four more lines for each entry.
    allowed = [*range(entries, 2 * 3 + 4 * entries + 2)]
    assert seen == [*allowed, *allowed, *allowed][:24]


async def test_rewriting_the_file_drops_expired_entries(tmp_path: Path) -> None:
    ended = EndedTokens.read(str(tmp_path), now=0, per_user_max=3)
    await ended.add(revoked(1, ends_at=500, mark="bob"), now=0)
    await ended.add(revoked(2, ends_at=501, mark="carol"), now=0)
    for number in range(20):
        await ended.add(revoked(7, ends_at=1000 + number), now=500)
    assert len(ended) == 2
    assert not ended.has(End.REVOKED, "bob", "1", 0)
    assert ended.has(End.REVOKED, "carol", "2", 0)


async def test_the_file_is_removed_when_all_entries_have_expired(tmp_path: Path) -> None:
    ended = EndedTokens.read(str(tmp_path), now=0)
    await ended.add(revoked(1, ends_at=1000), now=0)
    assert len(EndedTokens.read(str(tmp_path), now=1000)) == 0
    assert not (tmp_path / NAME).exists()
    assert len(EndedTokens.read(str(tmp_path), now=1000)) == 0


async def test_the_file_is_rewritten_after_a_failed_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file may end with a partial line, and anything appended to that would be lost with it."""
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


async def test_every_entry_is_synced_and_so_is_the_folder_of_a_new_file(
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
    open_before = count_open_files()
    for number in range(2, 6):
        await ended.add(revoked(number), now=0)
    assert done == ["file"] * 4
    assert count_open_files() <= open_before
