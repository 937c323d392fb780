"""Batches that name their producer (protocol 0.12): decoding the producer, and removing it before the log stores
them."""

from __future__ import annotations

import struct

import pytest
import xxhash

from tests.storage.support.world import random_bytes
from tests.support.clocks import NOON
from whippet.storage.batch import (
    FRAME_BYTES,
    HEADER_BYTES,
    NUMBERED_AT,
    NUMBERED_END,
    PRODUCER_EPOCH_MAX,
    PRODUCER_ID_MAX,
    PRODUCER_SEQUENCE_MAX,
    Message,
    Numbered,
    build,
    check,
    forget_numbers,
    numbered,
)
from whippet.storage.errors import BatchFault, InvalidBatch

CHECKSUM = struct.Struct("<Q")
SAID = Numbered(7 << 20 | 3, 2, 41)


def plain(count: int = 3) -> bytearray:
    payloads = [b"x" * (5 + i % 4) for i in range(count)]
    return build([Message(payload, i + 1) for i, payload in enumerate(payloads)], NOON, random_bytes)


def made(said: Numbered, count: int = 3, *, is_summed: bool = True) -> bytearray:
    """The checksum as the protocol page defines it: over 44 bytes of the header, the producer, and the frames'
    checksums."""
    batch = plain(count)
    struct.pack_into("<B3xQHHI", batch, NUMBERED_AT, 1, said.producer_id, said.epoch, 0, said.sequence)
    octets = bytes(batch[:40] + batch[48:52])
    if is_summed:
        octets += b"\1" + struct.pack("<QHI", said.producer_id, said.epoch, said.sequence)
    position = HEADER_BYTES
    for _ in range(count):
        octets += batch[position : position + 8]
        headers, payload = struct.unpack_from("<II", batch, position + 32)
        position += FRAME_BYTES + headers + payload
    CHECKSUM.pack_into(batch, 40, xxhash.xxh3_64_intdigest(octets))
    return batch


def test_the_producer_of_a_batch_is_decoded_and_is_none_without_one() -> None:
    assert numbered(made(SAID)) == SAID
    assert numbered(plain()) is None
    most = Numbered(PRODUCER_ID_MAX, PRODUCER_EPOCH_MAX, PRODUCER_SEQUENCE_MAX)
    assert numbered(made(most)) == most


@pytest.mark.parametrize("count", [1, 2, 3, 40])
def test_removing_the_producer_gives_the_batch_without_it(count: int) -> None:
    batch = made(SAID, count)
    with pytest.raises(InvalidBatch) as refused:
        check(batch)
    assert refused.value.fault is BatchFault.RESERVED
    forget_numbers(batch)
    assert batch == plain(count)
    assert check(batch).message_count == count


def test_a_checksum_without_the_producer_does_not_become_right_by_removing_it() -> None:
    batch = made(SAID, is_summed=False)
    forget_numbers(batch)
    with pytest.raises(InvalidBatch) as refused:
        check(batch)
    assert refused.value.fault is BatchFault.BATCH_CHECKSUM


@pytest.mark.parametrize("at", [10, 24, 45, NUMBERED_AT + 4, NUMBERED_AT + 12, NUMBERED_AT + 16, HEADER_BYTES + 3])
def test_one_wrong_byte_is_found_after_the_producer_is_removed(at: int) -> None:
    batch = made(SAID)
    batch[at] ^= 1
    forget_numbers(batch)
    with pytest.raises(InvalidBatch):
        check(batch)


def test_nothing_is_read_after_the_end_of_a_batch_that_ends_early() -> None:
    for size in range(HEADER_BYTES, len(made(SAID))):
        batch = made(SAID)[:size]
        forget_numbers(batch)
        assert not any(batch[NUMBERED_AT:NUMBERED_END])
        with pytest.raises(InvalidBatch):
            check(batch)


@pytest.mark.parametrize(
    ("at", "value", "size"),
    [
        (NUMBERED_AT, 3, 1),
        (NUMBERED_AT + 1, 1, 1),
        (NUMBERED_AT + 3, 1, 1),
        (NUMBERED_AT + 14, 1, 2),
        (NUMBERED_AT + 4, PRODUCER_ID_MAX + 1, 8),
        (NUMBERED_AT + 12, PRODUCER_EPOCH_MAX + 1, 2),
        (NUMBERED_AT + 16, PRODUCER_SEQUENCE_MAX + 1, 4),
    ],
)
def test_undefined_bytes_and_numbers_that_are_too_large_are_refused(at: int, value: int, size: int) -> None:
    batch = made(SAID)
    batch[at : at + size] = value.to_bytes(size, "little")
    with pytest.raises(InvalidBatch) as refused:
        numbered(batch)
    assert refused.value.fault is BatchFault.RESERVED
