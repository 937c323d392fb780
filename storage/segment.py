"""One segment of a partition, and damage in it, as values. Reading and writing happen elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from whippet.storage.entry import Entry
from whippet.storage.index import Index


class Damage(msgspec.Struct, frozen=True):
    """Bytes that differ from those written, or lost messages. Damage is reported, and everything readable is served."""

    file: str
    position: int
    length: int
    """Bytes from `position` on that are not a whole batch; 0 if messages are missing without a trace."""
    offset: int
    """The first missing offset."""
    next_offset: int
    """The first offset after it that is not missing, or will be given out next."""
    reason: str
    kept_in: str | None = None
    """Where the bytes were set aside because they had to be cut off; None: they are where they were."""

    def __str__(self) -> str:
        kept = f"; the bytes are kept in {self.kept_in}" if self.kept_in else ""
        missing = self.next_offset - self.offset
        if not missing and not self.length:
            return f"{self.file}: {self.reason}{kept}"
        lost = (
            f"{missing} messages from offset {self.offset}" if missing else f"no whole message at offset {self.offset}"
        )
        return f"{self.file}: {self.length} bytes at position {self.position}: {self.reason}; {lost}{kept}"


class Segment:
    """Consecutive batches in one file, named by `start_offset`. `next_offset` is the offset after its last message.

    Only the last segment of a partition grows, and its index is always in memory. Other indexes are loaded on demand.
    """

    __slots__ = (
        "batches",
        "checked",
        "end_checked",
        "index",
        "index_in_file",
        "last_timestamp",
        "left_out",
        "log_bytes",
        "next_offset",
        "saved_bytes",
        "start_offset",
        "whole",
    )

    def __init__(self, start_offset: int, log_bytes: int = 0, next_offset: int | None = None) -> None:
        self.start_offset = start_offset
        self.log_bytes = log_bytes
        self.saved_bytes = 0
        """How much longer the log would be if none of its batches was packed."""
        self.batches = 0
        self.next_offset = start_offset if next_offset is None else next_offset
        self.last_timestamp: int | None = None
        """The base timestamp of the last batch; None until it is needed."""
        self.index: Index | None = None
        self.index_in_file = True
        """Whether the index of a closed segment may be dropped from memory. Not if it could not be written to its
        file."""
        self.whole = False
        """Whether every batch in the index is known to be good: written or checked by this process."""
        self.checked: bytearray | None = None
        """While not `whole`: for each batch in the index, whether it is known to be good; None: none is."""
        self.end_checked = False
        """Whether it was checked that the batches reach up to the next segment. A gap is reported once."""
        self.left_out = False
        """Whether the segment is empty because its offsets were left out on purpose, when the folder was restored."""

    @classmethod
    def empty(cls, start_offset: int) -> Segment:
        segment = cls(start_offset)
        segment.index = Index()
        segment.whole = segment.end_checked = True
        segment.last_timestamp = 0
        return segment

    def add_as_they_are(self, entries: Sequence[Entry]) -> None:
        """Counts batches that were written to the end of the log, none of them packed, and enters them in the index."""
        assert self.index is not None
        self.log_bytes = self.index.add_as_they_are(entries, self.log_bytes)
        self.batches += len(entries)
        self.next_offset = entries[-1].next_offset
        self.last_timestamp = entries[-1].timestamp
        if self.checked is not None:
            self.checked.extend(b"\1" * len(entries))

    @property
    def messages(self) -> int:
        return self.next_offset - self.start_offset
