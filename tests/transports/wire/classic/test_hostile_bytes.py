"""Bytes that no client should send: each is refused with a number, without other exceptions or much memory."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.transports.wire.classic.support import plainly, worlds
from tests.transports.wire.classic.support.mutations import mutated
from tests.transports.wire.classic.support.plainly import TO_PARTITION_10, Classic, area, send_body, stored
from whippet.app.commands import requests as commands
from whippet.app.commands import responses
from whippet.app.errors import Code, CommandError
from whippet.storage import batch as batches
from whippet.transports.wire.classic import requests, sends
from whippet.transports.wire.classic import responses as wire_responses
from whippet.transports.wire.classic.dialect import Dialect

fuzz = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
CODES = [*requests.LAYOUTS, 101]


def decode(code: int, payload: bytes) -> commands.Request | Code:
    """The request or the number of the refusal; anything else that is raised fails the test."""
    try:
        request = requests.decode(code, memoryview(payload), Dialect(), lambda size: b"\7" * size)
    except CommandError as error:
        return error.code
    if isinstance(request, commands.SendMessages):
        for batch, known in zip(request.batches, request.checked, strict=True):
            assert plainly.same(batches.check(batch), known)
        return msgspec.structs.replace(request, checked=())
    return request


def decode_response(code: int, payload: bytes, header_size: int = 64) -> object:
    try:
        return wire_responses.decode_response(code, memoryview(payload), Dialect(forced=header_size))
    except CommandError as error:
        return error.code


@pytest.mark.parametrize("code", CODES)
@settings(deadline=None, max_examples=8)
@given(data=st.data())
def test_a_request_cut_off_anywhere_is_refused_or_a_request(code: int, data: st.DataObject) -> None:
    kind = commands.SendMessages if code == 101 else requests.LAYOUTS[code][0]
    payload = bytes(requests.encode_request(data.draw(worlds.request(kind))))
    for size in range(len(payload)):
        found = decode(code, payload[:size])
        if code not in (36, 38):
            assert isinstance(found, Code), size


@fuzz
@given(data=st.data(), request=worlds.ANY_REQUEST)
def test_a_mutated_request_is_refused_or_a_request(data: st.DataObject, request: commands.Request) -> None:
    payload = bytes(requests.encode_request(request, data.draw(st.sampled_from([56, 64]))))
    decode(requests.code_of(request), data.draw(mutated(payload)))


@fuzz
@given(code=st.sampled_from(CODES), payload=st.binary(max_size=200))
def test_any_bytes_are_refused_or_a_request(code: int, payload: bytes) -> None:
    decode(code, payload)


SENT = {
    "few": [Classic(i + 1, 0, 0, i, b"x" * (5 + i)) for i in range(3)],
    "uniform": [Classic(i + 1, 0, 0, i, b"x" * 5) for i in range(20)],
    "mixed": [Classic(i + 1, 0, 0, i, b"x" * (5 + i % 3), b"h" * (i % 2)) for i in range(20)],
}


@pytest.mark.parametrize("name", SENT)
@pytest.mark.parametrize("header_size", [56, 64])
def test_a_send_cut_off_anywhere_is_refused(name: str, header_size: int) -> None:
    body = send_body(SENT[name], header_size)
    assert isinstance(decode(101, body), commands.SendMessages)
    for size in range(len(body)):
        assert isinstance(decode(101, body[:size]), Code), size


@pytest.mark.parametrize("name", SENT)
@pytest.mark.parametrize("header_size", [56, 64])
@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_a_mutated_send_is_refused_or_makes_good_batches(name: str, header_size: int, data: st.DataObject) -> None:
    body = data.draw(mutated(send_body(SENT[name], header_size)))
    found = decode(101, body)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sends, "FEW", 10**9)
        assert decode(101, body) == found, "all ways of checking say the same"


@pytest.mark.parametrize("name", SENT)
@pytest.mark.parametrize("header_size", [56, 64])
def test_a_send_with_any_one_byte_changed_is_refused_or_makes_good_batches(name: str, header_size: int) -> None:
    body = send_body(SENT[name], header_size)
    for at in range(len(body)):
        for value in (0, 1, 2, 0x7F, 0x80, 0xFF):
            decode(101, body[:at] + bytes((value,)) + body[at + 1 :])


# ------------------------------------------------------------------------------------------------------------- answers


@fuzz
@given(data=st.data(), code=st.sampled_from(sorted(worlds.ANSWERS)))
def test_our_client_refuses_a_mutated_answer_or_understands_it(data: st.DataObject, code: int) -> None:
    payload = b"".join(wire_responses.encode(code, data.draw(worlds.ANSWERS[code]), Dialect()))
    decode_response(code, data.draw(mutated(payload)))


@pytest.mark.parametrize("name", SENT)
@pytest.mark.parametrize("header_size", [56, 64])
@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_our_client_refuses_a_mutated_poll_or_understands_it(name: str, header_size: int, data: st.DataObject) -> None:
    polled = responses.Polled(1, 100, len(SENT[name]), (stored(SENT[name]),))
    payload = b"".join(wire_responses.encode(100, polled, Dialect(forced=header_size)))
    found = decode_response(100, data.draw(mutated(payload)), header_size)
    if isinstance(found, responses.Polled):
        for batch in found.batches:
            batches.check(batch)


@pytest.mark.parametrize("header_size", [56, 64])
def test_our_client_refuses_a_poll_cut_off_inside(header_size: int) -> None:
    polled = responses.Polled(1, 100, 20, (stored(SENT["mixed"]),))
    payload = b"".join(wire_responses.encode(100, polled, Dialect(forced=header_size)))
    for size in range(len(payload)):
        assert isinstance(decode_response(100, payload[:size], header_size), Code), size


# -------------------------------------------------------------------------------------------------------------- memory

MOST = b"\xff\xff\xff\xff"
DESTINATION = TO_PARTITION_10 + MOST
ONE_LONG_MESSAGE = bytearray(send_body([Classic(1, 0, 0, 0, b"x" * 20)], 64))
struct.pack_into("<II", ONE_LONG_MESSAGE, len(ONE_LONG_MESSAGE) - 84 + 48, 2**32 - 1, 2**32 - 1)


@pytest.mark.parametrize(
    ("act", "code", "payload"),
    [
        (decode, 11, b"\1\xff"),
        (decode, 33, b"\1u\1p\1\1" + MOST),
        (decode, 38, b"\1u\1p" + MOST),
        (decode, 101, MOST + bytes(50)),
        (decode, 101, struct.pack("<I", len(DESTINATION)) + DESTINATION + bytes(64)),
        (decode, 101, bytes(ONE_LONG_MESSAGE)),
        (decode_response, 12, bytes(4) + MOST),
        (decode_response, 20, bytes(13) + MOST),
        (decode_response, 200, bytes(12) + MOST + bytes(16) + b"\1s"),
        (decode_response, 600, bytes(8) + MOST + b"\1g"),
        (decode_response, 600, bytes(8) + b"\1\0\0\0\1g" + bytes(4) + MOST),
        (decode_response, 10, bytes(108) + bytes(24) + MOST + bytes(20)),
        (decode_response, 100, bytes(12) + MOST + area(SENT["few"], 64)),
    ],
)
def test_a_false_count_or_length_costs_no_memory(
    act: Callable[[int, bytes], object], code: int, payload: bytes
) -> None:
    tracemalloc.start()
    try:
        assert isinstance(act(code, payload), Code)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
