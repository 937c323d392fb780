"""Reads a log file batch by batch, finds the damage, and after damage the next whole batch. It changes no file.

Recovery uses it on the last segment, the log on any segment whose index is missing or wrong.

How it finds the next whole batch: a payload may contain the bytes of whole batches, so nothing inside a damaged batch
is considered as long as it is known where that batch ends. That follows from its frames, each with a checksum of its
own, if all of them are good, or otherwise from its header, because then the damage is in the frames. If neither helps,
or no batch begins there, it searches for the 204 reserved zeros of a batch header, and accepts what surrounds them only
if that is a good batch of this partition with a later offset.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import xxhash

from whippet.storage import batch as batches
from whippet.storage.errors import InvalidBatch
from whippet.storage.files import Files, read_fully
from whippet.storage.index import Index
from whippet.storage.segment import Damage

CHUNK_BYTES = 8 << 20

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

    def view(self, position: int, length: int) -> memoryview:
        """The bytes at a position; fewer than requested only at the end of the file."""
        start = position - self._position
        if start < 0 or start + length > len(self._piece):
            wanted = min(max(length, CHUNK_BYTES), max(self.size - position, 0))
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
        length, reason = _whole(window, position, partition_id, offset, ceiling)
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
        index.add(named.base_offset, position, named.base_timestamp, length, named.message_count)
        position += length
        offset = named.base_offset + named.message_count
    return Scan(position, offset, damage, None)


def _whole(window: Window, position: int, partition_id: int, offset: int, ceiling: int) -> tuple[int, str | None]:
    """The length of the whole batch at a position, or the reason why there is none."""
    head = window.view(position, batches.HEADER_BYTES)
    if len(head) < batches.HEADER_BYTES:
        return 0, f"the file ends inside a batch header, after {len(head)} bytes of it"
    named = batches.header(head)
    if named.partition_id != partition_id:
        return 0, f"not a batch of partition {partition_id}"
    if not batches.HEADER_BYTES < named.length <= min(window.size - position, batches.UNLIMITED.batch_bytes):
        return 0, f"a batch of {named.length} bytes, but the file has only {window.size - position} left"
    if named.base_offset < offset:
        return 0, f"a batch with offset {named.base_offset}, where {offset} was expected"
    if named.base_offset + named.message_count > ceiling:
        return 0, f"a batch with offset {named.base_offset}, which belongs to the next segment"
    try:
        batches.check(window.view(position, named.length))
    except InvalidBatch as error:
        return 0, str(error)
    return named.length, None


def _next_whole(window: Window, position: int, partition_id: int, offset: int, ceiling: int) -> int | None:
    end = _end_of_damaged(window, position, partition_id, offset)
    if end is None or end > window.size - batches.HEADER_BYTES:
        return None
    if _whole(window, end, partition_id, offset, ceiling)[1] is None:
        return end
    start = end
    while True:
        piece = bytes(window.view(start, CHUNK_BYTES))
        for zeros in _runs_of_zeros(piece):
            # The last nonzero byte of the message count is one to four bytes before the reserved zeros.
            for candidate in range(start + zeros - 52, start + zeros - 48):
                if candidate >= end and _whole(window, candidate, partition_id, offset, ceiling)[1] is None:
                    return candidate
        if start + len(piece) >= window.size:
            return None
        start += len(piece) - _OVERLAP


def _end_of_damaged(window: Window, position: int, partition_id: int, offset: int) -> int | None:
    """Where to look for the batch after a damaged one; None if the file ends inside the damaged one."""
    head = window.view(position, batches.HEADER_BYTES)
    if len(head) < batches.HEADER_BYTES:
        return None
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


def _runs_of_zeros(piece: bytes) -> list[int]:
    """The starts of all runs of zeros that are long enough to be the reserved bytes of a batch header."""
    starts = []
    at = piece.find(_ZEROS)
    while at >= 0:
        starts.append(at)
        end = _NOT_ZERO.search(piece, at)
        at = piece.find(_ZEROS, end.start()) if end else -1
    return starts
