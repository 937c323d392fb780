"""How a 0.12 client logs in, and how it resumes its session on another connection.

    registration  as for 0.9 clients, with a secret of 32 bytes after the version of the SDK
    binding       version u32 | name of the SDK | version of the SDK
                  | client 16 bytes | session u64 | watermark u64 | secret 32 bytes

The client chooses the secret for one session. A client that knows it must be the one that registered, and needs no
password. The watermark is the newest change of the catalogue that the client has seen; a single server has them all.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from whippet.app.commands.requests import LoginUser, LoginWithPersonalAccessToken
from whippet.storage.batch import Readable
from whippet.transports.wire.modern import registration as modern
from whippet.transports.wire.modern.requests import CLIENT_BYTES
from whippet.transports.wire.primitives import Reader, name, read_name, u32, u64

SECRET_BYTES = 32


class Registration(NamedTuple):
    protocol: int
    secret_digest: bytes
    login: LoginUser | LoginWithPersonalAccessToken


class Binding(NamedTuple):
    protocol: int
    client: bytes
    session: int
    """0: the reply to the registration was lost."""
    secret_digest: bytes


def digest(secret: Readable) -> bytes:
    """Returns what is stored of a secret."""
    return hashlib.sha256(secret).digest()


def decode(body: memoryview) -> Registration:
    reader = Reader(body)
    protocol, _, sdk_version = reader.u32(), read_name(reader), read_name(reader)
    secret = digest(reader.take(SECRET_BYTES))
    return Registration(protocol, secret, modern.read_login(reader, sdk_version))


def decode_binding(body: memoryview) -> Binding:
    reader = Reader(body)
    protocol = reader.u32()
    read_name(reader), read_name(reader)
    client, session = bytes(reader.take(CLIENT_BYTES)), reader.u64()
    reader.u64()
    return Binding(protocol, client, session, digest(reader.take(SECRET_BYTES)))


def encode(
    protocol: int, secret: bytes, login: LoginUser | LoginWithPersonalAccessToken, sdk: str, version: str
) -> bytes:
    assert len(secret) == SECRET_BYTES
    whole = modern.encode(protocol, login, sdk, version)
    start = len(u32(protocol) + name(sdk) + name(version))
    return whole[:start] + secret + whole[start:]


def encode_binding(protocol: int, client: bytes, session: int, secret: bytes, sdk: str, version: str) -> bytes:
    return b"".join((u32(protocol), name(sdk), name(version), client, u64(session), u64(0), secret))
