"""Options: named settings of a topic, a stream or a user besides their fields, each with a kind.

How a value of a kind is encoded in bytes and as text, and the rules for all options of a request. The options of topics
are in topic_options.py; streams and users have none.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence

import msgspec

from whippet.app.errors import Code, CommandError

OPTIONS_MAX = 1024
OPTIONS_BYTES_MAX = 100_000
"""Limit for one request; each option counts with its key, its value and the encoding of both kinds and lengths."""
OVERHEAD_BYTES = 10
LENGTH_MAX = 255
"""Bytes of a key and of a value; both have at least one."""

Value = str | int | float | bytes | bool
"""The existing options are of kind `str`, `int` and `bool`."""


class ValueKind(enum.IntEnum):
    """Kinds of the values of options and user headers, with their numbers on the wire."""

    RAW = 1
    STRING = 2
    BOOL = 3
    INT8 = 4
    INT16 = 5
    INT32 = 6
    INT64 = 7
    INT128 = 8
    UINT8 = 9
    UINT16 = 10
    UINT32 = 11
    UINT64 = 12
    UINT128 = 13
    FLOAT32 = 14
    FLOAT64 = 15


_INTEGERS = {
    ValueKind.INT8: (1, True),
    ValueKind.INT16: (2, True),
    ValueKind.INT32: (4, True),
    ValueKind.INT64: (8, True),
    ValueKind.INT128: (16, True),
    ValueKind.UINT8: (1, False),
    ValueKind.UINT16: (2, False),
    ValueKind.UINT32: (4, False),
    ValueKind.UINT64: (8, False),
    ValueKind.UINT128: (16, False),
}
"""The bytes of a number, and whether it may be negative."""
_FLOATS = {ValueKind.FLOAT32: struct.Struct("<f"), ValueKind.FLOAT64: struct.Struct("<d")}
_TRUTHS = {b"\0": False, b"\1": True}


class OptionScope(enum.IntEnum):
    TOPIC = 1
    STREAM = 2
    USER = 3


class Option(msgspec.Struct, frozen=True):
    """`value` in the encoding of its kind: numbers little-endian, texts UTF-8, one byte for true and false."""

    key: str
    kind: ValueKind
    value: bytes


def encode(kind: ValueKind, value: Value) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if kind in _FLOATS:
        return _FLOATS[kind].pack(value)
    length, signed = _INTEGERS.get(kind, (1, False))
    return int(value).to_bytes(length, "little", signed=signed)


def decode(option: Option) -> Value:
    """Raises ValueError if the bytes are no value of the kind."""
    kind, value = option.kind, option.value
    if kind is ValueKind.RAW:
        return value
    if kind is ValueKind.STRING:
        return value.decode()
    if kind is ValueKind.BOOL and value in _TRUTHS:
        return _TRUTHS[value]
    if kind in _FLOATS and len(value) == _FLOATS[kind].size:
        number: float = _FLOATS[kind].unpack(value)[0]
        return number
    length, signed = _INTEGERS.get(kind, (0, False))
    if not length or len(value) != length:
        raise ValueError(f"{len(value)} bytes are not a valid {kind.name.lower()}")
    return int.from_bytes(value, "little", signed=signed)


def from_text(key: str, text: str) -> Option:
    """Serves clients that can only send texts: the option's own kind is derived from the text."""
    return Option(key, ValueKind.STRING, text.encode())


def check(options: Sequence[Option]) -> None:
    """Checks the rules that are independent of the keys."""
    if len(options) > OPTIONS_MAX:
        raise CommandError(Code.OPTIONS_BLOCK_TOO_LARGE, f"{len(options)} options: {OPTIONS_MAX} are allowed")
    size = sum(OVERHEAD_BYTES + len(option.key.encode()) + len(option.value) for option in options)
    if size > OPTIONS_BYTES_MAX:
        raise CommandError(Code.OPTIONS_BLOCK_TOO_LARGE, f"options of {size} bytes: {OPTIONS_BYTES_MAX} are allowed")
    keys = set()
    for option in options:
        if not 1 <= len(option.key.encode()) <= LENGTH_MAX:
            raise CommandError(
                Code.UNSUPPORTED_OPTION_KEY,
                f"{abbreviated(option.key)}: it must have 1 to {LENGTH_MAX} bytes",
            )
        if not 1 <= len(option.value) <= LENGTH_MAX:
            raise CommandError(
                Code.INVALID_OPTION_VALUE,
                f"{option.key!r}: its value has {len(option.value)} bytes, 1 to {LENGTH_MAX} are needed",
            )
        if option.key in keys:
            raise CommandError(Code.INVALID_OPTION_VALUE, f"{option.key!r} is given twice")
        keys.add(option.key)


def refuse_any(options: Sequence[Option], scope: OptionScope) -> None:
    """Refuses all options, for scopes that have none."""
    check(options)
    for option in options:
        if scope is OptionScope.STREAM and option.key == "encryption_key":
            raise CommandError(Code.ENCRYPTION_UNAVAILABLE)
        raise CommandError(Code.UNSUPPORTED_OPTION_KEY, f"{option.key!r}: a {scope.name.lower()} has no options")


def abbreviated(value: Value) -> str:
    """A value for an error sentence."""
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:70]}...({len(shown)} characters)"
