"""Decodes stored batches to columns: pure functions over bytes, in the layout of storage/FORMAT.md, section 2.

A batch has a header of 256 bytes, then frames of 48 bytes, each followed by a payload and user headers. Where all
frames have the same length, no object is created per message; otherwise each costs one loop step and one slice.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

HEADER_BYTES = 256
FRAME_BYTES = 48
HEADER = struct.Struct("<QQQQQQI")
"""partition, base offset, base timestamp, origin timestamp, length, checksum, count"""
_LENGTHS = struct.Struct("<II")
_LENGTH_AND_COUNT = struct.Struct("<QQIQ")
CHECKSUM = struct.Struct("<Q")
_FEW = 12
HEAD = np.dtype(
    {
        "names": ["checksum", "id", "delta", "time", "headers", "payload", "reserved"],
        "formats": ["<u8", "V16", "<u4", "<u4", "<u4", "<u4", "<u8"],
        "offsets": [0, 8, 24, 28, 32, 36, 40],
        "itemsize": FRAME_BYTES,
    }
)
BATCH = np.dtype(
    {
        "names": ["partition", "offset", "timestamp", "origin", "length", "checksum", "count", "packed"],
        "formats": ["<u8", "<u8", "<u8", "<u8", "<u8", "<u8", "<u4", "<u8"],
    }
)
"""`packed` is zero, except in a packed batch (packed_batches.py)."""
_RAW_HEAD, _RAW_BATCH = np.dtype((np.void, HEAD.itemsize)), np.dtype((np.void, BATCH.itemsize))
ALIKE_BATCHES_MAX = 4096

Array = np.ndarray[Any, Any]
Hash = Callable[[Any], int]


@dataclass(frozen=True)
class Messages:
    """Messages of one partition as columns."""

    offsets: Array
    timestamps: Array
    """When they were appended, in us."""
    origin_timestamps: Array
    ids: Array
    """(n, 16) bytes, big-endian."""
    bounds: Array
    """Where payloads start and end in `payloads`: int32, one entry more than there are messages."""
    payloads: bytes | memoryview
    user_headers: tuple[bytes, ...] | None
    """The encoded user headers; None if no message has any."""

    def __len__(self) -> int:
        return len(self.offsets)

    def part(self, start: int, stop: int) -> Messages:
        if (start, stop) == (0, len(self)):
            return self
        blocks = None if self.user_headers is None else self.user_headers[start:stop]
        begin, end = int(self.bounds[start]), int(self.bounds[stop])
        return Messages(
            self.offsets[start:stop],
            self.timestamps[start:stop],
            self.origin_timestamps[start:stop],
            self.ids[start:stop],
            self.bounds[start : stop + 1] - self.bounds[start],
            self.payloads[begin:end],
            blocks,
        )


class BadBatch(Exception):
    """Bytes that are not a valid batch."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(position, reason)
        self.position = position
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.reason} (at byte {self.position})"


def decode(body: bytes | memoryview, xxh3: Hash | None = None) -> Messages:
    """Decodes consecutive batches.

    With a hash, checksums are compared, and a mismatch raises BadBatch. Batches from a connection need no hash.
    """
    view = memoryview(body)
    found = BatchScan()
    position = 0
    while position < len(view):
        position = _scan_run(view, position, found)
    if not found.starts:
        return NO_MESSAGES
    counts = np.array(found.counts)
    where = found.all_frame_positions()
    heads = _copies_at(view, where, _RAW_HEAD).view(HEAD)
    batches = _copies_at(view, np.array(found.starts), _RAW_BATCH).view(BATCH)
    ends = where + FRAME_BYTES + heads["payload"]
    if xxh3 is not None:
        _verify_checksums(view, found, heads, where, ends + heads["headers"], xxh3)
    bounds = np.zeros(len(heads) + 1, dtype=np.int64)
    np.cumsum(heads["payload"], out=bounds[1:])
    blocks = None
    if heads["headers"].any():
        frame_positions = zip(ends.tolist(), (ends + heads["headers"]).tolist(), strict=True)
        blocks = tuple([bytes(view[start:end]) for start, end in frame_positions])
    pieces = found.pieces
    return Messages(
        np.repeat(batches["offset"].astype(np.int64), counts) + heads["delta"],
        np.repeat(batches["timestamp"].astype(np.int64), counts),
        np.repeat(batches["origin"].astype(np.int64), counts) + heads["time"],
        reverse_ids(heads["id"]),
        bounds.astype(np.int32),
        memoryview(pieces[0]).cast("B") if len(pieces) == 1 else b"".join(pieces),
        blocks,
    )


