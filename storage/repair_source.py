"""The values that a repair gets from an archive, and those that it reports. archive/repairing.py reads the archive."""

from __future__ import annotations

from typing import Protocol

import msgspec

from whippet.storage.files import Files
from whippet.storage.index import Index
from whippet.storage.layout import PartitionId
from whippet.storage.partition_check import Part
from whippet.storage.segment import Damage


class Finding(msgspec.Struct, frozen=True):
    """Something that was damaged, and what became of it."""

    part: Part
    damage: Damage
    repaired: bool
    """In a dry run: whether it would be."""
    how: str
    """What was done, or why nothing was and what the next start of the server does."""
    kept_in: tuple[str, ...] = ()
    """Where the damaged bytes are kept."""


class Outcome(msgspec.Struct, frozen=True):
    """The findings and repairs of one partition, or, without a place, of all other files."""

    place: PartitionId | None
    stream_name: str
    topic_name: str
    findings: list[Finding]
    notes: list[str] = []


class ArchivedSegment(Protocol):
    """The log of a segment in the archive, whose batches were read and are whole."""

    entries: Index
    """Its whole batches."""
    end: int
    """The position after the last one."""
    notes: list[str]
    """What is wrong with its objects."""

    @property
    def next_offset(self) -> int: ...

    def read(self, position: int, length: int) -> bytes: ...


class ArchivedPartition(Protocol):
    """A history of a partition in the archive."""

    starts: list[int]
    """The start offsets of its segments."""
    first_offset: int
    next_offset: int
    """Where the partition continued when it was archived last."""
    offsets: dict[str, bytes]
    """The files below `offsets/`."""

    def segment(self, start: int, ceiling: int) -> ArchivedSegment | None:
        """Reads a segment; batches from the offset `ceiling` on do not count."""

    def described(self, start: int) -> Index | None:
        """The entries of a segment's index, without reading its log; None if they cannot be read."""

    def producers(self) -> bytes | None: ...


class Source(Protocol):
    """An archive."""

    location: str
    store: str
    """The id of the data folder that it belongs to."""
    claim: str
    complete: bool
    """Whether the server had stopped and archived everything."""
    given_out: int
    """How many offsets may have been given out since the last complete round."""

    def document(self, name: str) -> bytes | None:
        """The stored bytes of a document by its path in a data folder whose folders have the usual names."""

    notes: list[str]
    """What is wrong with its documents."""

    def histories(self, place: PartitionId, incarnation: int, *, older: bool) -> list[ArchivedPartition]:
        """The history that goes on, or those that were set aside, newest first."""

    def upload_again(
        self, place: PartitionId, incarnation: int, files: Files, folder: str, *, dry_run: bool
    ) -> list[Finding]:
        """Uploads objects of a partition that are damaged, where the data folder has what they should have."""
