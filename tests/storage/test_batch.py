"""The batch, byte for byte: building, checking, stamping and slicing.

There are three implementations of `check` (few messages, one size, mixed sizes). They must agree, so most tests here
run over a batch for each of them.
"""

from __future__ import annotations

import mmap
import struct
import uuid
from array import array
from collections.abc import Callable
from itertools import pairwise

import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st

from tests.storage.support.batches import every_way, fault_of, fuzz, mixed, positions, starts
from tests.storage.support.captured import V16_SENT, V18_SENT, V20_STORED, V22_SLICE
from tests.storage.support.world import random_bytes, sized
from tests.support.clocks import NOON
from whippet.storage import batch as batches
from whippet.storage.batch import (
    FRAME_BYTES,
    HEADER_BYTES,
    Checked,
    Limits,
    Message,
    StoredMessage,
    build,
    check,
    cut,
    fitting,
    frame_positions,
    header,
    messages,
    stamp,
)
from whippet.storage.errors import BatchFault, InvalidBatch
from whippet.storage.options import StoreOptions


def naive_slice(whole: batches.Readable, first: int, last: int) -> bytes:
    """A slice as section 5.6 of the protocol page defines it, built one message at a time."""
    bounds = starts(bytes(whole))
    frames = [bytes(whole[start:end]) for start, end in pairwise(bounds)][first:last]
    head = bytearray(whole[:HEADER_BYTES])
    struct.pack_into("<Q", head, 32, HEADER_BYTES + sum(map(len, frames)))
    struct.pack_into("<I", head, 48, len(frames))
    covered = bytes(head[:40] + head[48:52]) + b"".join(frame[:8] for frame in frames)
    struct.pack_into("<Q", head, 40, xxhash.xxh3_64_intdigest(covered))
    return bytes(head) + b"".join(frames)


# --------------------------------------------------------------------------------------------------------- real traffic


@pytest.mark.parametrize("sent", [V16_SENT, V18_SENT], ids=["V16", "V18"])
def test_a_batch_of_a_real_client_is_good(sent: bytes) -> None:
    checked = check(sent, Limits.of(StoreOptions(path="")))
    assert checked.message_count == header(sent).message_count
    assert checked.checksums == b"".join(sent[start : start + 8] for start in starts(sent)[:-1])


def test_the_worked_example_has_the_messages_that_were_sent() -> None:
    user_headers = bytes.fromhex("02010000006b02010000007602010000006e090100000005")
    assert header(V16_SENT).checksum == 0x31512169D3D22D90
    assert list(messages(V16_SENT)) == [
        StoredMessage(0, 0, 1794994217972850, 1, b"hello", b""),
        StoredMessage(1, 0, 1794994217972866, 2, b"world!", user_headers),
    ]


def test_the_worked_example_is_the_stored_bytes_when_stamped() -> None:
    whole = bytearray(V16_SENT)
    stamp(whole, 0, 0, 1794994217973041, check(whole).checksums)
    assert whole == V20_STORED[0]
    assert header(whole).checksum == 0x2F61E7F351ADB831
    check(whole)


def test_the_worked_example_is_the_bytes_of_the_poll_when_sliced() -> None:
    stored = V20_STORED[0]
    sliced = b"".join(cut(stored, check(stored).frames, 1, 2))
    assert sliced == V22_SLICE
    assert (header(sliced).checksum, header(sliced).length) == (0x3C83FBB3F7D7C30F, 334)
    assert [message.offset for message in messages(sliced)] == [1]


def test_stamping_a_batch_with_its_old_place_restores_the_same_bytes() -> None:
    stored = bytearray(V20_STORED[1])
    checksums = check(stored).checksums
    named = header(stored)
    stamp(stored, 0, 0, 0, checksums)
    assert header(stored)[:3] == (0, 0, 0)
    stamp(stored, named.partition_id, named.base_offset, named.base_timestamp, checksums)
    assert stored == V20_STORED[1]


