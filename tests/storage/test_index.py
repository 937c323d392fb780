"""The index: which batch holds an offset, which is the first at a time, and a file that is complete or ignored."""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from whippet.storage.index import (
    ENTRY_BYTES,
    HEADER,
    MAGIC,
    Index,
    decode,
    encode,
    entries_in,
    has_version_2,
    plain_bytes_in,
)

fuzz = settings(deadline=None, max_examples=80)

Batch = tuple[int, int, int, int, int]
"""base offset, position, timestamp, length, count"""


def made(*batches: Batch) -> Index:
    index = Index()
    for batch in batches:
        index.add(*batch)
    return index


# Offsets 10-12, 13, a gap, 20-24; two batches at one time.
GAPPED = made((10, 0, 100, 500, 3), (13, 500, 100, 300, 1), (20, 800, 200, 900, 5))


def test_an_index_returns_every_field_of_every_batch() -> None:
    assert len(GAPPED) == 3
    assert [GAPPED.base_offset(i) for i in range(3)] == [10, 13, 20]
    assert [GAPPED.position(i) for i in range(3)] == [0, 500, 800]
    assert [GAPPED.timestamp(i) for i in range(3)] == [100, 100, 200]
    assert [GAPPED.length(i) for i in range(3)] == [500, 300, 900]
    assert [GAPPED.count(i) for i in range(3)] == [3, 1, 5]
    assert [GAPPED.end_position(i) for i in range(3)] == [500, 800, 1700]
    assert [GAPPED.next_offset(i) for i in range(3)] == [13, 14, 25]
    assert GAPPED.memory_bytes() == 3 * ENTRY_BYTES


@pytest.mark.parametrize(
    ("offset", "batch"),
    [(0, 0), (9, 0), (10, 0), (12, 0), (13, 1), (14, 2), (19, 2), (20, 2), (24, 2), (25, 3), (2**64 - 1, 3)],
)
def test_an_offset_leads_to_the_batch_that_holds_it_or_the_next_after_a_gap(offset: int, batch: int) -> None:
    assert GAPPED.holding(offset) == batch


@pytest.mark.parametrize(("time", "batch"), [(0, 0), (100, 0), (101, 2), (200, 2), (201, 3)])
def test_a_time_leads_to_the_first_batch_at_it_or_later(time: int, batch: int) -> None:
    assert GAPPED.at_time(time) == batch


@pytest.mark.parametrize(("position", "count"), [(0, 0), (1, 1), (500, 1), (501, 2), (800, 2), (801, 3), (9999, 3)])
def test_a_position_leads_to_the_number_of_batches_that_begin_before_it(position: int, count: int) -> None:
    assert GAPPED.before(position) == count


def test_nothing_is_found_in_an_index_of_no_batches() -> None:
    empty = Index()
    assert (len(empty), empty.holding(0), empty.at_time(0), empty.before(9)) == (0, 0, 0, 0)


def test_a_shortened_index_loses_only_the_last_batches() -> None:
    index = made((0, 0, 1, 10, 1), (1, 10, 2, 10, 1), (2, 20, 3, 10, 1))
    index.keep(2)
    assert (len(index), index.holding(1), index.holding(2)) == (2, 1, 2)
    index.add(2, 20, 9, 30, 4)
    assert (index.next_offset(2), index.timestamp(2)) == (6, 9)
    index.keep(0)
    assert len(index) == 0


@st.composite
def runs_of_batches(draw: st.DrawFn) -> list[Batch]:
    offset = draw(st.integers(0, 2**40))
    position = time = 0
    found = []
    for _ in range(draw(st.integers(0, 30))):
        offset += draw(st.sampled_from((0, 0, 0, 7)))
        time += draw(st.integers(0, 2))
        count = draw(st.sampled_from((1, 2, 1000, 2**32 - 1)))
        length = draw(st.sampled_from((305, 2**32 - 1)))
        found.append((offset, position, time, length, count))
        offset += count
        position += length
    return found


