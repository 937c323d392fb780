"""Cached responses to the recent requests of 0.9 clients, by session and number.

A request that is repeated because its response was lost with a connection gets the same response, and is not executed
again. The cache of a client outlives its connection for a while, so that it can come back under the same name. Pure
state, for the event loop only; it does not survive a restart.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from whippet.app.errors import Code, CommandError


class _Remembered(NamedTuple):
    operation: int
    digest: int
    response: asyncio.Future[Any]


class ReplayCache:
    """The cache of one client. A session begins, and its request numbers with it, each time the client registers."""

    __slots__ = ("_kept", "_kept_max", "_newest", "client", "connections", "left_at", "session", "user_mark")

    def __init__(self, client: bytes, user_mark: str, kept_max: int) -> None:
        self.client = client
        self.user_mark = user_mark
        self.session = 0
        self.connections = 0
        self.left_at = 0
        self._kept: OrderedDict[tuple[int, int], _Remembered] = OrderedDict()
        """Keyed by session and number, the oldest first; by `~number` where the client does not count the request."""
        self._kept_max = kept_max
        self._newest = 0

    def begin_session(self, number: int, ended: frozenset[int]) -> None:
        """`ended` are operations whose effect has ended with the connection: when repeated, they must be executed
        again."""
        self.session = number
        self._newest = 0
        for key in [key for key, request in self._kept.items() if request.operation in ended]:
            del self._kept[key]

    def find(
        self, session: int, number: int, operation: int, digest: int, *, append: bool, counted: bool
    ) -> asyncio.Future[Any] | None:
        """Returns the response to a request that was repeated, which may be pending. Returns None if the request is
        new, or if it belongs to a session that has ended.

        `append`: the request carries messages, which are never the same twice, so the same ones under the same number
        are a repetition even if the client has begun a new session for it. `counted`: the number is the next one of the
        session. Some clients do not count requests for one partition: their number is that of the next counted request
        (Rust), or has a sequence of its own (Java). There the number tells nothing about the order, and the same number
        may be used for another request.
        """
        known = self._kept.get((session, number if counted else ~number))
        if known is not None and (known.operation, known.digest) == (operation, digest):
            return known.response
        if session != self.session:
            return None
        if not counted:
            return self._find_append(~number, digest) if append else None
        if number < 1:
            raise CommandError(Code.INVALID_COMMAND, "requests are numbered from 1")
        if number > self._newest:
            return self._find_append(number, digest) if append else None
        if known is None:
            raise CommandError(Code.REQUEST_ALREADY_APPLIED, f"request {number} is older than request {self._newest}")
        raise CommandError(Code.INVALID_COMMAND, f"request {number} was sent before with different content")

    def _find_append(self, number: int, digest: int) -> asyncio.Future[Any] | None:
        """Searches earlier sessions, which are stored before this one. What newer requests have evicted is not
        found."""
        for (session, other), request in self._kept.items():
            if session == self.session:
                return None
            if other == number and request.digest == digest:
                return request.response
        return None

    def start(self, number: int, operation: int, digest: int, *, counted: bool) -> asyncio.Future[Any]:
        """The request is new and is being executed. The caller must set the response, whatever happens."""
        response: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if counted:
            self._newest = number
        key = self.session, number if counted else ~number
        self._kept[key] = _Remembered(operation, digest, response)
        self._kept.move_to_end(key)
        while len(self._kept) > self._kept_max:
            self._kept.popitem(last=False)
        return response

    def discard(self, session: int, number: int, *, counted: bool) -> None:
        """Nothing was executed: the request may be sent again."""
        self.evict(session, number, counted=counted)
        if counted and session == self.session and number == self._newest:
            self._newest -= 1

    def evict(self, session: int, number: int, *, counted: bool) -> None:
        """The request was executed, but the response is not worth its memory."""
        self._kept.pop((session, number if counted else ~number), None)

    def __bool__(self) -> bool:
        """Returns True if any response is cached."""
        return bool(self._kept)


class ReplayCaches:
    """The caches of all clients, by the name that the client has chosen."""

    def __init__(self, kept_max: int, memory_us: int, away_max: int, clock: Callable[[], int]) -> None:
        """`kept_max` responses of a session are kept, for `memory_us` after its last connection has ended; `away_max`
        is the maximum number of such sessions."""
        self._kept_max = kept_max
        self._memory_us = memory_us
        self._away_max = away_max
        self._clock = clock
        self._sessions: dict[bytes, ReplayCache] = {}
        self._away: OrderedDict[bytes, ReplayCache] = OrderedDict()
        """Sessions in the order in which their connections ended."""

    def register(self, client: bytes, user_mark: str, session: int, ended: frozenset[int]) -> ReplayCache:
        """Begins a session; responses to earlier sessions of the same client and user are still known."""
        self.expire()
        cache = self._sessions.get(client)
        if cache is None or cache.user_mark != user_mark:
            cache = self._sessions[client] = ReplayCache(client, user_mark, self._kept_max)
        cache.begin_session(session, ended)
        self._away.pop(client, None)
        cache.connections += 1
        return cache

    def disconnect(self, cache: ReplayCache) -> None:
        """One of its connections has ended."""
        cache.connections -= 1
        if cache.connections or self._sessions.get(cache.client) is not cache:
            return
        if not cache:
            # A client that only connects and disconnects evicts nobody.
            self.remove(cache)
            return
        cache.left_at = self._clock()
        self._away[cache.client] = cache
        self.expire()

    def remove(self, cache: ReplayCache) -> None:
        """The client has logged out, or was away for too long. By now another user may use the same client name."""
        if self._sessions.get(cache.client) is cache:
            del self._sessions[cache.client]
            self._away.pop(cache.client, None)

    def expire(self) -> None:
        """Removes clients that have been away for too long."""
        oldest = self._clock() - self._memory_us
        while self._away:
            cache = next(iter(self._away.values()))
            if cache.left_at > oldest and len(self._away) <= self._away_max:
                return
            self.remove(cache)
