"""The body of a 0.9 send: the destination, the number of messages, and a batch in the format of the log.

The batch is not copied: the command layer gets a view of the bytes that arrived, and the log keeps them.
"""

from __future__ import annotations

import struct

from whippet.app.commands.requests import SendMessages
from whippet.app.commands.responses import Confirmation, Sent
from whippet.app.errors import Code, CommandError
from whippet.storage.batch import HEADER, HEADER_BYTES, TIME_SPAN_MAX_US, Readable
from whippet.transports.wire import destination
from whippet.transports.wire.primitives import U64_MAX, Reader

ORIGIN_MAX = U64_MAX - TIME_SPAN_MAX_US
"""The latest origin time; with the largest delta added, it still has 64 bits."""
_CONFIRMATION = struct.Struct("<IIIIQ")
_ONE = 1


def decode(body: memoryview) -> SendMessages:
    """The log checks the content of the batch."""
    stream, topic, to, count, position = destination.read(body)
    batch = body[position:]
    if len(batch) < HEADER_BYTES:
        raise CommandError(
            Code.INVALID_MESSAGES_SIZE, f"{len(batch)} bytes are no batch: its header has {HEADER_BYTES}"
        )
    _, _, _, origin, _, _, in_batch = HEADER.unpack_from(batch)
    if count != in_batch:
        raise CommandError(Code.INVALID_MESSAGES_COUNT, f"{count} messages are announced, but the batch has {in_batch}")
    if origin > ORIGIN_MAX:
        raise CommandError(Code.TIMESTAMP_OUT_OF_RANGE, f"the batch has the origin time {origin}")
    return SendMessages(stream, topic, to, (batch,))


def encode(request: SendMessages) -> list[Readable]:
    (batch,) = request.batches
    return [destination.write(request, HEADER.unpack_from(batch)[6]), batch]


def encode_response(sent: Sent) -> list[Readable]:
    return [_CONFIRMATION.pack(_ONE, sent.stream_id, sent.topic_id, sent.partition_id, sent.base_offset)]


def decode_response(body: memoryview) -> tuple[Confirmation, ...]:
    """Empty: it was stored, but the position is unknown."""
    if not body:
        return ()
    reader = Reader(body)
    return tuple(Confirmation(reader.u32(), reader.u32(), reader.u32(), reader.u64()) for _ in range(reader.u32()))
