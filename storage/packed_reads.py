"""Reads of segments with packed batches: like the reads of plain ones, with every packed batch unpacked on the way.

Used by LogReader, on the shard's thread. Lengths and room are those of the plain batches, which is what readers get.
"""

from __future__ import annotations

from functools import partial

from whippet.storage import batch as batches
from whippet.storage import long_reads, packing
from whippet.storage.encryption import Seal
from whippet.storage.errors import InvalidBatch
from whippet.storage.fetched import Fetched
from whippet.storage.index import Index
from whippet.storage.long_reads import Extent
from whippet.storage.segment import Segment
from whippet.storage.unpacking import AHEAD_BYTES_MAX, LARGE_BYTES, Unpacked, unpacked_batches

Held = Unpacked | memoryview | None
"""A batch for a reader: being unpacked, as it is stored, or still to be read."""
AHEAD = memoryview(b"")
"""Stands for a batch that is unpacked ahead already."""


class NotUnpacked(Exception):
    """The intact packed batch with this number in the index cannot be unpacked."""

    def __init__(self, i: int, reason: str) -> None:
        super().__init__(reason)
        self.i = i
        self.reason = reason


def last_ahead(index: Index, first: int, last: int, end: int) -> int:
    """The batch after the last one that is unpacked ahead for a reader of the batches first .. last-1: about as much as
    it reads now, if these are large batches."""
    room = min(sum(index.length(i) for i in range(first, last)), AHEAD_BYTES_MAX)
    while last < len(index) and room > 0 and index.base_offset(last) < end and _is_large(index, last):
        room -= index.length(last)
        last += 1
    return last


def known(segment: Segment, index: Index, first: int, last: int, until: int, *, keep: bool) -> list[Held]:
    """The batches first .. last-1 for a reader, and after them those that are to be unpacked ahead, as far as they are
    unpacked or begun."""
    found: list[Held] = []
    for i in range(first, until):
        position = index.position(i)
        if i < last:
            found.append(unpacked_batches.take(segment, position, keep=keep) if _is_large(index, i) else None)
        else:
            found.append(AHEAD if unpacked_batches.has(segment, position) else None)
    return found


def fill(
    held: list[Held], segment: Segment, index: Index, content: memoryview, first: int, last: int, missing: int,
    seal: Seal | None, *, keep: bool,
) -> None:  # fmt: skip
    """Adds the batches that are missing from `missing` on, where `content` begins. All large ones but the first begin
    to be unpacked on other threads."""
    origin = index.position(missing)
    is_first = True
    for i in range(missing, first + len(held)):
        if held[i - first] is not None:
            continue
        start = index.position(i) - origin
        stored = content[start : start + index.stored_length(i)]
        if not _is_large(index, i):
            held[i - first] = stored
            continue
        batch = held[i - first] = Unpacked(partial(packing.unpack, stored, seal))
        if not is_first or i >= last:
            batch.begin()
        is_first = False
        if i >= last or keep:
            unpacked_batches.put(segment, index.position(i), batch, index.length(i) + len(stored), was_read=i < last)


def _is_large(index: Index, i: int) -> bool:
    """Returns whether unpacking a batch takes long enough to be worth another thread. Decrypting alone does not."""
    return index.length(i) >= LARGE_BYTES and index.stored_length(i) < index.length(i)


def unpack_to_request(
    index: Index,
    held: list[Held],
    first: int,
    last: int,
    offset: int,
    count: int,
    room: int,
    at_least_one: bool,
    seal: Seal | None,
) -> tuple[Fetched, int]:
    """Trims the batches first .. last-1 to the request."""
    buffers: list[batches.Readable] = []
    messages = used = 0
    next_offset = offset
    for i in range(first, last):
        length, base, total = index.length(i), index.base_offset(i), index.count(i)
        parts = _parts(index, i, held[i - first], seal)
        skip = max(offset - base, 0)
        taken = min(total - skip, count - messages)
        if taken == total and used + length <= room:
            buffers += parts
            used += length
        else:
            whole = b"".join(parts)
            frames = batches.frame_positions(whole)
            taken, pieces = batches.cut_to_fit(whole, frames, skip, taken, room - used, at_least_one and not messages)
            buffers += pieces
            used += sum(map(len, pieces))
        messages += taken
        next_offset = base + skip + taken
        if taken < total - skip:
            # Either the count or the room is used up.
            break
    return Fetched(buffers, messages, next_offset), used


def _parts(index: Index, i: int, held: Held, seal: Seal | None) -> tuple[batches.Readable, ...]:
    if isinstance(held, Unpacked):
        try:
            return held.parts()
        except InvalidBatch as error:
            raise NotUnpacked(i, str(error)) from error
    assert held is not None
    return unpacked(index, i, held, seal)


def unpacked(index: Index, i: int, stored: memoryview, seal: Seal | None) -> tuple[batches.Readable, ...]:
    if not index.is_packed(i):
        return (stored,)
    try:
        return packing.unpack(stored, seal)
    except InvalidBatch as error:
        raise NotUnpacked(i, str(error)) from error


def add_extent(extents: list[Extent], extent: Extent) -> None:
    """Adds an extent, or adds it to the last one if both are of packed batches that are next to each other, and little
    enough to be read together."""
    last = extents[-1] if extents else None
    if (
        last is not None
        and last.unpacked is not None
        and extent.unpacked is not None
        and not (last.skipped or extent.skipped or extent.head or last.head)
        and last.path == extent.path
        and last.position + last.length == extent.position
        and last.unpacked + extent.unpacked <= long_reads.PIECE_BYTES
    ):
        unpacked_bytes = last.unpacked + extent.unpacked
        extents[-1] = last._replace(length=last.length + extent.length, unpacked=unpacked_bytes)
    else:
        extents.append(extent)
