"""Long reads: what a poll returns when that is too much to be held in memory. It is read in pieces while it is sent.

The shard finds the messages and opens their files, so the length is known before the first byte is read, and nothing
that happens meanwhile changes it: what readers see is never rewritten, and a deleted file stays readable until it is
closed. Each file is closed when nothing refers to it any more, because a response may be dropped at any step on its way
to the socket. Packed batches are read and unpacked as a whole, each time, so the largest of them may be in memory.
"""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, NamedTuple

from whippet.storage import packing
from whippet.storage.batch import Readable
from whippet.storage.errors import InvalidBatch, ReadFailed
from whippet.storage.files import read_fully

if TYPE_CHECKING:
    from whippet.storage.encryption import Seal
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
    unpacked: int | None = None
    """How many bytes of packed batches are sent once they are unpacked; None: the bytes are sent as they are."""
    skipped: int = 0
    """How many bytes of an unpacked batch come before those that are sent."""

    @property
    def sent(self) -> int:
        """How many bytes are sent."""
        return len(self.head) + (self.length if self.unpacked is None else self.unpacked)


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
        content = self._content(position, length)
        return b"".join((head, content)) if head else content

    def _content(self, position: int, length: int) -> bytes:
        try:
            content = read_fully(self._shard.handles.files, self.handle, length, position)
        except OSError as error:
            raise ReadFailed(self.path, error) from error
        if len(content) < length:
            raise ReadFailed(self.path, OSError(errno.ENODATA, "it was cut off meanwhile"))
        return content

    def read_packed(self, extent: Extent, seal: Seal | None) -> Readable:
        """Runs on the shard's thread."""
        view = memoryview(self._content(extent.position, extent.length))
        parts: list[Readable] = []
        try:
            while view:
                length = packing.stored_length(view)
                parts += packing.unpack(view[:length], seal)
                view = view[length:]
        except InvalidBatch as error:
            raise ReadFailed(self.path, OSError(errno.EBADMSG, str(error))) from error
        if not extent.skipped:
            return b"".join((extent.head, *parts))
        assert extent.unpacked is not None
        whole = memoryview(b"".join(parts))
        return b"".join((extent.head, whole[extent.skipped : extent.skipped + extent.unpacked]))

    def __del__(self) -> None:
        self._shard.close_apart(self.path, self.handle)


class LongRead:
    """Batches, and slices of them, that are read while they are sent. Its length is that of all of them."""

    __slots__ = ("_at", "_extents", "_files", "_rest", "_seal", "_shard", "_size", "messages", "next_offset")

    def __init__(self, shard: Shard, located: Located, files: dict[str, OpenFile], seal: Seal | None = None) -> None:
        self._seal = seal
        self.messages = located.messages
        self.next_offset = located.next_offset
        self._shard = shard
        self._extents = located.extents
        self._files = files
        self._at = 0
        """How much of the first extent was read."""
        self._rest: list[Readable] = []
        """Buffers from memory that are sent after the last extent."""
        self._size = sum(extent.sent for extent in located.extents)

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
        extent = self._extents[0]
        head, path, position, length, unpacked, _ = extent
        file, at = self._files[path], self._at
        size = min(length - at, PIECE_BYTES) if unpacked is None else length
        self._at += size
        if self._at == length:
            del self._extents[0]
            self._at = 0
            if not (self._extents and self._extents[0].path == path):
                del self._files[path]
        if unpacked is not None:
            return self._shard.call(lambda: file.read_packed(extent, self._seal), brief=True)
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
    return LongRead(shard, located, files, log.seal)
