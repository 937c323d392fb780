"""Responses to polls and fetches of 0.12 clients.

    poll   partition u32 | its last offset u64 | number of messages u32 | context | batches
    fetch  number of sections u32 | sections of 56 bytes | the batches of all sections in the same order

A context is the incarnation of the partition, the generation of its owner, which is always 0 here, and the number of
the newest change of the catalogue. The batches are sent as the log has them, or cut at both ends; nothing is copied.
"""

from __future__ import annotations

import struct

from whippet.app.commands.responses import Fetched, PolledAt, Section
from whippet.app.errors import Code, CommandError
from whippet.storage.batch import Readable
from whippet.transports.wire.modern import polls as modern
from whippet.transports.wire.primitives import U32_MAX, Reader, u32

HEAD = struct.Struct("<IQIQQQ")
SECTION = struct.Struct("<IIQIQQQQI")
OWNER_GENERATION = 0


def encode(answer: PolledAt) -> list[Readable]:
    polled = answer.polled
    partition_id = polled.partition_id if polled.owned else U32_MAX
    head = HEAD.pack(
        partition_id,
        polled.current_offset,
        polled.messages_count,
        answer.incarnation,
        OWNER_GENERATION,
        answer.metadata_op,
    )
    return [head, *polled.batches]


def decode(body: memoryview) -> PolledAt:
    if len(body) < HEAD.size:
        raise CommandError(Code.INVALID_FORMAT, f"{len(body)} bytes are not a response to a poll")
    _, _, _, incarnation, _, metadata_op = HEAD.unpack_from(body)
    polled = modern.decode(memoryview(bytes(body[: modern.PREFIX.size]) + bytes(body[HEAD.size :])))
    return PolledAt(polled, incarnation, metadata_op)


def encode_fetched(fetched: Fetched) -> list[Readable]:
    heads = [
        SECTION.pack(
            section.partition_id,
            section.status,
            section.current_offset,
            section.messages_count,
            section.incarnation,
            OWNER_GENERATION,
            fetched.metadata_op,
            section.next_offset,
            sum(map(len, section.batches)),
        )
        for section in fetched.sections
    ]
    batches = [batch for section in fetched.sections for batch in section.batches]
    return [u32(len(heads)), *heads, *batches]


def decode_fetched(body: memoryview) -> Fetched:
    reader = Reader(body)
    heads = [reader.unpack(SECTION) for _ in range(reader.u32())]
    sections = []
    metadata_op = heads[0][6] if heads else 0
    for partition_id, status, current_offset, count, incarnation, _, _, next_offset, size in heads:
        batches = (reader.take(size),) if size else ()
        sections.append(Section(partition_id, status, current_offset, count, incarnation, next_offset, batches))
    return Fetched(tuple(sections), metadata_op)
