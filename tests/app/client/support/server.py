"""A server in the test's own process: a store, a gateway and a listener, which can be stopped, cut off and restarted on
the same port and folder."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any

from tests.app.access.support.world import ROOT, gateway_on
from tests.app.client.support.listening import OVER, OverHttp
from whippet.app.client import Client, Reconnect
from whippet.storage.files import Files
from whippet.storage.options import StoreOptions
from whippet.storage.store import Store
from whippet.transports.http.api import Api

SOON = Reconnect(interval_s=0.001)


async def until(holds: Callable[[], bool]) -> None:
    """Runs the event loop until a condition holds of which no event informs."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0)


class Server:
    transport = "tcp"
    wire = "classic"
    """The protocol of its clients, where they have a choice."""

    def __init__(self, path: object, files: Files | None, tls: ssl.SSLContext | None, options: dict[str, Any]) -> None:
        self._files = files
        self._tls = tls
        self._options = StoreOptions(path=str(path), **{"saver_interval_s": None, **options})
        self.port = 0

    async def start(self) -> None:
        self.store = await Store.open(self._options, files=self._files)
        self.gateway = await gateway_on(self.store)
        self._listening = OVER[self.transport]()
        await self._listening.listen(self.gateway, self.store, self.port, self._tls)
        self.port = self._listening.port

    async def stop(self) -> None:
        await self._listening.stop()
        self.gateway.users.close()
        await self.store.close()

    @property
    def api(self) -> Api:
        """That of the listener for HTTP."""
        assert isinstance(self._listening, OverHttp)
        return self._listening.api

    def cut(self) -> None:
        """Aborts all connections, as if their cables were cut."""
        self._listening.cut()

    @property
    def address(self) -> str:
        user, password = ROOT["IGGY_ROOT_USERNAME"], ROOT["IGGY_ROOT_PASSWORD"]
        return self.at(f"{user}:{password}")

    def at(self, credentials: str) -> str:
        wire = "" if self.transport == "http" else f"&wire={self.wire}"
        scheme = "iggy" if self.transport == "tcp" else f"iggy+{self.transport}"
        return f"{scheme}://{credentials}@127.0.0.1:{self.port}?heartbeat_interval=0{wire}"

    async def client(self, reconnect: Reconnect | None = None) -> Client:
        return await Client.connect(self.address, reconnect=reconnect)


@contextlib.asynccontextmanager
async def serving(
    path: object, *, files: Files | None = None, tls: ssl.SSLContext | None = None, **options: Any
) -> AsyncIterator[Server]:
    server = Server(path, files, tls, options)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def connected(path: object, partitions: int = 1, **options: Any) -> AsyncIterator[tuple[Server, Client]]:
    """A server with the stream s and its topic t, and a client of it."""
    async with serving(path, **options) as server, await server.client() as client:
        await client.create_stream("s")
        await client.create_topic("s", "t", partitions)
        yield server, client