def test_the_worked_example_built_from_its_messages_is_the_bytes_of_the_client() -> None:
    plain = [Message(m.payload, m.id, m.user_headers, m.origin_timestamp) for m in messages(V16_SENT)]
    assert build(plain, 0, random_bytes) == V16_SENT


def test_a_stamp_changes_32_bytes_and_no_frame() -> None:
    whole = sized(20, 9)
    before = bytes(whole)
    stamp(whole, 2**64 - 1, 2**64 - 1, 2**64 - 1, check(whole).checksums)
    assert whole[24:40] + whole[48:] == before[24:40] + before[48:]
    check(whole)


# ---------------------------------------------------------------------------------------------------------- round trips

COUNTS = (1, 2, 11, 12, 13, 14, 40)

MANY = (1023, 1024, 1025, 4095, 4096, 4097)


@st.composite
def plain_messages(draw: st.DrawFn) -> list[Message]:
    count = draw(st.sampled_from(COUNTS) | st.integers(1, 40))
    size = st.integers(1, 60)
    of_one_size = draw(st.booleans())
    payload_bytes, header_bytes = draw(size), draw(st.integers(0, 20))
    origin = draw(st.integers(0, 2**63))
    made = []
    for _ in range(count):
        total = payload_bytes + header_bytes
        payload = draw(st.integers(1, total)) if of_one_size else draw(size)
        headers = total - payload if of_one_size else draw(st.integers(0, 20))
        made.append(
            Message(
                draw(st.binary(min_size=payload, max_size=payload)),
                draw(st.sampled_from((1, 2**64, 2**128 - 1)) | st.integers(1, 2**128 - 1)),
                draw(st.binary(min_size=headers, max_size=headers)),
                origin + draw(st.sampled_from((0, 1, 2**32 - 1))),
            )
        )
    return made


@fuzz
@given(plain_messages(), st.integers(0, 2**32 - 1), st.integers(0, 2**63), st.integers(0, 2**63))
def test_building_checking_and_stamping_keep_any_messages_unchanged(
    plain: list[Message], partition_id: int, base_offset: int, base_timestamp: int
) -> None:
    whole = build(plain, 0, random_bytes)
    checked = check(whole)
    stamp(whole, partition_id, base_offset, base_timestamp, checked.checksums)
    assert check(whole) == checked
    assert header(whole)[:4] == (
        partition_id,
        base_offset,
        base_timestamp,
        min(message.origin_timestamp or 0 for message in plain),
    )
    assert list(messages(whole)) == [
        StoredMessage(
            base_offset + i,
            base_timestamp,
            message.origin_timestamp or 0,
            message.id,
            message.payload,
            message.user_headers,
        )
        for i, message in enumerate(plain)
    ]
    assert positions(whole, checked.frames) == positions(whole, frame_positions(whole)) == starts(whole)


@pytest.mark.parametrize("make", [lambda count: sized(count, 3), mixed], ids=["uniform", "mixed"])
@pytest.mark.parametrize("count", MANY)
def test_very_many_messages_pass_the_check_unchanged(count: int, make: Callable[[int], bytearray]) -> None:
    whole = make(count)
    checked = check(whole)
    assert checked.message_count == count == len(checked.checksums) // 8
    assert positions(whole, checked.frames) == positions(whole, frame_positions(whole)) == starts(whole)
    assert [message.offset for message in messages(whole)] == list(range(count))
    for first, last in ((0, 1), (1, count), (count - 14, count), (count - 1, count), (5, 18)):
        assert b"".join(cut(whole, checked.frames, first, last)) == naive_slice(whole, first, last)


@pytest.mark.parametrize("count", MANY)
@pytest.mark.parametrize("make", [lambda count: sized(count, 3), mixed], ids=["uniform", "mixed"])
def test_damage_to_the_last_of_very_many_messages_is_located(count: int, make: Callable[[int], bytearray]) -> None:
    whole = make(count)
    whole[-1] ^= 1
    assert fault_of(whole) == (BatchFault.FRAME_CHECKSUM, count - 1)


