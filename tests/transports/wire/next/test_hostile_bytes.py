"""Whatever a 0.12 client sends is a request or is refused with a number; nothing else is raised."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transports.wire.next.support import vectors
from whippet.app.commands import requests as commands
from whippet.app.commands.deferred_polls import check_deferral
from whippet.app.errors import CommandError
from whippet.storage.batch import check
from whippet.storage.batch_producer import remove_producer
from whippet.storage.errors import InvalidBatch
from whippet.transports.wire.next import registration, requests
from whippet.transports.wire.next.operations import UPDATE_RESOURCE

fuzz = settings(deadline=None, max_examples=60)
CODES = sorted({*requests.LAYOUTS, UPDATE_RESOURCE, 101})
CAPTURED = {"N11": 105, "N12": 101, "N13": 106, "N14": 121, "N18": 16, "N19": 16, "N20": 16, "N25": 109}


def understood(code: int, body: bytes) -> None:
    with contextlib.suppress(CommandError):
        request = requests.decode(code, memoryview(bytearray(body)))
        if isinstance(request, commands.PollMessagesDeferred | commands.FetchMessages | commands.AwaitMessages):
            check_deferral(request)


@pytest.mark.parametrize("code", CODES)
@fuzz
@given(body=st.binary(max_size=400))
def test_any_bytes_are_refused_or_a_request(code: int, body: bytes) -> None:
    understood(code, body)


@pytest.mark.parametrize("name", CAPTURED)
def test_a_captured_request_with_any_one_byte_changed_or_cut_off_is_refused_or_a_request(name: str) -> None:
    body = vectors.body(name)
    for at in range(len(body)):
        for flipped in (1, 0x80, 0xFF):
            changed = bytearray(body)
            changed[at] ^= flipped
            understood(CAPTURED[name], bytes(changed))
        understood(CAPTURED[name], body[:at])


@fuzz
@given(body=st.binary(max_size=400))
def test_any_bytes_are_refused_or_a_login(body: bytes) -> None:
    for decode in (registration.decode, registration.decode_binding):
        with contextlib.suppress(CommandError):
            decode(memoryview(body))


@fuzz
@given(
    said=st.binary(min_size=20, max_size=20), lengths=st.binary(min_size=8, max_size=8), count=st.integers(0, 2**32 - 1)
)
def test_a_batch_with_false_producer_fields_is_never_accepted(said: bytes, lengths: bytes, count: int) -> None:
    batch = bytearray(vectors.body("N12")[20:])
    batch[52:72], batch[288:296] = said, lengths
    batch[48:52] = count.to_bytes(4, "little")
    remove_producer(batch)
    with pytest.raises(InvalidBatch):
        check(batch)
