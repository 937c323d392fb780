"""access/ended_tokens: access tokens that were ended early, kept until they would have expired.

Each is a line of JSON, which is appended and synced before the response. A start reads the file and rewrites it without
expired tokens. The entries are in memory, for the event loop; a thread writes the file.

There is a limit per user, beyond which another entry is refused: nobody can fill the memory, revive a token by ending
many others, or end tokens of others. When all sessions of a user end, the user's entries are obsolete and are dropped.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import os
from collections.abc import Iterator

import msgspec

from whippet.app.errors import Code, CommandError
from whippet.storage import files
from whippet.storage.documents import NOT_UNDERSTOOD

_log = logging.getLogger(__name__)

NAME = "ended_tokens"
PER_USER_MAX = 10_000
FOLDED = ""
"""Stands for all tokens of the user issued until then, in place of a token's id. Only files of older versions have
these."""


class End(enum.IntEnum):
    REVOKED = 1
    """Not valid any more."""
    REFRESHED = 2
    """Valid until it expires, but cannot be refreshed again."""


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """Times in seconds."""

    end: End
    mark: str
    """The user's mark."""
    id: str
    given_at: int
    ends_at: int
    epoch: int = 0
    """The epoch of the user's sessions."""


_UNKNOWN = 2**62
"""The number of lines of a file that may end with a partial line: it is rewritten before anything is appended."""

_LINE = msgspec.json.Decoder(Entry)


class EndedTokens:
    def __init__(self, path: str, entries: list[Entry], per_user_max: int = PER_USER_MAX) -> None:
        self._path = path
        self._per_user_max = per_user_max
        self._of_user: dict[tuple[End, str], dict[str, Entry]] = {}
        self._writing = asyncio.Lock()
        self._lines = 0
        for entry in entries:
            self._put(entry)

    @classmethod
    def read(cls, folder: str, now: int, per_user_max: int = PER_USER_MAX) -> EndedTokens:
        """Blocks."""
        path = os.path.join(folder, NAME)
        try:
            content = files.read_all(files.Files(), path)
        except FileNotFoundError:
            content = b""
        ended = cls(path, [entry for entry in _entries(content, path) if entry.ends_at > now], per_user_max)
        if content:
            ended._rewrite()
        return ended

    def has(self, end: End, mark: str, token_id: str, given_at: int) -> bool:
        of_user = self._of_user.get((end, mark))
        if of_user is None:
            return False
        folded = of_user.get(FOLDED)
        return token_id in of_user or (folded is not None and given_at <= folded.given_at)

    async def add(self, entry: Entry, now: int) -> None:
        """The entry applies at once; on return it is durable. Raises OSError if it could not be written, and
        CommandError if the user has too many."""
        self._make_room(entry, now)
        self._put(entry)
        async with self._writing:
            if self._lines > 2 * self._per_user_max + 4 * len(self):
                self._forget(now)
                await asyncio.to_thread(self._rewrite)
                return
            lines, self._lines = self._lines, _UNKNOWN
            await asyncio.to_thread(self._append, msgspec.json.encode(entry) + b"\n")
            self._lines = lines + 1

    def __len__(self) -> int:
        return sum(map(len, self._of_user.values()))

    # ------------------------------------------------------------------------------------------------------- internals

    def _put(self, entry: Entry) -> None:
        of_user = self._of_user.setdefault((entry.end, entry.mark), {})
        known = of_user.get(entry.id)
        if known is not None:
            entry = msgspec.structs.replace(
                entry, given_at=max(entry.given_at, known.given_at), ends_at=max(entry.ends_at, known.ends_at)
            )
        of_user[entry.id] = entry

    def _make_room(self, entry: Entry, now: int) -> None:
        key = entry.end, entry.mark
        of_user = self._of_user.get(key, {})
        if len(of_user) < self._per_user_max or entry.id in of_user:
            return
        left = {name: each for name, each in of_user.items() if each.ends_at > now and each.epoch >= entry.epoch}
        if len(left) >= self._per_user_max:
            seconds = min(each.ends_at for each in left.values()) - now
            raise CommandError(
                Code.TOO_MANY_ENDED_TOKENS,
                f"{len(left)} access tokens of the user were revoked or refreshed early, which is the limit: "
                f"try again in {seconds} s, or end all sessions",
                retry_after_s=seconds,
            )
        self._of_user[key] = left

    def _forget(self, now: int) -> None:
        """Removes expired tokens."""
        for key, of_user in list(self._of_user.items()):
            left = {name: entry for name, entry in of_user.items() if entry.ends_at > now}
            if left:
                self._of_user[key] = left
            else:
                del self._of_user[key]

    def _append(self, line: bytes) -> None:
        disk = files.Files()
        folder = os.path.dirname(self._path)
        new = not disk.exists(self._path)
        if new:
            files.make_folders(disk, folder)
        handle = disk.open_for_writing(self._path)
        try:
            files.write_all(disk, handle, [line], disk.size(handle))
            disk.sync(handle)
        finally:
            disk.close(handle)
        if new:
            disk.sync_folder(folder)

    def _rewrite(self) -> None:
        entries = [entry for of_user in list(self._of_user.values()) for entry in list(of_user.values())]
        if entries:
            content = b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries)
            files.replace(files.Files(), self._path, content)
        else:
            files.Files().remove(self._path)
        self._lines = len(entries)


def _entries(content: bytes, path: str) -> Iterator[Entry]:
    """Ignores a partial last line, which was never acknowledged. Reports any other line that cannot be decoded."""
    for number, line in enumerate(content.split(b"\n")[:-1], 1):
        try:
            yield _LINE.decode(line)
        except NOT_UNDERSTOOD as error:
            _log.error("%s: line %d cannot be understood; an ended token may be valid again: %s", path, number, error)
