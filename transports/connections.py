"""Everyone who is connected in one way: how many there may be, the room that they share, how long they may take."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, Protocol

from whippet.app.config.formats import host_and_port
from whippet.app.config.system import Limits
from whippet.app.gateway import Gateway
from whippet.transports.admission.budgets import Budgets
from whippet.transports.admission.stall_detector import STALLED_SECONDS

_log = logging.getLogger(__name__)

MAPPED = "::ffff:"
"""Before an IPv4 address where a socket speaks both."""
SCRATCH_BYTES = 256 << 10
SWEEP_SECONDS = 1.0
WARNING_SECONDS_BETWEEN = 60.0
"""The log reports at most this often that connections are refused."""


class ConnectionLimit:
    """A limit of open connections. While it refuses some, it warns of that now and then."""

    __slots__ = ("_key", "_warned_at", "limit")

    def __init__(self, key: str, limit: int) -> None:
        """`key` is the setting of the limit."""
        self._key = key
        self.limit = limit
        self._warned_at = float("-inf")

    def allows_one_more(self, count: int) -> bool:
        if count < self.limit:
            return True
        now = time.monotonic()
        if now - self._warned_at > WARNING_SECONDS_BETWEEN:
            self._warned_at = now
            _log.warning("connections are refused: %s = %d", self._key, self.limit)
        return False


class Member(Protocol):
    """Somebody who is connected."""

    @property
    def address(self) -> str: ...

    def overdue(self, now: float) -> str | None:
        """Why this connection is not worth keeping; None when it is."""

    def end(self) -> None:
        """No more requests; those in hand are answered, then the connection closes."""

    def abort(self) -> None: ...


class Connections:
    """Everyone who is connected in one way: how many there may be, what they share, how long they may take."""

    def __init__(
        self, gateway: Gateway, budgets: Budgets | None = None, *, stalled_seconds: float = STALLED_SECONDS
    ) -> None:
        """`rooms` are shared with all other transports."""
        self.gateway = gateway
        self.loop = asyncio.get_running_loop()
        self.stalled_seconds = stalled_seconds
        forced = gateway.config.tcp.message_header
        self.header_size = None if forced == "auto" else int(forced)
        self.limits: Limits = gateway.config.system.limits
        self.budgets = budgets or Budgets(gateway.config)
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._connections: set[Member] = set()
        self._sweeper: asyncio.Task[None] | None = None
        self._empty: asyncio.Future[None] | None = None
        self._limit = ConnectionLimit("system.limits.connections", self.limits.connections)

    def start_sweeping(self, name: str) -> None:
        self._sweeper = asyncio.create_task(self._sweep(), name=name)

    def welcome(self, connection: Member) -> bool:
        if not self.has_room():
            return False
        self._connections.add(connection)
        return True

    def has_room(self, more: int = 0) -> bool:
        return self._limit.allows_one_more(len(self._connections) + more)

    def count_connections(self) -> int:
        return len(self._connections)

    def farewell(self, connection: Member) -> None:
        self._connections.discard(connection)
        if self._empty is not None and not self._connections and not self._empty.done():
            self._empty.set_result(None)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.close_overdue(time.monotonic())

    def close_overdue(self, now: float) -> None:
        for connection in list(self._connections):
            reason = connection.overdue(now)
            if reason is not None:
                _log.info("%s: closed, because %s", connection.address, reason)
                connection.abort()
        self.budgets.reclaim(now)

    async def stop(self, seconds_max: float) -> None:
        """Lets the commands in hand finish, closes all connections."""
        for connection in list(self._connections):
            connection.end()
        if self._connections:
            self._empty = asyncio.get_running_loop().create_future()
            done, _ = await asyncio.wait([self._empty], timeout=seconds_max)
            if not done:
                _log.warning("%d connections did not end in time and are cut", len(self._connections))
                for connection in list(self._connections):
                    connection.abort()
        # Until now it looks after those who do not take their answers or do not go.
        if self._sweeper is not None:
            self._sweeper.cancel()


def peer_address(peer: Any) -> str:
    return host_and_port(*peer[:2]) if peer else "?:0"
