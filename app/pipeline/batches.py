"""Stored batches <-> columns, as pure functions over bytes: the layout of storage/FORMAT.md, section 2.

A batch has a header of 256 bytes and frames, each of 48 bytes, a payload and user headers. Nothing is made for a single
message where all frames have one length; else it costs a step of a loop and a slice.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.pipeline.errors import GatewayError

HEADER_BYTES = 256
FRAME_BYTES = 48
HEADER = struct.Struct("<QQQQQQI")
"""partition, base offset, base timestamp, origin timestamp, length, checksum, count"""
_LENGTHS = struct.Struct("<II")
_CHECKSUM = struct.Struct("<Q")
_FEW = 12
HEAD = np.dtype(
    {
        "names": ["checksum", "id", "delta", "time", "headers", "payload", "reserved"],
        "formats": ["<u8", "V16", "<u4", "<u4", "<u4", "<u4", "<u8"],
        "offsets": [0, 8, 24, 28, 32, 36, 40],
        "itemsize": FRAME_BYTES,
    }
)
_ANY_HEAD = np.dtype((np.void, FRAME_BYTES))

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
    """Where payloads begin and end in `payloads`: int32, one more than there are messages."""
    payloads: bytes
    user_headers: tuple[bytes, ...] | None
    """The blocks of user headers; None where no message has any."""

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


# ------------------------------------------------------------------------------------------------------------ decoding


def decode(body: bytes) -> Messages:
    """All messages of batches that stand one behind the other."""
    view = memoryview(body)
    size, position = len(view), 0
    places: list[Array] = []
    counts, bases, timestamps, origins = [], [], [], []
    pieces: list[Any] = []
    blocks: list[tuple[int, int]] = []
    while position < size:
        if size - position < HEADER_BYTES:
            raise GatewayError("the gateway's answer ends in the middle of a batch")
        _, base, timestamp, origin, length, _, count = HEADER.unpack_from(view, position)
        end = position + length
        if not HEADER_BYTES <= length <= size - position:
            raise GatewayError("the gateway's answer ends in the middle of a batch")
        if count:
            places.append(_frames(view, position + HEADER_BYTES, end, count, pieces))
            counts.append(count)
            bases.append(base)
            timestamps.append(timestamp)
            origins.append(origin)
        position = end
    if not places:
        return NOTHING
    where = np.concatenate(places)
    everywhere = np.ndarray((size - FRAME_BYTES + 1,), dtype=_ANY_HEAD, buffer=view, strides=(1,))
    heads = everywhere[where].view(HEAD)
    bounds = np.zeros(len(heads) + 1, dtype=np.int64)
    np.cumsum(heads["payload"], out=bounds[1:])
    if heads["headers"].any():
        begins = where + FRAME_BYTES + heads["payload"]
        blocks = list(zip(begins.tolist(), (begins + heads["headers"]).tolist(), strict=True))
    return Messages(
        np.repeat(np.array(bases, dtype=np.int64), counts) + heads["delta"],
        np.repeat(np.array(timestamps, dtype=np.int64), counts),
        np.repeat(np.array(origins, dtype=np.int64), counts) + heads["time"],
        np.ascontiguousarray(heads["id"]).view(np.uint8).reshape(-1, 16)[:, ::-1],
        bounds.astype(np.int32),
        b"".join(pieces),
        tuple(body[start:end] for start, end in blocks) if blocks else None,
    )


def _frames(view: memoryview, start: int, end: int, count: int, pieces: list[Any]) -> Array:
    """Where the frames of a batch begin; their payloads are added to the pieces."""
    lengths_at = _LENGTHS.unpack_from
    if end - start < count * FRAME_BYTES:
        raise GatewayError("the gateway's answer has a batch that is shorter than its messages")
    stride, rest = divmod(end - start, count)
    if not rest and count > _FEW:
        heads = np.ndarray((count,), dtype=HEAD, buffer=view, offset=start, strides=(stride,))
        if not heads["headers"].any() and (heads["payload"] == stride - FRAME_BYTES).all():
            rows = np.frombuffer(view[start:end], dtype=np.uint8).reshape(count, stride)
            pieces.append(np.ascontiguousarray(rows[:, FRAME_BYTES:]))
            return np.arange(start, end, stride, dtype=np.int64)
    found = []
    position = start
    add = pieces.append
    for _ in range(count):
        if position + FRAME_BYTES > end:
            raise GatewayError("the gateway's answer has a batch that is shorter than its messages")
        found.append(position)
        headers, payload = lengths_at(view, position + 32)
        position += FRAME_BYTES
        add(view[position : position + payload])
        position += payload + headers
    if position != end:
        raise GatewayError("the gateway's answer has a batch whose messages do not fill it")
    return np.array(found, dtype=np.int64)


def of_lists(
    offsets: Sequence[int],
    timestamps: Sequence[int],
    origin_timestamps: Sequence[int],
    ids: Sequence[bytes],
    payloads: Sequence[bytes],
    user_headers: Sequence[bytes],
) -> Messages:
    """For messages that came as something else than batches."""
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


NOTHING = of_lists((), (), (), (), (), ())


# ------------------------------------------------------------------------------------------------------------ encoding


def encode(
    bounds: Array, payloads: memoryview, ids: Array, user_headers: Sequence[bytes] | None, now_us: int, xxh3: Hash
) -> bytearray:
    """A batch as a producer sends it: its place is zeros. `bounds` are those of the payloads, ids as in Messages."""
    count = len(bounds) - 1
    heads = np.zeros(count, dtype=HEAD)
    lengths = np.diff(bounds)
    heads["id"] = np.ascontiguousarray(ids[:, ::-1]).view("V16").reshape(-1)
    heads["delta"] = np.arange(count, dtype=np.uint32)
    heads["payload"] = lengths
    first = int(lengths[0])
    if user_headers is None and (lengths == first).all():
        batch, checksums = _uniform(heads, payloads[int(bounds[0]) : int(bounds[-1])], first, xxh3)
    else:
        batch, checksums = _mixed(heads, bounds, payloads, user_headers, xxh3)
    HEADER.pack_into(batch, 0, 0, 0, 0, now_us, len(batch), 0, count)
    _CHECKSUM.pack_into(batch, 40, xxh3(b"".join((batch[:40], batch[48:52], checksums))))
    return batch


def _uniform(heads: Array, payloads: memoryview, length: int, xxh3: Hash) -> tuple[bytearray, bytes]:
    count, stride = len(heads), FRAME_BYTES + length
    batch = bytearray(HEADER_BYTES + count * stride)
    rows = np.frombuffer(memoryview(batch)[HEADER_BYTES:], dtype=np.uint8).reshape(count, stride)
    rows[:, :FRAME_BYTES] = heads.view(np.uint8).reshape(count, FRAME_BYTES)
    rows[:, FRAME_BYTES:] = np.frombuffer(payloads, dtype=np.uint8).reshape(count, length)
    view = memoryview(batch)
    starts = range(HEADER_BYTES, len(batch), stride)
    checksums = np.fromiter((xxh3(view[start + 8 : start + stride]) for start in starts), "<u8", count)
    rows[:, :8] = checksums.view(np.uint8).reshape(count, 8)
    del rows
    return batch, checksums.tobytes()


def _mixed(
    heads: Array, bounds: Array, payloads: memoryview, user_headers: Sequence[bytes] | None, xxh3: Hash
) -> tuple[bytearray, bytes]:
    if user_headers is not None:
        heads["headers"] = [len(block) for block in user_headers]
    hashed = memoryview(heads.tobytes())
    places = bounds.tolist()
    parts: list[Any] = [bytes(HEADER_BYTES)]
    checksums: list[bytes] = []
    for i in range(len(heads)):
        start = i * FRAME_BYTES
        payload = payloads[places[i] : places[i + 1]]
        frame = b"".join((hashed[start + 8 : start + FRAME_BYTES], payload, user_headers[i] if user_headers else b""))
        checksum = _CHECKSUM.pack(xxh3(frame))
        checksums.append(checksum)
        parts += (checksum, frame)
    return bytearray().join(parts), b"".join(checksums)


def frame_sizes(bounds: Array, user_headers: Sequence[bytes] | None) -> Array:
    """The bytes that each message takes in a batch."""
    sizes = np.diff(bounds).astype(np.int64) + FRAME_BYTES
    if user_headers is not None:
        sizes += np.array([len(block) for block in user_headers], dtype=np.int64)
    return sizes


def iter_payloads(bounds: Array, payloads: memoryview) -> Iterator[memoryview]:
    places = bounds.tolist()
    for i in range(len(places) - 1):
        yield payloads[places[i] : places[i + 1]]
