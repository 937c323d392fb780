"""The indexes of segments, in files and in archives: pure functions, in the layout of storage/FORMAT.md, section 4."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from pyspark_whippet.batches import Array
from pyspark_whippet.hashes import xxh3

ENTRY = np.dtype(
    [
        ("offset", "<u8"),
        ("position", "<u8"),
        ("timestamp", "<u8"),
        ("plain_length", "<u4"),
        ("count", "<u4"),
        ("length", "<u8"),
    ]
)
"""An entry of version 2. `length` is that in the log."""
_ENTRY_1 = np.dtype(ENTRY.descr[:-1])
_MAGIC_1, _MAGIC_2 = b"WHPINDX1", b"WHPINDX2"
_HEAD_1 = struct.Struct("<8sQQQQ")
_HEAD_2 = struct.Struct("<8sQQQQIQ")

Part = TypeVar("Part")


def decode(content: bytes, start: int, end: int) -> Array | None:
    """Returns the entries of an index that begins with this offset and describes this many bytes of a log, or None if
    it is not valid."""
    head, kind = (_HEAD_2, ENTRY) if content[:8] == _MAGIC_2 else (_HEAD_1, _ENTRY_1)
    if len(content) < head.size or xxh3 is None:
        return None
    fields = head.unpack_from(content)
    count, body = fields[-3] if kind is ENTRY else fields[-2], content[head.size :]
    if fields[0] not in (_MAGIC_1, _MAGIC_2) or fields[1:3] != (start, end) or len(body) != count * kind.itemsize:
        return None
    if xxh3(content[: head.size - 8] + body) != fields[-1]:
        return None
    entries = np.frombuffer(body, dtype=kind)
    if kind is ENTRY:
        return entries
    found = np.empty(count, dtype=ENTRY)
    for name in _ENTRY_1.names or ():
        found[name] = entries[name]
    found["length"] = entries["plain_length"]
    return found


def offset_at(
    parts: Sequence[Part], timestamp_us: int, first_timestamp: Callable[[Part], int], entries: Callable[[Part], Array]
) -> int | None:
    """Returns the offset of the first batch appended at this time or later, or None if these parts of a log have
    none."""
    # Within a segment times never decrease: the offset is in the last part that begins before that time, or it is the
    # first of the next one. Parts are searched from the newest on, because segments written while a clock was ahead may
    # have later times.
    older = (number for number in reversed(range(len(parts))) if first_timestamp(parts[number]) < timestamp_us)
    for part in parts[next(older, 0) :]:
        batches = entries(part)
        place = int(np.searchsorted(batches["timestamp"], timestamp_us))
        if place < len(batches):
            return int(batches["offset"][place])
    return None
