"""Remembering the beginnings of polls never changes what a poll means."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transports.wire.classic.support import worlds
from whippet.app.commands.requests import PollMessages
from whippet.app.errors import CommandError
from whippet.transports.wire import poll_request
from whippet.transports.wire.primitives import Reader, structure

fuzz = settings(deadline=None, max_examples=200)
PLAIN = structure(PollMessages, **poll_request.LAYOUT)


def outcome(body: bytes, *, plainly: bool) -> object:
    try:
        return (PLAIN if plainly else poll_request.POLL).read(Reader(memoryview(body)))
    except CommandError as refused:
        return refused.code, str(refused)


@fuzz
@given(request=worlds.request(PollMessages), surplus=st.binary(max_size=40), cut=st.integers(0, 40))
def test_a_poll_means_the_same_the_second_time_whatever_follows_it(
    request: PollMessages, surplus: bytes, cut: int
) -> None:
    body = bytes(PLAIN.write(request))
    for octets in (body, body, body + surplus, body, body[: len(body) - cut], surplus + body):
        assert outcome(octets, plainly=False) == outcome(octets, plainly=True)


@pytest.mark.parametrize("number", range(256))
def test_a_known_beginning_with_any_strategy_is_read_or_refused_as_without_it(number: int) -> None:
    body = bytearray.fromhex("01 01 04 01000000 01 04 01000000 01 04 02000000 01 00000000")
    end = bytes([number]) + (7).to_bytes(8, "little") + (5).to_bytes(4, "little") + b"\1"
    known = bytes(body) + b"\1" + end[1:]
    assert outcome(known, plainly=False) == outcome(known, plainly=True)
    assert outcome(bytes(body) + end, plainly=False) == outcome(bytes(body) + end, plainly=True)


def test_what_is_remembered_is_bounded() -> None:
    for number in range(poll_request.KNOWN_MAX + 10):
        name = f"topic-{number}".encode()
        beginning = bytes.fromhex("01 01 04 01000000 01 04 01000000 02") + bytes([len(name)]) + name + bytes(5)
        poll_request.read(Reader(memoryview(beginning + b"\2" + bytes(13))))
    assert poll_request.known_count() <= poll_request.KNOWN_MAX
