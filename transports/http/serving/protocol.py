"""One HTTP/1.1 connection: requests in, to the application and back in order, with deadlines and limits.

httptools parses; uvicorn accepts clients, and calls `shutdown` when it stops. A request begins once everything
that arrived with it is parsed, which usually is all of it, and is answered before the event loop does anything else.
One that has to wait goes on in a task. Pipelined requests wait for the response to the one before.

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
from collections import deque
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import httptools
from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState

from whippet.app.config.formats import host_and_port
from whippet.transports import eager
from whippet.transports.admission.budget import RECLAIMED
from whippet.transports.admission.stall_detector import StallDetector
from whippet.transports.deliveries import delivered_bytes
from whippet.transports.http.errors import Refused, refusal_response
from whippet.transports.http.serving.exchange import Exchange
from whippet.transports.http.serving.repeated_heads import AT_ONCE, Head
from whippet.transports.reservations import CUT
from whippet.transports.websocket.handshake import Upgrade

if TYPE_CHECKING:
    from whippet.transports.http.operation import AtOnce
    from whippet.transports.http.serving.listener import Listener

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
PEER = "whippet.peer"
"""The key of the client's address as a text."""


class Protocol(asyncio.Protocol):
    def __init__(
        self,
        listener: Listener,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        if not config.loaded:
            config.load()
        self.listener = listener
        self.phase = Phase.FIRST
        self.loop = _loop or asyncio.get_running_loop()
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.flow: FlowControl = None  # type: ignore[assignment]
        self.client: tuple[str, int] | None = None
        self._application: ASGIApp = config.loaded_app
        self._server_state = server_state
        self._parser = httptools.HttpRequestParser(self)
        # The response to a pipelined request is sent although a later one is invalid.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._deadline = 0.0
        self._url = self._url_before = b""
        self._target: tuple[str, bytes, bytes] = "", b"", b""
        """Path, raw path and query of the URL before; most clients repeat themselves."""
        self._first_data = b""
        """What is being parsed, while that is the start of a request."""
        self._headers: list[tuple[bytes, bytes]] = []
        self._headers_max = listener.limits.headers
        self._head_bytes_max = listener.limits.headers_bytes
        self._head_bytes = 0
        self._head_read_bytes = 0
        self._headers_count = 0
        self._hosts = 0
        self._expects_continue = False
        self._upgrading = "", ""
        """Method and version of a request for an upgrade."""
        self._body_began_at = 0.0
        self._body_bytes = 0
        self._chunks = 0
        self._discarded = 0
        self._stalling = StallDetector()
        self._refused: Refused | None = None
        self._scope: dict[str, Any] = {}
        """What the scopes of all requests have in common."""
        self._last: Exchange | None = None
        """The request that was received last."""
        self._running: Exchange | None = None
        """The request that is being processed."""
        self._to_start: Exchange | None = None
        """The request that begins once everything that has arrived with it is parsed."""
        self._pipelined: deque[Exchange] = deque()

    # ------------------------------------------------------------------------------------------------- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        if not self.listener.has_room():
            headers = ((b"retry-after", b"1"),)
            refused = Refused(HTTPStatus.SERVICE_UNAVAILABLE, "The limit of connections is reached", headers=headers)
            transport.write(_encode_refusal(refused))
            transport.close()
            self.phase = Phase.LINGERING
            return
        self.listener.connections.add(self)
        self._server_state.connections.add(self)  # type: ignore[arg-type]
        self.flow = FlowControl(transport)
        self.client = get_remote_addr(transport)
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "server": get_local_addr(transport),
            "client": self.client,
            "scheme": "https" if is_ssl(transport) else "http",
            "root_path": "",
            CONNECTION: self,
            CUT: self.reclaim,
            PEER: "?:0" if self.client is None else host_and_port(*self.client),
        }
        self._deadline = self.loop.time() + self.listener.limits.first_byte_time

    def connection_lost(self, exc: Exception | None) -> None:
        self.listener.connections.discard(self)
        self._server_state.connections.discard(self)
        self.phase = Phase.LINGERING
        if self._last is not None:
            self._last.disconnected = self._last.disconnected or not self._last.response_complete
            self._last.change()
        if self.flow is not None:
            self.flow.resume_writing()
        # These refer to the connection.
        self._parser = None  # type: ignore[assignment]
        self._scope = {}

    def shutdown(self) -> None:
        """Called when the server stops: a request in progress is finished."""
        if self._last is None or self._last.response_complete:
            self.close_gracefully()
        else:
            self._last.keep_alive = False

    def close_gracefully(self) -> None:
        """Sends what was written, and for a while discards what the client still sends."""
        if self.phase not in (Phase.BODY, Phase.DRAINING):
            self.transport.close()
            return
        self.phase = Phase.LINGERING
        self._deadline = self.loop.time() + LINGER_SECONDS
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()

    @property
    def is_closing(self) -> bool:
        return self.phase is Phase.LINGERING or self.transport.is_closing()

    def reclaim(self) -> None:
        """Closes the connection, because others need the memory that its request or response holds."""
        _log.info("%s: closed, because %s", self.client, RECLAIMED)
        self.transport.abort()

    # ---------------------------------------------------------------------------------------------- used by exchanges

    def write(self, octets: bytes) -> None:
        """Ignores writes after the connection was aborted, of which the application may not know yet."""
        if not self.transport.is_closing():
            self.transport.write(octets)

    @property
    def peer(self) -> str:
        """The address of the client as a text."""
        found: str = self._scope[PEER]
        return found

    @property
    def common_headers(self) -> bytes:
        return self.listener.encoded(self._server_state.default_headers)

    # ------------------------------------------------------------------------------------------------- used by tails

    def write_chunk(self, octets: bytes) -> bool:
        """Writes a part of the response body, framed already: the very same bytes for many connections. Returns whether
        there is room for more."""
        self.write(octets)
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

    def pause_writing(self) -> None:
        self.flow.pause_writing()

    def resume_writing(self) -> None:
        self._stalling.reset()
        self.flow.resume_writing()

    @property
    def unsent_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    @property
    def delivered_bytes(self) -> int:
        return delivered_bytes(self.transport)

    def eof_received(self) -> None:
        if self.phase is Phase.LINGERING:
            self.transport.close()

    # ------------------------------------------------------------------------------------------------- receiving

    def data_received(self, data: bytes) -> None:
        if self.phase is Phase.LINGERING:
            self._discard(len(data))
            return
        if self.phase is Phase.ENDING:
            self.transport.pause_reading()
            return
        if self.phase is Phase.IDLE or self.phase is Phase.FIRST:
            found = self.listener.heads.find(data)
            if found is not None:
                self._repeat(*found)
                return
            self._first_data = data
        was_in_head = self.phase is Phase.HEADERS
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._refuse(self._refused or Refused(HTTPStatus.BAD_REQUEST, f"Invalid HTTP request: {_cause(error)}"))
        else:
            if was_in_head and self.phase is Phase.HEADERS:
                # The parser passes a header on only when it is complete.
                self._head_read_bytes += len(data)
                if self._head_read_bytes > self._head_bytes_max:
                    self._refuse(self._headers_too_large(f"more than {self._head_bytes_max} bytes"))
        self._first_data = b""
        if self._to_start is not None:
            exchange, self._to_start = self._to_start, None
            self._start(exchange)

    def _repeat(self, head: Head, body: bytes) -> None:
        """Begins a request with a known head, past the parser."""
        self.phase = Phase.WORKING
        exchange = self._last = self._running = Exchange(self, head.scope, keep_alive=True, expects_continue=False)
        at_once: AtOnce | None = head.notes.get(AT_ONCE)
        if at_once is not None and not self.unsent_bytes and at_once(exchange, body):
            return
        exchange.scope = self._scope | head.scope
        exchange.body, exchange.more_body = body, False
        exchange.change()
        self._start(exchange)

    def _discard(self, size: int) -> None:
        self._discarded += size
        if self._discarded > LINGER_BYTES_MAX:
            self.transport.close()

    def on_message_begin(self) -> None:
        if len(self._pipelined) >= PIPELINED_MAX:
            raise self._refusal(HTTPStatus.BAD_REQUEST, "Too many pipelined requests")
        self._url = b""
        self._headers = []
        self._expects_continue = False
        self.phase = Phase.HEADERS
        self._deadline = self.loop.time() + self.listener.limits.headers_time
        self._head_bytes = self._head_read_bytes = self._headers_count = self._hosts = 0

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        if b"#" in url:
            # Clients do not send fragments. A name with a raw `#` would be cut off, and reach something else.
            raise self._refusal(HTTPStatus.BAD_REQUEST, "A `#` in a path must be encoded as `%23`")
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers_count += 1
        self._head_bytes += len(name) + len(value)
        if self._headers_count > self._headers_max:
            raise self._keep(self._headers_too_large(f"more than {self._headers_max} headers"))
        if self._head_bytes > self._head_bytes_max:
            self._count_head(0)
        if self.phase is not Phase.HEADERS:
            # Trailers have no effect.
            return
        name = name.lower()
        if name == b"host":
            self._hosts += 1
        elif name == b"expect" and value.lower() == b"100-continue":
            self._expects_continue = True
        self._headers.append((name, value))

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self._head_bytes_max:
            raise self._keep(self._headers_too_large(f"more than {self._head_bytes_max} bytes"))

    def on_headers_complete(self) -> None:
        parser = self._parser
        version = parser.get_http_version()
        if self._hosts > 1 or (not self._hosts and version == "1.1"):
            raise self._refusal(HTTPStatus.BAD_REQUEST, "A request must have exactly one Host header")
        self.phase = Phase.BODY
        self._body_bytes = self._chunks = 0
        self._body_began_at = self.loop.time()
        if self._is_upgrade:
            self._upgrading = parser.get_method().decode("ascii"), version
            return
        scope = self._scope.copy()
        scope["method"] = parser.get_method().decode("ascii")
        scope["http_version"] = version
        scope["headers"] = self._headers
        if self._url != self._url_before:
            parsed = httptools.parse_url(self._url)
            path = parsed.path.decode("ascii")
            self._target = unquote(path) if "%" in path else path, parsed.path, parsed.query or b""
            self._url_before = self._url
        scope["path"], scope["raw_path"], scope["query_string"] = self._target
        keep_alive = version != "1.0" and parser.should_keep_alive()
        if self._first_data and keep_alive and version == "1.1":
            self.listener.heads.add(self._first_data, scope)
        self._first_data = b""
        exchange = Exchange(self, scope, keep_alive=keep_alive, expects_continue=self._expects_continue)
        before, self._last = self._last, exchange
        if before is None or before.response_complete:
            self._running = self._to_start = exchange
        else:
            self.flow.pause_reading()
            self._pipelined.appendleft(exchange)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        exchange = self._last
        assert exchange is not None, "an upgrade has no body"
        if exchange.response_complete:
            self._discard(len(body))
            return
        exchange.body = exchange.body + body if exchange.body else body
        if len(exchange.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        exchange.change()

    def on_chunk_header(self) -> None:
        self._chunks += 1
        if self._chunks > CHUNKS_FREE and self._body_bytes < self._chunks * CHUNK_BYTES_MIN:
            raise self._refusal(HTTPStatus.BAD_REQUEST, "The body has too many small chunks")

    def on_message_complete(self) -> None:
        if self.phase is Phase.DRAINING:
            self._become_idle()
        else:
            self.phase = Phase.WORKING
        exchange = self._last
        if exchange is not None and not exchange.response_complete and not self._is_upgrade:
            exchange.more_body = False
            exchange.change()

    def on_response_complete(self) -> None:
        self._server_state.total_requests += 1
        if self.is_closing:
            return
        self.flow.resume_reading()
        if self._pipelined:
            exchange = self._running = self._pipelined.pop()
            self.loop.call_soon(self._start, exchange)
        elif self.phase is Phase.WORKING:
            self._become_idle()
        elif self.phase is Phase.BODY:
            self.phase = Phase.DRAINING
            self._deadline = self.loop.time() + self.listener.limits.body_time
            self._discarded = 0

    def _start(self, exchange: Exchange) -> None:
        """Runs a request until it first waits; the rest of it in a task, for which the server waits when it stops."""
        rest = eager.begin(exchange.run(self.listener.application or self._application))
        if rest is not None:
            tasks = self._server_state.tasks
            task = self.loop.create_task(rest)
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    def _become_idle(self) -> None:
        self.phase = Phase.IDLE
        self._deadline = self.loop.time() + self.listener.limits.idle_time

    @property
    def _is_upgrade(self) -> bool:
        """Whether the request that is being received asks for WebSocket, where that is served."""
        if not self._parser.should_upgrade() or self.listener.websockets is None:
            return False
        wanted, is_named = b"", False
        for name, value in self._headers:
            if name == b"connection":
                is_named = b"upgrade" in [token.strip() for token in value.lower().split(b",")]
            elif name == b"upgrade":
                wanted = value.lower()
        return is_named and wanted == b"websocket"

    def _upgrade(self, rest: bytes) -> None:
        """`rest` arrived after the request."""
        if self._is_upgrade:
            try:
                self._become_websocket(rest)
            except Refused as refused:
                self._refuse(refused)
        elif self._last is not None:
            # Unsupported: the request is served without an upgrade. The parser cannot go on after it.
            self._last.keep_alive = False

    def _become_websocket(self, rest: bytes) -> None:
        assert self.listener.websockets is not None
        if self._is_responding():
            raise Refused(HTTPStatus.BAD_REQUEST, "An upgrade must wait for the responses to earlier requests")
        if rest:
            raise Refused(HTTPStatus.BAD_REQUEST, "A client must not send anything before the response to its upgrade")
        path, _, query = self._url.decode("latin-1").partition("?")
        method, version = self._upgrading
        response, protocol = self.listener.websockets.upgrade(
            Upgrade(method, path, query, self._headers, version, self._scope["scheme"], self.listener.address)
        )
        transport = self.transport
        self.listener.connections.discard(self)
        self._server_state.connections.discard(self)
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
            self.transport.abort()
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
                self.transport.close()

    def _check_body(self, now: float) -> None:
        limits = self.listener.limits
        if self.flow.read_paused or self._pipelined:
            # The server does not read now, or processes earlier requests: the time does not count.
            self._body_began_at = now - self._body_bytes / limits.body_rate
        elif now - self._body_began_at > limits.body_time + self._body_bytes / limits.body_rate:
            self._refuse(Refused(HTTPStatus.REQUEST_TIMEOUT, "The body of the request took too long"))

    # ------------------------------------------------------------------------------------------------- refusals

    def _is_responding(self) -> bool:
        return self._last is not None and not self._last.response_complete

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
        exchange = self._last if self._is_responding() else None
        if exchange is not None and (self.phase is not Phase.BODY or self._pipelined):
            # Earlier requests are in progress: they are finished, and then the connection ends.
            if self.phase is Phase.BODY:
                self._pipelined.popleft()
            last = self._pipelined[0] if self._pipelined else self._running
            assert last is not None
            last.keep_alive = False
            self.phase = Phase.ENDING
            self.transport.pause_reading()
            return
        if exchange is not None:
            if exchange.response_started:
                self.transport.abort()
                return
            exchange.disconnected = True
            exchange.change()
        self.phase = Phase.BODY
        self.transport.write(_encode_refusal(refused))
        self.close_gracefully()


def _encode_refusal(refused: Refused) -> bytes:
    response = refusal_response(refused)
    lines = [STATUS_LINE[response.status], b"content-length: %d\r\n" % len(response.body), b"connection: close\r\n"]
    lines += [b"%s: %s\r\n" % header for header in response.headers]
    return b"".join((*lines, b"\r\n", response.body))


def _cause(error: Exception) -> str:
    """Returns the parser's message, but no details of an error in a callback."""
    return "it cannot be parsed" if isinstance(error, httptools.HttpParserCallbackError) else str(error)
