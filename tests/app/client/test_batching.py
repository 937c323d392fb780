"""Payloads become the same batch that `build` makes of them."""

from __future__ import annotations

import uuid

import pytest

from tests.storage.support.world import texts
from tests.support.clocks import NOON
from whippet.app.client.batching import as_batch, pack
from whippet.app.errors import Code, CommandError
from whippet.storage import batch as batches
from whippet.storage.batch import Message


@pytest.mark.parametrize("sizes", [[1], [5] * 8, [3, 70_000, 2], [100] * 9, [7] * 1500, list(range(1, 40))])
def test_a_packed_batch_is_valid_and_has_the_payloads_in_order(sizes: list[int]) -> None:
    payloads = [bytes([i % 251]) * size for i, size in enumerate(sizes)]
    packed = pack(payloads, NOON)
    assert batches.check(packed).message_count == len(sizes)
    found = list(batches.messages(packed))
    assert [message.payload for message in found] == payloads
    assert {(message.user_headers, message.origin_timestamp) for message in found} == {(b"", NOON)}
    ids = {uuid.UUID(bytes=message.id.to_bytes(16, "little")) for message in found}
    assert len(ids) == len(sizes)
    assert {identity.version for identity in ids} == {4}


def test_payloads_messages_and_batches_become_a_batch() -> None:
    ready = texts("a")
    assert as_batch(ready) is ready
    mixed = list(batches.messages(as_batch([b"a", Message(b"b", id=5, user_headers=b"h")])))
    assert [(message.payload, message.user_headers) for message in mixed] == [(b"a", b""), (b"b", b"h")]
    assert mixed[1].id == 5


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(CommandError) as raised:
        as_batch([])
    assert raised.value.code is Code.INVALID_MESSAGES_COUNT
