"""The binary protocols over WebSocket: a connection as over TCP whose bytes come in frames and leave in frames.

Where messages begin and end says nothing: what is in them, one after the other, is a stream of bytes, and requests are
cut out of that as they are on TCP, by the same code and within the same bounds. Bytes of a request that is known to be
large are read into its own buffer, and unmasked there.

How it ends: requests in hand are answered; a client that has sent a Close frame, or has broken the rules, is sent one.
From the latter we hear no more, but wait a moment until it has closed, so that the frame is not lost on the way. When
it is us who go there is none: clients of 0.6 and 0.7 come back after a connection that was lost, but not after one that
was closed. Pings keep the connection known to what is between us; official clients look at their socket only when they
have asked for something, so nobody is cut off for not answering.
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
from whippet.transports.websocket.framing import CLOSE, PING, PONG, TEXT, Incoming, Violation

_log = logging.getLogger(__name__)

READ_BYTES = 64 << 10
"""What is read at once where it is not known what comes: a read may hold thousands of tiny frames, which takes time."""
DIRECT_BYTES_MIN = 16 << 10
"""From here on the payload of a frame is read to where it belongs."""
PING_SECONDS = 30.0
"""How long nothing may be heard of a client until it is pinged."""


class BinaryConnection(tcp.Connection):
    TRANSPORT = Transport.WEBSOCKET

    __slots__ = (
        "_closed_by_client",
        "_goodbye",
        "_heard_at",
        "_incoming",
        "_is_direct",
        "_pinged_with",
        "_read_bytes",
        "_unsent_bytes_max",
    )

    def __init__(self, listener: Connections[Any], config: Websocket) -> None:
        super().__init__(listener)
        self._incoming = incoming(config)
        self._read_bytes = config.read_buffer_size or READ_BYTES
        self._unsent_bytes_max = config.max_write_buffer_size
        self._is_direct = False
        """What is read now goes where it belongs."""
        self._pinged_with: bytes | None = None
        """The last ping that came while there was no room for its answer."""
        self._goodbye: tuple[int | None, str] | None = None
        """Code and reason of a Close frame that is due."""
        self._closed_by_client = False
        self._heard_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._heard_at = time.monotonic()

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
        self._heard_at = time.monotonic()
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
        size, violation = 0, None
        try:
            for opcode, content, _ in self._incoming.pieces(data):
                if opcode >= CLOSE:
                    self._control(opcode, content)
                    if self._closed_by_client:
                        break
                elif opcode == TEXT:
                    violation = Violation(CloseCode.UNSUPPORTED_DATA, "messages are binary here")
                    break
                else:
                    # What was a header's place is written over.
                    data[size : size + len(content)] = content
                    size += len(content)
        except Violation as violated:
            violation = violated
        if size:
            self._hear(data[:size])
        if violation is not None:
            _log.info("%s: closed, because %s", self.address, violation)
            self._goodbye = (violation.code, violation.reason)
            self.drain()
        elif self._closed_by_client:
            self.drain()

    def _control(self, opcode: int, content: memoryview) -> None:
        if opcode == PING:
            # Of one who does not take what he is sent, the last is answered, when there is room.
            if self._writable is not None:
                self._pinged_with = bytes(content)
            elif not self._transport.is_closing():
                self._pong(content)
        elif opcode == CLOSE:
            self._goodbye = (framing.close_code(content), "")
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
        self._transport.writelines(framing.binary(buffers))
        if self._unsent_bytes_max and self._transport.get_write_buffer_size() > self._unsent_bytes_max:
            _log.info("%s: closed, because websocket.max_write_buffer_size waits for it", self.address)
            self.abort()

    def _close(self, *, is_over: bool) -> None:
        if self._goodbye is None:
            super()._close(is_over=is_over)
        elif not (self._lingers_until or self._transport.is_closing()):
            self._transport.write(framing.close(*self._goodbye))
            super()._close(is_over=self._closed_by_client)

    def overdue(self, now: float) -> str | None:
        reason = super().overdue(now)
        if reason is None and self._session.login is not None and not self._ended:
            self._ping(now)
        return reason

    def _ping(self, now: float) -> None:
        if now - self._heard_at > PING_SECONDS and self._writable is None:
            self._heard_at = now
            self._transport.write(framing.header(PING, 0))


def incoming(config: Websocket) -> Incoming:
    return Incoming(
        frame_bytes_max=config.max_frame_size,
        message_bytes_max=config.max_message_size,
        unmasked_too=config.accept_unmasked_frames,
    )
