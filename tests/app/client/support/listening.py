"""The listeners of the four transports in the test's own process, with the same few methods."""

from __future__ import annotations

import ssl
from typing import Protocol

from tests.support.running import HANGS_S
from whippet.app.access.access_tokens import AccessTokens
from whippet.app.config.formats import Address
from whippet.app.gateway import Gateway
from whippet.storage.store import Store
from whippet.transports.admission.budgets import Budgets
from whippet.transports.http import application
from whippet.transports.http.api import Api
from whippet.transports.http.serving import server as http_server
from whippet.transports.quic import QuicListener
from whippet.transports.tcp import TcpListener
from whippet.transports.websocket.listener import WebSockets, upgrade_required


class Listening(Protocol):
    port: int

    async def listen(self, gateway: Gateway, store: Store, port: int, tls: ssl.SSLContext | None) -> None: ...

    def cut(self) -> None:
        """Aborts all connections, as if their cables were cut."""

    async def stop(self) -> None: ...


class OverTcp:
    async def listen(self, gateway: Gateway, store: Store, port: int, tls: ssl.SSLContext | None) -> None:
        self._listener = TcpListener(gateway)
        await self._listener.listen(Address("127.0.0.1", port), "tcp.address", tls)
        self.port = self._listener.address.port

    def cut(self) -> None:
        for connection in list(self._listener._connections):
            connection.abort()

    async def stop(self) -> None:
        await self._listener.stop(HANGS_S)


class OverQuic:
    """Always encrypted, with the certificate that is in the data folder or made there."""

    async def listen(self, gateway: Gateway, store: Store, port: int, tls: ssl.SSLContext | None) -> None:
        self._listener = QuicListener(gateway, Budgets(gateway.config), None, None)
        await self._listener.listen(Address("127.0.0.1", port), "quic.address", store.options.path)
        self.port = self._listener.address.port

    def cut(self) -> None:
        for connection in list(self._listener._connections):
            connection.abort()

    async def stop(self) -> None:
        await self._listener.stop(HANGS_S)


class OverHttp:
    async def listen(self, gateway: Gateway, store: Store, port: int, tls: ssl.SSLContext | None) -> None:
        tokens = await AccessTokens.open(gateway.config.http.jwt, store.options.path, gateway.users, gateway.clock)
        self.api = Api(gateway, tokens)
        app, address = application.Application(self.api), Address("127.0.0.1", port)
        self._server = await http_server.start(app, address, gateway.config.http.limits, HANGS_S, tls)
        self._server.listener.budgets = self.api.budgets
        self.port = self._server.address.port

    def cut(self) -> None:
        for connection in list(self._server.listener.connections):
            connection.transport.abort()

    async def stop(self) -> None:
        self.api.drain()
        await self._server.stop()
        await self.api.close()


class OverWebsocket:
    async def listen(self, gateway: Gateway, store: Store, port: int, tls: ssl.SSLContext | None) -> None:
        address = Address("127.0.0.1", port)
        self._server = await http_server.start(upgrade_required, address, gateway.config.http.limits, HANGS_S, tls)
        self._websockets = self._server.listener.websockets = WebSockets(gateway)
        self.port = self._server.address.port

    def cut(self) -> None:
        for connection in list(self._websockets._connections):
            connection.abort()

    async def stop(self) -> None:
        await self._websockets.stop(HANGS_S)
        await self._server.stop()


OVER: dict[str, type[OverTcp] | type[OverQuic] | type[OverHttp] | type[OverWebsocket]] = {
    "tcp": OverTcp,
    "quic": OverQuic,
    "ws": OverWebsocket,
    "http": OverHttp,
}
