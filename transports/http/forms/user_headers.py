"""Converts user headers between JSON and the stored block.

The block repeats key kind u8, key length u32, key, value kind u8, value length u32, value; sorted by key. In JSON they
are a list of typed entries; for clients of 0.6 an object by name; or the bytes of the block if the client encrypted it.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from whippet.app.model.options import ValueKind
from whippet.storage.batch import Readable
from whippet.transports.http.forms.field_types import base64_of

Kind = Literal[
    "raw",
    "string",
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "int128",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "uint128",
    "float32",
    "float64",
]
NUMBERS: Mapping[str, int] = {kind.name.lower(): int(kind) for kind in ValueKind}
NAMES: Mapping[int, Kind] = {number: name for name, number in NUMBERS.items()}  # type: ignore[misc]

_LENGTH = struct.Struct("<BI")
PART_BYTES_MAX = 255


class HeaderPart(msgspec.Struct, frozen=True, gc=False):
    """A key or a value: UTF-8 for a string, one byte for a bool, little-endian for numbers."""

    kind: Kind
    value: Annotated[bytes, base64_of(longest=PART_BYTES_MAX)]


class HeaderEntry(msgspec.Struct, frozen=True, gc=False):
    key: HeaderPart
    value: HeaderPart


Incoming = list[HeaderEntry] | dict[str, HeaderPart] | Annotated[str, base64_of()] | None
Outgoing = list[HeaderEntry] | str


def encode(headers: Incoming) -> bytes:
    """Returns the block of a message; raises a ValueError if a string is not base64."""
    if not headers:
        return b""
    if isinstance(headers, str):
        try:
            return binascii.a2b_base64(headers, strict_mode=True)
        except binascii.Error as error:
            raise ValueError("invalid base64 encoded user headers") from error
    parts: dict[tuple[int, bytes], HeaderPart] = {}
    if isinstance(headers, dict):
        for name, value in headers.items():
            parts[ValueKind.STRING, name.lower().encode()] = value
    else:
        for entry in headers:
            parts[NUMBERS[entry.key.kind], entry.key.value] = entry.value
    block: list[bytes] = []
    for (kind, key), value in sorted(parts.items(), key=lambda item: item[0]):
        block += (_LENGTH.pack(kind, len(key)), key)
        block += (_LENGTH.pack(NUMBERS[value.kind], len(value.value)), value.value)
    return b"".join(block)


def decode(block: Readable) -> Outgoing:
    """Returns the entries, or the bytes in base64 if they are no valid block."""
    entries = _entries(block)
    return base64.b64encode(block).decode() if entries is None else entries


def decode_for_0_6(block: Readable) -> dict[str, HeaderPart] | None:
    """Returns the entries whose keys are strings, which clients of 0.6 can read; None if there are none."""
    named: dict[str, HeaderPart] = {}
    for entry in _entries(block) or ():
        if entry.key.kind == "string":
            try:
                named[entry.key.value.decode()] = entry.value
            except UnicodeDecodeError:
                continue
    return named or None


def _entries(block: Readable) -> list[HeaderEntry] | None:
    entries: list[HeaderEntry] = []
    parts: list[HeaderPart] = []
    position, size = 0, len(block)
    while position < size:
        if size - position < _LENGTH.size:
            return None
        number, length = _LENGTH.unpack_from(block, position)
        position += _LENGTH.size
        end = position + length
        if number not in NAMES or end > size or not 0 < length <= PART_BYTES_MAX:
            return None
        parts.append(HeaderPart(NAMES[number], bytes(block[position:end])))
        position = end
        if len(parts) == 2:
            entries.append(HeaderEntry(*parts))
            parts = []
    return None if parts else entries
