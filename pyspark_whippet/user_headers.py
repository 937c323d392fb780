"""Converts user headers between their encoded form and entries of (key, value, kind).

Encoded, an entry is: key kind u8, key length u32, key, value kind u8, value length u32, value. Entries are sorted by
key.

Two headers are marks of the data source, which it shows as columns: the key of a row, and that its value is null, a
tombstone. Messages have neither keys nor null payloads of their own.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import numpy as np

from pyspark_whippet.batches import Array
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
KEY, TOMBSTONE = "whippet.key", "whippet.tombstone"
TOMBSTONE_PAYLOAD = b"null"
"""Payloads cannot be empty, and this one is null for readers of JSON as well."""
_MARKS = b"whippet."
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


def marked(
    blocks: Sequence[bytes] | None, keys: Sequence[bytes | None] | None, tombstones: Array | None, count: int
) -> tuple[bytes, ...] | None:
    """Returns the encoded headers of rows with their marks; None if no row has any header."""
    if keys is None and tombstones is None:
        return None if blocks is None else tuple(blocks)
    found = []
    for i in range(count):
        block, key = b"" if blocks is None else blocks[i], None if keys is None else keys[i]
        marks: list[Entry] = [] if key is None else [(KEY, key, "raw")]
        if tombstones is not None and tombstones[i]:
            marks.append((TOMBSTONE, b"\x01", "bool"))
        found.append(encode([*decode(block), *marks]) if marks else block)
    return tuple(found)


def marks_in(blocks: Sequence[bytes]) -> tuple[list[bytes | None] | None, Array | None]:
    """Returns the keys of messages, and where they are tombstones; None if no message has one."""
    marked_places = [i for i, block in enumerate(blocks) if _MARKS in block]
    keys: list[bytes | None] = [None] * len(blocks)
    tombstones = np.zeros(len(blocks), dtype=bool)
    for i in marked_places:
        for key, value, _ in decode(blocks[i]):
            if key == KEY:
                keys[i] = value
            tombstones[i] |= key == TOMBSTONE
    return keys if any(key is not None for key in keys) else None, tombstones if tombstones.any() else None


def shown(block: bytes) -> list[Entry]:
    """Decodes headers without the marks."""
    found = decode(block)
    return found if _MARKS not in block else [entry for entry in found if entry[0] not in (KEY, TOMBSTONE)]
