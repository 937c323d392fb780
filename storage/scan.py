"""Reads a log file batch by batch, finds the damage, and after damage the next whole batch. It changes no file.

Recovery uses it on the last segment, the log on any segment whose index is missing or wrong.

How it finds the next whole batch: a payload may contain the bytes of whole batches, so nothing inside a damaged batch
is considered as long as it is known where that batch ends. That follows from its frames, each with a checksum of its
own, if all of them are good, or otherwise from its header, because then the damage is in the frames. If neither helps,
or no batch begins there, it searches for the 204 reserved zeros of a batch header, and accepts what surrounds them only
if that is a good batch of this partition with a later offset.

A packed batch (packing.py) is checked as it is stored. Where a damaged one ends is in its header twice, and its header
is found by its magic.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from heapq import merge
from typing import NamedTuple

import xxhash

from whippet.storage import batch as batches
from whippet.storage import packing
from whippet.storage.errors import InvalidBatch
from whippet.storage.files import Files, read_fully
from whippet.storage.index import Index
from whippet.storage.segment import Damage

CHUNK_BYTES = 4 << 20

_ZEROS = batches.NO_BYTES_RESERVED
_NOT_ZERO = re.compile(rb"[^\0]")
_OVERLAP = 4 * batches.HEADER_BYTES


class Scan(NamedTuple):
    """The result of a scan. There is no whole batch between `end` and the end of the file."""

    end: int
    """The position after the last whole batch."""
    next_offset: int
    damage: list[Damage]
    """The damage before `end`."""
    reason: str | None
    """Why the bytes at `end` are not a batch; None if the file ends there."""


class Window:
    """Reads a file in large pieces and returns views of small ones."""

    def __init__(self, files: Files, handle: int, size: int) -> None:
        self.size = size
        self._files = files
        self._handle = handle
        self._position = 0
        self._piece = memoryview(b"")
        self._unit = 1
        """The length of the last long view: most batches are as long as the one before, so whole ones are read."""

    def view(self, position: int, length: int) -> memoryview:
        """The bytes at a position; fewer than requested only at the end of the file."""
        start = position - self._position
        if start < 0 or start + length > len(self._piece):
            if length > batches.HEADER_BYTES:
                self._unit = min(length, CHUNK_BYTES)
            wanted = max(length, CHUNK_BYTES - CHUNK_BYTES % self._unit)
            wanted = min(wanted, max(self.size - position, 0))
            self._piece = memoryview(read_fully(self._files, self._handle, wanted, position))
            self._position, start = position, 0
        return self._piece[start : start + length]


def scan(
    window: Window, index: Index, file: str, partition_id: int, position: int, offset: int, ceiling: int = 2**64
) -> Scan:
    """Adds every whole batch from `position` on to the index. `offset` is the offset expected there. A batch that
    starts at `ceiling` or later belongs to the next segment."""
    damage: list[Damage] = []
    while position < window.size:
        stored, reason = _whole(window, position, partition_id, offset, ceiling)
        if reason is not None:
            found = _next_whole(window, position, partition_id, offset, ceiling)
            if found is None:
                return Scan(position, offset, damage, reason)
            after = batches.header(window.view(found, batches.HEADER_BYTES)).base_offset
            damage.append(Damage(file, position, found - position, offset, after, reason))
            position, offset = found, after
            continue
        named = batches.header(window.view(position, batches.HEADER_BYTES))
        if named.base_offset > offset:
            damage.append(Damage(file, position, 0, offset, named.base_offset, "the messages before it are missing"))
        index.add(named.base_offset, position, named.base_timestamp, named.length, named.message_count, stored)
        position += stored
        offset = named.base_offset + named.message_count
    return Scan(position, offset, damage, None)


def _whole(window: Window, position: int, partition_id: int, offset: int, ceiling: int) -> tuple[int, str | None]:
    """The length in the file of the whole batch at a position, or the reason why there is none."""
    head = window.view(position, batches.HEADER_BYTES)
    if len(head) < batches.HEADER_BYTES:
        return 0, f"the file ends inside a batch header, after {len(head)} bytes of it"
    named = batches.header(head)
    if named.partition_id != partition_id:
        return 0, f"not a batch of partition {partition_id}"
    stored = packing.stored_length(head)
    if not batches.HEADER_BYTES < stored <= min(window.size - position, batches.UNLIMITED.batch_bytes):
        return 0, f"a batch of {stored} bytes, but the file has only {window.size - position} left"
    if named.base_offset < offset:
        return 0, f"a batch with offset {named.base_offset}, where {offset} was expected"
    if named.base_offset + named.message_count > ceiling:
        return 0, f"a batch with offset {named.base_offset}, which belongs to the next segment"
    try:
        if packing.is_packed(head):
            packing.check(window.view(position, stored))
        else:
            batches.check(window.view(position, stored))
    except InvalidBatch as error:
        return 0, str(error)
    return stored, None


def _next_whole(window: Window, position: int, partition_id: int, offset: int, ceiling: int) -> int | None:
    ends = _ends_of_damaged(window, position, partition_id, offset)
    for end in ends:
        if _whole(window, end, partition_id, offset, ceiling)[1] is None:
            return end
    if not ends:
        return None
    start = first = ends[0]
    while True:
        piece = bytes(window.view(start, CHUNK_BYTES))
        for candidate in _candidates(piece):
            at = start + candidate
            if at >= first and _whole(window, at, partition_id, offset, ceiling)[1] is None:
                return at
        if start + len(piece) >= window.size:
            return None
        start += len(piece) - _OVERLAP


def _ends_of_damaged(window: Window, position: int, partition_id: int, offset: int) -> list[int]:
    """Where to look for the batch after a damaged one, in ascending order; nowhere if the file ends inside the damaged
    one."""
    head = window.view(position, batches.HEADER_BYTES)
    if len(head) < batches.HEADER_BYTES:
        return []
    last = window.size - batches.HEADER_BYTES
    if packing.resembles(head):
        claimed = [position + length for length in packing.claimed_lengths(head) if length > batches.HEADER_BYTES]
        return [end for end in claimed or [position + 1] if end <= last]
    end = _end_of_damaged_plain(window, head, position, partition_id, offset)
    return [] if end is None or end > last else [end]


def _end_of_damaged_plain(
    window: Window, head: memoryview, position: int, partition_id: int, offset: int
) -> int | None:
    named = batches.header(head)
    zeros = bytes(head[batches.RESERVED_AT :]).count(0)
    expected = (named.partition_id, named.base_offset) == (partition_id, offset)
    if not (expected or (zeros >= len(_ZEROS) - 1 and named.message_count)):
        # This does not even resemble a header, so nothing in it is of use.
        return position + 1
    good, end = _good_frames(window, position + batches.HEADER_BYTES)
    claimed = position + named.length
    if good and (good >= named.message_count or claimed <= end):
        return end
    if named.length <= batches.HEADER_BYTES:
        return position + 1
    return claimed if claimed <= window.size else None


def _good_frames(window: Window, position: int) -> tuple[int, int]:
    """How many frames in a row have good checksums, and where they end."""
    count = 0
    while len(head := window.view(position, batches.FRAME_BYTES)) == batches.FRAME_BYTES:
        checksum, _, delta, _, headers, payload, reserved = batches.FRAME.unpack(head)
        length = batches.FRAME_BYTES + headers + payload
        if delta != count or reserved or not payload or length > window.size - position:
            break
        if xxhash.xxh3_64_intdigest(window.view(position, length)[8:]) != checksum:
            break
        count += 1
        position += length
    return count, position


def _candidates(piece: bytes) -> Iterator[int]:
    """Where the header of a batch may begin, in ascending order as far as they are apart: before its reserved zeros, or
    before the magic of a packed one."""
    zeros, magics = _runs_of_zeros(piece), _magics(piece)
    for found in merge(zeros, magics):
        if piece.startswith(packing.MAGIC, found):
            yield found - batches.RESERVED_AT
        else:
            # The last nonzero byte of the message count is one to four bytes before the reserved zeros.
            yield from range(found - 52, found - 48)


def _magics(piece: bytes) -> Iterator[int]:
    at = piece.find(packing.MAGIC)
    while at >= 0:
        yield at
        at = piece.find(packing.MAGIC, at + 1)


def _runs_of_zeros(piece: bytes) -> Iterator[int]:
    """The starts of all runs of zeros that are long enough to be the reserved bytes of a batch header."""
    at = piece.find(_ZEROS)
    while at >= 0:
        yield at
        end = _NOT_ZERO.search(piece, at)
        at = piece.find(_ZEROS, end.start()) if end else -1
