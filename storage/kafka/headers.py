"""User headers of messages <-> headers of records, as pure functions.

A user header whose key is a string and whose value is raw bytes is a header of the record, under the same key. If there
are others, one more header, `KINDS`, has two bytes for each user header, in their order: the kinds of its key and of
its value. A block that does not have the layout of user headers, or that Kafka could not show as headers, is one
header, `BLOCK`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

ID = "iggy.id"
"""The id of a message: 16 bytes, the highest first."""
ORIGIN = "iggy.origin"
"""When the client says it was made: us since 1970 in 8 bytes, the highest first."""
KINDS = "iggy.kinds"
BLOCK = "iggy.headers"
OURS = frozenset((ID, ORIGIN, KINDS, BLOCK))

Header = tuple[str, bytes]

RAW, STRING = 1, 2
_KIND_AND_LENGTH = struct.Struct("<BI")
_LENGTH_MAX = 255
"""Clients cannot decode longer keys and values, nor empty ones."""


def to_record(block: bytes) -> list[Header]:
    """Returns the headers of a record for a block of user headers."""
    entries = _entries(block)
    if entries is None:
        return [(BLOCK, block)]
    found: list[Header] = []
    kinds = bytearray()
    for key_kind, key, value_kind, value in entries:
        try:
            name = key.decode()
        except UnicodeDecodeError:
            return [(BLOCK, block)]
        if name in OURS:
            return [(BLOCK, block)]
        found.append((name, value))
        kinds += bytes((key_kind, value_kind))
    if kinds != bytes((STRING, RAW)) * len(found):
        found.append((KINDS, bytes(kinds)))
    return found


def from_record(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """Returns the block of user headers for the headers of a record. Those that clients could not decode are left
    out."""
    kinds = b""
    plain: list[tuple[bytes, bytes | None]] = []
    for name, value in headers:
        if name == BLOCK:
            return value or b""
        if name == KINDS:
            kinds = value or b""
        elif name not in OURS:
            plain.append((name.encode(), value))
    if len(kinds) != 2 * len(plain):
        # Another program has added headers or removed some.
        kinds = bytes((STRING, RAW)) * len(plain)
    parts: list[bytes] = []
    for (key, content), key_kind, value_kind in zip(plain, kinds[::2], kinds[1::2], strict=True):
        if content and len(content) <= _LENGTH_MAX and 0 < len(key) <= _LENGTH_MAX:
            parts += (
                _KIND_AND_LENGTH.pack(key_kind, len(key)),
                key,
                _KIND_AND_LENGTH.pack(value_kind, len(content)),
                content,
            )
    return b"".join(parts)


def _entries(block: bytes) -> list[tuple[int, bytes, int, bytes]] | None:
    """Returns the kinds, keys and values of a block; None if it has another layout."""
    found = []
    position, size = 0, len(block)
    while position < size:
        pair: list[tuple[int, bytes]] = []
        for _ in range(2):
            if size - position < _KIND_AND_LENGTH.size:
                return None
            kind, length = _KIND_AND_LENGTH.unpack_from(block, position)
            start = position + _KIND_AND_LENGTH.size
            position = start + length
            if not 0 < length <= _LENGTH_MAX or position > size:
                return None
            pair.append((kind, block[start:position]))
        found.append((*pair[0], *pair[1]))
    return found