@fuzz
@given(runs_of_batches(), st.data())
def test_lookups_agree_with_a_search_of_every_batch(batches: list[Batch], data: st.DataObject) -> None:
    index = made(*batches)
    bounds = [0, *(b[0] for b in batches), *(b[0] + b[4] for b in batches)]
    offset = max(0, data.draw(st.sampled_from(bounds)) + data.draw(st.sampled_from((-1, 0, 1))))
    first = next((i for i, b in enumerate(batches) if offset < b[0] + b[4]), len(batches))
    assert index.holding(offset) == first
    time = data.draw(st.integers(0, 70))
    assert index.at_time(time) == bisect_left([b[2] for b in batches], time)


# ------------------------------------------------------------------------------------------------------------- the file


@fuzz
@given(runs_of_batches(), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_encoding_and_decoding_keep_any_index_unchanged(batches: list[Batch], start: int, log_bytes: int) -> None:
    index = made(*batches)
    known = decode(encode(index, start, log_bytes), start)
    assert known is not None
    assert known[1] == log_bytes
    assert known[0].words == index.words


def test_an_encoded_index_is_the_bytes_of_the_format_page() -> None:
    head = struct.pack("<8sQQQ", b"WHPINDX1", 10, 1700, 3)
    entries = struct.pack("<QQQII", 10, 0, 100, 500, 3)
    entries += struct.pack("<QQQII", 13, 500, 100, 300, 1)
    entries += struct.pack("<QQQII", 20, 800, 200, 900, 5)
    checksum = xxhash.xxh3_64_intdigest(head + entries)
    assert encode(GAPPED, 10, 1700) == head + struct.pack("<Q", checksum) + entries


FILE = encode(GAPPED, 10, 1700)


def test_an_index_with_any_flipped_bit_is_ignored() -> None:
    content = bytearray(FILE)
    for position in range(len(content)):
        for bit in range(8):
            content[position] ^= 1 << bit
            assert decode(bytes(content), 10) is None
            content[position] ^= 1 << bit
    assert decode(bytes(content), 10) is not None


def test_an_index_cut_off_at_any_byte_is_ignored() -> None:
    assert all(decode(FILE[:size], 10) is None for size in range(len(FILE)))


@pytest.mark.parametrize("extra", [b"\0", bytes(ENTRY_BYTES)])
def test_an_index_with_bytes_after_its_entries_is_ignored(extra: bytes) -> None:
    assert decode(FILE + extra, 10) is None


def test_the_index_of_another_segment_is_ignored() -> None:
    assert decode(FILE, 11) is None


@pytest.mark.parametrize("count", [0, 2, 4, 2**59, 2**64 - 1])
def test_an_index_with_a_wrong_number_of_entries_is_ignored(count: int) -> None:
    head = HEADER.pack(MAGIC, 10, 1700, count, 0)[:-8]
    entries = FILE[HEADER.size :]
    checksum = xxhash.xxh3_64_intdigest(head + entries)
    assert decode(head + checksum.to_bytes(8, "little") + entries, 10) is None


def test_an_index_in_another_format_is_ignored() -> None:
    head = HEADER.pack(b"WHPINDX2", 10, 1700, 3, 0)[:-8]
    entries = FILE[HEADER.size :]
    checksum = xxhash.xxh3_64_intdigest(head + entries)
    assert decode(head + checksum.to_bytes(8, "little") + entries, 10) is None


def test_a_machine_with_the_other_byte_order_swaps_the_bytes_of_every_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "byteorder", "big")
    swapped = array("Q", GAPPED.words)
    swapped.byteswap()
    encoded = encode(GAPPED, 10, 1700)
    assert encoded[HEADER.size :] == swapped.tobytes()
    known = decode(encoded, 10)
    assert known is not None
    assert known[0].words == GAPPED.words