def complete_bytes(view: memoryview) -> int:
    """Returns how many bytes at the start are complete plain batches, going by the lengths in their headers."""
    position = 0
    while len(view) - position > HEADER_BYTES:
        length, _, count, packed = _LENGTH_AND_COUNT.unpack_from(view, position + 32)
        if packed or not HEADER_BYTES < length <= len(view) - position:
            break
        position += length * _count_alike(view, position, length, count)
    return position


class BatchScan:
    """What a scan over batches has found."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        """Positions of batches."""
        self.counts: list[int] = []
        """Messages per batch."""
        self.pieces: list[Any] = []
        """Payloads, one or more per piece."""
        self.frame_positions: list[Array] = []
        self.new_positions: list[int] = []
        """Positions of frames that are not in an array yet."""

    def all_frame_positions(self) -> Array:
        """Returns the positions of all frames, in order."""
        self.flush()
        return np.concatenate(self.frame_positions)

    def flush(self) -> None:
        if self.new_positions:
            self.frame_positions.append(np.array(self.new_positions, dtype=np.int64))
            self.new_positions = []


def _scan_run(view: memoryview, position: int, found: BatchScan) -> int:
    """Scans a batch and the ones after it that have the same length and message count. Returns the position after
    them."""
    length, count = _size_of(view, position)
    if (length - HEADER_BYTES) % count == 0:
        batches = _count_alike(view, position, length, count)
        if batches * count > _FEW and _scan_uniform(view, position, length, count, batches, found):
            end = position + batches * length
            found.starts += range(position, end, length)
            found.counts += [count] * batches
            return end
    _scan_frames(view, position, length, count, found)
    found.starts.append(position)
    found.counts.append(count)
    return position + length


def _size_of(view: memoryview, position: int) -> tuple[int, int]:
    if len(view) - position < HEADER_BYTES:
        raise BadBatch(position, "the data ends in the middle of a batch")
    length, _, count, _ = _LENGTH_AND_COUNT.unpack_from(view, position + 32)
    if not HEADER_BYTES <= length <= len(view) - position:
        raise BadBatch(position, "the data ends in the middle of a batch")
    if not count or HEADER_BYTES + count * FRAME_BYTES > length:
        raise BadBatch(position, "a batch is shorter than its messages")
    return length, count


def _count_alike(view: memoryview, position: int, length: int, count: int) -> int:
    """Counts the batches from here on that have this length and number of messages. There are many where messages
    were sent one by one, and otherwise seldom more than a few."""
    room = min((len(view) - position) // length, ALIKE_BATCHES_MAX)
    if room < 2 or _LENGTH_AND_COUNT.unpack_from(view, position + length + 32)[::2] != (length, count):
        return 1
    heads = np.ndarray((room,), dtype=BATCH, buffer=view, offset=position, strides=(length,))
    differs = (heads["length"] != length) | (heads["count"] != count) | (heads["packed"] != 0)
    return int(differs.argmax()) or room


def _scan_uniform(view: memoryview, position: int, length: int, count: int, batches: int, found: BatchScan) -> bool:
    """Returns False if the frames of these batches do not all have the same length."""
    stride = (length - HEADER_BYTES) // count
    shape, strides, start = (batches, count), (length, stride), position + HEADER_BYTES
    heads = np.ndarray(shape, dtype=HEAD, buffer=view, offset=start, strides=strides)
    if heads["headers"].any() or (heads["payload"] != stride - FRAME_BYTES).any():
        return False
    shape_in_bytes = (*shape, stride - FRAME_BYTES)
    payloads = np.ndarray(
        shape_in_bytes, dtype=np.uint8, buffer=view, offset=start + FRAME_BYTES, strides=(*strides, 1)
    )
    # A view would keep the response alive, and a reader of files reuses its buffer.
    found.pieces.append(payloads.copy())
    begins = np.arange(start, start + batches * length, length, dtype=np.int64)
    found.flush()
    found.frame_positions.append((begins[:, None] + np.arange(0, count * stride, stride, dtype=np.int64)).reshape(-1))
    return True


def _scan_frames(view: memoryview, start: int, length: int, count: int, found: BatchScan) -> None:
    lengths_at = _LENGTHS.unpack_from
    add_place, add_piece = found.new_positions.append, found.pieces.append
    position, end = start + HEADER_BYTES, start + length
    for _ in range(count):
        if position + FRAME_BYTES > end:
            raise BadBatch(start, "a batch is shorter than its messages")
        add_place(position)
        headers, payload = lengths_at(view, position + 32)
        position += FRAME_BYTES
        add_piece(view[position : position + payload])
        position += payload + headers
    if position != end:
        raise BadBatch(start, "a batch is longer than its messages")


def _copies_at(view: memoryview, frame_positions: Array, kind: np.dtype[Any]) -> Array:
    """Returns copies of the items at these positions, in any order and at any distance."""
    everywhere = np.ndarray((len(view) - kind.itemsize + 1,), dtype=kind, buffer=view, strides=(1,))
    return everywhere[frame_positions]


def reverse_ids(ids: Array) -> Array:
    """Converts (n, 16) bytes of ids from little-endian to big-endian, or back."""
    words = np.ascontiguousarray(ids).view("<u8").reshape(-1, 2)
    return np.ascontiguousarray(words[:, ::-1]).byteswap().view(np.uint8).reshape(-1, 16)


def _verify_checksums(view: memoryview, found: BatchScan, heads: Array, where: Array, ends: Array, xxh3: Hash) -> None:
    """Raises BadBatch if a checksum does not match."""
    expected = np.ascontiguousarray(heads["checksum"])
    hashes = np.fromiter(map(xxh3, _checksummed_frames(view, found, where, ends)), dtype="<u8", count=len(where))
    messages = np.cumsum(found.counts)
    wrong = np.flatnonzero(hashes != expected)
    if len(wrong):
        batch = int(np.searchsorted(messages, wrong[0], side="right"))
        raise BadBatch(found.starts[batch], "the checksum of a message is wrong")
    sums, last = memoryview(expected.tobytes()), 0
    for start, end in zip(found.starts, (8 * messages).tolist(), strict=True):
        head = b"".join((view[start : start + 40], view[start + 48 : start + 52], sums[last:end]))
        if xxh3(head) != CHECKSUM.unpack_from(view, start + 40)[0]:
            raise BadBatch(start, "the checksum of a batch is wrong")
        last = end


def _checksummed_frames(view: memoryview, found: BatchScan, where: Array, ends: Array) -> Iterator[Any]:
    """Yields the bytes that the checksums of messages cover."""
    lengths = ends - where
    length = int(lengths[0])
    if min(found.counts) > _FEW and (lengths == length).all():
        for start, count in zip(found.starts, found.counts, strict=True):
            yield from checksummed_parts(view, start + HEADER_BYTES, count, length)
    else:
        yield from map(view.__getitem__, map(slice, (where + 8).tolist(), ends.tolist()))


def checksummed_parts(buffer: Any, start: int, count: int, length: int) -> list[bytes]:
    """Returns what the checksums of frames of one length cover. Copies are faster than views here."""
    frames = np.ndarray((count,), dtype=f"V{length - 8}", buffer=buffer, offset=start + 8, strides=(length,))
    found: list[bytes] = frames.tolist()
    return found


def messages_from_lists(
    offsets: Sequence[int],
    timestamps: Sequence[int],
    origin_timestamps: Sequence[int],
    ids: Sequence[bytes],
    payloads: Sequence[bytes],
    user_headers: Sequence[bytes],
) -> Messages:
    """Makes `Messages` of messages that did not arrive as batches."""
    bounds = np.zeros(len(payloads) + 1, dtype=np.int64)
    np.cumsum([len(payload) for payload in payloads], out=bounds[1:])
    return Messages(
        np.array(offsets, dtype=np.int64),
        np.array(timestamps, dtype=np.int64),
        np.array(origin_timestamps, dtype=np.int64),
        np.frombuffer(b"".join(ids), dtype=np.uint8).reshape(-1, 16),
        bounds.astype(np.int32),
        b"".join(payloads),
        tuple(user_headers) if any(user_headers) else None,
    )


NO_MESSAGES = messages_from_lists((), (), (), (), (), ())
