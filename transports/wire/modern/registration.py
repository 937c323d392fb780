"""The body of a registration, which is how a 0.9 client logs in, and its response.

    version u32 | name of the SDK | version of the SDK | user name | password after u8 | context after u32
    version u32 | name of the SDK | version of the SDK | token                         | context after u32

Nothing tells which of the two it is: a token is followed by exactly a context, a user name never is.
"""

from __future__ import annotations

from typing import NamedTuple

from whippet.app.commands.requests import LoginUser, LoginWithPersonalAccessToken
from whippet.app.errors import Code, CommandError
from whippet.storage.batch import Readable
from whippet.transports.wire.primitives import Reader, name, read_name, read_str8, str8, str32, text, u32, u64

_MINOR_BITS = _PATCH_BITS = 10


class Registration(NamedTuple):
    protocol: int
    login: LoginUser | LoginWithPersonalAccessToken


class Registered(NamedTuple):
    user_id: int
    session: int
    protocol: int
    server_version: str


def packed(major: int, minor: int, patch: int) -> int:
    """Returns the number that represents a version of the protocol."""
    assert max(major, minor, patch) < 1 << _PATCH_BITS
    return major << (_MINOR_BITS + _PATCH_BITS) | minor << _PATCH_BITS | patch


def decode(body: memoryview) -> Registration:
    reader = Reader(body)
    protocol = reader.u32()
    _, sdk_version = read_name(reader), read_name(reader)
    return Registration(protocol, read_login(reader, sdk_version))


def protocol_of(body: memoryview) -> int:
    """Returns the first field of a registration, whatever follows."""
    return Reader(body).u32()


def read_login(reader: Reader, sdk_version: str) -> LoginUser | LoginWithPersonalAccessToken:
    """Returns the rest of a registration."""
    who = read_name(reader)
    rest = reader.rest()
    after = Reader(rest)
    if len(rest) >= 4 and after.u32() == len(rest) - 4:
        return LoginWithPersonalAccessToken(who)
    after = Reader(rest)
    password = read_str8(after)
    context = text(after.sized())
    return LoginUser(who, password, sdk_version, context)


def encode(protocol: int, login: LoginUser | LoginWithPersonalAccessToken, sdk: str, version: str) -> bytes:
    """Used by our own client."""
    head = (u32(protocol), name(sdk), name(version))
    if isinstance(login, LoginUser):
        return b"".join((*head, name(login.username), str8(login.password), str32(login.context)))
    return b"".join((*head, name(login.token), str32("")))


def encode_response(answer: Registered) -> list[Readable]:
    parts = (u32(answer.user_id), u64(answer.session), u32(answer.protocol), name(answer.server_version))
    return [b"".join(parts)]


def decode_response(body: memoryview) -> Registered:
    reader = Reader(body)
    found = Registered(reader.u32(), reader.u64(), reader.u32(), read_name(reader))
    if not found.session:
        raise CommandError(Code.INVALID_FORMAT, "the session of the server has no number")
    return found
