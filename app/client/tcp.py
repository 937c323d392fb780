"""The client's connection over TCP, with or without TLS, in the classic protocol: the one that all servers speak.

The codec is the server's own, `transports.wire`: pure functions over bytes. This module is the only one of `app` that
knows it (but for the composition root), and pyproject.toml says so to import-linter.

A response that is not whole in the scratch buffer gets a buffer of its own, and its rest is read straight into that.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import Any, cast

from app.client.address import Destination
from app.client.connection import Disconnected
from app.commands.requests import Request
from app.errors import Code, CommandError
from transports.wire.classic import answers, frames, requests
from transports.wire.classic.dialect import Dialect

SCRATCH_BYTES = 64 << 10
RESPONSE_BYTES_MAX = 2 << 30
"""Nothing that a server answers is larger; a length above it is no answer."""
GONE_S = 30
"""A machine that has acknowledged nothing for so long is taken to be gone."""
JOINED_BYTES = 64 << 10
"""Up to here header and payload are put together: one write costs more than one copy."""


class TcpConnection(asyncio.BufferedProtocol):
    """Made by `connect`. All methods run on the event loop."""

    transport = "tcp"

    def __init__(self, address: str) -> None:
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._transport = cast(asyncio.Transport, None)
        self._pending: deque[tuple[int, asyncio.Future[Any]]] = deque()
        """Requests that have no answer yet, the oldest first."""
        self._dialect = Dialect()
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._filled = 0
        """Bytes in the scratch buffer: never more than part of a header, between two reads."""
        self._payload: memoryview | None = None
        self._payload_filled = 0
        self._writable: asyncio.Future[None] | None = None
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._reason: str | None = None

    # --------------------------------------------------------------------------------------------------- for the client

    @property
    def is_open(self) -> bool:
        return not self._closed.done() and not self._transport.is_closing()

    def request(self, request: Request) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        if not self.is_open:
            future.set_exception(self._disconnected())
            return future
        try:
            code, payload = requests.code_of(request), requests.encode_request(request)
        except CommandError as refused:
            future.set_exception(refused)
            return future
        self._pending.append((code, future))
        if len(payload) <= JOINED_BYTES:
            self._transport.write(frames.request(code, payload))
        else:
            self._transport.write(frames.HEADER.pack(frames.CODE_BYTES + len(payload), code))
            self._transport.write(payload)
        return future

    async def drained(self) -> None:
        if self._writable is not None:
            await asyncio.shield(self._writable)

    async def close(self) -> None:
        self._transport.close()
        await asyncio.shield(self._closed)

    # ----------------------------------------------------------------------------------------------- from the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        _notice_silence(transport.get_extra_info("socket"))

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._reason = self._reason or str(exc)
        self._closed.set_result(None)
        self.resume_writing()
        pending, self._pending = self._pending, deque()
        for _, future in pending:
            if not future.done():
                future.set_exception(self._disconnected())

    def _disconnected(self) -> Disconnected:
        return Disconnected(detail=f"the connection to {self._address} is closed: {self._reason or 'it was ended'}")

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._payload is not None:
            return self._payload[self._payload_filled :]
        return self._scratch[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._payload is None:
            self._filled += nbytes
            self._take_apart()
            return
        self._payload_filled += nbytes
        if self._payload_filled == len(self._payload):
            payload, self._payload = self._payload, None
            self._answered(frames.OK, payload)

    def _take_apart(self) -> None:
        scratch, position, end = self._scratch, 0, self._filled
        while end - position >= frames.HEADER_BYTES and self._payload is None:
            status, length = frames.response_header(scratch[position:end])
            position += frames.HEADER_BYTES
            if status != frames.OK:
                length = 0
            elif length > RESPONSE_BYTES_MAX or not self._pending:
                self._reason = "the server sends what is no answer to anything"
                self._transport.abort()
                return
            if end - position >= length:
                self._answered(status, scratch[position : position + length])
                position += length
                continue
            self._payload = memoryview(bytearray(length))
            self._payload_filled = end - position
            self._payload[: self._payload_filled] = scratch[position:end]
            position = end
        scratch[: end - position] = bytes(scratch[position:end])
        self._filled = end - position

    def _answered(self, status: int, payload: memoryview) -> None:
        """The payload may lie in the scratch buffer: what is made of it is a copy."""
        if not self._pending:
            self._reason = self._reason or f"the server refused the connection: error {status}"
            return
        code, future = self._pending.popleft()
        if future.done():
            return
        if status != frames.OK:
            future.set_exception(_refusal(status))
            return
        try:
            future.set_result(answers.decode_answer(code, payload, self._dialect))
        except (CommandError, ValueError, IndexError) as error:
            # The latter two are what numpy and enumerations say of bytes that are not what they should be.
            future.set_exception(CommandError(Code.INVALID_FORMAT, f"the answer to {code} cannot be read: {error}"))


def _notice_silence(link: socket.socket | None) -> None:
    """A server whose machine is gone says nothing: the connection ends when it has been so for a while."""
    if link is None:
        return
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", GONE_S // 2), ("TCP_KEEPINTVL", 5), ("TCP_USER_TIMEOUT", GONE_S * 1000)):
        # Not every system has them.
        if hasattr(socket, option):
            link.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def encoded(request: Request) -> bytes:
    """A whole request as it travels: for the benchmark, which prepares its requests before it sends them."""
    return frames.request(requests.code_of(request), requests.encode_request(request))


def _refusal(status: int) -> CommandError:
    try:
        return CommandError(Code(status))
    except ValueError:
        return CommandError(Code.ERROR, f"the server refused with the number {status}, which nobody knows here")


async def connect(destination: Destination) -> TcpConnection:
    """Not logged in. OSError and ssl.SSLError come as Disconnected."""
    loop = asyncio.get_running_loop()
    name = (destination.tls_domain or destination.host) if destination.tls else None
    try:
        _, connection = await loop.create_connection(
            lambda: TcpConnection(destination.address),
            destination.host,
            destination.port,
            ssl=destination.tls,
            server_hostname=name,
        )
    except OSError as error:
        sentence = f"no connection to {destination.address}: {error.strerror or error}"
        raise Disconnected(Code.CANNOT_ESTABLISH_CONNECTION, sentence) from error
    return connection
