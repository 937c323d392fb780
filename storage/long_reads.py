"""Long reads: what a poll returns when that is too much to be held in memory. It is read in pieces while it is sent.

The shard finds the messages and opens their files, so the length is known before the first byte is read, and nothing
that happens meanwhile changes it: what readers see is never rewritten, and a deleted file stays readable until it is
closed. Each file is closed when nothing refers to it any more, because a response may be dropped at any step on its way
to the socket.
"""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, NamedTuple

from whippet.storage.batch import Readable
from whippet.storage.errors import ReadFailed
from whippet.storage.files import read_fully

if TYPE_CHECKING:
    from whippet.storage.log_reader import LogReader
    from whippet.storage.shard import Shard
    from whippet.storage.tail import Tail

PIECE_BYTES = 1 << 20
"""The size of one read. A long read holds one piece that is being sent, and one that is read ahead."""
HELD_BYTES_MAX = 8 << 20
"""Up to this size the result of a read is held in memory. A hop to the shard for each piece is not worth less."""


class Extent(NamedTuple):
    """Bytes of a segment's file, and what is sent before them: the new header of a batch that was cut."""

    head: Readable
    path: str
    position: int
    length: int


class Located(NamedTuple):
    """Like `Fetched`, with the places of the messages instead of the messages."""

    extents: list[Extent]
    messages: int
    next_offset: int


class OpenFile:
    """A file that stays open while anything refers to it."""

    __slots__ = ("_shard", "handle", "path")

    def __init__(self, shard: Shard, path: str, handle: int) -> None:
        self._shard = shard
        self.path = path
        self.handle = handle

    def read(self, head: Readable, position: int, length: int) -> Readable:
        """Runs on the shard's thread."""
        try:
            content = read_fully(self._shard.handles.files, self.handle, length, position)
        except OSError as error:
            raise ReadFailed(self.path, error) from error
        if len(content) < length:
            raise ReadFailed(self.path, OSError(errno.ENODATA, "it was cut off meanwhile"))
        return b"".join((head, content)) if head else content

    def __del__(self) -> None:
        self._shard.close_apart(self.path, self.handle)


class LongRead:
    """Batches, and slices of them, that are read while they are sent. Its length is that of all of them."""

    __slots__ = ("_at", "_extents", "_files", "_rest", "_shard", "_size", "messages", "next_offset")

    def __init__(self, shard: Shard, located: Located, files: dict[str, OpenFile]) -> None:
        self.messages = located.messages
        self.next_offset = located.next_offset
        self._shard = shard
        self._extents = located.extents
        self._files = files
        self._at = 0
        """How much of the first extent was read."""
        self._rest: list[Readable] = []
        """Buffers from memory that are sent after the last extent."""
        self._size = sum(len(extent.head) + extent.length for extent in located.extents)

    def __len__(self) -> int:
        return self._size

    def add_from_tail(self, tail: Tail, count: int, room: int, end: int) -> None:
        """Adds the messages that follow and are in no file yet."""
        start, left = tail.first_offset, min(room - self._size, HELD_BYTES_MAX)
        if start is None or start > self.next_offset:
            return
        found = tail.read(self.next_offset, count - self.messages, left, end)
        size = sum(map(len, found.buffers))
        if size > left and self.messages:
            # The next message alone is larger than what is left.
            return
        self._rest = found.buffers
        self._size += size
        self.messages += found.messages
        self.next_offset = found.next_offset

    def next_piece(self) -> asyncio.Future[Readable] | None:
        """Begins to read the next piece; None after the last one."""
        if not self._extents:
            if not self._rest:
                return None
            found: asyncio.Future[Readable] = asyncio.get_running_loop().create_future()
            found.set_result(self._rest.pop(0))
            return found
        head, path, position, length = self._extents[0]
        file, at = self._files[path], self._at
        size = min(length - at, PIECE_BYTES)
        self._at += size
        if self._at == length:
            del self._extents[0]
            self._at = 0
            if not (self._extents and self._extents[0].path == path):
                del self._files[path]
        first, start = b"" if at else head, position + at
        return self._shard.call(lambda: file.read(first, start, size), brief=True)


def locate(log: LogReader, shard: Shard, offset: int, count: int, room: int, end: int) -> LongRead | None:
    """Runs on the shard's thread. Returns None if too many files are open for long reads already."""
    located = log.locate(offset, count, room, end)
    files: dict[str, OpenFile] = {}
    for extent in located.extents:
        if extent.path in files:
            continue
        try:
            handle = shard.handles.open_apart(extent.path)
        except OSError as error:
            raise ReadFailed(extent.path, error) from error
        if handle is None:
            return None
        files[extent.path] = OpenFile(shard, extent.path, handle)
    return LongRead(shard, located, files)
