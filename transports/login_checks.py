"""Logging in over the protocols since 0.9: which version a client may speak, and how a refused login is told.

A login that is refused ends with an eviction, a frame without a body that says why. That of a version that is not
spoken names those that are, and the client shows them to its user.
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

NAMED_MAX = 1_000
"""Refused clients that are remembered, so that each is logged once."""

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
    """What is to be raised for a login that the command layer refuses."""
    code = on_the_wire(refused.code)
    return Evicted(LOGIN_REFUSED[code]) if code in LOGIN_REFUSED else refused


def version_of(body: memoryview) -> int | None:
    """The version that a client says when it logs in, whatever else it says in a later one; None if it says none."""
    try:
        return registration.protocol_of(body)
    except CommandError:
        return None


def is_spoken(gateway: Gateway, version: int) -> bool:
    protocol = gateway.config.system.protocol
    return protocol.oldest <= version <= protocol.newest


def announced(gateway: Gateway, version: int) -> int:
    """What a client of this version is told: the oldest one of its generation that is let in."""
    return max(gateway.config.system.protocol.oldest, generations.of(version).oldest)


def refuse_version(gateway: Gateway, session: Session, client: bytes, version: int) -> list[Readable]:
    protocol = gateway.config.system.protocol
    named, whose = gateway.refused_protocols, (session.address.rpartition(":")[0], version)
    if whose not in named:
        named[whose] = None
        if len(named) > NAMED_MAX:
            del named[next(iter(named))]
        _log.info(
            "%s: a client that speaks version %s of the protocol was refused; spoken here is %s to %s "
            "(system.protocol.oldest, system.protocol.newest)",
            session.address,
            generations.text(version),
            generations.text(protocol.oldest),
            generations.text(protocol.newest),
        )
    return frames.eviction(client, Reason.INCOMPATIBLE_PROTOCOL, protocol.newest, protocol.oldest)
