"""The client's connection over QUIC: a stream for each request and its response.

A server may execute requests on several streams at the same time. So that commands do the same as over TCP, each
request is sent when the response to the one before it has arrived.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import deque
from typing import Any, cast

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection as Engine
from aioquic.quic.connection import QuicConnectionState

from whippet.app.client.address import Destination
from whippet.app.client.connection import Connection, Disconnected
from whippet.app.client.outstanding import Outstanding
from whippet.app.client.wires import WIRES, UnexpectedBytes
from whippet.app.commands.requests import Request
from whippet.app.errors import Code

IDLE_S = 60.0
WINDOW_BYTES = 16 << 20
"""More than the largest response of the server."""
CONNECT_S = 5.0
"""A server that is killed during the handshake, and started again, does not answer the rest of it."""


class QuicConnection(QuicConnectionProtocol):
    """Created by `connect`. All methods run on the event loop."""

    transport = "quic"

    def __init__(self, engine: Engine, outstanding: Outstanding) -> None:
        super().__init__(engine)
        self._outstanding = outstanding
        self._unsent: deque[bytes] = deque()
        self._stream_id: int | None = None
        """The stream of the request whose response is arriving."""
        self._response = bytearray()
        self._idle: asyncio.Future[None] | None = None
        self._is_closed = False

    @property
    def is_open(self) -> bool:
        return not self._is_closed

    def request(self, request: Request) -> asyncio.Future[Any]:
        future, buffers = self._outstanding.begin(request, is_open=self.is_open)
        if buffers:
            self._unsent.append(b"".join(buffers))
            self._send_next()
        return future

    async def drained(self) -> None:
        if self._unsent:
            if self._idle is None:
                self._idle = self._loop.create_future()
            await asyncio.shield(self._idle)

    async def close(self) -> None:  # type: ignore[override]
        if self._is_closed:
            return
        self._quic.close()
        self.transmit()
        self._end()

    def _send_next(self) -> None:
        if self._stream_id is not None or not self._unsent:
            return
        self._stream_id = self._quic.get_next_available_stream_id()
        self._quic.send_stream_data(self._stream_id, self._unsent.popleft(), end_stream=True)
        self.transmit()
        if not self._unsent:
            self._wake()

    def _wake(self) -> None:
        if self._idle is not None:
            self._idle.set_result(None)
            self._idle = None

    # -------------------------------------------------------------------------------------------- callbacks of aioquic

    def transmit(self) -> None:
        if not self._is_closed:
            super().transmit()

    def quic_event_received(self, event: events.QuicEvent) -> None:
        if isinstance(event, events.StreamDataReceived):
            if event.stream_id != self._stream_id:
                return
            self._response += event.data
            if event.end_stream:
                self._receive()
        elif isinstance(event, events.StreamReset):
            self._fail(f"the server has ended a stream without a response, with the code {event.error_code}")
        elif isinstance(event, events.ConnectionTerminated):
            self._terminated(event)

    def datagram_received(self, data: bytes | str, addr: Any) -> None:
        """aioquic reports that the server has closed the connection only three probe timeouts later."""
        super().datagram_received(data, addr)
        closed = self._quic._close_event
        if closed is not None and self._quic._state is QuicConnectionState.DRAINING:
            self._terminated(closed)

    def error_received(self, exc: Exception) -> None:
        """Nobody listens there, or no longer."""
        self._fail(str(getattr(exc, "strerror", None) or exc))

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._outstanding.end_because(str(exc))
        self._end()

    # ---------------------------------------------------------------------------------------------------------- endings

    def _receive(self) -> None:
        octets, self._response, self._stream_id = bytes(self._response), bytearray(), None
        wire, view = self._outstanding.wire, memoryview(octets)
        head = view[: wire.head_bytes]
        try:
            is_whole = len(view) >= wire.head_bytes and len(view) == wire.head_bytes + wire.body_bytes(head)
        except UnexpectedBytes:
            is_whole = False
        if not is_whole:
            self._fail("the server sent bytes that are no response")
            return
        self._outstanding.receive(head, view[wire.head_bytes :])
        self._send_next()

    def _terminated(self, event: events.ConnectionTerminated) -> None:
        self._outstanding.end_because(event.reason_phrase or f"QUIC error {event.error_code:#x}")
        self._end()

    def _fail(self, reason: str) -> None:
        self._outstanding.end_because(reason)
        self._quic.close()
        self.transmit()
        self._end()

    def _end(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._unsent.clear()
        self._wake()
        self._outstanding.fail()
        if self._timer is not None:
            self._timer.cancel()
        if not self._connected and self._connected_waiter is not None and not self._connected_waiter.done():
            self._connected_waiter.set_exception(self._outstanding.disconnected())
        cast(asyncio.DatagramTransport, self._transport).close()


def configuration(destination: Destination) -> QuicConfiguration:
    """QUIC is always encrypted. Without `tls=true` the certificate is not verified, as official clients do it: that of
    a server that has none configured is its own."""
    found = QuicConfiguration(
        is_client=True,
        idle_timeout=IDLE_S,
        max_data=WINDOW_BYTES,
        max_stream_data=WINDOW_BYTES,
        server_name=destination.tls_domain or destination.host,
        verify_mode=ssl.CERT_NONE,
    )
    if destination.tls is not None:
        found.verify_mode = ssl.CERT_REQUIRED
        system = ssl.get_default_verify_paths()
        if destination.tls_ca_file is not None:
            found.load_verify_locations(cafile=destination.tls_ca_file)
        elif system.cafile or system.capath:
            found.load_verify_locations(cafile=system.cafile, capath=system.capath)
    return found


async def connect(destination: Destination, previous: Connection | None = None) -> QuicConnection:
    """Does not log in. Everything that prevents a connection is raised as Disconnected."""
    loop = asyncio.get_running_loop()
    outstanding = Outstanding(destination.address, WIRES[destination.wire]())
    try:
        (_, _, _, _, where), *_ = await loop.getaddrinfo(destination.host, destination.port, type=socket.SOCK_DGRAM)
        engine = Engine(configuration=configuration(destination))
        _, connection = await loop.create_datagram_endpoint(
            lambda: QuicConnection(engine, outstanding), remote_addr=(str(where[0]), int(where[1]))
        )
    except OSError as error:
        raise _unreachable(destination, error.strerror or str(error)) from error
    try:
        connection.connect(where)
        async with asyncio.timeout(CONNECT_S):
            await connection.wait_connected()
    except (ConnectionError, Disconnected, TimeoutError) as error:
        reason = outstanding.reason or ("nobody has answered" if isinstance(error, TimeoutError) else str(error))
        with contextlib.suppress(ConnectionError):
            await connection.close()
        raise _unreachable(destination, reason) from error
    except BaseException:
        await connection.close()
        raise
    return connection


def _unreachable(destination: Destination, why: str) -> Disconnected:
    return Disconnected(Code.CANNOT_ESTABLISH_CONNECTION, f"no connection to {destination.address}: {why}")