def test_an_index_of_no_batches_is_a_header_alone() -> None:
    known = decode(encode(Index(), 7, 0), 7)
    assert known is not None
    assert (len(known[0]), known[1]) == (0, 0)
    assert len(encode(Index(), 7, 0)) == HEADER.size


@pytest.mark.parametrize("entries", [0, 1, 7, 1000])
def test_the_number_of_entries_follows_from_the_size_of_the_file(entries: int) -> None:
    size = len(encode(made(*((i, i, i, 1, 1) for i in range(entries))), 0, 0))
    assert entries_in(size) == entries
    assert entries_in(size + 1) is None
    assert entries_in(size - ENTRY_BYTES) == (entries - 1 if entries else None)


# ------------------------------------------------------------------------------------------------------- packed batches

STORED = (500, 120, 700)
"""The second and the third batch of `GAPPED` are packed."""


def packed() -> Index:
    index = Index()
    for i, stored in enumerate(STORED):
        fields = (GAPPED.base_offset(i), sum(STORED[:i]), GAPPED.timestamp(i), GAPPED.length(i), GAPPED.count(i))
        index.add(*fields, stored)
    return index


def lengths_in_the_log(index: Index) -> list[int]:
    return [index.stored_length(i) for i in range(len(index))]


def test_an_index_returns_both_lengths_of_every_batch() -> None:
    index = packed()
    assert [index.length(i) for i in range(3)] == [500, 300, 900]
    assert lengths_in_the_log(index) == list(STORED)
    assert [index.is_packed(i) for i in range(3)] == [False, True, True]
    assert [index.end_position(i) for i in range(3)] == [500, 620, 1320]
    assert (index.saved_bytes, index.memory_bytes()) == (380, 3 * 40)
    index.add(25, 1320, 300, 40, 1)
    assert (index.stored_length(3), index.is_packed(3), index.saved_bytes) == (40, False, 380)


def test_an_index_of_plain_batches_has_one_length_for_each() -> None:
    assert lengths_in_the_log(GAPPED) == [500, 300, 900]
    assert [GAPPED.is_packed(i) for i in range(3)] == [False] * 3
    assert GAPPED.saved_bytes == 0
    same = Index()
    same.add(10, 0, 100, 500, 3, 500)
    assert same.stored is None


@pytest.mark.parametrize("make", [packed, lambda: made((10, 0, 1, 500, 3), (13, 500, 2, 300, 1), (20, 800, 3, 900, 5))])
def test_entries_are_taken_out_of_an_index_and_added_to_another(make: Callable[[], Index]) -> None:
    index = make()
    first, rest = index.part(0, 1), index.part(1, 3)
    assert (len(first), len(rest)) == (1, 2)
    assert rest.base_offset(0) == 13
    first.extend(rest)
    assert first.describes_as(index)
    assert lengths_in_the_log(first) == lengths_in_the_log(index)
    index.drop(1)
    assert [index.base_offset(i) for i in range(2)] == [10, 20]
    assert lengths_in_the_log(index) == [lengths_in_the_log(make())[i] for i in (0, 2)]
    assert not first.describes_as(index)
    index.keep(1)
    assert (len(index), lengths_in_the_log(index)) == (1, [500])


@pytest.mark.parametrize("plain_first", [False, True])
def test_plain_and_packed_batches_follow_each_other(plain_first: bool) -> None:
    plain, rest = GAPPED.part(0, 3), packed()
    index, other = (plain, rest) if plain_first else (rest, plain)
    expected = lengths_in_the_log(index) + lengths_in_the_log(other)
    index.extend(other)
    assert (len(index), lengths_in_the_log(index)) == (6, expected)


def test_indexes_that_differ_only_in_lengths_in_the_log_differ() -> None:
    assert packed().describes_as(packed())
    assert not packed().describes_as(GAPPED)
    other = packed()
    assert other.stored is not None
    other.stored[2] += 1
    assert not other.describes_as(packed())
    other.stored[2] -= 1
    other.words[2] += 1
    assert not other.describes_as(packed())


