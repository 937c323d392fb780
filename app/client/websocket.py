"""The client's connection over WebSocket: the frames of the binary protocol in binary messages.

A message of the server may have any part of the responses, so its bytes are a stream, as over TCP.
"""

from __future__ import annotations

import asyncio
from typing import Any

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_websocket
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage

from whippet.app.client.address import Destination
from whippet.app.client.connection import Connection, Disconnected
from whippet.app.client.outstanding import Outstanding
from whippet.app.client.wires import WIRES, UnexpectedBytes
from whippet.app.commands.requests import Request
from whippet.app.errors import Code


class WebsocketConnection:
    """Created by `connect`. All methods run on the event loop."""

    transport = "ws"

    def __init__(self, outstanding: Outstanding, socket: ClientConnection) -> None:
        self._outstanding = outstanding
        self._wire = outstanding.wire
        self._socket = socket
        self._loop = asyncio.get_running_loop()
        self._unsent: asyncio.Queue[bytes] = asyncio.Queue()
        self._all_sent = asyncio.Event()
        self._all_sent.set()
        self._closed = False
        self._received = bytearray()
        self._needed = 0
        """Bytes that the next response has at least."""
        self._tasks = [self._loop.create_task(self._send()), self._loop.create_task(self._receive())]

    @property
    def is_open(self) -> bool:
        return not self._closed

    def request(self, request: Request) -> asyncio.Future[Any]:
        future, buffers = self._outstanding.begin(request, is_open=self.is_open)
        if buffers:
            self._all_sent.clear()
            self._unsent.put_nowait(b"".join(buffers))
        return future

    async def drained(self) -> None:
        await self._all_sent.wait()

    async def close(self) -> None:
        await self._socket.close()
        self._end()
        await asyncio.wait(self._tasks)

    async def _send(self) -> None:
        while True:
            frame = await self._unsent.get()
            try:
                await self._socket.send(frame)
            except ConnectionClosed:
                # The task that receives reports it.
                return
            if self._unsent.empty():
                self._all_sent.set()

    async def _receive(self) -> None:
        try:
            async for message in self._socket:
                self._received += message if isinstance(message, bytes) else message.encode()
                self._split_frames()
        except ConnectionClosed as error:
            self._outstanding.end_because(str(error))
        except UnexpectedBytes:
            self._outstanding.reason = "the server sent bytes that are no response"
        finally:
            self._end()

    def _split_frames(self) -> None:
        if len(self._received) < self._needed:
            return
        head_bytes, position = self._wire.head_bytes, 0
        self._needed = head_bytes
        octets = bytes(self._received)
        view = memoryview(octets)
        while len(view) - position >= head_bytes:
            head = view[position : position + head_bytes]
            end = position + head_bytes + self._wire.body_bytes(head)
            if end > len(view):
                self._needed = end - position
                break
            self._outstanding.receive(head, view[position + head_bytes : end])
            position = end
        del self._received[:position]

    def _end(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._all_sent.set()
        self._tasks[0].cancel()
        self._outstanding.fail()


async def connect(destination: Destination, previous: Connection | None = None) -> WebsocketConnection:
    """Does not log in. Everything that prevents a connection is raised as Disconnected."""
    options: dict[str, Any] = {}
    if destination.tls is not None:
        options = {"ssl": destination.tls, "server_hostname": destination.tls_domain or destination.host}
    scheme = "ws" if destination.tls is None else "wss"
    try:
        socket = await open_websocket(
            f"{scheme}://{destination.address}/", compression=None, max_size=None, proxy=None, **options
        )
    except (OSError, InvalidHandshake, InvalidMessage) as error:
        detail = getattr(error, "strerror", None) or error
        sentence = f"no connection to {destination.address}: {detail}"
        raise Disconnected(Code.CANNOT_ESTABLISH_CONNECTION, sentence) from error
    return WebsocketConnection(Outstanding(destination.address, WIRES[destination.wire]()), socket)
