"""One segment of a partition, and what is known of damage in it. Values only: who reads and writes is elsewhere."""

from __future__ import annotations

import msgspec

from whippet.storage.index import Index


class Damage(msgspec.Struct, frozen=True):
    """Bytes that are not what was written, or messages that are gone. They are reported and served around."""

    file: str
    position: int
    length: int
    """Bytes from `position` that are no whole batch; 0 when nothing but messages is missing."""
    offset: int
    """The first offset that is not there."""
    next_offset: int
    """The first offset after it that is there again, or will be given next."""
    reason: str
    kept_in: str | None = None
    """Where the bytes were kept aside when they had to be cut off; None: they are where they were."""

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
    """A run of batches in one file. `start_offset` names it; `next_offset` is the offset after its last message.

    Only the last segment of a partition grows; its index is always in memory. The index of a closed one comes and goes.
    """

    __slots__ = (
        "batches",
        "checked",
        "end_checked",
        "index",
        "index_in_file",
        "last_timestamp",
        "log_bytes",
        "next_offset",
        "start_offset",
        "whole",
    )

    def __init__(self, start_offset: int, log_bytes: int = 0, next_offset: int | None = None) -> None:
        self.start_offset = start_offset
        self.log_bytes = log_bytes
        self.batches = 0
        self.next_offset = start_offset if next_offset is None else next_offset
        self.last_timestamp: int | None = None
        """Base timestamp of the last batch; None while nobody has asked."""
        self.index: Index | None = None
        self.index_in_file = True
        """Whether memory may forget the index of a closed segment; not when it could not be written."""
        self.whole = False
        """Every batch in the index is known to be good: written or checked by this process."""
        self.checked: bytearray | None = None
        """While not `whole`: for each batch in the index, whether it is known to be good; None: for none of them."""

        self.end_checked = False
        """Whether it was looked at if the batches reach up to the next segment; what is missing is reported once."""

    @classmethod
    def empty(cls, start_offset: int) -> Segment:
        segment = cls(start_offset)
        segment.index = Index()
        segment.whole = segment.end_checked = True
        segment.last_timestamp = 0
        return segment

    @property
    def messages(self) -> int:
        return self.next_offset - self.start_offset
