"""The body of a 0.9 send: where to, how many, and a batch in the format of the log, to the end of the body.

The batch stays where it is: what the command layer gets is a view of the very bytes that came, and the log keeps them.
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
"""With the largest delta added, a time still has 64 bits."""
_CONFIRMATION = struct.Struct("<IIIIQ")
_ONE = 1


def decode(body: memoryview) -> SendMessages:
    """What is inside the batch is for the log to check."""
    stream, topic, to, count, position = destination.read(body)
    batch = body[position:]
    if len(batch) < HEADER_BYTES:
        raise CommandError(
            Code.INVALID_MESSAGES_SIZE, f"{len(batch)} bytes are no batch: its header has {HEADER_BYTES}"
        )
    _, _, _, origin, _, _, in_batch = HEADER.unpack_from(batch)
    if count != in_batch:
        raise CommandError(Code.INVALID_MESSAGES_COUNT, f"{count} messages are announced, the batch says {in_batch}")
    if origin > ORIGIN_MAX:
        raise CommandError(Code.TIMESTAMP_OUT_OF_RANGE, f"the batch says that its messages are from {origin}")
    return SendMessages(stream, topic, to, (batch,))


def encode(request: SendMessages) -> list[Readable]:
    (batch,) = request.batches
    return [destination.write(request, HEADER.unpack_from(batch)[6]), batch]


def encode_answer(sent: Sent) -> list[Readable]:
    return [_CONFIRMATION.pack(_ONE, sent.stream_id, sent.topic_id, sent.partition_id, sent.base_offset)]


def decode_answer(body: memoryview) -> tuple[Confirmation, ...]:
    """Empty: it was stored, and nobody says where."""
    if not body:
        return ()
    reader = Reader(body)
    return tuple(Confirmation(reader.u32(), reader.u32(), reader.u32(), reader.u64()) for _ in range(reader.u32()))
