"""The open connections of a listener: their number, the memory budgets that they share, and their deadlines."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

from whippet.app.config.formats import host_and_port
from whippet.app.config.system import Limits
from whippet.app.gateway import Gateway
from whippet.transports.admission.budgets import Budgets
from whippet.transports.admission.stall_detector import STALLED_SECONDS

_log = logging.getLogger(__name__)

IPV4_MAPPED_PREFIX = "::ffff:"
"""The prefix of IPv4 addresses on a socket that accepts both families."""
SCRATCH_BYTES = 256 << 10
SWEEP_SECONDS = 1.0
WARNING_SECONDS_BETWEEN = 60.0
"""The log reports at most this often that connections are refused."""


class ConnectionLimit:
    """A limit of open connections, which warns at intervals while it refuses some."""

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
            _log.warning("refusing new connections: %s = %d is reached", self._key, self.limit)
        return False


class TrackedConnection(Protocol):
    """An open connection."""

    @property
    def address(self) -> str: ...

    def overdue(self, now: float) -> str | None:
        """Returns the reason to close the connection, or None."""

    def drain(self) -> None:
        """Accepts no more requests; the connection closes when those in progress are answered."""

    def abort(self) -> None: ...


Tracked = TypeVar("Tracked", bound=TrackedConnection)


class Connections(Generic[Tracked]):
    """The open connections of one listener."""

    def __init__(
        self, gateway: Gateway, budgets: Budgets | None = None, *, stalled_seconds: float = STALLED_SECONDS
    ) -> None:
        """All transports share `budgets`."""
        self.gateway = gateway
        self.loop = asyncio.get_running_loop()
        self.stalled_seconds = stalled_seconds
        forced = gateway.config.tcp.message_header
        self.header_size = None if forced == "auto" else int(forced)
        self.limits: Limits = gateway.config.system.limits
        self.budgets = budgets or Budgets(gateway.config)
        self._connections: set[Tracked] = set()
        self._sweeper: asyncio.Task[None] | None = None
        self._empty: asyncio.Future[None] | None = None
        self._limit = ConnectionLimit("system.limits.connections", self.limits.connections)

    @cached_property
    def scratch(self) -> memoryview:
        """The buffer that all connections read into: each read is parsed before the next one."""
        return memoryview(bytearray(SCRATCH_BYTES))

    def start_sweeping(self, name: str) -> None:
        self._sweeper = asyncio.create_task(self._sweep(), name=name)

    def admit(self, connection: Tracked) -> bool:
        if not self.has_room():
            return False
        self._connections.add(connection)
        return True

    def has_room(self, more: int = 0) -> bool:
        return self._limit.allows_one_more(self.count_connections() + more)

    def count_connections(self) -> int:
        return len(self._connections)

    def remove(self, connection: Tracked) -> None:
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
        """Drains all connections, and aborts those that are left after `seconds_max`."""
        for connection in list(self._connections):
            connection.drain()
        if self._connections:
            self._empty = asyncio.get_running_loop().create_future()
            done, _ = await asyncio.wait([self._empty], timeout=seconds_max)
            if not done:
                _log.warning("aborting %d connections that did not drain in time", len(self._connections))
                for connection in list(self._connections):
                    connection.abort()
        # Until now it has closed clients that do not read their responses or do not close.
        if self._sweeper is not None:
            self._sweeper.cancel()


def peer_address(peer: Any) -> str:
    return host_and_port(*peer[:2]) if peer else "?:0"
