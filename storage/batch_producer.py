"""The producer that a client of the 0.12 protocol names in the header of a batch.

The log has zeros in these bytes: the producer is decoded and removed before the batch is checked and appended.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import xxhash

from whippet.storage.batch import FRAME_BYTES, HEADER_BYTES, RESERVED_AT, Readable, Writable
from whippet.storage.errors import BatchFault, InvalidBatch

_hash = xxhash.xxh3_64_intdigest

_PRODUCER = struct.Struct("<B3xQHHI")
PRODUCER_AT, PRODUCER_END = RESERVED_AT, RESERVED_AT + 20
"""The bytes of the batch header that name the producer."""
PRODUCER_ID_MAX, PRODUCER_EPOCH_MAX, PRODUCER_SEQUENCE_MAX = 2**63 - 1, 2**15 - 1, 2**31 - 1

_U64 = struct.Struct("<Q")
_COUNT = struct.Struct("<I")
_FRAME_LENGTHS = struct.Struct("<II")


class BatchProducer(NamedTuple):
    """The producer that a batch names, and the number of its first message in an epoch."""

    producer_id: int
    epoch: int
    sequence: int


def producer_of(batch: Readable) -> BatchProducer | None:
    """The producer that a batch names; None if it names none."""
    flags, producer_id, epoch, reserved, sequence = _PRODUCER.unpack_from(batch, PRODUCER_AT)
    if not flags & 1:
        return None
    if flags != 1 or reserved or any(batch[PRODUCER_AT + 1 : PRODUCER_AT + 4]):
        raise InvalidBatch(BatchFault.RESERVED, "reserved bytes beside the batch's producer are not zero")
    if producer_id > PRODUCER_ID_MAX or epoch > PRODUCER_EPOCH_MAX or sequence > PRODUCER_SEQUENCE_MAX:
        sentence = f"producer {producer_id}, epoch {epoch}, sequence {sequence}: one of them is too large"
        raise InvalidBatch(BatchFault.RESERVED, sentence)
    return BatchProducer(producer_id, epoch, sequence)


def remove_producer(batch: Writable) -> None:
    """Removes the producer from a numbered batch and updates its checksum, so that the log can store it. Any other
    fault is left for `check` to find."""
    (count,) = _COUNT.unpack_from(batch, 48)
    producer = bytes((1, *batch[PRODUCER_AT + 4 : PRODUCER_AT + 14], *batch[PRODUCER_AT + 16 : PRODUCER_END]))
    batch[PRODUCER_AT:PRODUCER_END] = bytes(PRODUCER_END - PRODUCER_AT)
    checksums = []
    position, size = HEADER_BYTES, len(batch)
    for _ in range(count):
        if position + FRAME_BYTES > size:
            return
        checksums.append(bytes(batch[position : position + 8]))
        position += FRAME_BYTES + sum(_FRAME_LENGTHS.unpack_from(batch, position + 32))
    frames = b"".join(checksums)
    (named,) = _U64.unpack_from(batch, 40)
    if named == _hash(b"".join((batch[:40], batch[48:52], producer, frames))):
        _U64.pack_into(batch, 40, _hash(b"".join((batch[:40], batch[48:52], frames))))
    elif named == _hash(b"".join((batch[:40], batch[48:52], frames))):
        # The checksum does not cover the producer. Without it the batch must not look right.
        _U64.pack_into(batch, 40, ~named & (2**64 - 1))
