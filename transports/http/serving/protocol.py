"""One HTTP connection: uvicorn's protocol, with deadlines and limits that it does not have.

A connection is always in one phase, and a phase that waits for the client has a deadline:

    FIRST      nothing was received yet                          then closed
    HEADERS    a request has begun                               then 408
    BODY       its body arrives; the deadline moves with it      then 408, if no response has begun
    WORKING    it is complete, and being processed               none: the time is the server's
    DRAINING   the response was sent before the request was
               complete: the rest is discarded                   then closed
    IDLE       waiting for the next request                      then closed
    ENDING     nothing more is read, requests in progress are
               finished                                          none
    LINGERING  everything was sent, and the client still sends:
               it is discarded, so that the client can read
               the response                                      then closed

A sweep over all connections checks the deadlines, so that none has a timer of its own. A client that does not read its
responses is closed, too. A request that is refused here has not reached a handler, so a 408 never means that something
was stored.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import httptools
from starlette.types import ASGIApp
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from whippet.app.config.formats import Address
from whippet.app.config.listeners import HttpLimits
from whippet.transports.admission.budget import RECLAIMED
from whippet.transports.admission.budgets import Budgets
from whippet.transports.admission.stall_detector import StallDetector
from whippet.transports.connections import ConnectionLimit
from whippet.transports.deliveries import delivered_bytes
from whippet.transports.http.errors import Refused, refusal_response
from whippet.transports.reservations import CUT
from whippet.transports.websocket.handshake import Upgrade

if TYPE_CHECKING:
    from whippet.transports.websocket.listener import WebSockets

_log = logging.getLogger(__name__)

PIPELINED_MAX = 64
"""Pipelined requests of a connection. More of them end it, after these."""
LINGER_SECONDS = 2.0
LINGER_BYTES_MAX = 4 << 20
CHUNKS_FREE = 4096
CHUNK_BYTES_MIN = 16
"""The average length that chunks must have, once there are more than that: each costs as much as many bytes."""


class Phase(enum.Enum):
    FIRST = enum.auto()
    HEADERS = enum.auto()
    BODY = enum.auto()
    WORKING = enum.auto()
    DRAINING = enum.auto()
    IDLE = enum.auto()
    ENDING = enum.auto()
    LINGERING = enum.auto()


CONNECTION = "whippet.connection"
"""The key of the connection in the scope of a request."""


class GracefulTransport:
    """The transport of a connection, which is closed gracefully."""

    __slots__ = ("__dict__", "_protocol", "transport")

    def __init__(self, transport: asyncio.Transport, protocol: Protocol) -> None:
        self.transport = transport
        self._protocol = protocol

    def write(self, octets: bytes) -> None:
        """Ignores writes after the connection was aborted, of which the application may not know yet."""
        if not self.transport.is_closing():
            self.transport.write(octets)

    def close(self) -> None:
        self._protocol.close_gracefully()

    def is_closing(self) -> bool:
        return self.transport.is_closing() or self._protocol.phase is Phase.LINGERING

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)


class Listener:
    """What the connections of one listener share."""

    def __init__(self, limits: HttpLimits, address: Address) -> None:
        self.limits = limits
        self.address = address
        self.application: ASGIApp | None = None
        """Replaces the application with which the server was started."""
        self.connections: set[Protocol] = set()
        self.http3_connections = 0
        """The number of HTTP/3 connections, which count towards the same limit."""
        self.websockets: WebSockets | None = None
        """Accepts upgrades to WebSocket; None if upgrades are ignored."""
        self.budgets: Budgets | None = None
        """Overdue reservations are reclaimed in the same sweep."""
        self._limit = ConnectionLimit("http.limits.connections", limits.connections)

    def has_room(self, more: int = 0) -> bool:
        return self._limit.allows_one_more(len(self.connections) + self.http3_connections + more)

    def sweep(self, now: float) -> None:
        for connection in list(self.connections):
            connection.check(now)
        if self.budgets is not None:
            self.budgets.reclaim(now)


class Protocol(HttpToolsProtocol):
    def __init__(
        self,
        listener: Listener,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.listener = listener
        self.phase = Phase.FIRST
        self._deadline = 0.0
        self._head_bytes = 0
        self._head_read_bytes = 0
        self._headers_count = 0
        self._hosts = 0
        self._body_began_at = 0.0
        self._body_bytes = 0
        self._chunks = 0
        self._discarded = 0
        self._stalling = StallDetector()
        self._refused: Refused | None = None
        self._running: RequestResponseCycle | None = None
        """The request that is being processed; uvicorn's `cycle` is the last one received."""

    # ------------------------------------------------------------------------------------------------- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        now = self.loop.time()
        if not self.listener.has_room():
            headers = ((b"retry-after", b"1"),)
            refused = Refused(HTTPStatus.SERVICE_UNAVAILABLE, "The limit of connections is reached", headers=headers)
            transport.write(_encode_refusal(refused))
            transport.close()
            self.phase = Phase.LINGERING
            self.transport = transport
            return
        self.listener.connections.add(self)
        super().connection_made(GracefulTransport(transport, self))  # type: ignore[arg-type]
        self._deadline = now + self.listener.limits.first_byte_time

    def connection_lost(self, exc: Exception | None) -> None:
        self.listener.connections.discard(self)
        self.phase = Phase.LINGERING
        if self.flow is not None:
            super().connection_lost(exc)

    def close_gracefully(self) -> None:
        """Sends what was written, and for a while discards what the client still sends."""
        if self.phase not in (Phase.BODY, Phase.DRAINING):
            self._transport.close()
            return
        self.phase = Phase.LINGERING
        self._deadline = self.loop.time() + LINGER_SECONDS
        self.flow.resume_reading()
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def reclaim(self) -> None:
        """Closes the connection, because others need the memory that its request or response holds."""
        _log.info("%s: closed, because %s", self.client, RECLAIMED)
        self._transport.abort()

    # ------------------------------------------------------------------------------------------------- used by tails

    def write_chunk(self, octets: bytes) -> bool:
        """Writes a part of the response body, framed already: the very same bytes for many connections. Returns whether
        there is room for more."""
        transport = self._transport
        if not transport.is_closing():
            transport.write(octets)
        return not self.flow.write_paused

    @property
    def is_full(self) -> bool:
        """Whether the client reads more slowly than the server writes."""
        return bool(self.flow.write_paused)

    async def drain(self) -> None:
        """Returns when there is room for more, or the client has gone."""
        if self.flow.write_paused:
            await self.flow.drain()

    def buffer_everything(self) -> None:
        """Buffers everything that is written from now on, for a last event."""
        self.flow.resume_writing()

    def resume_writing(self) -> None:
        self._stalling.reset()
        super().resume_writing()

    @property
    def unsent_bytes(self) -> int:
        size: int = self._transport.get_write_buffer_size()
        return size

    @property
    def delivered_bytes(self) -> int:
        return delivered_bytes(self._transport)

    @property
    def _transport(self) -> asyncio.Transport:
        link: Any = self.transport
        found: asyncio.Transport = link.transport if isinstance(link, GracefulTransport) else link
        return found

    def eof_received(self) -> None:
        if self.phase is Phase.LINGERING:
            self._transport.close()

    # ------------------------------------------------------------------------------------------------- receiving

    def data_received(self, data: bytes) -> None:
        if self.phase is Phase.LINGERING:
            self._discard(len(data))
            return
        if self.phase is Phase.ENDING:
            self._transport.pause_reading()
            return
        was_in_head = self.phase is Phase.HEADERS
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._refuse(self._refused or Refused(HTTPStatus.BAD_REQUEST, f"Invalid HTTP request: {_cause(error)}"))
        else:
            if was_in_head and self.phase is Phase.HEADERS:
                # The parser passes a header on only when it is complete.
                self._head_read_bytes += len(data)
                if self._head_read_bytes > self.listener.limits.headers_bytes:
                    self._refuse(self._headers_too_large(f"more than {self.listener.limits.headers_bytes} bytes"))

    def _discard(self, size: int) -> None:
        self._discarded += size
        if self._discarded > LINGER_BYTES_MAX:
            self._transport.close()

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= PIPELINED_MAX:
            raise self._refusal(HTTPStatus.BAD_REQUEST, "Too many pipelined requests")
        super().on_message_begin()
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]
        scope[CONNECTION] = self
        scope[CUT] = self.reclaim
        self.phase = Phase.HEADERS
        self._deadline = self.loop.time() + self.listener.limits.headers_time
        self._head_bytes = self._head_read_bytes = self._headers_count = self._hosts = 0

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        if b"#" in url:
            # Clients do not send fragments. A name with a raw `#` would be cut off, and reach something else.
            raise self._refusal(HTTPStatus.BAD_REQUEST, "A `#` in a path must be encoded as `%23`")
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers_count += 1
        if self._headers_count > self.listener.limits.headers:
            raise self._keep(self._headers_too_large(f"more than {self.listener.limits.headers} headers"))
        self._count_head(len(name) + len(value))
        if self.phase is not Phase.HEADERS:
            # Trailers have no effect.
            return
        name = name.lower()
        if name == b"host":
            self._hosts += 1
        elif name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self.listener.limits.headers_bytes:
            raise self._keep(self._headers_too_large(f"more than {self.listener.limits.headers_bytes} bytes"))

    def on_headers_complete(self) -> None:
        if self._hosts > 1 or (not self._hosts and self.parser.get_http_version() == "1.1"):
            raise self._refusal(HTTPStatus.BAD_REQUEST, "A request must have exactly one Host header")
        self.phase = Phase.BODY
        self._body_bytes = self._chunks = 0
        self._body_began_at = self.loop.time()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Replaces uvicorn's, which copies a body that arrives in one piece into a buffer and out of it again."""
        self._body_bytes += len(body)
        cycle: Any = self.cycle
        if cycle.response_complete:
            self._discard(len(body))
            return
        cycle.body = cycle.body + body if cycle.body else body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_chunk_header(self) -> None:
        self._chunks += 1
        if self._chunks > CHUNKS_FREE and self._body_bytes < self._chunks * CHUNK_BYTES_MIN:
            raise self._refusal(HTTPStatus.BAD_REQUEST, "The body has too many small chunks")

    def on_message_complete(self) -> None:
        if self.phase is Phase.DRAINING:
            self._become_idle()
        else:
            self.phase = Phase.WORKING
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            cycle, application = self.pipeline.pop()
            self._start_asgi_task(cycle, application)
        elif self.phase is Phase.WORKING:
            self._become_idle()
        elif self.phase is Phase.BODY:
            self.phase = Phase.DRAINING
            self._deadline = self.loop.time() + self.listener.limits.body_time
            self._discarded = 0

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, self.listener.application or app)  # type: ignore[arg-type]

    def _become_idle(self) -> None:
        self.phase = Phase.IDLE
        self._deadline = self.loop.time() + self.listener.limits.idle_time

    def _should_upgrade_to_ws(self) -> bool:
        return self.listener.websockets is not None

    def _upgrade(self, rest: bytes) -> None:
        """`rest` arrived after the request."""
        if self._should_upgrade():
            try:
                self._become_websocket(rest)
            except Refused as refused:
                self._refuse(refused)
        elif self.cycle is not None:
            # Unsupported: the request is served without an upgrade. The parser cannot go on after it.
            self.cycle.keep_alive = False

    def _become_websocket(self, rest: bytes) -> None:
        assert self.listener.websockets is not None
        if self._is_responding():
            raise Refused(HTTPStatus.BAD_REQUEST, "An upgrade must wait for the responses to earlier requests")
        if rest:
            raise Refused(HTTPStatus.BAD_REQUEST, "A client must not send anything before the response to its upgrade")
        path, _, query = self.url.decode("latin-1").partition("?")
        method, version = self.scope["method"], self.scope["http_version"]
        response, protocol = self.listener.websockets.upgrade(
            Upgrade(method, path, query, self.headers, version, self.scheme or "http", self.listener.address)
        )
        transport = self._transport
        self.listener.connections.discard(self)
        self.connections.discard(self)
        self.phase = Phase.LINGERING
        # The event loop checks the type of a protocol when it starts reading.
        transport.pause_reading()
        transport.set_protocol(protocol)
        transport.write(response)
        protocol.connection_made(transport)
        if not transport.is_closing():
            transport.resume_reading()

    # ------------------------------------------------------------------------------------------------- deadlines

    def check(self, now: float) -> None:
        unsent = self.unsent_bytes
        if self._stalling.has_stalled(
            now,
            unsent,
            self.listener.limits.answer_time,
            delivered=self.delivered_bytes if unsent else 0,
            is_contended=self.listener.budgets is not None and self.listener.budgets.is_contended,
        ):
            _log.info("%s: closed, because the client stopped reading", self.client)
            self._transport.abort()
            return
        match self.phase:
            case Phase.WORKING | Phase.ENDING:
                return
            case Phase.HEADERS if self._is_responding():
                # It is pipelined: earlier requests are in progress.
                self._deadline = now + self.listener.limits.headers_time
            case Phase.HEADERS if now > self._deadline:
                self._refuse(Refused(HTTPStatus.REQUEST_TIMEOUT, "The headers of the request took too long"))
            case Phase.BODY:
                self._check_body(now)
            case Phase.FIRST | Phase.IDLE | Phase.DRAINING | Phase.LINGERING if now > self._deadline:
                self._transport.close()

    def _check_body(self, now: float) -> None:
        limits = self.listener.limits
        if self.flow.read_paused or self.pipeline:
            # The server does not read now, or processes earlier requests: the time does not count.
            self._body_began_at = now - self._body_bytes / limits.body_rate
        elif now - self._body_began_at > limits.body_time + self._body_bytes / limits.body_rate:
            self._refuse(Refused(HTTPStatus.REQUEST_TIMEOUT, "The body of the request took too long"))

    # ------------------------------------------------------------------------------------------------- refusals

    def _is_responding(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _headers_too_large(self, limit: str) -> Refused:
        return Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"The headers of the request are too large: {limit}")

    def _refusal(self, status: HTTPStatus, reason: str) -> Refused:
        return self._keep(Refused(status, reason))

    def _keep(self, refused: Refused) -> Refused:
        """Keeps the refusal, because the parser wraps the exception."""
        self._refused = refused
        return refused

    def _refuse(self, refused: Refused) -> None:
        """Sends the refusal if possible, and ends the connection."""
        _log.debug("%s: %s", self.client, refused.reason)
        cycle = self.cycle if self._is_responding() else None
        if cycle is not None and (self.phase is not Phase.BODY or self.pipeline):
            # Earlier requests are in progress: they are finished, and then the connection ends.
            if self.phase is Phase.BODY:
                self.pipeline.popleft()
            last = self.pipeline[0][0] if self.pipeline else self._running
            assert last is not None
            last.keep_alive = False
            self.phase = Phase.ENDING
            self._transport.pause_reading()
            return
        if cycle is not None:
            if cycle.response_started:
                self._transport.abort()
                return
            cycle.disconnected = True
            cycle.message_event.set()
        self.phase = Phase.BODY
        self._transport.write(_encode_refusal(refused))
        self.close_gracefully()


def _encode_refusal(refused: Refused) -> bytes:
    response = refusal_response(refused)
    lines = [STATUS_LINE[response.status], b"content-length: %d\r\n" % len(response.body), b"connection: close\r\n"]
    lines += [b"%s: %s\r\n" % header for header in response.headers]
    return b"".join((*lines, b"\r\n", response.body))


def _cause(error: Exception) -> str:
    """Returns the parser's message, but no details of an error in a callback."""
    return "it cannot be parsed" if isinstance(error, httptools.HttpParserCallbackError) else str(error)
