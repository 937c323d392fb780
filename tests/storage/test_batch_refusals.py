"""Batches that are refused: every fault is found and named, and limits are exact."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.support.batches import WAYS, every_way, fault_of, fuzz, limits, positions, starts
from whippet.storage.batch import FRAME_BYTES, HEADER_BYTES, UNLIMITED, check, header, messages
from whippet.storage.errors import BatchFault, InvalidBatch


def sealed(whole: bytearray, *, frames: Sequence[int] | None = None) -> bytearray:
    """Corrects all checksums after another change."""
    bounds = list(frames or starts(whole))
    for start, end in pairwise(bounds):
        struct.pack_into("<Q", whole, start, xxhash.xxh3_64_intdigest(bytes(whole[start + 8 : end])))
    checksums = b"".join(bytes(whole[start : start + 8]) for start in bounds[:-1])
    struct.pack_into("<Q", whole, 40, xxhash.xxh3_64_intdigest(bytes(whole[:40] + whole[48:52]) + checksums))
    return whole


# ------------------------------------------------------------------------------------------------------------- refusals


@every_way
def test_any_flipped_bit_is_noticed(whole: bytearray) -> None:
    """Only the checksums themselves are not covered by a checksum, and a flip there is a mismatch too."""
    bad = bytearray(whole)
    for position in range(len(bad)):
        bad[position] ^= 1 << position % 8
        with pytest.raises(InvalidBatch):
            check(bad)
        bad[position] ^= 1 << position % 8
    check(bad)


FIELDS = {
    # position in the frame, format, value, whether the checksum is corrected, fault
    "checksum": (0, "<B", 0, False, BatchFault.FRAME_CHECKSUM),
    "id": (8, "<Q", 2**64 - 2, False, BatchFault.FRAME_CHECKSUM),
    "offset delta too high": (24, "<I", 2**32 - 1, True, BatchFault.DELTA),
    "timestamp delta": (28, "<I", 2**32 - 2, False, BatchFault.FRAME_CHECKSUM),
    "reserved": (40, "<Q", 1, True, BatchFault.RESERVED),
    "last reserved": (47, "<B", 1, True, BatchFault.RESERVED),
}


@every_way
@pytest.mark.parametrize("field", FIELDS)
def test_a_wrong_field_of_a_frame_is_named_with_its_message(whole: bytearray, field: str) -> None:
    at, form, value, sealed_again, fault = FIELDS[field]
    bounds = starts(whole)
    for i, start in enumerate(bounds[:-1]):
        bad = bytearray(whole)
        if field == "checksum":
            value = bad[start] ^ 1
        struct.pack_into(form, bad, start + at, value)
        if sealed_again:
            sealed(bad, frames=bounds)
        assert fault_of(bad) == (fault, i)


@every_way
def test_a_flipped_byte_of_payload_or_user_headers_is_named_with_its_message(
    whole: bytearray,
) -> None:
    for i, (start, end) in enumerate(pairwise(starts(whole))):
        for position in (start + FRAME_BYTES, end - 1):
            bad = bytearray(whole)
            bad[position] ^= 0x80
            assert fault_of(bad) == (BatchFault.FRAME_CHECKSUM, i)


@every_way
def test_the_first_delta_out_of_order_is_named(whole: bytearray) -> None:
    bounds = starts(whole)
    for i, start in enumerate(bounds[:-1]):
        bad = bytearray(whole)
        struct.pack_into("<I", bad, start + 24, i + 1)
        assert fault_of(sealed(bad, frames=bounds)) == (BatchFault.DELTA, i)


@every_way
def test_the_first_of_two_bad_messages_is_named(whole: bytearray) -> None:
    bounds = starts(whole)
    count = len(bounds) - 1
    for i in range(count - 1):
        bad = bytearray(whole)
        bad[bounds[i + 1] - 1] ^= 1
        struct.pack_into("<Q", bad, bounds[-2] + 40, 1)
        assert fault_of(bad) == (BatchFault.FRAME_CHECKSUM, i)


@every_way
def test_an_empty_payload_is_refused(whole: bytearray) -> None:
    """The bytes stay, but all of them are user headers now, so that the lengths still fit."""
    bounds = starts(whole)
    for i, start in enumerate(bounds[:-1]):
        bad = bytearray(whole)
        struct.pack_into("<II", bad, start + 32, bounds[i + 1] - start - FRAME_BYTES, 0)
        assert fault_of(sealed(bad, frames=bounds)) == (BatchFault.EMPTY_PAYLOAD, i)


@every_way
def test_a_last_message_without_any_content_is_refused_as_empty(whole: bytearray) -> None:
    bounds = [*starts(whole), len(whole) + FRAME_BYTES]
    count = len(bounds) - 2
    bad = whole + struct.pack("<Q16sIIIIQ", 0, b"id", count, 0, 0, 0, 0)
    struct.pack_into("<Q", bad, 32, len(bad))
    struct.pack_into("<I", bad, 48, count + 1)
    assert fault_of(sealed(bad, frames=bounds)) == (BatchFault.EMPTY_PAYLOAD, count)


@every_way
def test_payload_and_user_headers_may_divide_a_frame_anywhere(whole: bytearray) -> None:
    """Frames of the same length may divide it differently. The format allows it, so all three implementations must."""
    bounds = starts(whole)
    for start, end in pairwise(bounds):
        other = bytearray(whole)
        struct.pack_into("<II", other, start + 32, end - start - FRAME_BYTES - 1, 1)
        checked = check(sealed(other, frames=bounds))
        assert positions(other, checked.frames) == bounds


HEADER_FIELDS = {
    "partition": (0, "<Q", BatchFault.BATCH_CHECKSUM),
    "base offset": (8, "<Q", BatchFault.BATCH_CHECKSUM),
    "base timestamp": (16, "<Q", BatchFault.BATCH_CHECKSUM),
    "origin timestamp": (24, "<Q", BatchFault.BATCH_CHECKSUM),
    "length": (32, "<Q", BatchFault.LENGTH),
    "checksum": (40, "<Q", BatchFault.BATCH_CHECKSUM),
    "count": (48, "<I", BatchFault.COUNT),
    "first reserved": (52, "<B", BatchFault.RESERVED),
    "last reserved": (255, "<B", BatchFault.RESERVED),
}


@every_way
@pytest.mark.parametrize("field", HEADER_FIELDS)
def test_a_wrong_field_of_the_header_is_named(whole: bytearray, field: str) -> None:
    at, form, fault = HEADER_FIELDS[field]
    bad = bytearray(whole)
    (value,) = struct.unpack_from(form, bad, at)
    struct.pack_into(form, bad, at, value + 1)
    found, message = fault_of(bad)
    assert found is fault
    assert message == (header(whole).message_count if field == "count" else None)


@every_way
@pytest.mark.parametrize("lie", [0, 1, 255, 256, 2**32, 2**63, 2**64 - 1])
def test_a_wrong_length_is_refused(whole: bytearray, lie: int) -> None:
    bad = bytearray(whole)
    struct.pack_into("<Q", bad, 32, lie)
    assert fault_of(sealed(bad)) == (BatchFault.LENGTH, None)


@every_way
def test_a_wrong_count_is_refused(whole: bytearray) -> None:
    count = header(whole).message_count
    bounds = starts(whole)
    for lie in {0, 1, count - 1, count + 1, 2 * count, 2**31, 2**32 - 1} - {count}:
        bad = bytearray(whole)
        struct.pack_into("<I", bad, 48, lie)
        fault = fault_of(sealed(bad, frames=bounds))
        assert fault == (BatchFault.COUNT, count if lie > count else None)


@every_way
@pytest.mark.parametrize("lie", [2**31, 2**32 - 1, 2**32 - FRAME_BYTES])
@pytest.mark.parametrize("field", [32, 36])
def test_a_frame_with_a_huge_length_is_refused(whole: bytearray, lie: int, field: int) -> None:
    bounds = starts(whole)
    for i, start in enumerate(bounds[:-1]):
        bad = bytearray(whole)
        struct.pack_into("<I", bad, start + field, lie)
        assert fault_of(sealed(bad, frames=bounds)) == (BatchFault.LENGTH, i)


@every_way
def test_lengths_whose_sum_exceeds_32_bits_do_not_wrap_around(
    whole: bytearray,
) -> None:
    """2**32 - 1 bytes of one and the right length and one more of the other wrap around to the right total."""
    bounds = starts(whole)
    for i, (start, end) in enumerate(pairwise(bounds)):
        bad = bytearray(whole)
        struct.pack_into("<II", bad, start + 32, 2**32 - 1, end - start - FRAME_BYTES + 1)
        assert fault_of(sealed(bad, frames=bounds)) == (BatchFault.LENGTH, i)


@every_way
def test_a_frame_that_reaches_into_the_next_is_refused(whole: bytearray) -> None:
    bounds = starts(whole)
    for i, start in enumerate(bounds[:-1]):
        bad = bytearray(whole)
        (payload,) = struct.unpack_from("<I", bad, start + 36)
        struct.pack_into("<I", bad, start + 36, payload + 1)
        fault = BatchFault.LENGTH if i == len(bounds) - 2 else BatchFault.FRAME_CHECKSUM
        assert fault_of(bad) == (fault, i)


@every_way
def test_a_batch_cut_off_at_any_byte_is_refused(whole: bytearray) -> None:
    for size in range(len(whole)):
        fault, message = fault_of(whole[:size])
        assert (fault, message) == (BatchFault.LENGTH, None)


@every_way
def test_a_shortened_batch_with_a_matching_header_is_refused_naming_the_message(
    whole: bytearray,
) -> None:
    bounds = starts(whole)
    for size in range(HEADER_BYTES, len(whole)):
        short = whole[:size]
        struct.pack_into("<Q", short, 32, size)
        fault, message = fault_of(short)
        inside = sum(bound <= size for bound in bounds) - 1
        assert message == inside
        assert fault is (BatchFault.COUNT if size in bounds else BatchFault.LENGTH)


@every_way
@pytest.mark.parametrize("extra", [b"\0", b"\1" * 47, bytes(48), bytes(49), bytes(1000)])
def test_bytes_after_the_last_message_are_refused(whole: bytearray, extra: bytes) -> None:
    assert fault_of(whole + extra) == (BatchFault.LENGTH, None)
    longer = whole + extra
    struct.pack_into("<Q", longer, 32, len(longer))
    fault, message = fault_of(sealed(longer, frames=starts(whole)))
    assert (fault, message) == (BatchFault.COUNT, None)


@pytest.mark.parametrize("octets", [b"", b"\0", bytes(255), bytes(256), bytes(304), bytes(305), b"\xff" * 400])
def test_bytes_that_are_not_a_batch_are_refused(octets: bytes) -> None:
    assert fault_of(octets)[0] is BatchFault.LENGTH


@fuzz
@given(st.sampled_from(list(WAYS.values())), st.data())
def test_the_check_of_damaged_bytes_accepts_or_refuses_and_raises_nothing_else(
    whole: bytearray, data: st.DataObject
) -> None:
    """Damage with corrected checksums, as from a hostile producer: it has to be refused because of the structure
    alone."""
    bad = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(HEADER_BYTES, len(bad) - 4))
        struct.pack_into("<I", bad, position, data.draw(st.sampled_from((0, 1, 47, 2**31, 2**32 - 1))))
    frames = starts_or_none(bad)
    if frames is not None:
        sealed(bad, frames=frames)
    try:
        checked = check(bad)
    except InvalidBatch:
        return
    assert frames is not None
    assert frames[-1] == len(bad)
    assert positions(bad, checked.frames) == frames


def starts_or_none(whole: bytearray) -> list[int] | None:
    found = [HEADER_BYTES]
    for _ in range(header(whole).message_count):
        if found[-1] + FRAME_BYTES > len(whole):
            return None
        user_headers, payload = struct.unpack_from("<II", whole, found[-1] + 32)
        found.append(found[-1] + FRAME_BYTES + user_headers + payload)
        if found[-1] > len(whole):
            return None
    return found


# --------------------------------------------------------------------------------------------------------------- limits


@every_way
def test_a_batch_may_be_as_long_as_the_limit_and_no_longer(whole: bytearray) -> None:
    check(whole, limits(batch_bytes=len(whole)))
    assert fault_of(whole, limits(batch_bytes=len(whole) - 1)) == (BatchFault.BATCH_LIMIT, None)
    with pytest.raises(InvalidBatch, match=rf"{len(whole)} is over .* system\.limits\.batch_bytes = {len(whole) - 1}$"):
        check(whole, limits(batch_bytes=len(whole) - 1))


@every_way
def test_a_batch_may_have_as_many_messages_as_the_limit_and_no_more(whole: bytearray) -> None:
    count = header(whole).message_count
    check(whole, limits(messages=count))
    assert fault_of(whole, limits(messages=count - 1)) == (BatchFault.COUNT, None)
    with pytest.raises(InvalidBatch, match=rf"{count} is over .* system\.limits\.batch_messages = {count - 1}$"):
        check(whole, limits(messages=count - 1))


@every_way
def test_a_payload_may_be_as_long_as_the_limit_and_the_first_longer_one_is_named(
    whole: bytearray,
) -> None:
    sizes = [len(message.payload) for message in messages(whole)]
    longest = max(sizes)
    check(whole, limits(payload_bytes=longest))
    assert fault_of(whole, limits(payload_bytes=longest - 1)) == (BatchFault.PAYLOAD_LIMIT, sizes.index(longest))
    with pytest.raises(InvalidBatch, match=rf"{longest} is over .* system\.limits\.payload_bytes = {longest - 1}$"):
        check(whole, limits(payload_bytes=longest - 1))


@every_way
def test_user_headers_may_be_as_long_as_the_limit_and_the_first_longer_ones_are_named(
    whole: bytearray,
) -> None:
    sizes = [len(message.user_headers) for message in messages(whole)]
    longest = max(sizes)
    check(whole, limits(user_headers_bytes=longest))
    if not longest:
        return
    over = limits(user_headers_bytes=longest - 1)
    assert fault_of(whole, over) == (BatchFault.USER_HEADERS_LIMIT, sizes.index(longest))
    with pytest.raises(
        InvalidBatch, match=rf"{longest} is over .* system\.limits\.user_headers_bytes = {longest - 1}$"
    ):
        check(whole, over)


@every_way
def test_another_fault_of_a_batch_that_just_fits_the_limits_is_named(whole: bytearray) -> None:
    plain = list(messages(whole))
    exact = limits(
        batch_bytes=len(whole),
        messages=len(plain),
        payload_bytes=max(len(message.payload) for message in plain),
        user_headers_bytes=max(len(message.user_headers) for message in plain),
    )
    bad = bytearray(whole)
    bad[-1] ^= 1
    assert fault_of(bad, exact) == (BatchFault.FRAME_CHECKSUM, len(plain) - 1)


def test_no_batch_is_longer_than_an_index_entry_allows() -> None:
    """Index entries and positions of frames have 32 bits for a length."""
    assert UNLIMITED.batch_bytes < 2**32
