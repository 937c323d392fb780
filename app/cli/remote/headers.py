"""User headers on the command line: `key:kind:value`, and the block of bytes in a message.

The block repeats key kind u8, key length u32, key, value kind u8, value length u32, value. Blocks of other layouts,
such as encrypted ones, are shown as they are, in base64.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence

from whippet.app.cli.remote.failures import UsageFailure
from whippet.app.model.options import Option, Value, ValueKind, decode, encode

_LENGTH = struct.Struct("<BI")
PART_BYTES_MAX = 255
KINDS = {kind.name.lower(): kind for kind in ValueKind}
UNKNOWN = "(not readable)"


def parse(texts: Sequence[str]) -> bytes:
    """Each text is `key:kind:value`, or several of these with commas, as Iggy's command line has them. `key=value` is a
    string, which may contain commas."""
    block: dict[bytes, bytes] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if equals and ":" not in key:
            block[key.encode()] = _entry(key, "string", value)
            continue
        for part in text.split(","):
            key, first, rest = part.partition(":")
            kind, second, value = rest.partition(":")
            if not first or not second:
                raise UsageFailure(f"{part!r} is no header: write key=value, or key:kind:value")
            block[key.encode()] = _entry(key, kind, value)
    return b"".join(block[key] for key in sorted(block))


def _entry(key: str, kind_name: str, text: str) -> bytes:
    kind = KINDS.get(kind_name.lower())
    if kind is None:
        raise UsageFailure(f"there is no kind {kind_name!r} of a header: choose from {', '.join(KINDS)}")
    name = key.encode()
    try:
        value = encode(kind, _value(kind, text))
    except (ValueError, OverflowError, struct.error):
        raise UsageFailure(f"the value of header {key!r} is no {kind_name}: {text!r}") from None
    if not 0 < len(name) <= PART_BYTES_MAX or not 0 < len(value) <= PART_BYTES_MAX:
        raise UsageFailure(f"the key and the value of header {key!r} must have 1 to {PART_BYTES_MAX} bytes")
    return _LENGTH.pack(ValueKind.STRING, len(name)) + name + _LENGTH.pack(kind, len(value)) + value


def _value(kind: ValueKind, text: str) -> Value:
    if kind is ValueKind.RAW:
        return text.encode()
    if kind is ValueKind.STRING:
        return text
    if kind is ValueKind.BOOL:
        if text not in ("true", "false"):
            raise ValueError
        return text == "true"
    if kind in (ValueKind.FLOAT32, ValueKind.FLOAT64):
        return float(text)
    return int(text)


def show(block: bytes) -> dict[str, str | int | float | bool]:
    """Returns the headers by their keys. A key that is no text, and a raw value, are shown in base64."""
    found: dict[str, str | int | float | bool] = {}
    position = 0
    try:
        while position < len(block):
            key_kind, key, position = part_of(block, position)
            value_kind, value, position = part_of(block, position)
            found[str(_shown(key_kind, key))] = _shown(value_kind, value)
    except (ValueError, struct.error):
        return {UNKNOWN: base64.b64encode(block).decode()}
    return found


def part_of(block: bytes, position: int) -> tuple[ValueKind, bytes, int]:
    """Returns the kind and the bytes of a key or a value, and the position after it. Raises a ValueError or a
    struct.error if it is cut off."""
    kind, length = _LENGTH.unpack_from(block, position)
    position += _LENGTH.size
    if not 0 < length <= len(block) - position:
        raise ValueError
    return ValueKind(kind), block[position : position + length], position + length


def _shown(kind: ValueKind, octets: bytes) -> str | int | float | bool:
    value = decode(Option("", kind, octets))
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value
