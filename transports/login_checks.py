"""Checks logins of the protocols since 0.9: which versions are supported, and how a refused login is reported.

A refused login is answered with an eviction, a frame without a body that carries a reason. An unsupported version is
answered with the versions that are supported, which clients show to their users.
"""

from __future__ import annotations

import logging

from whippet.app.errors import Code, CommandError, on_the_wire
from whippet.app.gateway import Gateway
from whippet.app.model.sessions import Session
from whippet.storage.batch import Readable
from whippet.transports.wire import generations
from whippet.transports.wire.modern import frames, registration
from whippet.transports.wire.modern.frames import Reason

_log = logging.getLogger(__name__)

LOGGED_MAX = 1_000
"""How many refused clients are remembered, so that each is logged once."""

LOGIN_REFUSED = {
    Code.INVALID_CREDENTIALS: Reason.INVALID_CREDENTIALS,
    Code.INVALID_USERNAME: Reason.INVALID_CREDENTIALS,
    Code.INVALID_PASSWORD: Reason.INVALID_CREDENTIALS,
    Code.USER_INACTIVE: Reason.INVALID_CREDENTIALS,
    Code.INVALID_PERSONAL_ACCESS_TOKEN: Reason.INVALID_TOKEN,
    Code.PERSONAL_ACCESS_TOKEN_EXPIRED: Reason.INVALID_TOKEN,
    Code.RESOURCE_NOT_FOUND: Reason.INVALID_TOKEN,
}


class Evicted(Exception):
    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.name)
        self.reason = reason


def refused_login(refused: CommandError) -> Exception:
    """Returns the exception to raise for a login that the command layer has refused."""
    code = on_the_wire(refused.code)
    return Evicted(LOGIN_REFUSED[code]) if code in LOGIN_REFUSED else refused


def protocol_version(body: memoryview) -> int | None:
    """Returns the protocol version of a login in any format; None if it has none."""
    try:
        return registration.protocol_of(body)
    except CommandError:
        return None


def is_supported(gateway: Gateway, version: int) -> bool:
    protocol = gateway.config.system.protocol
    return protocol.oldest <= version <= protocol.newest


def oldest_of_generation(gateway: Gateway, version: int) -> int:
    """Returns the version that is announced to this client: the oldest supported version of its generation."""
    return max(gateway.config.system.protocol.oldest, generations.of(version).oldest)


def refuse_version(gateway: Gateway, session: Session, client: bytes, version: int) -> list[Readable]:
    protocol = gateway.config.system.protocol
    named, whose = gateway.refused_protocols, (session.address.rpartition(":")[0], version)
    if whose not in named:
        named[whose] = None
        if len(named) > LOGGED_MAX:
            del named[next(iter(named))]
        _log.info(
            "%s: refused a client with version %s of the protocol; supported versions are %s to %s "
            "(system.protocol.oldest, system.protocol.newest)",
            session.address,
            generations.text(version),
            generations.text(protocol.oldest),
            generations.text(protocol.newest),
        )
    return frames.eviction(client, Reason.INCOMPATIBLE_PROTOCOL, protocol.newest, protocol.oldest)
