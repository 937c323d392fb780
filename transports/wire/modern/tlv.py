"""Options as bytes: key kind u8, key length u32, key, value kind u8, value length u32, value, and again.

It is the layout of user headers with more rules: keys are texts and unique, and a block has limits.
"""

from __future__ import annotations

import struct

from whippet.app.errors import Code, CommandError
from whippet.app.model.options import LENGTH_MAX, OPTIONS_BYTES_MAX, OPTIONS_MAX, Option, ValueKind
from whippet.transports.wire.primitives import Part, Reader, text, u32

_KIND_AND_LENGTH = struct.Struct("<BI")
_KINDS = {int(kind): kind for kind in ValueKind}


def read(octets: memoryview) -> tuple[Option, ...]:
    if len(octets) > OPTIONS_BYTES_MAX:
        raise CommandError(
            Code.OPTIONS_BLOCK_TOO_LARGE, f"options of {len(octets)} bytes: {OPTIONS_BYTES_MAX} are allowed"
        )
    reader = Reader(octets)
    found: dict[str, Option] = {}
    while not reader.at_end:
        if len(found) == OPTIONS_MAX:
            raise CommandError(Code.OPTIONS_BLOCK_TOO_LARGE, f"more than {OPTIONS_MAX} options")
        key_kind, key_octets = _entry(reader, "key")
        if key_kind is not ValueKind.STRING:
            raise CommandError(Code.INVALID_FORMAT, "the key of an option is not a text")
        key = text(key_octets)
        kind, value = _entry(reader, f"value of {key!r}")
        if key in found:
            raise CommandError(Code.INVALID_OPTION_VALUE, f"the option {key!r} is repeated")
        found[key] = Option(key, kind, bytes(value))
    return tuple(found.values())


def _entry(reader: Reader, what: str) -> tuple[ValueKind, memoryview]:
    number, length = reader.unpack(_KIND_AND_LENGTH)
    kind = _KINDS.get(number)
    if kind is None:
        raise CommandError(Code.INVALID_FORMAT, f"the {what} of an option is of the unknown kind {number}")
    if not 0 < length <= LENGTH_MAX:
        raise CommandError(Code.INVALID_FORMAT, f"the {what} of an option has {length} bytes, not 1 to {LENGTH_MAX}")
    return kind, reader.take(length)


def write(options: tuple[Option, ...]) -> bytes:
    parts: list[bytes] = []
    for option in options:
        key = option.key.encode()
        parts += (
            _KIND_AND_LENGTH.pack(ValueKind.STRING, len(key)),
            key,
            _KIND_AND_LENGTH.pack(option.kind, len(option.value)),
            option.value,
        )
    return b"".join(parts)


def _write_sized(options: tuple[Option, ...]) -> bytes:
    octets = write(options)
    return u32(len(octets)) + octets


REST = Part(lambda reader: read(reader.rest()), write)
"""Options at the end of a request, which extend to the end of its body."""
SIZED = Part(lambda reader: read(reader.sized()), _write_sized)
"""Options in a reply, preceded by their length."""
