"""One message as classic clients have it, and what both directions of the translation share.

    0  checksum     8  id            24 offset        32 timestamp     40 origin timestamp
    48 length of the user headers    52 length of the payload          56 reserved, absent in the short form of 0.6
    then payload, then user headers

The checksum is XXH3 over all bytes after it. `batching` and `unbatching` turn these into frames of a batch and back;
each of them has a loop for a few messages and two vectorised paths for many, because numpy costs some 40 us a batch and
a loop some 2 us a message.
"""

from __future__ import annotations

import struct
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import xxhash

from whippet.storage.lazy_numpy import np
from whippet.transports.wire.classic.dialect import LONG, SHORT

FEW = 12
"""Up to this number, messages are handled one by one, without numpy."""

HEAD = struct.Struct("<Q16sQQQII")
AFTER_CHECKSUM = {SHORT: struct.Struct("<16sQQQII"), LONG: struct.Struct("<16sQQQII8x")}
LENGTHS = struct.Struct("<II")
LENGTHS_AT = 48
CHECKSUM = struct.Struct("<Q")

NO_ID = bytes(16)
COPIED_BYTES_MAX = 512
PIECES_MAX = 16_384

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]
else:
    Array = Any
checksum_of = xxhash.xxh3_64_intdigest

_HEAD_FIELDS: dict[str, Any] = {
    "names": ["checksum", "id_low", "id_high", "offset", "timestamp", "origin", "headers", "payload"],
    "formats": ["<u8", "<u8", "<u8", "<u8", "<u8", "<u8", "<u4", "<u4"],
}
_FRAME_FIELDS: dict[str, Any] = {
    "names": ["checksum", "id_low", "id_high", "delta", "time", "headers", "payload", "reserved"],
    "formats": ["<u8", "<u8", "<u8", "<u4", "<u4", "<u4", "<u4", "<u8"],
}


@lru_cache(maxsize=256)
def head_type(size: int) -> np.dtype[Any]:
    """Message headers that are `size` bytes apart."""
    return np.dtype({**_HEAD_FIELDS, "itemsize": size})  # type: ignore[call-overload,no-any-return]


@lru_cache(maxsize=256)
def frame_type(size: int) -> np.dtype[Any]:
    """Headers of frames that are `size` bytes apart."""
    return np.dtype({**_FRAME_FIELDS, "itemsize": size})  # type: ignore[call-overload,no-any-return]


def windows(octets: Any, size: int) -> Array:
    """The `size` bytes at every position, as items to gather from or to scatter to: one memcpy for each item."""
    return np.ndarray((len(octets) - size + 1,), dtype=f"V{size}", buffer=octets, strides=(1,))


def rows(octets: Any, at: int, count: int, stride: int, width: int) -> Array:
    """`width` bytes of each of `count` items that are `stride` bytes apart, the first at `at`."""
    return np.ndarray((count, width), dtype=np.uint8, buffer=octets, offset=at, strides=(stride, 1))


_COUNTED = 1024


@cache
def _count() -> Array:
    return np.arange(_COUNTED, dtype=np.int64)


def counting(count: int) -> Array:
    """Returns 0, 1, 2 ... ; read-only."""
    return _count()[:count] if count <= _COUNTED else np.arange(count, dtype=np.int64)


def gathered(first: bytes, view: memoryview, starts: list[int], ends: list[int]) -> bytearray:
    """Joins pieces of a view after `first`. Each piece is an object for a moment, so very many are joined in steps."""
    if len(starts) <= PIECES_MAX:
        return bytearray().join((first, *[view[start:end] for start, end in zip(starts, ends, strict=True)]))
    out = bytearray(first)
    for i in range(0, len(starts), PIECES_MAX):
        last = i + PIECES_MAX
        out += b"".join([view[start:end] for start, end in zip(starts[i:last], ends[i:last], strict=True)])
    return out


def checksums(octets: Any, starts: Array, ends: list[int]) -> Array:
    """Returns the checksums of messages or frames: of everything after the first 8 bytes of each."""
    view = memoryview(octets)
    found = [checksum_of(view[start:end]) for start, end in zip((starts + 8).tolist(), ends, strict=True)]
    return np.array(found, dtype="<u8")


def uniform_checksums(octets: Any, at: int, count: int, stride: int) -> Array:
    """Does the same for items of one size. Short items are hashed faster as copies, which numpy creates in one call."""
    size = stride - 8
    items = np.ndarray((count,), dtype=f"V{size}", buffer=octets, offset=at + 8, strides=(stride,))
    each: Any = items.tolist() if size <= COPIED_BYTES_MAX else items
    return np.fromiter(map(checksum_of, each), dtype="<u8", count=count)
