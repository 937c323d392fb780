"""User headers between the two layouts: translated if they are valid, unchanged otherwise."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whippet.transports.wire.classic import userheaders

fuzz = settings(deadline=None, max_examples=100)
ENTRY = st.tuples(st.binary(min_size=1, max_size=255), st.integers(1, 15), st.binary(min_size=1, max_size=255))


def short(entries: list[tuple[bytes, int, bytes]]) -> bytes:
    return b"".join(
        struct.pack("<I", len(key)) + key + struct.pack("<BI", kind, len(value)) + value for key, kind, value in entries
    )


def stored(entries: list[tuple[bytes, int, bytes]]) -> bytes:
    return b"".join(b"\2" + short([entry]) for entry in entries)


@fuzz
@given(entries=st.lists(ENTRY, max_size=4))
def test_headers_of_both_layouts_are_turned_into_each_other(entries: list[tuple[bytes, int, bytes]]) -> None:
    assert userheaders.from_short(short(entries), 10**6) == stored(entries)
    assert userheaders.to_short(stored(entries)) == short(entries)


@fuzz
@given(block=st.binary(max_size=60))
def test_any_bytes_survive_the_conversion_and_back(block: bytes) -> None:
    assert userheaders.to_short(userheaders.from_short(block, 10**6)) in (block, userheaders.to_short(block))


@pytest.mark.parametrize("kind", [1, 15])
@pytest.mark.parametrize("key", [1, 255, 256])
@pytest.mark.parametrize("value", [1, 255, 256])
def test_keys_and_values_have_at_most_255_bytes(key: int, value: int, kind: int) -> None:
    entries = [(b"k" * key, kind, b"v" * value), (b"k", 2, b"v")]
    if 256 in (key, value):
        assert userheaders.from_short(short(entries), 10**6) == short(entries)
        assert userheaders.to_short(stored(entries)) == stored(entries)
    else:
        assert userheaders.from_short(short(entries), 10**6) == stored(entries)
        assert userheaders.to_short(stored(entries)) == short(entries)


FOO_BAR = bytes.fromhex("03000000 666f6f 02 03000000 626172")


@pytest.mark.parametrize(
    "block",
    [
        FOO_BAR[:-1],
        FOO_BAR + b"\0",
        FOO_BAR + FOO_BAR[:9],
        bytes.fromhex("00000000 02 03000000 626172"),  # a key without bytes
        bytes.fromhex("00010000") + bytes(256) + bytes.fromhex("02 03000000 626172"),  # too long a key
        bytes.fromhex("03000000 666f6f 00 03000000 626172"),  # no such kind
        bytes.fromhex("03000000 666f6f 10 03000000 626172"),
        bytes.fromhex("03000000 666f6f 02 00000000"),  # a value without bytes
        b"opaque",
    ],
)
def test_blocks_of_another_layout_are_passed_on_unchanged(block: bytes) -> None:
    assert userheaders.from_short(block, 10**6) == block
    assert userheaders.to_short(b"\2" + block) == b"\2" + block


def test_user_headers_with_keys_other_than_strings_stay_unchanged() -> None:
    block = b"\2" + FOO_BAR + b"\x0b" + bytes.fromhex("04000000 01000000 09 01000000 05")
    assert userheaders.to_short(block) == block


def test_user_headers_that_would_exceed_the_limit_stay_unchanged() -> None:
    assert userheaders.from_short(FOO_BAR, len(FOO_BAR) + 1) == b"\2" + FOO_BAR
    assert userheaders.from_short(FOO_BAR, len(FOO_BAR)) == FOO_BAR
