"""The part of a partition's log that is only in the archive, as the partition sees it.

storage/archive/histories.py implements it. It is here so that a partition needs to know nothing of archives.
"""

from __future__ import annotations

from typing import Protocol

from whippet.storage.fetched import Fetched


class History(Protocol):
    """Used on the event loop."""

    first_offset: int
    """The oldest offset that may be read. The local log, or the archive's part, begins there."""

    async def read(self, offset: int, count: int, room: int, until: int) -> Fetched:
        """Reads like a log, up to the offset `until` at which the local log begins."""
        ...

    async def offset_at(self, timestamp: int, until: int) -> int:
        """The first offset with this time or a later one; `until` if there is none."""
        ...

    async def keep_from(self, offset: int) -> None:
        """Nothing before an offset may be read from now on."""
        ...

    async def expire(self, timestamp: int, until: int, unread: int) -> None:
        """Segments whose messages are all older than a time may not be read from now on, except from the offset
        `unread` on."""
        ...
