"""Who is connected: a session for every connection, from its first byte to its last.

A session is also what the protocol calls a client. It says who has logged in on it and which groups it has joined; what
has to happen to the connection itself, closing it, is done through `end`, which its transport sets.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from typing import NamedTuple

import xxhash

from whippet.app.model.identity import Login

NOBODY = 2**32 - 1
"""The user id in client records of sessions that have not logged in."""


class Transport(enum.IntEnum):
    TCP = 1
    QUIC = 2
    HTTP = 3
    WEBSOCKET = 4


class Registration(NamedTuple):
    """What a 0.9 client calls itself, and the number of the session that it was given."""

    client: bytes
    number: int


NOT_REGISTERED = Registration(bytes(16), 0)


class Session:
    __slots__ = (
        "address",
        "attached",
        "client_id",
        "end",
        "ended_login",
        "groups",
        "is_watched",
        "last_heartbeat",
        "login",
        "reached_at",
        "registration",
        "stale",
        "transport",
    )

    def __init__(
        self, transport: Transport, address: str, now_us: int, end: Callable[[], None], reached_at: str = ""
    ) -> None:
        """`reached_at` is the address of ours that the client has found us at."""
        self.transport = transport
        self.reached_at = reached_at
        self.address = address
        self.client_id = xxhash.xxh32_intdigest(address.encode())
        self.login: Login | None = None
        """Whom it acts as; None before a login. Whether that still holds is asked for every command."""
        self.ended_login = False
        """Its login has ended otherwise than with a logout, with a new password for example, and nobody has logged in
        since."""
        self.groups: set[tuple[int, int, int]] = set()
        """Stream, topic and group ids of the groups that it is a member of."""
        self.is_watched = transport is Transport.HTTP
        """Whether something else notices when nobody is there: a lease lapses, and a channel is pinged. Nobody who is
        watched has to send pings."""
        self.last_heartbeat = now_us
        self.registration: Registration | None = None
        """Of a 0.9 client that has logged in."""
        self.attached: tuple[Session, Registration] | None = None
        """Another connection of the same user, in whose group memberships this one acts as long as it has not logged in
        anew, perhaps as somebody else."""
        self.stale = False
        """Evicted for its silence: the next command is refused, then the connection ends."""
        self.end = end

    @property
    def member(self) -> Session:
        """Whose memberships count when this one polls and commits for a group."""
        if self.attached is None:
            return self
        other, registration = self.attached
        holds = other.registration is registration and not other.stale and other.login == self.login
        return other if holds else self


class Sessions:
    """The connected ones, by client id. Two connections never have the same address at the same time on one transport;
    should two transports' addresses collide, the later one gets the next free number."""

    def __init__(self) -> None:
        self._by_id: dict[int, Session] = {}

    def add(self, session: Session) -> None:
        while session.client_id in self._by_id or session.client_id == 0:
            session.client_id = (session.client_id + 1) % NOBODY
        self._by_id[session.client_id] = session

    def remove(self, session: Session) -> None:
        """Nothing happens if it is not there any more: its number may be another session's by now."""
        if self._by_id.get(session.client_id) is session:
            del self._by_id[session.client_id]

    def get(self, client_id: int) -> Session | None:
        return self._by_id.get(client_id)

    def registered(self, registration: Registration) -> Session | None:
        return next((session for session in self._by_id.values() if session.registration == registration), None)

    def of_user(self, mark: str) -> list[Session]:
        return [session for session in self._by_id.values() if session.login is not None and session.login.mark == mark]

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)
