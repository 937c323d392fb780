"""The binary protocols over WebSocket: a TCP connection whose bytes arrive and leave in frames.

The boundaries of messages mean nothing: their contents, one after the other, are a byte stream, from which requests are
cut as on TCP, by the same code and within the same limits. Bytes of a request that is known to be large are read into
its own buffer, and unmasked there.

How it ends: requests in progress are answered. A client that has sent a Close frame, or has broken the rules, is sent
one; in the latter case the connection waits a moment for the client to close, so that the frame is not lost on the way.
When the server closes on its own it sends none: clients 0.6 and 0.7 reconnect after a lost connection, but not after a
closed one. Pings keep the connection open in proxies; official clients read their socket only while they wait for a
response, so no client is closed for not answering.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from websockets.frames import CloseCode

from whippet.app.config.listeners import Websocket
from whippet.app.model.sessions import Transport
from whippet.storage.batch import Readable
from whippet.transports import tcp
from whippet.transports.admission.budget import FREE_BYTES
from whippet.transports.connections import Connections
from whippet.transports.websocket import framing
from whippet.transports.websocket.framing import BINARY, CLOSE, PING, PONG, TEXT, Incoming, Violation

_log = logging.getLogger(__name__)

READ_BYTES = 64 << 10
"""The most that one read returns while its content is unknown: it may hold thousands of tiny frames, which take
time."""
DIRECT_BYTES_MIN = 16 << 10
"""From this size on the payload of a frame is read into the buffer of its request."""
PING_SECONDS = 30.0
"""A client that has sent nothing for this long is pinged."""


class BinaryConnection(tcp.Connection):
    TRANSPORT = Transport.WEBSOCKET

    __slots__ = (
        "_close_frame",
        "_closed_by_client",
        "_incoming",
        "_is_direct",
        "_pinged_with",
        "_read_bytes",
        "_received_at",
        "_unsent_bytes_max",
    )

    def __init__(self, listener: Connections[Any], config: Websocket) -> None:
        super().__init__(listener)
        self._incoming = incoming(config)
        self._read_bytes = config.read_buffer_size or READ_BYTES
        self._unsent_bytes_max = config.max_write_buffer_size
        self._is_direct = False
        """The current read goes into the buffer of a request."""
        self._pinged_with: bytes | None = None
        """The last ping that arrived while its answer could not be sent."""
        self._close_frame: tuple[int | None, str] | None = None
        """Code and reason of a Close frame to send."""
        self._closed_by_client = False
        self._received_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._received_at = time.monotonic()

    # ------------------------------------------------------------------------------------------------- receiving

    def get_buffer(self, sizehint: int) -> memoryview:
        left, arriving = self._incoming.left, self._intake.arriving
        self._is_direct = (
            left >= DIRECT_BYTES_MIN
            and arriving is not None
            and arriving.filled < arriving.reserved
            and not self._lingers_until
        )
        if self._is_direct:
            return super().get_buffer(sizehint)[:left]
        scratch = self._listener.scratch
        return scratch[:FREE_BYTES] if self._intake.claim.account.waiting else scratch[: self._read_bytes]

    def buffer_updated(self, nbytes: int) -> None:
        self._received_at = time.monotonic()
        if self._lingers_until:
            return
        if self._is_direct:
            arriving = self._intake.arriving
            assert arriving is not None
            assert arriving.frame is not None
            self._incoming.take(arriving.frame[arriving.filled : arriving.filled + nbytes])
            super().buffer_updated(nbytes)
            return
        self._unwrap(self._listener.scratch[:nbytes])

    def _unwrap(self, data: memoryview) -> None:
        whole = self._incoming.whole(data, BINARY)
        if whole is not None:
            if whole:
                self._receive(whole)
            return
        size, violation = 0, None
        try:
            for opcode, content, _ in self._incoming.pieces(data):
                if opcode >= CLOSE:
                    self._control(opcode, content)
                    if self._closed_by_client:
                        break
                elif opcode == TEXT:
                    violation = Violation(CloseCode.UNSUPPORTED_DATA, "messages must be binary")
                    break
                else:
                    # Overwrites the frame header that was here.
                    data[size : size + len(content)] = content
                    size += len(content)
        except Violation as violated:
            violation = violated
        if size:
            self._receive(data[:size])
        if violation is not None:
            _log.info("%s: closed, because %s", self.address, violation)
            self._close_frame = (violation.code, violation.reason)
            self.drain()
        elif self._closed_by_client:
            self.drain()

    def _control(self, opcode: int, content: memoryview) -> None:
        if opcode == PING:
            # While the client does not read, only its last ping is kept, and answered later.
            if self._writable is not None:
                self._pinged_with = bytes(content)
            elif not self._transport.is_closing():
                self._pong(content)
        elif opcode == CLOSE:
            self._close_frame = (framing.close_code(content), "")
            self._closed_by_client = True

    def _pong(self, content: Readable) -> None:
        self._transport.write(framing.header(PONG, len(content)) + content)

    def resume_writing(self) -> None:
        super().resume_writing()
        content, self._pinged_with = self._pinged_with, None
        if content is not None and not (self._lingers_until or self._transport.is_closing()):
            self._pong(content)

    # ------------------------------------------------------------------------------------------------- sending

    def _send(self, buffers: list[Readable]) -> None:
        small = framing.small_binary(buffers)
        if small is not None:
            self._transport.write(small)
        else:
            self._transport.writelines(framing.binary(buffers))
        if self._unsent_bytes_max and self._transport.get_write_buffer_size() > self._unsent_bytes_max:
            _log.info("%s: closed, because more than websocket.max_write_buffer_size is unsent", self.address)
            self.abort()

    def _close(self, *, is_over: bool) -> None:
        if self._close_frame is None:
            super()._close(is_over=is_over)
        elif not (self._lingers_until or self._transport.is_closing()):
            self._transport.write(framing.close(*self._close_frame))
            super()._close(is_over=self._closed_by_client)

    def overdue(self, now: float) -> str | None:
        reason = super().overdue(now)
        if reason is None and self._session.login is not None and not self._ended:
            self._ping(now)
        return reason

    def _ping(self, now: float) -> None:
        if now - self._received_at > PING_SECONDS and self._writable is None:
            self._received_at = now
            self._transport.write(framing.header(PING, 0))


def incoming(config: Websocket) -> Incoming:
    return Incoming(
        frame_bytes_max=config.max_frame_size,
        message_bytes_max=config.max_message_size,
        unmasked_too=config.accept_unmasked_frames,
    )