PACKED_FILE = encode(packed(), 10, 1320)


def test_an_encoded_index_of_packed_batches_is_the_bytes_of_the_format_page() -> None:
    head = struct.pack("<8sQQQQ", b"WHPINDX2", 10, 1320, 1700, 3)
    head += xxhash.xxh3_64_intdigest(head).to_bytes(8, "little")[:4]
    entries = struct.pack("<QQQIIQ", 10, 0, 100, 500, 3, 500)
    entries += struct.pack("<QQQIIQ", 13, 500, 100, 300, 1, 120)
    entries += struct.pack("<QQQIIQ", 20, 620, 200, 900, 5, 700)
    checksum = xxhash.xxh3_64_intdigest(head + entries)
    assert head + struct.pack("<Q", checksum) + entries == PACKED_FILE
    known = decode(PACKED_FILE, 10)
    assert known is not None
    assert known[1] == 1320
    assert known[0].describes_as(packed())


def test_an_index_of_packed_batches_that_was_changed_or_cut_is_ignored() -> None:
    content = bytearray(PACKED_FILE)
    for position in range(len(content)):
        for bit in range(8):
            content[position] ^= 1 << bit
            assert decode(bytes(content), 10) is None
            content[position] ^= 1 << bit
    assert all(decode(PACKED_FILE[:size], 10) is None for size in range(len(PACKED_FILE)))
    assert decode(PACKED_FILE + bytes(40), 10) is None
    assert decode(PACKED_FILE, 11) is None


def test_an_index_that_lost_its_packed_batches_is_a_header_alone() -> None:
    index = packed()
    index.keep(0)
    content = encode(index, 10, 0)
    known = decode(content, 10)
    assert known is not None
    assert (len(content), len(known[0]), known[1]) == (52, 0, 0)


@pytest.mark.parametrize("count", [0, 2, 4])
def test_an_index_of_packed_batches_with_a_wrong_number_of_entries_is_ignored(count: int) -> None:
    head = struct.pack("<8sQQQQI", b"WHPINDX2", 10, 1320, 1700, count, 0)
    entries = PACKED_FILE[52:]
    checksum = xxhash.xxh3_64_intdigest(head + entries)
    assert decode(head + struct.pack("<Q", checksum) + entries, 10) is None


def test_the_first_bytes_of_an_index_tell_what_packing_saved() -> None:
    assert plain_bytes_in(PACKED_FILE[:52], 10, 1320) == plain_bytes_in(PACKED_FILE, 10, 1320) == 1700
    assert plain_bytes_in(PACKED_FILE[:51], 10, 1320) is None
    assert plain_bytes_in(PACKED_FILE, 11, 1320) is None
    assert plain_bytes_in(PACKED_FILE, 10, 1321) is None
    assert plain_bytes_in(FILE, 10, 1700) is None
    for position in range(44):
        changed = bytearray(PACKED_FILE)
        changed[position] ^= 1
        assert plain_bytes_in(bytes(changed), 10, 1320) is None


def test_the_size_of_the_file_tells_its_version_and_the_number_of_entries() -> None:
    assert (has_version_2(len(FILE)), has_version_2(len(PACKED_FILE))) == (False, True)
    assert [entries_in(len(PACKED_FILE) + extra) for extra in (-120, -40, -1, 0, 40)] == [0, 2, None, 3, 4]
    assert entries_in(len(PACKED_FILE) - 160) is None


def test_a_machine_with_the_other_byte_order_reads_packed_indexes_that_it_wrote(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "byteorder", "big")
    encoded = encode(packed(), 10, 1320)
    assert encoded[52:] != PACKED_FILE[52:]
    known = decode(encoded, 10)
    assert known is not None
    assert known[0].describes_as(packed())
