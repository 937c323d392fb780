"""How a 0.9 client logs in: with a password or a token, distinguished by what follows the first name."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transports.wire.classic.support.worlds import NAME, TEXT, U32, U64
from whippet.app.commands.requests import LoginUser, LoginWithPersonalAccessToken
from whippet.app.errors import CommandError
from whippet.transports.wire.modern import registration
from whippet.transports.wire.modern.registration import Registered, Registration
from whippet.transports.wire.primitives import name, str8

fuzz = settings(deadline=None, max_examples=200)
VERSION = struct.pack("<I", registration.packed(0, 11, 0)) + name("sdk") + name("1.2.3")
PASSWORD = st.text(min_size=1, max_size=60)


def decode(body: bytes) -> Registration:
    return registration.decode(memoryview(body))


@fuzz
@given(protocol=U32, username=NAME, password=PASSWORD, context=TEXT, version=NAME)
def test_a_password_there_and_back_is_the_same(
    protocol: int, username: str, password: str, context: str, version: str
) -> None:
    login = LoginUser(username, password, version, context)
    assert decode(registration.encode(protocol, login, "sdk", version)) == Registration(protocol, login)


@fuzz
@given(protocol=U32, token=NAME, context=st.binary(max_size=300))
def test_a_token_there_and_back_is_the_same_whatever_the_context_is(protocol: int, token: str, context: bytes) -> None:
    login = LoginWithPersonalAccessToken(token)
    body = registration.encode(protocol, login, "sdk", "1")
    assert decode(body) == Registration(protocol, login)
    assert decode(body[:-4] + struct.pack("<I", len(context)) + context) == Registration(protocol, login)


@fuzz
@given(user_id=U32, session=U64.filter(bool), protocol=U32, version=NAME)
def test_the_answer_there_and_back_is_the_same(user_id: int, session: int, protocol: int, version: str) -> None:
    answer = Registered(user_id, session, protocol, version)
    body = b"".join(registration.encode_response(answer))
    assert registration.decode_response(memoryview(body)) == answer


def test_a_session_without_a_number_is_refused() -> None:
    body = b"".join(registration.encode_response(Registered(0, 0, 1, "1")))
    with pytest.raises(CommandError):
        registration.decode_response(memoryview(body))


@pytest.mark.parametrize("login", [LoginUser("user", "password", "1"), LoginWithPersonalAccessToken("t" * 32)])
def test_a_truncated_registration_is_refused(login: LoginUser | LoginWithPersonalAccessToken) -> None:
    body = registration.encode(7, login, "sdk", "1")
    for size in range(len(body)):
        with pytest.raises(CommandError):
            decode(body[:size])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        VERSION,
        VERSION[:4] + b"\0" + VERSION[8:],  # an SDK without a name
        VERSION[:8] + b"\0",  # and one without a version
        VERSION[:4] + b"\1\xff" + VERSION[8:],
        VERSION + b"\0" + str8("password") + bytes(4),
        VERSION + b"\2\xff\xfe" + str8("password") + bytes(4),
        VERSION + name("user") + b"\2\xff\xfe" + bytes(4),
        VERSION + name("user") + str8("password") + b"\xff\xff\xff\xff",
        VERSION + name("user") + str8("password") + b"\2\0\0\0\xff\xfe",
        VERSION + name("token") + b"\1\0\0\0",
    ],
)
def test_what_is_neither_is_refused(body: bytes) -> None:
    with pytest.raises(CommandError):
        decode(body)


@settings(deadline=None, max_examples=500)
@given(rest=st.binary(max_size=200), cut=st.integers(0, len(VERSION)))
def test_any_bytes_are_refused_or_a_registration(rest: bytes, cut: int) -> None:
    with contextlib.suppress(CommandError):
        decode(VERSION[:cut] + rest)


def test_versions_are_numbers_in_their_order() -> None:
    assert registration.packed(0, 11, 0) == 0x2C00
    assert registration.packed(0, 11, 1023) + 1 == registration.packed(0, 12, 0)
    assert registration.packed(1, 0, 0) == registration.packed(0, 1023, 1023) + 1
