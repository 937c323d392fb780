"""Sessions: one for every connection, from its first byte to its last, and for every lease.

The protocol calls a session a client. A session records which user has logged in and which groups it has joined. The
transport sets `end`, which closes the connection.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import xxhash

from whippet.app.model.identity import Login

if TYPE_CHECKING:
    from whippet.app.model.route import Route
    from whippet.app.telemetry.trace_context import TraceContext

NOBODY = 2**32 - 1
"""The user id in client records of sessions that have not logged in."""


class Transport(enum.IntEnum):
    TCP = 1
    QUIC = 2
    HTTP = 3
    WEBSOCKET = 4


class Registration(NamedTuple):
    """The name of a 0.9 client, and the number of its session."""

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
        "request_id",
        "route",
        "stale",
        "trace",
        "transport",
    )

    def __init__(
        self, transport: Transport, address: str, now_us: int, end: Callable[[], None], reached_at: str = ""
    ) -> None:
        """`reached_at` is the address of the server at which the client has connected."""
        self.transport = transport
        self.reached_at = reached_at
        self.address = address
        self.client_id = xxhash.xxh32_intdigest(address.encode())
        self.login: Login | None = None
        """The user that it acts as; None before a login. Every command checks that it is still valid."""
        self.ended_login = False
        """The login was ended otherwise than by a logout, for example by a new password, and nobody has logged in
        since."""
        self.groups: set[tuple[int, int, int]] = set()
        """The ids of the stream, the topic and the group of each membership."""
        self.is_watched = transport is Transport.HTTP
        """Another mechanism notices an absent client: a lease lapses, and a channel is pinged. Such a client need not
        send pings."""
        self.last_heartbeat = now_us
        self.registration: Registration | None = None
        """The registration of a 0.9 client that has logged in."""
        self.attached: tuple[Session, Registration] | None = None
        """Another connection of the same user, whose group memberships this one uses as long as that one has not logged
        in again, perhaps as somebody else."""
        self.route: Route | None = None
        """The topic to which it has sent last."""
        self.request_id: str | None = None
        """What the client calls its request, over HTTP."""
        self.trace: TraceContext | None = None
        """The trace that the request belongs to, over HTTP."""
        self.stale = False
        """Evicted for its silence: the next command is refused, then the connection is closed."""
        self.end = end

    @property
    def member(self) -> Session:
        """The session whose memberships count when this one polls and commits for a group."""
        if self.attached is None:
            return self
        other, registration = self.attached
        holds = other.registration is registration and not other.stale and other.login == self.login
        return other if holds else self


class Sessions:
    """The sessions by client id, which is a hash of the address. If the addresses of two transports collide, the later
    session gets the next free id."""

    def __init__(self) -> None:
        self._by_id: dict[int, Session] = {}

    def add(self, session: Session) -> None:
        while session.client_id in self._by_id or session.client_id == 0:
            session.client_id = (session.client_id + 1) % NOBODY
        self._by_id[session.client_id] = session

    def remove(self, session: Session) -> None:
        """Does nothing if another session has the number by now."""
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
