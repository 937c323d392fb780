"""The client: a connection that has logged in, with every command as a method, and optional reconnection.

Without `Reconnect`, every request after a lost connection raises Disconnected. With it, a request waits until there is
a connection again. Requests without a response are repeated only if that can do no harm; a send, or a change of the
catalogue, raises Disconnected, because it may have been executed. `Producer` has its own rule.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

import msgspec

from whippet.app.client import tcp
from whippet.app.client.address import Destination, Reconnect, parse
from whippet.app.client.commands import Commands
from whippet.app.client.connection import Connection, Disconnected
from whippet.app.commands import requests

__all__ = ["Client", "Reconnect"]


async def _over_quic(destination: Destination, previous: Connection | None) -> Connection:
    from whippet.app.client import quic_connection  # noqa: PLC0415 -- a quarter of a second, which TCP does not need

    return await quic_connection.connect(destination, previous)


async def _over_websocket(destination: Destination, previous: Connection | None) -> Connection:
    from whippet.app.client import websocket  # noqa: PLC0415 -- a third of a second, which TCP does not need

    return await websocket.connect(destination, previous)


async def _over_http(destination: Destination, previous: Connection | None) -> Connection:
    from whippet.app.client import http_connection  # noqa: PLC0415 -- TCP does not need it

    return await http_connection.connect(destination, previous)


CONNECTORS: dict[str, Callable[[Destination, Connection | None], Awaitable[Connection]]] = {
    "tcp": tcp.connect,
    "quic": _over_quic,
    "ws": _over_websocket,
    "http": _over_http,
}
"""What opens a connection of each transport. The previous connection may have what outlives it."""

REPEATABLE = frozenset(
    {
        requests.Ping,
        requests.GetStats,
        requests.GetSnapshot,
        requests.GetClusterMetadata,
        requests.GetMe,
        requests.GetClient,
        requests.GetClients,
        requests.GetUser,
        requests.GetUsers,
        requests.GetPersonalAccessTokens,
        requests.GetConsumerOffset,
        requests.GetStream,
        requests.GetStreams,
        requests.GetTopic,
        requests.GetTopics,
        requests.GetConsumerGroup,
        requests.GetConsumerGroups,
        requests.FlushUnsavedBuffer,
        requests.StoreConsumerOffset,
        requests.JoinConsumerGroup,
    }
)
"""Executing these twice is the same as once. A poll is one of them unless it commits."""


class Client(Commands):
    """Created by `connect`; ended by `close`, or as an asynchronous context manager."""

    def __init__(self, destination: Destination, connection: Connection) -> None:
        self._destination = destination
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._restoring: asyncio.Task[None] | None = None
        self._closed = False
        self._beat: asyncio.TimerHandle | None = None
        self._schedule_beat()

    @classmethod
    async def connect(
        cls, address: str, *, tls: ssl.SSLContext | None = None, reconnect: Reconnect | None = None
    ) -> Client:
        """`address` is a connection string (app/client/address.py); the other arguments override its options."""
        destination = parse(address, tls)
        if reconnect is not None:
            destination = msgspec.structs.replace(destination, reconnect=reconnect)
        return cls(destination, await _log_in(destination))

    @property
    def is_connected(self) -> bool:
        return self._restoring is None and self._connection.is_open

    @property
    def comes_back(self) -> bool:
        """Returns True if a lost connection will be restored."""
        return self._destination.reconnect is not None and not self._closed

    def call(self, request: requests.Request) -> asyncio.Future[Any]:
        """Executes any command. On an open connection it is sent before this returns."""
        if self._destination.reconnect is None or self._closed:
            return self._connection.request(request)
        if self.is_connected and not _repeatable(request):
            return self._connection.request(request)
        return self._loop.create_task(self._call_when_connected(request))

    async def _call_when_connected(self, request: requests.Request) -> Any:
        while True:
            await self.restored()
            try:
                return await self._connection.request(request)
            except Disconnected:
                if self._closed or not _repeatable(request):
                    raise

    async def drained(self) -> None:
        await self._connection.drained()

    # ------------------------------------------------------------------------------------------------- the connection

    async def restored(self) -> None:
        """Returns when there is a connection: at once, or after reconnecting. Otherwise raises a CommandError:
        Disconnected, or the reason why the login was refused."""
        if self.is_connected:
            return
        if not self.comes_back:
            raise self._closed_by_us()
        restoring = self._restoring
        if restoring is None:
            restoring = self._restoring = self._loop.create_task(self._restore(), name="restoring a connection")
            restoring.add_done_callback(self._on_restored)
        try:
            await asyncio.shield(restoring)
        except asyncio.CancelledError:
            if restoring.cancelled():
                raise self._closed_by_us() from None
            raise

    def _closed_by_us(self) -> Disconnected:
        return Disconnected(detail=f"the connection to {self._destination.address} is closed")

    async def reconnect(self) -> None:
        """Replaces this connection by a new one, whether or not the client reconnects by itself."""
        await self._connection.close()
        self._connection = await _log_in(self._destination, self._connection)

    async def _restore(self) -> None:
        policy = self._destination.reconnect
        assert policy is not None
        failed = 0
        while True:
            try:
                self._connection = await _log_in(self._destination, self._connection)
            except Disconnected:
                failed += 1
                if policy.retries is not None and failed >= policy.retries:
                    raise
                await asyncio.sleep(policy.pause_s(failed))
            else:
                return

    def _on_restored(self, restoring: asyncio.Task[None]) -> None:
        self._restoring = None
        if not restoring.cancelled():
            # Those that wait for the connection get the error; there may be none.
            restoring.exception()

    def _schedule_beat(self) -> None:
        if self._destination.heartbeat_s > 0 and not self._closed:
            self._beat = self._loop.call_later(self._destination.heartbeat_s, self._ping)

    def _ping(self) -> None:
        if self._connection.is_open:
            self._connection.request(requests.Ping()).add_done_callback(_ignore_outcome)
        self._schedule_beat()

    async def close(self) -> None:
        """Idempotent. Requests without a response end as Disconnected."""
        self._closed = True
        if self._beat is not None:
            self._beat.cancel()
        if self._restoring is not None:
            self._restoring.cancel()
            await asyncio.wait([self._restoring])
        await self._connection.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.close()


def _repeatable(request: requests.Request) -> bool:
    if isinstance(request, requests.PollMessages):
        return not request.auto_commit
    return type(request) in REPEATABLE


def _ignore_outcome(ping: asyncio.Future[Any]) -> None:
    """The failure of a ping is not reported: the next request fails, too."""
    if not ping.cancelled():
        ping.exception()


async def _log_in(destination: Destination, previous: Connection | None = None) -> Connection:
    connection = await CONNECTORS[destination.transport](destination, previous)
    if destination.login is not None:
        try:
            await connection.request(destination.login)
        except BaseException:
            await connection.close()
            raise
    return connection
