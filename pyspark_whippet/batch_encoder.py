"""Encodes messages as a batch for sending: pure functions over bytes, in the layout of storage/FORMAT.md, section 2.

The fields that the log sets, the place and the time of a batch, are zeros. Frames of one length are built together;
only their checksums are computed one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise

import numpy as np

from pyspark_whippet.batches import (
    CHECKSUM,
    FRAME_BYTES,
    HEAD,
    HEADER,
    HEADER_BYTES,
    Array,
    Hash,
    checksummed_parts,
    reverse_ids,
)


def encode(
    bounds: Array, payloads: memoryview, ids: Array, user_headers: Sequence[bytes] | None, now_us: int, xxh3: Hash
) -> bytearray:
    """`bounds` are those of the payloads, and `ids` are as in Messages."""
    count = len(bounds) - 1
    heads = np.zeros(count, dtype=HEAD)
    lengths = np.diff(bounds)
    heads["id"] = reverse_ids(ids).view("V16").reshape(-1)
    heads["delta"] = np.arange(count, dtype=np.uint32)
    heads["payload"] = lengths
    first = int(lengths[0])
    if user_headers is None and (lengths == first).all():
        batch, checksums = _uniform(heads, payloads[int(bounds[0]) : int(bounds[-1])], first, xxh3)
    else:
        batch, checksums = _mixed(heads, bounds, payloads, user_headers, xxh3)
    HEADER.pack_into(batch, 0, 0, 0, 0, now_us, len(batch), 0, count)
    CHECKSUM.pack_into(batch, 40, xxh3(b"".join((batch[:40], batch[48:52], checksums))))
    return batch


def _uniform(heads: Array, payloads: memoryview, length: int, xxh3: Hash) -> tuple[bytearray, bytes]:
    count, stride = len(heads), FRAME_BYTES + length
    batch = bytearray(HEADER_BYTES + count * stride)
    rows = np.frombuffer(memoryview(batch)[HEADER_BYTES:], dtype=np.uint8).reshape(count, stride)
    rows[:, :FRAME_BYTES] = heads.view(np.uint8).reshape(count, FRAME_BYTES)
    rows[:, FRAME_BYTES:] = np.frombuffer(payloads, dtype=np.uint8).reshape(count, length)
    checksums = np.fromiter(map(xxh3, checksummed_parts(batch, HEADER_BYTES, count, stride)), dtype="<u8", count=count)
    rows[:, :8] = checksums.view(np.uint8).reshape(count, 8)
    del rows
    return batch, checksums.tobytes()


def _mixed(
    heads: Array, bounds: Array, payloads: memoryview, user_headers: Sequence[bytes] | None, xxh3: Hash
) -> tuple[bytearray, bytes]:
    if user_headers is not None:
        heads["headers"] = [len(block) for block in user_headers]
    beginnings = checksummed_parts(heads, 0, len(heads), FRAME_BYTES)
    values = split_payloads(bounds, payloads)
    if user_headers is None:
        frames = [head + value for head, value in zip(beginnings, values, strict=True)]
    else:
        frames = [b"".join(parts) for parts in zip(beginnings, values, user_headers, strict=True)]
    checksums = np.fromiter(map(xxh3, frames), dtype="<u8", count=len(frames))
    parts = chain.from_iterable(zip(checksums.view("V8").tolist(), frames, strict=True))
    return bytearray().join((bytes(HEADER_BYTES), *parts)), checksums.tobytes()


def frame_sizes(bounds: Array, user_headers: Sequence[bytes] | None) -> Array:
    """Returns the size of each message in a batch."""
    sizes = np.diff(bounds).astype(np.int64) + FRAME_BYTES
    if user_headers is not None:
        sizes += np.array([len(block) for block in user_headers], dtype=np.int64)
    return sizes


def split_payloads(bounds: Array, payloads: memoryview) -> list[bytes]:
    """Returns the payloads one by one."""
    start, end = int(bounds[0]), int(bounds[-1])
    lengths = np.diff(bounds)
    first = int(lengths[0]) if len(lengths) else 0
    if first and (lengths == first).all():
        rows: list[bytes] = np.frombuffer(payloads[start:end], dtype=f"V{first}").tolist()
        return rows
    joined = bytes(payloads[start:end])
    positions = (bounds - start).tolist()
    return [joined[begin:stop] for begin, stop in pairwise(positions)]
