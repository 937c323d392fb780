"""The API behind a live listener in the process of the test, on the production event loop, and raw sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.app.access.support.world import World, world
from tests.support.running import HANGS_S
from tests.transports.http.support.calling import make_api
from tests.transports.support.raw import Raw
from whippet.app.config.formats import Address
from whippet.app.config.listeners import Http, HttpLimits, HttpTls
from whippet.transports import certificates
from whippet.transports.http import application, routes
from whippet.transports.http.api import Api
from whippet.transports.http.operation import Operation
from whippet.transports.http.serving import server as http_server
from whippet.transports.http.serving.server import HttpServer

PING = b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n"


def tls_context(folder: Path) -> ssl.SSLContext:
    """Returns a context with a new certificate, and writes that to cert.pem in the folder."""
    certificate, key = certificates.self_signed()
    folder.joinpath("cert.pem").write_bytes(certificate)
    folder.joinpath("key.pem").write_bytes(key)
    tls = HttpTls(enabled=True, cert_file=str(folder / "cert.pem"), key_file=str(folder / "key.pem"))
    context = certificates.context(tls, "http.tls")
    assert context is not None
    return context


class Response:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Link(Raw):
    """A connection that sends any bytes, and parses responses."""

    def __init__(self, link: socket.socket) -> None:
        super().__init__(link)
        self._read = b""

    async def response(self, *, has_body: bool = True) -> Response:
        head, _, self._read = await self._until(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        length = int(headers.get("content-length", 0)) if has_body else 0
        while len(self._read) < length:
            self._read += await self._more()
        body, self._read = self._read[:length], self._read[length:]
        return Response(int(first.split()[1]), headers, body)

    async def _until(self, mark: bytes) -> tuple[bytes, bytes, bytes]:
        while mark not in self._read:
            self._read += await self._more()
        return self._read.partition(mark)

    async def _more(self) -> bytes:
        piece = await self._loop.sock_recv(self.link, 1 << 16)
        if not piece:
            raise EOFError(f"closed after {self._read!r}")
        return piece

    async def is_over(self) -> bool:
        """Waits until the server has closed; any bytes before that are an error."""
        assert self._read == b""
        with contextlib.suppress(ConnectionResetError):
            assert await self._loop.sock_recv(self.link, 1) == b""
        return True

    async def ask(self, octets: bytes) -> Response:  # type: ignore[override]
        await self.send(octets)
        return await self.response()

    async def pings(self) -> bool:
        return (await self.ask(PING)).body == b"pong"


class Serving:
    def __init__(self, made: World, api: Api, server: HttpServer) -> None:
        self.world = made
        self.api = api
        self.server = server
        self.token = ""
        self._links = contextlib.ExitStack()

    async def link(self, *, receive_bytes: int | None = None) -> Link:
        link = self._links.enter_context(socket.socket())
        link.setblocking(False)
        if receive_bytes is not None:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        where = self.server.address
        await asyncio.get_running_loop().sock_connect(link, (where.host, where.port))
        return Link(link)

    def request(self, method: str, path: str, json: Any = None, *more: str) -> bytes:
        """Encodes a request with the token of root."""
        body = b"" if json is None else json if isinstance(json, bytes) else msgspec.json.encode(json)
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {self.token}", *more]
        if json is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join((*lines, "", "")).encode() + body

    @property
    def connections(self) -> int:
        return len(self.server.listener.connections)

    def close_links(self) -> None:
        self._links.close()


@contextlib.asynccontextmanager
async def serving(
    path: object,
    config: Http | None = None,
    operations: Sequence[Operation] = routes.OPERATIONS,
    store: dict[str, Any] | None = None,
    tls: ssl.SSLContext | None = None,
    **limits: Any,
) -> AsyncIterator[Serving]:
    http = msgspec.structs.replace(config or Http(), limits=HttpLimits(**limits))
    async with world(path, **(store or {})) as made:
        api = await make_api(made, made.store, http)
        server = await http_server.start(
            application.Application(api, operations), Address("127.0.0.1", 0), http.limits, HANGS_S, tls
        )
        server.listener.budgets = api.budgets
        serves = Serving(made, api, server)
        try:
            serves.token = api.access_tokens.issue(made.gateway.users.root).text
            yield serves
        finally:
            serves.close_links()
            api.drain()
            await server.stop()
            await api.close()
        assert api.budgets.used == 0, "room that was taken was not given back"
        assert serves.connections == 0
