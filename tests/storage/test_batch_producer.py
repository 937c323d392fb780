"""Batches that name their producer (protocol 0.12): decoding the producer, and removing it before the log stores
them."""

from __future__ import annotations

import struct

import pytest
import xxhash

from tests.storage.support.world import random_bytes
from tests.support.clocks import NOON
from whippet.storage.batch import FRAME_BYTES, HEADER_BYTES, Message, build, check
from whippet.storage.batch_producer import (
    PRODUCER_AT,
    PRODUCER_END,
    BatchProducer,
    producer_of,
    remove_producer,
)
from whippet.storage.errors import BatchFault, InvalidBatch

CHECKSUM = struct.Struct("<Q")
PRODUCER = BatchProducer(7 << 20 | 3, 2, 41)


def plain(count: int = 3) -> bytearray:
    payloads = [b"x" * (5 + i % 4) for i in range(count)]
    return build([Message(payload, i + 1) for i, payload in enumerate(payloads)], NOON, random_bytes)


def made(producer: BatchProducer, count: int = 3, *, is_summed: bool = True) -> bytearray:
    """The checksum as the protocol page defines it: over 44 bytes of the header, the producer, and the frames'
    checksums."""
    batch = plain(count)
    struct.pack_into("<B3xQHHI", batch, PRODUCER_AT, 1, producer.producer_id, producer.epoch, 0, producer.sequence)
    octets = bytes(batch[:40] + batch[48:52])
    if is_summed:
        octets += b"\1" + struct.pack("<QHI", producer.producer_id, producer.epoch, producer.sequence)
    position = HEADER_BYTES
    for _ in range(count):
        octets += batch[position : position + 8]
        headers, payload = struct.unpack_from("<II", batch, position + 32)
        position += FRAME_BYTES + headers + payload
    CHECKSUM.pack_into(batch, 40, xxhash.xxh3_64_intdigest(octets))
    return batch


def test_the_producer_of_a_batch_is_decoded_and_is_none_without_one() -> None:
    assert producer_of(made(PRODUCER)) == PRODUCER
    assert producer_of(plain()) is None
    most = BatchProducer(2**63 - 1, 2**15 - 1, 2**31 - 1)
    assert producer_of(made(most)) == most


@pytest.mark.parametrize("count", [1, 2, 3, 40])
def test_removing_the_producer_gives_the_batch_without_it(count: int) -> None:
    batch = made(PRODUCER, count)
    with pytest.raises(InvalidBatch) as refused:
        check(batch)
    assert refused.value.fault is BatchFault.RESERVED
    remove_producer(batch)
    assert batch == plain(count)
    assert check(batch).message_count == count


def test_a_checksum_without_the_producer_does_not_become_right_by_removing_it() -> None:
    batch = made(PRODUCER, is_summed=False)
    remove_producer(batch)
    with pytest.raises(InvalidBatch) as refused:
        check(batch)
    assert refused.value.fault is BatchFault.BATCH_CHECKSUM


@pytest.mark.parametrize("at", [10, 24, 45, PRODUCER_AT + 4, PRODUCER_AT + 12, PRODUCER_AT + 16, HEADER_BYTES + 3])
def test_one_wrong_byte_is_found_after_the_producer_is_removed(at: int) -> None:
    batch = made(PRODUCER)
    batch[at] ^= 1
    remove_producer(batch)
    with pytest.raises(InvalidBatch):
        check(batch)


def test_nothing_is_read_after_the_end_of_a_batch_that_ends_early() -> None:
    for size in range(HEADER_BYTES, len(made(PRODUCER))):
        batch = made(PRODUCER)[:size]
        remove_producer(batch)
        assert not any(batch[PRODUCER_AT:PRODUCER_END])
        with pytest.raises(InvalidBatch):
            check(batch)


@pytest.mark.parametrize(
    ("at", "value", "size"),
    [
        (PRODUCER_AT, 3, 1),
        (PRODUCER_AT + 1, 1, 1),
        (PRODUCER_AT + 3, 1, 1),
        (PRODUCER_AT + 14, 1, 2),
        (PRODUCER_AT + 4, 2**63, 8),
        (PRODUCER_AT + 12, 2**15, 2),
        (PRODUCER_AT + 16, 2**31, 4),
    ],
)
def test_undefined_bytes_and_numbers_that_are_too_large_are_refused(at: int, value: int, size: int) -> None:
    batch = made(PRODUCER)
    batch[at : at + size] = value.to_bytes(size, "little")
    with pytest.raises(InvalidBatch) as refused:
        producer_of(batch)
    assert refused.value.fault is BatchFault.RESERVED
