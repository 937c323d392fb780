"""The client's connection over TCP, with or without TLS: sends frames and receives responses in the same order.

A response that does not fit into the scratch buffer gets a buffer of its own, into which the rest is received directly.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, TypeVar, cast

from whippet.app.client.address import Destination
from whippet.app.client.connection import Connection, Disconnected
from whippet.app.client.outstanding import Outstanding
from whippet.app.client.wires import WIRES, UnexpectedBytes
from whippet.app.commands.requests import Request
from whippet.app.errors import Code

Made = TypeVar("Made", bound=asyncio.BaseProtocol)

SCRATCH_BYTES = 64 << 10
GONE_S = 30
"""A machine that has acknowledged nothing for this long counts as gone."""
JOINED_BYTES = 64 << 10
"""Up to this size header and payload are joined: one write costs more than one copy."""


class TcpConnection(asyncio.BufferedProtocol):
    """Created by `connect`. All methods run on the event loop."""

    transport = "tcp"

    def __init__(self, outstanding: Outstanding) -> None:
        self._outstanding = outstanding
        self._wire = outstanding.wire
        self._loop = asyncio.get_running_loop()
        self._transport = cast(asyncio.Transport, None)
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._filled = 0
        """Bytes in the scratch buffer: between two reads never more than part of a header."""
        self._head = memoryview(b"")
        self._body: memoryview | None = None
        self._body_filled = 0
        self._writable: asyncio.Future[None] | None = None
        self._closed: asyncio.Future[None] = self._loop.create_future()

    # --------------------------------------------------------------------------------------------------- for the client

    @property
    def is_open(self) -> bool:
        return not self._closed.done() and not self._transport.is_closing()

    def request(self, request: Request) -> asyncio.Future[Any]:
        future, buffers = self._outstanding.begin(request, is_open=self.is_open)
        if len(buffers) > 1:
            *heads, body = buffers
            heads_bytes = sum(map(len, heads))
            if heads_bytes + len(body) <= JOINED_BYTES:
                buffers = [b"".join(buffers)]
            elif heads_bytes <= JOINED_BYTES:
                buffers = [b"".join(heads), body]
        for buffer in buffers:
            self._transport.write(buffer)
        return future

    async def drained(self) -> None:
        if self._writable is not None:
            await asyncio.shield(self._writable)

    async def close(self) -> None:
        self._transport.close()
        await asyncio.shield(self._closed)

    # --------------------------------------------------------------------------------------- callbacks of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        enable_keepalive(transport.get_extra_info("socket"))

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._outstanding.end_because(str(exc))
        self._closed.set_result(None)
        self.resume_writing()
        self._outstanding.fail()

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._body is not None:
            return self._body[self._body_filled :]
        return self._scratch[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._body is None:
            self._filled += nbytes
            try:
                self._split_frames()
            except UnexpectedBytes:
                self._outstanding.reason = "the server sent bytes that are no response"
                self._transport.abort()
            return
        self._body_filled += nbytes
        if self._body_filled == len(self._body):
            body, self._body = self._body, None
            self._outstanding.receive(self._head, body)

    def _split_frames(self) -> None:
        scratch, position, end = self._scratch, 0, self._filled
        head_bytes = self._wire.head_bytes
        while end - position >= head_bytes and self._body is None:
            head = scratch[position : position + head_bytes]
            length = self._wire.body_bytes(head)
            if length and not self._outstanding:
                raise UnexpectedBytes
            position += head_bytes
            if end - position >= length:
                # Both are in the scratch buffer.
                self._outstanding.receive(head, scratch[position : position + length])
                position += length
                continue
            self._head = memoryview(bytes(head))
            self._body = memoryview(bytearray(length))
            self._body_filled = end - position
            self._body[: self._body_filled] = scratch[position:end]
            position = end
        scratch[: end - position] = bytes(scratch[position:end])
        self._filled = end - position


def enable_keepalive(link: socket.socket | None) -> None:
    """A server whose machine is gone sends nothing: the keepalive ends the connection after a while."""
    if link is None:
        return
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", GONE_S // 2),
        ("TCP_KEEPINTVL", 5),
        ("TCP_USER_TIMEOUT", GONE_S * 1000),
    ):
        # Not every system has them.
        if hasattr(socket, option):
            link.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


async def connect(destination: Destination, previous: Connection | None = None) -> TcpConnection:
    """Does not log in. OSError and ssl.SSLError are raised as Disconnected."""
    return await open_stream(
        destination, lambda: TcpConnection(Outstanding(destination.address, WIRES[destination.wire]()))
    )


async def open_stream(destination: Destination, create: Callable[[], Made]) -> Made:
    """Connects to a server over TCP, with or without TLS."""
    name = (destination.tls_domain or destination.host) if destination.tls else None
    try:
        _, connection = await asyncio.get_running_loop().create_connection(
            create, destination.host, destination.port, ssl=destination.tls, server_hostname=name
        )
    except OSError as error:
        sentence = f"no connection to {destination.address}: {error.strerror or error}"
        raise Disconnected(Code.CANNOT_ESTABLISH_CONNECTION, sentence) from error
    return connection
