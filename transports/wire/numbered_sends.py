"""Numbered sends over the binary protocols: a command of Whippet's own, which other servers refuse.

    request   code 0x57480065 | id of the producer, length u8 and UTF-8 | epoch u32 | sequence u64 | a 0.9 send
    response  stream u32 | topic u32 | partition u32 | first offset u64 | messages u64 | durability u8 | repeated u8

The 0.9 protocol sends it as a READ with this code, because a repetition is recognized by its number.
"""

from __future__ import annotations

import msgspec

from whippet.app.commands import responses
from whippet.app.commands.requests import SendMessages
from whippet.app.errors import Code, CommandError, of_storage
from whippet.storage.batch import Readable
from whippet.storage.errors import InvalidProducer
from whippet.storage.options import Durability
from whippet.storage.producers import Producer
from whippet.transports.wire.modern import sends
from whippet.transports.wire.primitives import FLAG, U8, U32, U64, Part, Reader, structure, u32, u64

CODE = 0x57480065


def _read_durability(reader: Reader) -> Durability:
    number = reader.u8()
    try:
        return Durability(number)
    except ValueError:
        raise CommandError(Code.INVALID_FORMAT, f"the durability {number} is unknown") from None


SENT = structure(
    responses.Sent,
    stream_id=U32,
    topic_id=U32,
    partition_id=U32,
    base_offset=U64,
    messages_count=U64,
    durability=Part(_read_durability, U8.write),
    repeated=FLAG,
)


def decode(body: memoryview) -> SendMessages:
    """The log checks the content of the batch."""
    reader = Reader(body)
    identity, epoch, sequence = bytes(reader.take(reader.u8())), reader.u32(), reader.u64()
    try:
        producer = Producer(identity, epoch, sequence)
    except InvalidProducer as error:
        raise of_storage(error) from error
    return msgspec.structs.replace(sends.decode(body[reader.position :]), producer=producer)


def encode(request: SendMessages) -> list[Readable]:
    producer = request.producer
    assert producer is not None
    number = b"".join((U8.write(len(producer.id)), producer.id, u32(producer.epoch), u64(producer.sequence)))
    return [number, *sends.encode(request)]
