"""Servers that echo what they receive, for Autobahn's test suite: `/frames` consists of our handshake, framing and
closing, and accepts messages of both kinds; `/text` is the connection of browsers, with an echo as its channel.

`python -m tests.transports.websocket.support.echoing` prints its port and runs until it is killed.
"""

from __future__ import annotations

import asyncio
import codecs
import time
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import uvloop
from starlette.types import Receive, Scope, Send
from websockets.frames import CloseCode

from whippet.app.config import Config
from whippet.app.config.formats import Address
from whippet.app.config.listeners import Http
from whippet.app.model.identity import Login
from whippet.transports import lingering_close
from whippet.transports.http.serving import server as http_server
from whippet.transports.websocket import framing, handshake
from whippet.transports.websocket.framing import CLOSE, PING, TEXT, Incoming, Violation
from whippet.transports.websocket.handshake import Upgrade
from whippet.transports.websocket.listener import WebSockets
from whippet.transports.websocket.text_connection import TextConnection

SCRATCH = memoryview(bytearray(256 << 10))
MESSAGE_BYTES_MAX = 64 << 20


class Echo(asyncio.BufferedProtocol):
    def __init__(self) -> None:
        self._transport = cast(asyncio.Transport, None)
        self._incoming = Incoming()
        self._message = bytearray()
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._is_over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return SCRATCH

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_over:
            return
        try:
            for opcode, content, is_last in self._incoming.pieces(SCRATCH[:nbytes]):
                if self._hear(opcode, content, is_last=is_last):
                    return
        except Violation as violated:
            self._close(violated.code, is_over=False)

    def _hear(self, opcode: int, content: memoryview, *, is_last: bool) -> bool:
        """Whether it is over."""
        if opcode == PING:
            self._transport.write(framing.header(framing.PONG, len(content)) + content)
        elif opcode == CLOSE:
            self._close(framing.close_code(content), is_over=True)
            return True
        elif opcode < CLOSE:
            self._message += content
            if opcode == TEXT:
                self._check(content, is_last=is_last)
            if is_last:
                self._transport.write(framing.header(opcode, len(self._message)) + self._message)
                self._message = bytearray()
        return False

    def _check(self, content: memoryview, *, is_last: bool) -> None:
        try:
            self._decoder.decode(bytes(content), final=is_last)
        except UnicodeDecodeError:
            raise Violation(CloseCode.INVALID_DATA, "a text message is not UTF-8") from None

    def _close(self, code: int | None, *, is_over: bool) -> None:
        self._is_over = True
        self._transport.write(framing.close(code))
        lingering_close.close(self._transport, 0.0, is_over=is_over)


class EchoChannel:
    """In place of the channel for browsers."""

    has_subscriptions = is_polling = False

    def __init__(self, link: TextConnection) -> None:
        self._link = link
        # Unauthenticated clients may send little.
        link.session.login = Login("somebody", 0)

    async def hear(self, text: bytes) -> None:
        await self._link.send(text)

    def part(self, *, is_heard: bool) -> None:
        """It has nothing to end."""

    def abandon_polls(self) -> None:
        """It has none."""

    def close(self) -> None:
        """It has nothing to end."""


class Echoes(WebSockets):
    def upgrade(self, asked: Upgrade) -> tuple[bytes, asyncio.BufferedProtocol]:
        made = TextConnection(self, None) if asked.path == "/text" else Echo()
        return handshake.answer(asked, Http(), None), made

    def open_channel(self, link: TextConnection) -> Any:
        return EchoChannel(link)


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("nobody asks for anything else")


async def main() -> None:
    config = Config()
    http = msgspec.structs.replace(config.http, max_request_size=MESSAGE_BYTES_MAX)
    config = msgspec.structs.replace(config, http=http)
    server = await http_server.start(_nothing, Address("127.0.0.1", 0), http.limits, 5)
    gateway: Any = SimpleNamespace(config=config, clock=lambda: time.time_ns() // 1000)
    server.listener.websockets = Echoes(gateway)
    print(server.address.port, flush=True)  # noqa: T201
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main())
