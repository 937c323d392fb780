"""Reads of segments with packed batches: like the reads of plain ones, with every packed batch unpacked on the way.

Used by LogReader, on the shard's thread. Lengths and room are those of the plain batches, which is what readers get.
"""

from __future__ import annotations

from whippet.storage import batch as batches
from whippet.storage import long_reads, packing
from whippet.storage.encryption import Seal
from whippet.storage.errors import InvalidBatch
from whippet.storage.fetched import Fetched
from whippet.storage.index import Index
from whippet.storage.long_reads import Extent


class NotUnpacked(Exception):
    """The intact packed batch with this number in the index cannot be unpacked."""

    def __init__(self, i: int, reason: str) -> None:
        super().__init__(reason)
        self.i = i
        self.reason = reason


def unpack_to_request(
    index: Index,
    content: memoryview,
    first: int,
    last: int,
    offset: int,
    count: int,
    room: int,
    at_least_one: bool,
    seal: Seal | None,
) -> tuple[Fetched, int]:
    """Unpacks the batches first .. last-1 and trims them to the request."""
    buffers: list[batches.Readable] = []
    messages = used = 0
    origin = index.position(first)
    next_offset = offset
    for i in range(first, last):
        start = index.position(i) - origin
        view = content[start : start + index.stored_length(i)]
        length, base, total = index.length(i), index.base_offset(i), index.count(i)
        skip = max(offset - base, 0)
        taken = min(total - skip, count - messages)
        if taken == total and used + length <= room:
            buffers += unpacked(index, i, view, seal)
            used += length
        else:
            whole = b"".join(unpacked(index, i, view, seal))
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
