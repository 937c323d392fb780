"""Batches of the data source and of the store: each reads what the other has written."""

from __future__ import annotations

import os
from itertools import pairwise

import numpy as np
import pytest
import xxhash

from pyspark_whippet import batch_encoder, batches, hashes, user_headers
from pyspark_whippet.batches import BadBatch
from whippet.app.model.options import ValueKind
from whippet.storage import batch as stored
from whippet.storage.batch import Message

PAYLOADS = {
    "one": [b"alone"],
    "few": [b"a", b"bb", b"ccc"],
    "uniform": [b"%08d" % n for n in range(3000)],
    "mixed": [b"x" * (n % 300 + 1) for n in range(3000)],
}


@pytest.mark.parametrize("shape", PAYLOADS)
@pytest.mark.parametrize("headers", [b"", user_headers.encode([("k", b"v", "string")])])
def test_an_encoded_batch_is_valid_and_has_the_same_content(shape: str, headers: bytes) -> None:
    payloads = PAYLOADS[shape]
    count = len(payloads)
    ids = np.frombuffer(os.urandom(16 * count), dtype=np.uint8).reshape(-1, 16)
    bounds = np.cumsum([0, *map(len, payloads)]).astype(np.int32)
    blocks = [headers] * count if headers else None
    made = batch_encoder.encode(
        bounds, memoryview(b"".join(payloads)), ids, blocks, 1_700_000_000_000_000, xxhash.xxh3_64_intdigest
    )
    assert stored.check(made).message_count == count
    found = list(stored.messages(made))
    assert [each.payload for each in found] == payloads
    assert [each.id.to_bytes(16, "big") for each in found] == [each.tobytes() for each in ids]
    assert {each.user_headers for each in found} == {headers}
    assert {each.origin_timestamp for each in found} == {1_700_000_000_000_000}


@pytest.mark.parametrize("shape", PAYLOADS)
@pytest.mark.parametrize("headers", [b"", b"any bytes"])
def test_any_sequence_of_stored_batches_is_decoded(shape: str, headers: bytes) -> None:
    body, offset = bytearray(), 0
    for payloads in (PAYLOADS[shape], PAYLOADS["few"], PAYLOADS[shape]):
        made = stored.build([Message(each, n + 2**100, headers, n) for n, each in enumerate(payloads)], 0, os.urandom)
        stored.stamp(made, 0, offset, 1_000_000 + offset, stored.check(made).checksums)
        offset += len(payloads)
        body += made
    found = batches.decode(bytes(body))
    expected = [*PAYLOADS[shape], *PAYLOADS["few"], *PAYLOADS[shape]]
    places = found.bounds.tolist()
    assert [found.payloads[a:b] for a, b in pairwise(places)] == expected
    assert found.offsets.tolist() == list(range(len(expected)))
    assert found.ids[0].tobytes() == (2**100).to_bytes(16, "big")
    assert found.user_headers == ((headers,) * len(expected) if headers else None)
    part = found.part(2, 5)
    assert part.offsets.tolist() == [2, 3, 4]
    bounds = part.bounds.tolist()
    assert [part.payloads[a:b] for a, b in pairwise(bounds)] == expected[2:5]


@pytest.mark.parametrize("sizes", [[5] * 40, [5] * 40 + [6, 5, 5], [5, 6] * 20, [1, 2, 3], [5]])
def test_messages_that_were_sent_one_by_one_are_decoded(sizes: list[int]) -> None:
    payloads = [bytes([n]) * size for n, size in enumerate(sizes)]
    body = bytearray()
    for n, payload in enumerate(payloads):
        made = stored.build([Message(payload, n + 1, b"", 7 * n)], 0, os.urandom)
        stored.stamp(made, 0, 100 + n, 1_000 + n, stored.check(made).checksums)
        body += made
    found = batches.decode(bytes(body), xxhash.xxh3_64_intdigest)
    assert [bytes(found.payloads[a:b]) for a, b in pairwise(found.bounds.tolist())] == payloads
    assert found.offsets.tolist() == list(range(100, 100 + len(sizes)))
    assert found.timestamps.tolist() == list(range(1_000, 1_000 + len(sizes)))
    assert found.origin_timestamps.tolist() == [7 * n for n in range(len(sizes))]
    assert [int.from_bytes(each.tobytes(), "big") for each in found.ids] == list(range(1, len(sizes) + 1))


@pytest.mark.parametrize("shape", ["one", "few", "uniform"])
def test_a_changed_byte_is_detected_anywhere_in_a_batch(shape: str) -> None:
    payloads = PAYLOADS[shape][:20]
    whole = bytearray()
    for offset in (0, len(payloads)):
        made = stored.build([Message(each, 9) for each in payloads], 0, os.urandom)
        stored.stamp(made, 3, offset, 1_000, stored.check(made).checksums)
        whole += made
    size = len(whole) // 2
    assert len(batches.decode(bytes(whole), xxhash.xxh3_64_intdigest)) == 2 * len(payloads)
    for place in [*range(52), *range(256, size)]:
        broken = bytearray(whole)
        broken[size + place] ^= 0x10
        with pytest.raises(BadBatch) as refused:
            batches.decode(bytes(broken), xxhash.xxh3_64_intdigest)
        assert refused.value.position == size


def test_a_truncated_or_broken_response_is_refused() -> None:
    whole = bytes(stored.build([Message(b"payload")] * 20, 0, os.urandom))
    assert len(batches.decode(b"")) == 0
    for size in (1, 255, 256, 300, len(whole) - 1):
        with pytest.raises(BadBatch):
            batches.decode(whole[:size])
    for count in (19, 21, 10_000):
        with pytest.raises(BadBatch):
            batches.decode(whole[:48] + count.to_bytes(4, "little") + whole[52:])


def test_hashes_and_header_kinds_match_the_servers() -> None:
    for size in range(80):
        octets = os.urandom(size)
        assert hashes.plain_xxh32(octets) == xxhash.xxh32_intdigest(octets)
    assert {kind.name.lower(): int(kind) for kind in ValueKind} == user_headers.KINDS


def test_headers_of_every_kind_survive_and_unreadable_ones_are_passed_through() -> None:
    entries = [("k", b"v", "string"), ("n", b"\x07", "uint8"), ("uint32:2a000000", b"x", "raw")]
    assert sorted(user_headers.decode(user_headers.encode(entries))) == sorted(entries)
    for block in (b"\x02", b"encrypted, perhaps", b"\x02\x01\x00\x00\x00k"):
        assert user_headers.encode(user_headers.decode(block)) == block
