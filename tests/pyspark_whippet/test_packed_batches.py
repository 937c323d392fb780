"""Compressed and encrypted batches are unpacked to what was sent, and anything else is refused."""

from __future__ import annotations

import base64
import os
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from pyspark_whippet import log_index, packages
from pyspark_whippet.batches import BadBatch
from pyspark_whippet.errors import OptionError
from pyspark_whippet.packed_batches import Opener, context_of, stored_length, unpack_all
from pyspark_whippet.settings import Secret
from tests.storage.support.ways import KEY, WAYS
from whippet.storage import batch as batches
from whippet.storage import index as indexes
from whippet.storage import packing
from whippet.storage.batch import Message
from whippet.storage.encryption import Seal
from whippet.storage.index import Index
from whippet.storage.packing import Compression

CONTEXT = context_of("a store", 3, 7)
SECRET = Secret(base64.b64encode(KEY).decode())
OPENER = Opener((SECRET,), CONTEXT)


def stored(way: str, offset: int = 0, text: bytes = b"all of this is said twice, " * 30) -> tuple[bytes, bytes]:
    """A batch as clients get it, and as it is stored."""
    made = batches.build([Message(text + b"%d" % number) for number in range(3)], 0, os.urandom)
    batches.stamp(made, 0, offset, 1_000, batches.check(made).checksums)
    options = WAYS[way]
    seal = Seal(options["keyring"], CONTEXT)
    compression = Compression[options.get("compression", "none").upper()]
    return bytes(made), b"".join(packing.pack(made, compression, seal))


@pytest.mark.parametrize("way", WAYS)
def test_batches_are_what_was_sent_however_they_are_stored(way: str) -> None:
    plain, packed = stored(way)
    assert (plain == packed) is (way == "plain")
    assert stored_length(memoryview(packed)) == len(packed)
    found = unpack_all(memoryview(packed), OPENER)
    assert (bytes(found.content), found.stored_bytes) == (plain, len(packed))


def test_batches_stored_in_different_ways_can_follow_each_other_and_the_last_may_be_incomplete() -> None:
    order = ["plain", "plain", "zstd", "zstd", "plain", "zstd, encrypted", "gzip", "plain"]
    both = [stored(way, 3 * number) for number, way in enumerate(order)]
    log = b"".join(packed for _, packed in both)
    last = len(both[-1][1])
    found = unpack_all(memoryview(log)[:-1], OPENER)
    assert bytes(found.content) == b"".join(plain for plain, _ in both[:-1])
    assert found.stored_bytes == len(log) - last
    position = at = 0
    for plain, packed in both[:-1]:
        assert found.stored_position(position) == at
        position, at = position + len(plain), at + len(packed)


@pytest.mark.parametrize("way", [way for way in WAYS if way != "plain"])
def test_a_changed_byte_is_detected_anywhere(way: str) -> None:
    _, packed = stored(way)
    for place in range(len(packed)):
        broken = bytearray(packed)
        broken[place] ^= 0x10
        try:
            found = unpack_all(memoryview(broken), OPENER)
        except BadBatch as bad:
            assert bad.position == 0
        else:
            # A length that is too long: the batch is not complete.
            assert found.stored_bytes == 0


def test_a_bad_batch_is_reported_after_those_before_it() -> None:
    plain, packed = stored("zstd")
    broken = bytearray(packed)
    broken[-1] ^= 1
    found = unpack_all(memoryview(packed + broken), OPENER)
    assert bytes(found.content) == plain
    with pytest.raises(BadBatch, match="the checksum of a packed batch is wrong"):
        unpack_all(memoryview(packed + broken)[found.stored_bytes :], OPENER)


@pytest.mark.parametrize("compression", [Compression.GZIP, Compression.ZSTD])
@pytest.mark.parametrize("change", [-1, 1])
def test_a_batch_is_not_unpacked_beyond_the_length_in_its_header(compression: Compression, change: int) -> None:
    plain, _ = stored("plain")
    frames = plain[256:] + (b"x" if change > 0 else b"")
    body = packing.compress(frames if change > 0 else frames[:-1], compression)
    packed = packing.stored(plain[:52], body, compression) + body
    with pytest.raises(BadBatch, match="another length than its header states"):
        unpack_all(memoryview(packed), OPENER)


def test_the_key_that_is_missing_is_named() -> None:
    _, packed = stored("encrypted")
    with pytest.raises(OptionError, match=r"encrypted with the key [0-9a-f]{32}, but no key is given"):
        unpack_all(memoryview(packed), Opener((), CONTEXT))
    other = Secret(base64.b64encode(bytes(32)).decode())
    with pytest.raises(OptionError, match=r"encrypted with the key [0-9a-f]{32}, but its keys are others"):
        unpack_all(memoryview(packed), Opener((other,), CONTEXT))
    assert unpack_all(memoryview(packed), Opener((other, SECRET), CONTEXT)).stored_bytes == len(packed)
    with pytest.raises(OptionError, match="needs the whole data folder"):
        unpack_all(memoryview(packed), Opener((SECRET,), None))
    with pytest.raises(BadBatch, match="cannot be decrypted"):
        unpack_all(memoryview(packed), Opener((SECRET,), context_of("a store", 3, 8)))


def test_packages_that_are_missing_are_named_together(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = ["obstore", "zstandard"]

    def partly(name: str) -> Any:
        if name in missing:
            raise ImportError(name)
        return import_module(name)

    monkeypatch.setattr("pyspark_whippet.packages.import_module", partly)
    with pytest.raises(OptionError, match="install obstore zstandard on the driver and on every executor"):
        packages.needed("obstore", "struct", "zstandard")
    with pytest.raises(OptionError, match="install zstandard on"):
        unpack_all(memoryview(stored("zstd")[1]), OPENER)
    missing.append("cryptography")
    with pytest.raises(OptionError, match="install cryptography zstandard on"):
        unpack_all(memoryview(stored("zstd, encrypted")[1]), OPENER)
    assert unpack_all(memoryview(stored("gzip")[1]), OPENER).stored_bytes


@pytest.mark.parametrize("is_packed", [False, True])
def test_indexes_of_both_versions_are_read(is_packed: bool) -> None:
    index = Index()
    index.add(40, 0, 1_000, 5_000, 10)
    index.add(50, 5_000, 2_000, 6_000, 20, 3_000 if is_packed else None)
    end = 8_000 if is_packed else 11_000
    content = indexes.encode(index, 40, end)
    found = log_index.decode(content, 40, end)
    assert found is not None
    assert found["offset"].tolist() == [40, 50]
    assert found["length"].tolist() == [5_000, end - 5_000]
    assert (found["position"] + found["length"]).tolist() == [5_000, end]
    assert found["timestamp"].astype(np.int64).tolist() == [1_000, 2_000]
    assert found["count"].tolist() == [10, 20]
    assert log_index.decode(content, 41, end) is None
    assert log_index.decode(content, 40, end + 1) is None
    for place in range(len(content)):
        broken = bytearray(content)
        broken[place] ^= 1
        assert log_index.decode(bytes(broken), 40, end) is None
