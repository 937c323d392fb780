"""A disk that becomes full in the middle of a write, and counts its syncs."""

from __future__ import annotations

from collections.abc import Sequence

from whippet.storage.files import Buffer, Files


class BadSyncs(Files):
    """A disk that writes only some bytes of the next write, and then reports that it is full."""

    def __init__(self) -> None:
        self.room: int | None = None
        self.syncs = 0

    def write(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        if self.room is None:
            return super().write(handle, buffers, position)
        content = b"".join(buffers)[: self.room]
        if not content:
            raise OSError(28, "No space left on device")
        self.room -= len(content)
        return super().write(handle, [content], position)

    def sync(self, handle: int) -> None:
        self.syncs += 1
        super().sync(handle)
