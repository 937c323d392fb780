"""Reads a range of messages from a part of a log, in a file or in the archive: what a task does.

The log is read in large pieces, packed batches are unpacked, every checksum is compared, and the columns of all batches
in a piece are built at once. What is missing or damaged is fetched from elsewhere, or reported as data loss.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np

from pyspark_whippet import batches
from pyspark_whippet.batches import HEADER, HEADER_BYTES, Array, BadBatch, Messages
from pyspark_whippet.errors import DataLossError
from pyspark_whippet.gateway_reader import Split, gaps, messages_between
from pyspark_whippet.hashes import xxh3
from pyspark_whippet.packages import needed
from pyspark_whippet.packed_batches import Opener, stored_length, unpack_all
from pyspark_whippet.settings import Settings

_log = logging.getLogger(__name__)
PIECE_BYTES = 4 * 1024 * 1024

Read = Callable[[int, int], memoryview]
"""Returns the bytes from a position on, as many as are wanted."""
Missing = Callable[[int, int, str], Iterator[Messages]]
"""Yields messages start .. end-1 from elsewhere, or reports why they are missing."""


class LogChanged(Exception):
    """A part of a log that is not what it was when the job was planned."""


class StoredLog(Protocol):
    """A part of the log of a segment. It begins and ends with whole batches."""

    name: str
    """Where it is, for errors."""
    start: int
    """The offset of its first message."""
    end: int
    """The offset after its last message."""
    position: int
    """Where in the log of the segment it begins."""
    until: int
    """Where in the log of the segment it ends."""

    def entries(self) -> Array:
        """Returns its batches: an index, as far as it is valid."""

    def reading(self, position: int) -> AbstractContextManager[Read]:
        """Opens it for reading from this position of the segment's log on. Raises LogChanged."""


def read(
    settings: Settings, split: Split, log: StoredLog, opener: Opener, missing: Missing, *, has_fallback: bool
) -> Iterator[Messages]:
    """Yields all messages of the split, in pages. With `has_fallback`, damage is no error, since `missing` has other
    copies."""
    at, why = split.start, f"it is not in {log.name}"
    needed("xxhash")
    try:
        for found in _readable(split, log, opener, may_skip=has_fallback or not settings.fail_on_data_loss):
            page = messages_between(found, at, split.end)
            if not len(page):
                continue
            for start, end in gaps(at, page):
                yield from missing(start, end, why)
            at = int(page.offsets[-1]) + 1
            yield page
    except LogChanged as changed:
        why = str(changed)
    if at < split.end:
        yield from missing(at, split.end, why)


def _readable(split: Split, log: StoredLog, opener: Opener, *, may_skip: bool) -> Iterator[Messages]:
    """Yields the messages of undamaged batches. Damage is logged, or raised if nothing may be lost."""
    position, until = _byte_range(split, log)
    while position < until:
        try:
            for found, end in _read_pieces(split, log, opener, position, until):
                yield found
                position = end
        except BadBatch as bad:
            place = f"{log.name} at position {bad.position}"
            if not may_skip:
                raise DataLossError(
                    f"{place} is damaged: {bad.reason}; set failOnDataLoss=false to skip what cannot be read"
                ) from None
            _log.warning("%s is damaged: %s", place, bad.reason)
            position = _next_after(log, bad.position)
        else:
            return


def _read_pieces(
    split: Split, log: StoredLog, opener: Opener, position: int, until: int
) -> Iterator[tuple[Messages, int]]:
    """Yields messages from a position on, each time with the position after them."""
    wanted = PIECE_BYTES
    with log.reading(position) as read_bytes:
        while position < until:
            view = read_bytes(position, min(wanted, until - position))
            if len(view) < (length := _first_batch_bytes(view, position, until)):
                wanted = length
                continue
            if HEADER.unpack_from(view)[0] != split.partition:
                raise BadBatch(position, f"a batch belongs to another partition than {split.partition}")
            try:
                plain = unpack_all(view, opener)
            except BadBatch as bad:
                raise BadBatch(position + bad.position, bad.reason) from None
            try:
                yield batches.decode(plain.content, xxh3), position + plain.stored_bytes
            except BadBatch as bad:
                stored = position + plain.stored_position(bad.position)
                if bad.position:
                    yield batches.decode(plain.content[: bad.position], xxh3), stored
                raise BadBatch(stored, bad.reason) from None
            position += plain.stored_bytes


def _first_batch_bytes(view: memoryview, position: int, until: int) -> int:
    """Returns its length, or raises BadBatch if the length is invalid."""
    if len(view) <= HEADER_BYTES:
        raise BadBatch(position, "the file ends in the middle of a batch")
    length = stored_length(view)
    if not HEADER_BYTES < length <= until - position:
        raise BadBatch(position, "the length of a batch is invalid")
    return length


# ----------------------------------------------------------------------------------------------- where to read in a log


def _byte_range(split: Split, log: StoredLog) -> tuple[int, int]:
    """Returns the positions of the batch with the first message, and of the one after the last."""
    if (split.start, split.end) == (log.start, log.end):
        return log.position, log.until
    found = log.entries()
    starts = found["position"].astype(np.int64)
    # Where the index ends before the log does, the rest is read as well: it may turn out to be damaged.
    end = int(starts[-1]) + int(found["length"][-1]) if len(found) else log.position
    first = int(np.searchsorted(found["offset"].astype(np.int64) + found["count"], split.start, side="right"))
    last = int(np.searchsorted(found["offset"], split.end))
    start = int(starts[first]) if first < len(found) else end
    return start, int(starts[last]) if last < len(found) else log.until


def _next_after(log: StoredLog, position: int) -> int:
    """Returns the start of the next batch in the index."""
    found = log.entries()["position"]
    place = int(np.searchsorted(found, position, side="right"))
    return int(found[place]) if place < len(found) else log.until