@pytest.mark.parametrize("payload", [3, 600])
@pytest.mark.parametrize(("count", "is_kept"), [(4096, True), (4097, False)])
def test_the_positions_of_frames_are_kept_for_batches_of_one_shape_unless_they_are_huge(
    count: int, is_kept: bool, payload: int
) -> None:
    """Otherwise a few clients that send huge batches of many shapes would take hundreds of megabytes for good."""
    is_small = payload + batches.FRAME_BYTES <= batches._COPIED
    kept = batches._cached_copies if is_small else batches._cached_slices
    kept.cache_clear()
    whole = sized(count, payload)
    kept.cache_clear()
    check(whole)
    assert kept.cache_info().currsize == is_kept
    check(whole)
    assert (kept.cache_info().hits > 0) == is_kept


def test_messages_without_an_id_get_different_uuids_of_version_4() -> None:
    found = [message.id.to_bytes(16, "little") for message in messages(sized(50, 1))]
    assert len(set(found)) == 50
    assert all(identity[6] >> 4 == 4 and identity[8] >> 6 == 2 for identity in found)


@pytest.mark.parametrize(
    ("octets", "identity"),
    [
        (bytes(16), "00000000-0000-4000-8000-000000000000"),
        (b"\xff" * 16, "ffffffff-ffff-4fff-bfff-ffffffffffff"),
        (bytes(range(16)), "00010203-0405-4607-8809-0a0b0c0d0e0f"),
    ],
)
def test_a_uuid_has_every_random_bit_but_those_of_its_version(octets: bytes, identity: str) -> None:
    (message,) = messages(build([Message(b"x")], NOON, lambda length: octets[:length]))
    assert str(uuid.UUID(bytes=message.id.to_bytes(16, "little"))) == identity


def test_a_batch_of_no_messages_is_not_built() -> None:
    with pytest.raises(InvalidBatch) as refused:
        build([], NOON, random_bytes)
    assert refused.value.fault is BatchFault.COUNT


@pytest.mark.parametrize(("span", "fits"), [(2**32 - 1, True), (2**32, False)])
def test_origin_times_may_be_as_far_apart_as_a_delta_can_express(span: int, fits: bool) -> None:
    plain = [Message(b"late", origin_timestamp=NOON + span), Message(b"early", origin_timestamp=NOON)]
    if fits:
        assert [m.origin_timestamp for m in messages(build(plain, 0, random_bytes))] == [NOON + span, NOON]
        return
    with pytest.raises(InvalidBatch, match="4294967295 us") as refused:
        build(plain, 0, random_bytes)
    assert refused.value.fault is BatchFault.TIME_SPAN


def test_messages_without_an_origin_time_have_the_time_of_building() -> None:
    plain = [Message(b"a", origin_timestamp=NOON + 7), Message(b"b")]
    assert [m.origin_timestamp for m in messages(build(plain, NOON, random_bytes))] == [NOON + 7, NOON]


@every_way
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda octets: memoryview(bytes(octets))])
def test_every_kind_of_buffer_is_checked_and_sliced_in_the_same_way(
    whole: bytearray, kind: Callable[[bytearray], batches.Readable]
) -> None:
    given = kind(bytearray(whole))
    checked = check(given)
    assert checked == check(whole)
    assert positions(given, frame_positions(given)) == starts(whole)
    last = checked.message_count
    assert b"".join(cut(given, checked.frames, 0, last)) == whole
    assert list(messages(given)) == list(messages(whole))
    if not isinstance(given, bytes) and not (isinstance(given, memoryview) and given.readonly):
        stamp(given, 1, 2, 3, checked.checksums)
        assert header(given)[:3] == (1, 2, 3)


@every_way
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_every_kind_of_buffer_is_refused_in_the_same_way(
    whole: bytearray, kind: Callable[[bytearray], batches.Readable]
) -> None:
    bad = bytearray(whole)
    bad[-1] ^= 1
    assert fault_of(kind(bad)) == (BatchFault.FRAME_CHECKSUM, header(whole).message_count - 1)


