"""Packed batches: what is packed comes back unchanged, and nothing that is not intact is unpacked."""

from __future__ import annotations

import gzip
import os
import struct
import zlib

import pytest
import xxhash
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.support.segments import stamped
from whippet.storage import batch as batches
from whippet.storage import packing
from whippet.storage.errors import InvalidBatch
from whippet.storage.packing import Compression

BATCH = stamped([40] * 50, 7)
COMPRESSIONS = [Compression.GZIP, Compression.ZSTD]

each_compression = pytest.mark.parametrize("compression", COMPRESSIONS, ids=lambda each: each.name.lower())


def packed(compression: Compression, batch: bytes = BATCH) -> bytes:
    stored = b"".join(packing.pack(batch, compression))
    assert packing.is_packed(stored)
    return stored


def sealed(stored: bytes) -> bytes:
    """The same packed batch with right checksums."""
    content = bytearray(stored)
    content[240:248] = xxhash.xxh3_64_intdigest(content[:240]).to_bytes(8, "little")
    content[248:256] = xxhash.xxh3_64_intdigest(content[:248] + content[256:]).to_bytes(8, "little")
    return bytes(content)


def with_body(stored: bytes, body: bytes) -> bytes:
    length = struct.pack("<Q", 256 + len(body))
    return sealed(stored[:64] + length + length + stored[80:256] + body)


@each_compression
def test_a_packed_batch_is_smaller_and_its_plain_header_is_readable(compression: Compression) -> None:
    stored = packed(compression)
    assert len(stored) < len(BATCH) // 2
    assert packing.stored_length(stored) == len(stored)
    assert packing.stored_length(BATCH) == len(BATCH)
    assert packing.check(stored) == batches.header(BATCH)
    assert sealed(stored) == stored


@each_compression
def test_an_unpacked_batch_has_the_same_bytes(compression: Compression) -> None:
    assert packing.plain(packed(compression)) == BATCH
    assert packing.plain(BATCH) is BATCH


def test_the_bodies_are_in_the_formats_that_everybody_can_decompress() -> None:
    assert gzip.decompress(packed(Compression.GZIP)[256:]) == BATCH[256:]
    assert zstandard.ZstdDecompressor().decompress(packed(Compression.ZSTD)[256:]) == BATCH[256:]


@given(payloads=st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=20))
def test_any_batch_is_the_same_after_packing_and_unpacking(payloads: list[bytes]) -> None:
    batch = stamped([], 3, payloads=payloads)
    for compression in COMPRESSIONS:
        stored = b"".join(packing.pack(batch, compression))
        assert len(stored) <= len(batch)
        assert packing.plain(stored) == batch


@each_compression
def test_a_batch_that_would_hardly_become_smaller_is_stored_as_it_is(compression: Compression) -> None:
    for payload in (os.urandom(5000), os.urandom(5000) + bytes(200), b"x" * 100):
        batch = stamped([], 3, payloads=[payload])
        assert packing.pack(batch, compression) == (batch,)


@each_compression
def test_a_change_of_any_byte_is_noticed_without_unpacking(compression: Compression) -> None:
    stored = packed(compression)
    for position in range(len(stored)):
        for bits in (0xFF, 1 << position % 8):
            changed = bytearray(stored)
            changed[position] ^= bits
            with pytest.raises(InvalidBatch):
                packing.check(changed)


@each_compression
@pytest.mark.parametrize("length", [0, 1, 256, 300])
def test_a_batch_that_was_cut_off_or_extended_is_not_intact(compression: Compression, length: int) -> None:
    stored = packed(compression)
    with pytest.raises(InvalidBatch):
        packing.check(stored[:length])
    with pytest.raises(InvalidBatch):
        packing.check(stored + bytes(1))


@pytest.mark.parametrize(
    ("position", "value"),
    [(60, 0), (60, 4), (61, 9), (62, 1), (200, 1), (48, 0), (35, 0xFF), (32, 0)],
    ids=["no compression", "another one", "another encryption", "reserved", "more reserved", "count", "long", "length"],
)
def test_a_header_that_this_version_does_not_write_is_refused(position: int, value: int) -> None:
    stored = bytearray(packed(Compression.ZSTD))
    if position in (48, 32):
        stored[position : position + 4] = bytes(4)
    if position == 35:
        stored[36] = 1
    stored[position] = value
    with pytest.raises(InvalidBatch):
        packing.check(sealed(bytes(stored)))


@each_compression
@pytest.mark.parametrize("more", [-1, 1, 1 << 20])
def test_a_wrong_plain_length_is_damage(compression: Compression, more: int) -> None:
    stored = bytearray(packed(compression))
    struct.pack_into("<Q", stored, 32, len(BATCH) + more)
    intact = sealed(bytes(stored))
    packing.check(intact)
    with pytest.raises(InvalidBatch):
        packing.unpack(intact)


BOMB = bytes(100 << 20)


@pytest.mark.parametrize(
    ("compression", "body"),
    [
        (Compression.ZSTD, zstandard.ZstdCompressor().compress(BOMB)),
        (Compression.ZSTD, zstandard.ZstdCompressor(write_content_size=False).compress(BATCH[256:])),
        (Compression.ZSTD, zstandard.ZstdCompressor().compress(BATCH[256:]) + b"x"),
        (Compression.ZSTD, b"not compressed"),
        (Compression.GZIP, zlib.compress(BOMB, wbits=31)),
        (Compression.GZIP, zlib.compress(BATCH[256:], wbits=31) + b"x"),
        (Compression.GZIP, zlib.compress(BATCH[256:], wbits=31)[:-1]),
        (Compression.GZIP, zlib.compress(BATCH[256:], wbits=31) * 2),
        (Compression.GZIP, zlib.compress(BATCH[256:-1], wbits=31)),
        (Compression.GZIP, b"not compressed"),
    ],
    ids=[
        *("zstd too much", "zstd without length", "zstd and more", "no zstd"),
        *("gzip too much", "gzip and more", "gzip cut off", "gzip twice", "gzip too little", "no gzip"),
    ],
)
def test_only_what_the_header_states_is_decompressed(compression: Compression, body: bytes) -> None:
    intact = with_body(packed(compression), body)
    packing.check(intact)
    with pytest.raises(InvalidBatch):
        packing.unpack(intact)


def test_a_damaged_header_still_tells_where_the_batch_may_end() -> None:
    stored = bytearray(packed(Compression.ZSTD))
    length = len(stored)
    assert (packing.resembles(stored), packing.claimed_lengths(stored)) == (True, [length])
    stored[53] ^= 1
    stored[65] ^= 1
    assert packing.resembles(stored)
    assert packing.claimed_lengths(stored) == sorted([length, length ^ 256])
    assert not packing.resembles(BATCH)


def test_what_was_packed_ahead_is_taken_only_for_the_same_batch() -> None:
    ahead = packing.Ahead()
    first, second = stamped([40] * 50, 7), stamped([30] * 50, 7)
    ahead.begin(7, first, Compression.ZSTD, None)
    found = ahead.take(7, first)
    assert found is not None
    assert packing.plain(b"".join(found)) == first
    assert ahead.take(7, first) is None
    # The write of the first one failed, and another batch has its offset now.
    ahead.begin(7, first, Compression.ZSTD, None)
    assert ahead.take(7, second) is None
    ahead.begin(7, first, Compression.ZSTD, None)
    ahead.clear()
    assert ahead.take(7, first) is None
