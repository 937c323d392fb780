"""Options: settings that a topic, a stream or a user may carry besides its own fields, by name, each with a kind."""

from __future__ import annotations

import enum

import msgspec


class ValueKind(enum.IntEnum):
    """Kinds of values, of options and of user headers, with the numbers that they have on the wire."""

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


class OptionScope(enum.IntEnum):
    TOPIC = 1
    STREAM = 2
    USER = 3


class Option(msgspec.Struct, frozen=True):
    """`value` in the encoding of its kind: numbers little-endian, texts UTF-8, one byte for true and false."""

    key: str
    kind: ValueKind
    value: bytes
