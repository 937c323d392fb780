"""What 0.9 clients have asked lately, by session and number, and what they were answered: a request that comes again,
because the answer was lost with a connection, is answered again and not carried out again.

What is known of a client outlives its connection for a while, so that it can come back under the same name. Pure state,
for the event loop alone; it does not outlive the server.
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
    answer: asyncio.Future[Any]


class ReplayCache:
    """Of one client. Each time it registers a session begins, and its numbers with it."""

    __slots__ = ("_kept", "_kept_max", "_newest", "client", "connections", "left_at", "session", "user_mark")

    def __init__(self, client: bytes, user_mark: str, kept_max: int) -> None:
        self.client = client
        self.user_mark = user_mark
        self.session = 0
        self.connections = 0
        self.left_at = 0
        self._kept: OrderedDict[tuple[int, int], _Remembered] = OrderedDict()
        """By session and number, the oldest first; under `~number` where the client does not count the request."""
        self._kept_max = kept_max
        self._newest = 0

    def begin_session(self, number: int, ended: frozenset[int]) -> None:
        """`ended` are operations whose effect has ended with the connection: asked again, they must be done again."""
        self.session = number
        self._newest = 0
        for key in [key for key, asked in self._kept.items() if asked.operation in ended]:
            del self._kept[key]

    def find(
        self, session: int, number: int, operation: int, digest: int, *, append: bool, counted: bool
    ) -> asyncio.Future[Any] | None:
        """The answer to a request that was asked before, perhaps still on its way; None for one that is new, or that
        belongs to a session that is over.

        `append`: it carries messages, which are never the same twice, so the same ones under the same number are a
        repetition even if the client has begun a new session for it. `counted`: the number is the next one of the
        session. Some clients do not count what concerns one partition: its number is that of the next counted request
        (Rust), or has a sequence of its own (Java). So there the number says nothing of the order, and the same number
        may come again with something else.
        """
        known = self._kept.get((session, number if counted else ~number))
        if known is not None and (known.operation, known.digest) == (operation, digest):
            return known.answer
        if session != self.session:
            return None
        if not counted:
            return self._find_append(~number, digest) if append else None
        if number < 1:
            raise CommandError(Code.INVALID_COMMAND, "requests are numbered from 1")
        if number > self._newest:
            return self._find_append(number, digest) if append else None
        if known is None:
            raise CommandError(Code.REQUEST_ALREADY_APPLIED, f"request {number} was answered, and {self._newest} since")
        raise CommandError(Code.INVALID_COMMAND, f"request {number} was another one")

    def _find_append(self, number: int, digest: int) -> asyncio.Future[Any] | None:
        """In earlier sessions, which lie before this one: what many requests have pushed out is not looked for."""
        for (session, other), asked in self._kept.items():
            if session == self.session:
                return None
            if other == number and asked.digest == digest:
                return asked.answer
        return None

    def start(self, number: int, operation: int, digest: int, *, counted: bool) -> asyncio.Future[Any]:
        """The request is new and is being carried out; whoever does that sets the answer, whatever happens."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if counted:
            self._newest = number
        key = self.session, number if counted else ~number
        self._kept[key] = _Remembered(operation, digest, answer)
        self._kept.move_to_end(key)
        while len(self._kept) > self._kept_max:
            self._kept.popitem(last=False)
        return answer

    def discard(self, session: int, number: int, *, counted: bool) -> None:
        """Nothing was done: it may be asked again."""
        self.evict(session, number, counted=counted)
        if counted and session == self.session and number == self._newest:
            self._newest -= 1

    def evict(self, session: int, number: int, *, counted: bool) -> None:
        """It was done, and the answer is not worth its memory."""
        self._kept.pop((session, number if counted else ~number), None)

    def __bool__(self) -> bool:
        """Whether there is anything to remember."""
        return bool(self._kept)


class ReplayCaches:
    """Of all sessions, by the name that the client gives itself."""

    def __init__(self, kept_max: int, memory_us: int, away_max: int, clock: Callable[[], int]) -> None:
        """`kept_max` answers of a session are remembered, for `memory_us` after its last connection has ended;
        `away_max` is how many such sessions there may be."""
        self._kept_max = kept_max
        self._memory_us = memory_us
        self._away_max = away_max
        self._clock = clock
        self._sessions: dict[bytes, ReplayCache] = {}
        self._away: OrderedDict[bytes, ReplayCache] = OrderedDict()
        """In the order in which their connections ended."""

    def register(self, client: bytes, user_mark: str, session: int, ended: frozenset[int]) -> ReplayCache:
        """Begins a session; what the same client of the same user was answered in earlier ones is still known."""
        self.expire()
        known = self._sessions.get(client)
        if known is None or known.user_mark != user_mark:
            known = self._sessions[client] = ReplayCache(client, user_mark, self._kept_max)
        known.begin_session(session, ended)
        self._away.pop(client, None)
        known.connections += 1
        return known

    def disconnect(self, answered: ReplayCache) -> None:
        """One of its connections has ended."""
        answered.connections -= 1
        if answered.connections or self._sessions.get(answered.client) is not answered:
            return
        if not answered:
            # Whoever only comes and goes pushes nobody out.
            self.remove(answered)
            return
        answered.left_at = self._clock()
        self._away[answered.client] = answered
        self.expire()

    def remove(self, answered: ReplayCache) -> None:
        """It has logged out, or was away for too long. Another user may go by the same name by now."""
        if self._sessions.get(answered.client) is answered:
            del self._sessions[answered.client]
            self._away.pop(answered.client, None)

    def expire(self) -> None:
        """Those who have been away for too long."""
        oldest = self._clock() - self._memory_us
        while self._away:
            answered = next(iter(self._away.values()))
            if answered.left_at > oldest and len(self._away) <= self._away_max:
                return
            self.remove(answered)
