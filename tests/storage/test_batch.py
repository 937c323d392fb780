"""The batch, byte for byte.

There are three ways through `check` (few messages, one size, mixed sizes); all must say the same, so most tests here
run over a batch for each of them.
"""

from __future__ import annotations

import mmap
import struct
from array import array
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
import xxhash
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.storage.support.captured import V16_SENT, V18_SENT, V20_STORED, V22_SLICE
from tests.storage.support.world import random_bytes, sized, texts
from tests.support.clocks import NOON
from whippet.storage import batch as batches
from whippet.storage.batch import (
    FRAME_BYTES,
    HEADER_BYTES,
    UNLIMITED,
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
    start_of,
)
from whippet.storage.errors import BatchFault, InvalidBatch
from whippet.storage.options import StoreOptions

NO_LIMITS = Limits(2**63, 2**32, 2**32, 2**32)

fuzz = settings(deadline=None, max_examples=60)


def mixed(count: int) -> bytearray:
    """Messages no two neighbours of which have the same size; some have user headers."""
    return build([Message(b"p" * (1 + i % 5), i + 1, b"h" * (i % 3)) for i in range(count)], NOON, random_bytes)


WAYS: dict[str, bytearray] = {
    "one message": texts("alone"),
    "few of one size": sized(3, 7),
    "few of mixed sizes": mixed(4),
    "the most that are few": mixed(12),
    "the fewest that are many, of one size": sized(13, 5),
    "the fewest that are many, of mixed sizes": mixed(13),
    "many with the total of one size": build(
        # The first has the mean size, so that the total alone looks uniform.
        [Message(b"p" * size) for size in (5, 4, 6, *([5] * 12))],
        NOON,
        random_bytes,
    ),
    "one size, but payload and user headers share it differently": build(
        [Message(b"p" * (1 + i % 7), i + 1, b"h" * (7 - i % 7)) for i in range(20)], NOON, random_bytes
    ),
}

every_way = pytest.mark.parametrize("whole", WAYS.values(), ids=WAYS.keys())


def starts(whole: bytes | bytearray) -> list[int]:
    """Where the frames begin, found as a reader of the format page would; and the end."""
    found = [HEADER_BYTES]
    for _ in range(header(whole).message_count):
        user_headers, payload = struct.unpack_from("<II", whole, found[-1] + 32)
        found.append(found[-1] + FRAME_BYTES + user_headers + payload)
    return found


def sealed(whole: bytearray, *, frames: Sequence[int] | None = None) -> bytearray:
    """Makes all checksums right again after something else was made wrong."""
    bounds = list(frames or starts(whole))
    for start, end in pairwise(bounds):
        struct.pack_into("<Q", whole, start, xxhash.xxh3_64_intdigest(bytes(whole[start + 8 : end])))
    checksums = b"".join(bytes(whole[start : start + 8]) for start in bounds[:-1])
    struct.pack_into("<Q", whole, 40, xxhash.xxh3_64_intdigest(bytes(whole[:40] + whole[48:52]) + checksums))
    return whole


def fault_of(whole: batches.Readable, limits: Limits = NO_LIMITS) -> tuple[BatchFault, int | None]:
    with pytest.raises(InvalidBatch) as refused:
        check(whole, limits)
    return refused.value.fault, refused.value.message


def naive_slice(whole: batches.Readable, first: int, last: int) -> bytes:
    """A slice made as section 5.6 of the protocol page says, one message at a time."""
    bounds = starts(bytes(whole))
    frames = [bytes(whole[start:end]) for start, end in pairwise(bounds)][first:last]
    head = bytearray(whole[:HEADER_BYTES])
    struct.pack_into("<Q", head, 32, HEADER_BYTES + sum(map(len, frames)))
    struct.pack_into("<I", head, 48, len(frames))
    covered = bytes(head[:40] + head[48:52]) + b"".join(frame[:8] for frame in frames)
    struct.pack_into("<Q", head, 40, xxhash.xxh3_64_intdigest(covered))
    return bytes(head) + b"".join(frames)


# ------------------------------------------------------------------------------------------------------- real traffic


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


def test_a_stored_batch_that_loses_its_place_and_gets_it_again_is_the_same_bytes() -> None:
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


