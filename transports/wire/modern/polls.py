"""The body of the response to a 0.9 poll: partition u32, its last offset u64, number of messages u32, batches.

The batches are sent as the log has them, or cut at both ends; nothing is copied.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from whippet.app.commands.responses import Polled
from whippet.app.errors import Code, CommandError
from whippet.storage.batch import HEADER, HEADER_BYTES, Readable
from whippet.transports.wire.primitives import U32_MAX

PREFIX = struct.Struct("<IQI")
NOT_YOURS = PREFIX.pack(U32_MAX, 0, 0)
"""The partition belongs to another member: a client that gets this asks for its assignment."""


def encode(polled: Polled) -> list[Readable]:
    if not polled.owned:
        return [NOT_YOURS]
    return [PREFIX.pack(polled.partition_id, polled.current_offset, polled.messages_count), *polled.batches]


def decode(body: memoryview) -> Polled:
    if len(body) < PREFIX.size:
        raise CommandError(Code.INVALID_FORMAT, f"{len(body)} bytes are not a response to a poll")
    partition_id, current_offset, count = PREFIX.unpack_from(body)
    if partition_id == U32_MAX:
        return Polled(0, 0, 0, (), owned=False)
    return Polled(partition_id, current_offset, count, tuple(_batches(memoryview(bytes(body[PREFIX.size :])))))


def _batches(octets: memoryview) -> Iterator[memoryview]:
    while octets:
        length = HEADER.unpack_from(octets)[4] if len(octets) >= HEADER_BYTES else 0
        if not HEADER_BYTES < length <= len(octets):
            raise CommandError(Code.INVALID_MESSAGE_PAYLOAD_LENGTH, "the batches do not fill the response")
        yield octets[:length]
        octets = octets[length:]
