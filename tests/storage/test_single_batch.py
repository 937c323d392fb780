"""The batch of a single message is the one that the general functions build, at its place from the beginning."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from whippet.storage import batch as batches
from whippet.storage.batch import Message
from whippet.storage.single_batch import Single, batch_of

U64 = st.integers(0, 2**64 - 1)


@given(
    identity=st.integers(1, 2**128 - 1),
    origin=U64,
    payload=st.binary(min_size=1, max_size=300),
    headers=st.binary(max_size=80),
    place=st.tuples(st.integers(0, 2**32), U64, U64),
    is_apart=st.booleans(),
)
def test_it_is_what_is_built_and_stamped(
    identity: int, origin: int, payload: bytes, headers: bytes, place: tuple[int, int, int], is_apart: bool
) -> None:
    body = (payload, headers) if is_apart else (payload + headers,)
    message = Single(identity.to_bytes(16, "little"), origin, len(headers), len(payload), *body)
    batch, found = batch_of(message, *place)
    assert message.size == len(batch)
    checked = batches.check(batch)
    assert checked == (1, len(batch) - batches.HEADER_BYTES, found.to_bytes(8, "little"))
    usual = batches.build([Message(payload, identity, headers, origin)], origin, bytes)
    batches.stamp(usual, *place, batches.check(usual).checksums)
    assert batch == bytes(usual)
