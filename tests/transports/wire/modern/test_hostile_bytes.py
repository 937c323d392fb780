"""Bodies that no 0.9 client should send: each is refused with a number, at once, and without much memory."""

from __future__ import annotations

import struct
import time
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.transports.wire.classic.support.mutations import mutated
from tests.transports.wire.modern.support import vectors, worlds
from whippet.app.commands import requests as commands
from whippet.app.errors import Code, CommandError
from whippet.storage import batch as batches
from whippet.storage.errors import InvalidBatch
from whippet.transports.modern_conversation import BODY_BYTES_MAX
from whippet.transports.wire.modern import registration, requests

fuzz = settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
CODES = [*requests.LAYOUTS, 101]
MOST = b"\xff\xff\xff\xff"


def decode(code: int, body: bytes) -> commands.Request | Code:
    """The request or the number of the refusal; anything else that is raised fails the test."""
    try:
        return requests.decode(code, memoryview(body))
    except CommandError as refused:
        return refused.code


@fuzz
@given(data=st.data(), request=worlds.ANY_REQUEST)
def test_a_mutated_request_is_refused_or_a_request(data: st.DataObject, request: commands.Request) -> None:
    decode(requests.code_of(request), data.draw(mutated(b"".join(requests.encode(request)))))


@fuzz
@given(code=st.sampled_from(CODES), body=st.binary(max_size=300))
def test_any_bytes_are_refused_or_a_request(code: int, body: bytes) -> None:
    decode(code, body)


@pytest.mark.parametrize("name", ["V16", "V18"])
@fuzz
@given(data=st.data())
def test_a_mutated_send_is_refused_here_or_by_the_log_or_is_a_good_batch(name: str, data: st.DataObject) -> None:
    found = decode(101, data.draw(mutated(vectors.body(name))))
    if isinstance(found, commands.SendMessages):
        (batch,) = found.batches
        try:
            batches.check(batch)
        except InvalidBatch:
            return
        assert bytes(batch) == vectors.body(name)[-len(batch) :]


@pytest.mark.parametrize("name", ["V03", "V42"])
@fuzz
@given(data=st.data())
def test_a_mutated_registration_is_refused_or_a_registration(name: str, data: st.DataObject) -> None:
    body = data.draw(mutated(vectors.body(name)))
    try:
        registration.decode(memoryview(body))
    except CommandError:
        return


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (11, b"\1\xff"),
        (33, b"\1u\1p\1\1" + MOST),
        (33, b"\1u\1p\1\0" + b"\2" + MOST),
        (36, b"\1\4\0\0\0\0\1" + MOST),
        (101, MOST + bytes(300)),
        (101, struct.pack("<I", 18 + 4) + bytes.fromhex("010400000000 010400000000 020400000000") + MOST + bytes(256)),
        (202, b"\1s\2" + MOST),
        (202, b"\1s\2\1\0\0\0k\1" + MOST),
        (302, b"\1\4\0\0\0\0" + MOST + b"\1t\2" + MOST),
    ],
)
def test_a_false_count_or_length_costs_no_memory(code: int, body: bytes) -> None:
    tracemalloc.start()
    try:
        assert isinstance(decode(code, body), Code)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


PERMITTED = bytes(10) + b"\1" + bytes(10) + (b"\0\1" + struct.pack("<I6x", 7)) * (BODY_BYTES_MAX // 12 - 4)
OPTION = struct.pack("<BI1sBI1s", 2, 1, b"k", 1, 1, b"v")


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (36, b"\1\4\0\0\0\0\1" + struct.pack("<I", len(PERMITTED)) + PERMITTED),
        (202, b"\1s" + OPTION * (BODY_BYTES_MAX // len(OPTION))),
        (302, b"\1\4\0\0\0\0" + bytes(4) + b"\1t" + b"\2" * (BODY_BYTES_MAX - 20)),
        (11, b"\1\xff" + b"\1" * (BODY_BYTES_MAX - 2)),
        (1, bytes(BODY_BYTES_MAX)),
    ],
)
def test_the_longest_body_takes_time_that_grows_with_its_length_only(code: int, body: bytes) -> None:
    started = time.process_time()
    decode(code, body)
    # Ten million bytes at a few hundred nanoseconds for each handful; quadratic time would be minutes.
    assert time.process_time() - started < 10
