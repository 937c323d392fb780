"""Sessions of 0.12 clients, which outlive their connections: a client that returns with the secret resumes its session.

What remains is the session with its login and its group memberships, and which of its requests were executed. Only a
digest of the secret is kept. A session without a connection ends after a while, or if there are too many: then the user
with the most of them loses the oldest one, so that nobody can push out the sessions of others. Sessions do not survive
a restart.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable

from whippet.app.model.identity import Login
from whippet.app.model.next_replay import ReplayMemory, ReplayWindow
from whippet.app.model.sessions import Session


class ResumableSession:
    __slots__ = ("client", "connection", "left_at", "login", "number", "requests", "secret_digest", "session")

    def __init__(
        self, number: int, client: bytes, secret_digest: bytes, session: Session, login: Login, memory: ReplayMemory
    ) -> None:
        self.number = number
        self.client = client
        self.secret_digest = secret_digest
        self.session = session
        self.login = login
        self.requests = ReplayWindow(memory)
        self.connection: object | None = None
        """The connection that it is bound to; None while the client is away."""
        self.left_at = 0


class ResumableSessions:
    def __init__(
        self, memory_us: int, away_max: int, clock: Callable[[], int], on_end: Callable[[Session], None]
    ) -> None:
        """`memory_us` is how long a session waits for its client; `away_max` is how many of them may wait."""
        self._memory_us = memory_us
        self._away_max = away_max
        self._clock = clock
        self._on_end = on_end
        self.replay_memory = ReplayMemory()
        self._by_number: dict[int, ResumableSession] = {}
        self._by_client: dict[bytes, list[ResumableSession]] = {}
        self._away: dict[int, ResumableSession] = {}
        """Sessions in the order in which their connections ended; the same below for each user."""
        self._away_of: dict[str, dict[int, ResumableSession]] = {}

    def __len__(self) -> int:
        return len(self._by_number)

    @property
    def away_count(self) -> int:
        return len(self._away)

    def add(self, bound: ResumableSession, connection: object) -> None:
        self.expire()
        bound.connection = connection
        self._by_number[bound.number] = bound
        self._by_client.setdefault(bound.client, []).append(bound)

    def find(self, client: bytes, number: int, secret_digest: bytes) -> ResumableSession | None:
        """Returns the session of a client that knows the secret; number 0 matches any session of the client."""
        self.expire()
        found = None
        for bound in self._by_client.get(client, ()):
            is_known = hmac.compare_digest(bound.secret_digest, secret_digest)
            if is_known and number in (0, bound.number):
                found = bound
        return found

    def resume(self, bound: ResumableSession, connection: object) -> None:
        """Binds the session to another connection."""
        bound.connection = connection
        self._remove_from_away(bound)

    def disconnect(self, bound: ResumableSession, connection: object) -> None:
        """A connection has ended. Does nothing if the session is bound to another one."""
        if bound.connection is not connection or self._by_number.get(bound.number) is not bound:
            return
        if bound.session.login is None:
            self.end(bound)
            return
        bound.connection = None
        bound.left_at = self._clock()
        session = bound.session
        session.end = lambda: self.end(bound)
        session.is_watched = True
        self._away[bound.number] = bound
        self._away_of.setdefault(bound.login.mark, {})[bound.number] = bound
        self.expire()

    def end(self, bound: ResumableSession) -> None:
        """The client has logged out, was away for too long, or may not act as its user any more."""
        if self._by_number.pop(bound.number, None) is None:
            return
        self._remove_from_away(bound)
        bound.requests.clear()
        others = self._by_client[bound.client]
        others.remove(bound)
        if not others:
            del self._by_client[bound.client]
        self._on_end(bound.session)

    def expire(self) -> None:
        """Ends the sessions that have waited for too long, and those beyond the limit."""
        oldest = self._clock() - self._memory_us
        while self._away and next(iter(self._away.values())).left_at <= oldest:
            self.end(next(iter(self._away.values())))
        while len(self._away) > self._away_max:
            most = max(self._away_of.values(), key=len)
            self.end(next(iter(most.values())))

    def _remove_from_away(self, bound: ResumableSession) -> None:
        if self._away.pop(bound.number, None) is None:
            return
        of_user = self._away_of[bound.login.mark]
        del of_user[bound.number]
        if not of_user:
            del self._away_of[bound.login.mark]
