"""The beginning of every send: its destination, and the number of messages.

length u32 of the four parts that follow | stream | topic | partitioning | count u32
"""

from __future__ import annotations

import struct

from whippet.app.commands.requests import Identifier, Partitioning, PartitioningKind, SendMessages
from whippet.app.errors import Code, CommandError
from whippet.transports.wire.primitives import (
    Reader,
    identifier,
    partitioning,
    read_identifier,
    read_partitioning,
    u32,
)

_U32 = struct.Struct("<I")

_KNOWN_MAX = 1024
_KNOWN_BYTES_MAX = 1024
_known: dict[bytes, tuple[Identifier, Identifier, Partitioning]] = {}
"""Maps the bytes of stream, topic and partitioning to their values: producers send to the same few again and again."""


def read(payload: memoryview) -> tuple[Identifier, Identifier, Partitioning, int, int]:
    """Returns stream, topic, partitioning, the number of messages, and the position after them."""
    if len(payload) < 4:
        raise CommandError(Code.INVALID_NUMBER_ENCODING, "the length of the destination is cut off")
    position: int = 4 + _U32.unpack_from(payload)[0]
    if position > len(payload):
        raise CommandError(Code.INVALID_COMMAND, f"a destination of {position - 4} bytes does not fit the payload")
    octets = bytes(payload[4 : position - 4]) if position <= _KNOWN_BYTES_MAX else b""
    known = _known.get(octets)
    if known is not None:
        stream, topic, to = known
        return stream, topic, to, _U32.unpack_from(payload, position - 4)[0], position
    reader = Reader(payload[4:position])
    try:
        stream, topic = read_identifier(reader), read_identifier(reader)
    except CommandError as error:
        raise CommandError(Code.INVALID_IDENTIFIER, str(error)) from None
    to = read_partitioning(reader)
    left = position - 4 - reader.position
    if left < 4:
        raise CommandError(Code.INVALID_NUMBER_ENCODING, "the number of messages is cut off")
    if left > 4:
        raise CommandError(Code.INVALID_COMMAND, f"{left - 4} bytes of the destination are unexpected")
    if octets and to.kind is not PartitioningKind.MESSAGES_KEY:
        if len(_known) >= _KNOWN_MAX:
            _known.clear()
        _known[octets] = stream, topic, to
    return stream, topic, to, reader.u32(), position


def write(request: SendMessages, count: int) -> bytes:
    parts = (identifier(request.stream), identifier(request.topic), partitioning(request.partitioning), u32(count))
    octets = b"".join(parts)
    return u32(len(octets)) + octets