# --------------------------------------------------------------------------------------------------------- round trips

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
def test_any_messages_are_the_same_after_building_checking_and_stamping(
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


def positions(whole: batches.Readable, frames: batches.Frames) -> list[int]:
    return [start_of(frames, i) for i in range(header(whole).message_count + 1)]


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


def test_messages_without_an_id_get_different_uuids_of_version_4() -> None:
    found = [message.id.to_bytes(16, "little") for message in messages(sized(50, 1))]
    assert len(set(found)) == 50
    assert all(identity[6] >> 4 == 4 and identity[8] >> 6 == 2 for identity in found)


def test_a_batch_of_no_messages_is_not_built() -> None:
    with pytest.raises(InvalidBatch) as refused:
        build([], NOON, random_bytes)
    assert refused.value.fault is BatchFault.COUNT


@pytest.mark.parametrize(("span", "fits"), [(2**32 - 1, True), (2**32, False)])
def test_origin_times_may_be_as_far_apart_as_a_delta_can_say(span: int, fits: bool) -> None:
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
def test_every_kind_of_buffer_is_checked_and_sliced_alike(
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
def test_every_kind_of_buffer_is_refused_alike(whole: bytearray, kind: Callable[[bytearray], batches.Readable]) -> None:
    bad = bytearray(whole)
    bad[-1] ^= 1
    assert fault_of(kind(bad)) == (BatchFault.FRAME_CHECKSUM, header(whole).message_count - 1)


@every_way
def test_the_check_does_not_change_a_batch(whole: bytearray) -> None:
    before = bytes(whole)
    check(whole)
    assert whole == before


# ------------------------------------------------------------------------------------------------------------- refusals


@every_way
def test_any_flipped_bit_is_noticed(whole: bytearray) -> None:
    """The one field that no checksum covers is each checksum itself; a flip there is a mismatch too."""
    bad = bytearray(whole)
    for position in range(len(bad)):
        bad[position] ^= 1 << position % 8
        with pytest.raises(InvalidBatch):
            check(bad)
        bad[position] ^= 1 << position % 8
    check(bad)


FIELDS = {
    # where in the frame, format, value, whether the checksum is made right again, fault
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
def test_of_deltas_in_a_wrong_order_the_first_is_named(whole: bytearray) -> None:
    bounds = starts(whole)
    for i, start in enumerate(bounds[:-1]):
        bad = bytearray(whole)
        struct.pack_into("<I", bad, start + 24, i + 1)
        assert fault_of(sealed(bad, frames=bounds)) == (BatchFault.DELTA, i)


@every_way
def test_of_two_bad_messages_the_first_is_named(whole: bytearray) -> None:
    bounds = starts(whole)
    count = len(bounds) - 1
    for i in range(count - 1):
        bad = bytearray(whole)
        bad[bounds[i + 1] - 1] ^= 1
        struct.pack_into("<Q", bad, bounds[-2] + 40, 1)
        assert fault_of(bad) == (BatchFault.FRAME_CHECKSUM, i)


@every_way
def test_an_empty_payload_is_refused(whole: bytearray) -> None:
    """The bytes stay; they are all user headers now, so that every length still fits."""
    bounds = starts(whole)
    for i, start in enumerate(bounds[:-1]):
        bad = bytearray(whole)
        struct.pack_into("<II", bad, start + 32, bounds[i + 1] - start - FRAME_BYTES, 0)
        assert fault_of(sealed(bad, frames=bounds)) == (BatchFault.EMPTY_PAYLOAD, i)


@every_way
def test_payload_and_user_headers_may_divide_a_frame_anywhere(whole: bytearray) -> None:
    """A frame of the same length may share it differently: the layout allows it, so all three ways must."""
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
        told = fault_of(sealed(bad, frames=bounds))
        assert told == (BatchFault.COUNT, count if lie > count else None)


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
def test_a_shortened_batch_whose_header_agrees_is_refused_with_the_message(
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
def test_bytes_that_are_no_batch_are_refused(octets: bytes) -> None:
    assert fault_of(octets)[0] is BatchFault.LENGTH


@fuzz
@given(st.sampled_from(list(WAYS.values())), st.data())
def test_the_check_of_damaged_bytes_accepts_or_refuses_and_raises_nothing_else(
    whole: bytearray, data: st.DataObject
) -> None:
    """Damage with every checksum made right again, as a hostile producer would: the structure alone must refuse it."""
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


def limits(**changed: int) -> Limits:
    return Limits(
        **{"batch_bytes": 2**40, "messages": 2**32, "payload_bytes": 2**32, "user_headers_bytes": 2**32} | changed
    )


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


def test_no_batch_is_longer_than_an_index_can_say() -> None:
    """An index entry has 32 bits for a length, and positions of frames have as many."""
    assert UNLIMITED.batch_bytes < 2**32


# -------------------------------------------------------------------------------------------------------------- slicing


@every_way
def test_any_part_of_a_batch_is_the_slice_of_the_protocol(whole: bytearray) -> None:
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
def test_as_many_messages_fit_as_their_sizes_add_up(whole: bytearray) -> None:
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
    """A number, whatever the count is, and not a list that has to be walked."""
    for user_headers in (b"", b"header"):
        whole = build([Message(b"x" * 9, i + 1, user_headers) for i in range(count)], NOON, random_bytes)
        assert frame_positions(whole) == FRAME_BYTES + 9 + len(user_headers)


@every_way
def test_the_ids_of_a_batch_are_those_of_its_messages(whole: bytearray) -> None:
    for frames in (check(whole).frames, array("I", starts(whole))):
        halves = batches.ids(whole, frames).tolist()
        assert [low | high << 64 for low, high in halves] == [message.id for message in messages(whole)]


@pytest.mark.parametrize(("size", "fault"), [(2**32 - 1, BatchFault.LENGTH), (2**32, BatchFault.BATCH_LIMIT)])
def test_even_without_limits_a_batch_is_no_longer_than_an_index_can_say(size: int, fault: BatchFault) -> None:
    with mmap.mmap(-1, size) as untouched, memoryview(untouched) as view, pytest.raises(InvalidBatch) as refused:
        check(view)
    assert refused.value.fault is fault


@every_way
def test_the_first_offset_is_that_of_the_first_message_that_is_left(whole: bytearray) -> None:
    placed = bytearray(whole)
    stamp(placed, 1, 1000, NOON, check(placed).checksums)
    count = header(placed).message_count
    for first in {0, count // 2, count - 1}:
        part = b"".join(cut(placed, frame_positions(placed), first, count))
        assert batches.first_offset(part) == 1000 + first


@pytest.mark.parametrize("count", [1, 13, 40])
def test_the_frames_of_a_uniform_batch_are_known_by_their_length_alone(count: int) -> None:
    assert check(sized(count, 52)).frames == FRAME_BYTES + 52
