"""Converts user headers between their encoded form and entries of (key, value, kind).

Encoded, an entry is: key kind u8, key length u32, key, value kind u8, value length u32, value. Entries are sorted by
key.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from pyspark_whippet.errors import RowError

KINDS = {
    "raw": 1,
    "string": 2,
    "bool": 3,
    "int8": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "int128": 8,
    "uint8": 9,
    "uint16": 10,
    "uint32": 11,
    "uint64": 12,
    "uint128": 13,
    "float32": 14,
    "float64": 15,
}
NAMES = {number: name for name, number in KINDS.items()}
UNREADABLE = "unreadable"
"""The kind of the single entry for headers that cannot be decoded; its value is the encoded form."""
PART_BYTES_MAX = 255
_PART = struct.Struct("<BI")

Entry = tuple[str, bytes, str]


def decode(block: bytes) -> list[Entry]:
    """A key that is not text is shown in hexadecimal, after its kind: `uint32:2a000000`."""
    parts: list[tuple[int, bytes]] = []
    position, size = 0, len(block)
    while position < size:
        if size - position < _PART.size:
            return [("", block, UNREADABLE)]
        kind, length = _PART.unpack_from(block, position)
        position += _PART.size + length
        if kind not in NAMES or not 0 < length <= PART_BYTES_MAX or position > size:
            return [("", block, UNREADABLE)]
        parts.append((kind, block[position - length : position]))
    if len(parts) % 2:
        return [("", block, UNREADABLE)]
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return [(_key(*key), value, NAMES[kind]) for key, (kind, value) in pairs]


def _key(kind: int, key: bytes) -> str:
    if NAMES[kind] == "string":
        try:
            return key.decode()
        except UnicodeDecodeError:
            pass
    return f"{NAMES[kind]}:{key.hex()}"


def encode(entries: Iterable[Entry]) -> bytes:
    """Returns the encoded headers, or raises RowError. Of two entries with the same key, the last one counts."""
    found: dict[tuple[int, bytes], tuple[int, bytes]] = {}
    for key, value, kind in entries:
        if kind == UNREADABLE:
            return value
        if kind not in KINDS:
            raise RowError(f"column 'headers': there is no kind {kind!r}; the kinds are {', '.join(KINDS)}")
        place = _key_of(key)
        if not 0 < len(place[1]) <= PART_BYTES_MAX or not 0 < len(value) <= PART_BYTES_MAX:
            raise RowError(
                f"column 'headers': keys and values must have 1 to {PART_BYTES_MAX} bytes; check key {key!r}"
            )
        found[place] = (KINDS[kind], value)
    block = bytearray()
    for (key_kind, key_bytes), (kind_number, value) in sorted(found.items()):
        block += _PART.pack(key_kind, len(key_bytes)) + key_bytes
        block += _PART.pack(kind_number, len(value)) + value
    return bytes(block)


def _key_of(key: str) -> tuple[int, bytes]:
    kind, colon, digits = key.partition(":")
    if colon and kind in KINDS and kind != "string":
        try:
            return KINDS[kind], bytes.fromhex(digits)
        except ValueError:
            pass
    return KINDS["string"], key.encode()
