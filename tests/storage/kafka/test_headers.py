"""User headers survive being headers of a record, whatever they contain."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from whippet.storage.kafka import headers

RAW, STRING, INT32 = 1, 2, 6


def entry(key: bytes, value: bytes, key_kind: int = STRING, value_kind: int = RAW) -> bytes:
    return struct.pack("<BI", key_kind, len(key)) + key + struct.pack("<BI", value_kind, len(value)) + value


PARTS = st.binary(min_size=1, max_size=255)
KINDS = st.integers(1, 15)
BLOCKS = st.lists(st.builds(entry, PARTS | st.just(b"iggy.id") | st.just(b"k"), PARTS, KINDS, KINDS)).map(b"".join)


def test_strings_with_raw_values_are_plain_headers() -> None:
    assert headers.to_record(entry(b"k", b"v") + entry(b"l", b"\xff")) == [("k", b"v"), ("l", b"\xff")]


def test_other_kinds_are_in_a_header_of_their_own() -> None:
    block = entry(b"k", b"v", value_kind=STRING) + entry(b"n", b"\1\0\0\0", value_kind=INT32)
    assert headers.to_record(block) == [("k", b"v"), ("n", b"\1\0\0\0"), (headers.KINDS, bytes((2, 2, 2, 6)))]


def test_a_name_that_gateways_use_themselves_is_nobody_elses() -> None:
    block = entry(headers.ID.encode(), b"not an id")
    assert headers.to_record(block) == [(headers.BLOCK, block)]


@given(BLOCKS | st.binary(max_size=200))
def test_every_block_comes_back_as_it_was(block: bytes) -> None:
    assert headers.from_record(headers.to_record(block)) == block


def test_headers_of_other_programs_that_no_client_can_decode_are_left_out() -> None:
    found = [("empty", b""), ("null", None), ("", b"v"), ("long", bytes(256)), ("k", b"v"), ("k", b"w")]
    assert headers.from_record(found) == entry(b"k", b"v") + entry(b"k", b"w")


def test_kinds_that_do_not_belong_to_the_headers_are_ignored() -> None:
    assert headers.from_record([("k", b"v"), (headers.KINDS, b"\2")]) == entry(b"k", b"v")
    assert headers.from_record([("k", b"v"), (headers.KINDS, None)]) == entry(b"k", b"v")