@every_way
def test_the_check_does_not_change_a_batch(whole: bytearray) -> None:
    before = bytes(whole)
    check(whole)
    assert whole == before


# -------------------------------------------------------------------------------------------------------------- slicing


@every_way
def test_any_slice_of_a_batch_follows_the_protocol(whole: bytearray) -> None:
    stamp(whole := bytearray(whole), 3, 1000, NOON, check(whole).checksums)
    checked = check(whole)
    for frames in (checked.frames, frame_positions(whole)):
        for first in range(checked.message_count):
            for last in range(first + 1, checked.message_count + 1):
                pieces = cut(whole, frames, first, last)
                assert b"".join(pieces) == naive_slice(whole, first, last)
    assert b"".join(cut(whole, checked.frames, 0, checked.message_count)) == whole


def test_a_slice_does_not_copy_the_frames() -> None:
    whole = sized(20, 100)
    frames = cut(whole, check(whole).frames, 3, 5)[1]
    assert isinstance(frames, memoryview)
    assert frames.obj is whole


@every_way
def test_as_many_messages_fit_as_their_sizes_allow(whole: bytearray) -> None:
    checked = check(whole)
    bounds = starts(whole)
    for first in range(checked.message_count):
        for last in range(first, checked.message_count + 1):
            for room in (-1, 0, 1, 52, 53, 54, 55, 200, bounds[last] - bounds[first], 2**40):
                fit = [n for n in range(last - first + 1) if bounds[first + n] - bounds[first] <= room]
                assert fitting(checked.frames, first, last, room) == max(fit, default=0)


@fuzz
@example([1] * 13)
@example([2, 1, 3] * 5)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=30))
def test_the_positions_of_frames_agree_with_the_check(sizes: list[int]) -> None:
    whole = build([Message(b"x" * size) for size in sizes], NOON, random_bytes)
    checked: Checked = check(whole)
    assert positions(whole, frame_positions(whole)) == positions(whole, checked.frames) == starts(whole)


@pytest.mark.parametrize("count", [1, 2, 3, 12, 13, 40])
def test_messages_of_one_size_have_evenly_spaced_frames(count: int) -> None:
    """One number, whatever the count is, rather than a list that has to be walked."""
    for user_headers in (b"", b"header"):
        whole = build([Message(b"x" * 9, i + 1, user_headers) for i in range(count)], NOON, random_bytes)
        assert frame_positions(whole) == FRAME_BYTES + 9 + len(user_headers)


@every_way
def test_the_ids_of_a_batch_are_those_of_its_messages(whole: bytearray) -> None:
    for frames in (check(whole).frames, array("I", starts(whole))):
        halves = batches.ids(whole, frames).tolist()
        assert [low | high << 64 for low, high in halves] == [message.id for message in messages(whole)]


@pytest.mark.parametrize(("size", "fault"), [(2**32 - 1, BatchFault.LENGTH), (2**32, BatchFault.BATCH_LIMIT)])
def test_even_without_limits_a_batch_is_no_longer_than_an_index_entry_allows(size: int, fault: BatchFault) -> None:
    with mmap.mmap(-1, size) as untouched, memoryview(untouched) as view, pytest.raises(InvalidBatch) as refused:
        check(view)
    assert refused.value.fault is fault


@every_way
def test_the_first_offset_is_that_of_the_first_remaining_message(whole: bytearray) -> None:
    placed = bytearray(whole)
    stamp(placed, 1, 1000, NOON, check(placed).checksums)
    count = header(placed).message_count
    for first in {0, count // 2, count - 1}:
        part = b"".join(cut(placed, frame_positions(placed), first, count))
        assert batches.first_offset(part) == 1000 + first


@pytest.mark.parametrize("count", [1, 13, 40])
def test_the_frames_of_a_uniform_batch_are_known_by_their_length_alone(count: int) -> None:
    assert check(sized(count, 52)).frames == FRAME_BYTES + 52
