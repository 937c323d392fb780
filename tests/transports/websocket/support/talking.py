"""The HTTP port with WebSocket, in the test's process, on the event loop of production.

Clients are those of the `websockets` package, or raw links that send anything. After every test no client is connected
and nothing is reserved from the budgets.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import os
import struct
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import websockets
from websockets.asyncio.client import ClientConnection, connect
from websockets.protocol import State

from tests.transports.http.support.serving import Link, Serving, serving
from tests.transports.support.raw import OK, PING, ClassicClient, gives_back
from whippet.app.config import Config
from whippet.app.config.listeners import Http, HttpCors, Websocket
from whippet.transports.admission.stall_detector import STALLED_SECONDS
from whippet.transports.websocket.listener import WebSockets


def handshake(
    path: str = "/", *lines: str, host: str = "localhost", version: str = "13", key: str | None = None
) -> bytes:
    key = key or base64.b64encode(os.urandom(16)).decode()
    head = [f"GET {path} HTTP/1.1", f"Host: {host}", "Connection: Upgrade", "Upgrade: websocket"]
    head += [f"Sec-WebSocket-Version: {version}", f"Sec-WebSocket-Key: {key}", *lines]
    return "\r\n".join((*head, "", "")).encode()


def frame(
    opcode: int,
    content: bytes = b"",
    *,
    fin: bool = True,
    masked: bool = True,
    reserved: int = 0,
    mask: bytes | None = None,
) -> bytes:
    """Encodes a frame, valid or not. Without `mask`, it gets a random one."""
    head = bytearray((opcode | reserved | (0x80 if fin else 0),))
    mask_bit, size = 0x80 if masked else 0, len(content)
    if size < 126:
        head.append(mask_bit | size)
    elif size < 65_536:
        head += bytes((mask_bit | 126,)) + size.to_bytes(2, "big")
    else:
        head += bytes((mask_bit | 127,)) + size.to_bytes(8, "big")
    if not masked:
        return bytes(head) + content
    mask = mask or os.urandom(4)
    covered = int.from_bytes(content, "big") ^ int.from_bytes((mask * (size // 4 + 1))[:size], "big")
    return bytes(head) + mask + covered.to_bytes(size, "big")


def message(content: bytes, *cuts: int) -> bytes:
    """Sends binary messages, in fragments if they are split."""
    edges = list(itertools.pairwise((0, *cuts, len(content))))
    return b"".join(
        frame(0 if number else 2, content[start:end], fin=number == len(edges) - 1)
        for number, (start, end) in enumerate(edges)
    )


class Classic(ClassicClient):
    """A client of the classic protocol on a connection of the library's."""

    def __init__(self, link: ClientConnection) -> None:
        self.link = link
        self._heard = b""

    async def send(self, octets: bytes) -> None:
        await self.link.send(octets)

    async def exactly(self, size: int) -> bytes:
        while len(self._heard) < size:
            part = await self.link.recv(decode=False)
            assert isinstance(part, bytes)
            self._heard += part
        found, self._heard = self._heard[:size], self._heard[size:]
        return found

    async def closed(self) -> tuple[int | None, str]:
        """Waits for the end; returns the close code of the server."""
        with contextlib.suppress(websockets.ConnectionClosed):
            await self.link.recv()
            raise AssertionError("something was said before the end")
        frame = self.link.protocol.close_rcvd
        return (None, "") if frame is None else (frame.code, frame.reason)


