"""Batches of messages <-> record batches of Kafka, as pure functions over bytes.

A record batch becomes one batch, whose time is the newest in it; where the topic has LogAppendTime, that is the time of
all its records. Offsets keep their gaps. Records without a value are no messages: readers skip them.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import xxhash
from aiokafka.record.default_records import DefaultRecord, DefaultRecordBatch, DefaultRecordBatchBuilder

from whippet.storage import batch as batches
from whippet.storage.batch import FRAME, FRAME_BYTES, HEADER, HEADER_BYTES, Readable
from whippet.storage.kafka import headers

_hash = xxhash.xxh3_64_intdigest
_U64 = struct.Struct("<Q")
_BE_U64 = struct.Struct(">Q")

MAGIC = 2
NO_COMPRESSION = 0
BUILDER_BYTES = 2**30
LENGTH_END = 12
"""What comes before this is not counted in the length of a record batch."""
TRANSACTIONAL, CONTROL = 0x10, 0x20
ABORT = 0
_HEAD = struct.Struct(">qiibIhiqqq")
"""base offset, length, epoch of the leader, magic, checksum, attributes, last offset delta, first and newest time,
producer"""


class Producer(NamedTuple):
    """What makes a broker store a repeated record batch once."""

    id: int
    epoch: int


def _builder(producer: Producer, sequence: int, *, transactional: bool = False) -> DefaultRecordBatchBuilder:
    return DefaultRecordBatchBuilder(
        magic=MAGIC,
        compression_type=NO_COMPRESSION,
        is_transactional=transactional,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
        batch_size=BUILDER_BYTES,
    )


def encode(contents: Sequence[Readable], producer: Producer, sequence: int, now_ms: int) -> bytes:
    """Returns one record batch with the messages of all these batches."""
    builder = _builder(producer, sequence)
    number = 0
    for batch in contents:
        view = memoryview(batch)
        named = batches.header(view)
        position = HEADER_BYTES
        for _ in range(named.message_count):
            _, identity, _, delta, more, length, _ = FRAME.unpack_from(view, position)
            body = position + FRAME_BYTES
            position = body + length + more
            of_record = [
                (headers.ID, identity[::-1]),
                (headers.ORIGIN, _BE_U64.pack(named.origin_timestamp + delta)),
            ]
            if more:
                of_record += headers.to_record(bytes(view[position - more : position]))
            builder.append(number, now_ms, None, bytes(view[body : body + length]), of_record)
            number += 1
    return bytes(builder.build())


def encode_documents(documents: Mapping[str, bytes | None], producer: Producer, sequence: int) -> bytes:
    """Returns a record batch of a transaction, with a record for each document under its name."""
    builder = _builder(producer, sequence, transactional=True)
    now_ms = time.time_ns() // 1_000_000
    for number, (name, value) in enumerate(documents.items()):
        builder.append(number, now_ms, name.encode(), value, [])
    return bytes(builder.build())


class RecordBatch(NamedTuple):
    """A record batch as a broker has sent it, and whether it has messages for readers."""

    first_offset: int
    next_offset: int
    content: bytes
    """Empty if it has none: it is a mark of a transaction, or belongs to one that was aborted."""

    def __iter__(self) -> Iterator[DefaultRecord]:
        """The records, with a decoder of their own: it can be used once."""
        return iter(DefaultRecordBatch(self.content)) if self.content else iter(())


def split(content: bytes, aborted: Sequence[tuple[int, int]] | None) -> Iterator[RecordBatch]:
    """Yields the whole record batches in the response to a fetch. `aborted` has producers, and the offsets at which
    their aborted transactions begin."""
    pending = sorted(aborted or (), key=lambda one: one[1])
    ended_badly: set[int] = set()
    position = 0
    while len(content) - position >= _HEAD.size:
        first, length, _, magic, _, attributes, delta, _, _, producer = _HEAD.unpack_from(content, position)
        begin, position = position, position + LENGTH_END + length
        if position > len(content):
            # Brokers cut off what exceeds the size that was asked for.
            return
        if magic != MAGIC:
            # From before Kafka 0.11. Brokers since 4.0 have none.
            continue
        after = first + delta + 1
        while pending and pending[0][1] < after:
            ended_badly.add(pending.pop(0)[0])
        whole = content[begin:position]
        if attributes & CONTROL:
            if _is_abort(whole):
                ended_badly.discard(producer)
            whole = b""
        elif attributes & TRANSACTIONAL and producer in ended_badly:
            whole = b""
        yield RecordBatch(first, after, whole)


def _is_abort(mark: bytes) -> bool:
    """Whether the mark at the end of a transaction says that it was aborted."""
    for record in DefaultRecordBatch(mark):
        key = record.key or b""
        return len(key) >= 4 and struct.unpack_from(">h", key, 2)[0] == ABORT
    return False


class Decoded(NamedTuple):
    """Some messages of a record batch, as a batch for clients."""

    content: bytes
    messages: int
    next_offset: int


def decode(records: RecordBatch, partition: int, offset: int, count: int, room: int, *, at_least_one: bool) -> Decoded:
    """Returns at most `count` messages in at most `room` bytes, from an offset on. `next_offset` is where to
    continue."""
    source = DefaultRecordBatch(records.content)
    base, newest = records.first_offset, source.max_timestamp
    taken: list[tuple[int, bytes, int, bytes, bytes]] = []
    size = HEADER_BYTES
    after = records.next_offset
    for record in source:
        if record.offset < offset or not record.value:
            continue
        if len(taken) == count:
            after = record.offset
            break
        identity, origin, block = _described(record.headers, record.offset, partition, record.timestamp)
        more = FRAME_BYTES + len(record.value) + len(block)
        if size + more > room and not (at_least_one and not taken):
            after = record.offset
            break
        size += more
        taken.append((record.offset - base, identity, origin, record.value, block))
    if not taken:
        return Decoded(b"", 0, after)
    # A delta has 32 bits, so an origin that is over an hour from the first one is moved to the border.
    first = min(origin for _, _, origin, _, _ in taken)
    parts: list[bytes] = [bytes(HEADER_BYTES)]
    checksums = []
    for delta, identity, origin, value, block in taken:
        ago = min(origin - first, batches.TIME_SPAN_MAX_US)
        frame = b"".join((FRAME.pack(0, identity, delta, ago, len(block), len(value), 0)[8:], value, block))
        checksum = _U64.pack(_hash(frame))
        checksums.append(checksum)
        parts += (checksum, frame)
    content = bytearray().join(parts)
    HEADER.pack_into(content, 0, partition, base, newest * 1000, first, len(content), 0, len(taken))
    _U64.pack_into(content, 40, _hash(b"".join((content[:40], content[48:52], *checksums))))
    return Decoded(bytes(content), len(taken), after)


def _described(
    of_record: Sequence[tuple[str, bytes | None]], offset: int, partition: int, timestamp_ms: int
) -> tuple[bytes, int, bytes]:
    """Returns the id, the origin time and the user headers of a record. One that was not written by a gateway gets an
    id made of its place, which is the same whenever it is read."""
    identity = origin = None
    for name, value in of_record:
        if name == headers.ID and value is not None and len(value) == 16:
            identity = value[::-1]
        elif name == headers.ORIGIN and value is not None and len(value) == 8:
            (origin,) = _BE_U64.unpack(value)
    if identity is None:
        identity = struct.pack("<QQ", offset + 1, partition)
    return (
        identity,
        max(timestamp_ms, 0) * 1000 if origin is None else origin,
        (headers.from_record(of_record) if of_record else b""),
    )