class RawLink:
    """A connection that has been upgraded and sends bytes."""

    def __init__(self, link: Link, heard: bytes) -> None:
        self.link = link
        self._heard = heard

    async def send(self, octets: bytes) -> None:
        await self.link.send(octets)

    async def exactly(self, size: int) -> bytes:
        while len(self._heard) < size:
            self._heard += await self.link._more()
        found, self._heard = self._heard[:size], self._heard[size:]
        return found

    async def frame(self) -> tuple[int, bytes]:
        """Opcode and content of the next frame."""
        first, second = await self.exactly(2)
        assert first & 0x80
        assert not second & 0x80, "the server masks"
        length = second
        if second == 126:
            length = int.from_bytes(await self.exactly(2), "big")
        elif second == 127:
            length = int.from_bytes(await self.exactly(8), "big")
        return first & 15, await self.exactly(length)

    async def answer(self) -> tuple[int, bytes]:
        opcode, content = await self.frame()
        assert opcode == 2
        status, length = struct.unpack_from("<II", content)
        assert len(content) == 8 + length
        return status, content[8:]

    async def is_alive(self) -> bool:
        await self.send(frame(2, PING))
        return await self.answer() == OK

    async def closed(self) -> int | None:
        """The code of a Close frame, after which nothing follows."""
        opcode, content = await self.frame()
        assert opcode == 8, (opcode, content)
        with contextlib.suppress(ConnectionResetError):
            assert await self.link._loop.sock_recv(self.link.link, 1) == b""
        return int.from_bytes(content[:2], "big") if content else None


class Talking:
    def __init__(self, serves: Serving, websockets: WebSockets) -> None:
        self.serves = serves
        self.websockets = websockets
        self.gateway = serves.world.gateway
        self._ends = contextlib.AsyncExitStack()

    @property
    def url(self) -> str:
        return f"ws://{self.serves.server.address}"

    async def connect(self, path: str = "/", **options: Any) -> ClientConnection:
        options = {"compression": None, "max_size": None, "open_timeout": None, "proxy": None} | options
        return await self._ends.enter_async_context(connect(self.url + path, **options))

    async def stranger(self, **options: Any) -> Classic:
        return Classic(await self.connect(**options))

    async def root(self, **options: Any) -> Classic:
        return await (await self.stranger(**options)).log_in()

    async def raw(self, path: str = "/", *lines: str, **options: Any) -> RawLink:
        link = await self.serves.link(**options)
        await link.send(handshake(path, *lines))
        found = await link.response(has_body=False)
        assert found.status == 101
        heard, link._read = link._read, b""
        return RawLink(link, heard)

    async def close(self) -> None:
        await self._ends.aclose()
        self.serves.close_links()

    @property
    def connections(self) -> int:
        return self.websockets.count_connections()


@contextlib.asynccontextmanager
async def talking(
    path: object,
    *,
    websocket: Websocket | None = None,
    cors: HttpCors | None = None,
    http: Http | None = None,
    stalled_seconds: float = STALLED_SECONDS,
    store: dict[str, Any] | None = None,
    http_limits: dict[str, Any] | None = None,
    **limits: Any,
) -> AsyncIterator[Talking]:
    http = http or Http()
    if cors is not None:
        http = msgspec.structs.replace(http, cors=cors)
    settings = Config(websocket=websocket or Websocket())
    async with serving(path, http, store={"settings": settings, **(store or {})}, **(http_limits or {})) as serves:
        gateway = serves.world.gateway
        config = gateway.config
        system = msgspec.structs.replace(config.system, limits=msgspec.structs.replace(config.system.limits, **limits))
        gateway.config = msgspec.structs.replace(config, system=system)
        sockets = WebSockets(gateway, api=serves.api, stalled_seconds=stalled_seconds)
        serves.server.listener.websockets = sockets
        found = Talking(serves, sockets)
        before = len(gateway.sessions)
        try:
            yield found
            await found.close()
            await until_nobody_is_left(found)
            await gives_back(sockets.budgets)
            assert sockets.budgets.used == 0, "room that was taken was not given back"
            assert len(gateway.sessions) == before
        finally:
            await found.close()
            await sockets.stop(5)


async def until_nobody_is_left(world: Talking) -> None:
    while world.connections or any("_process_queue" in str(task.get_coro()) for task in asyncio.all_tasks()):  # noqa: ASYNC110
        await asyncio.sleep(0)


def is_open(link: ClientConnection) -> bool:
    return link.protocol.state is State.OPEN
