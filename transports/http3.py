"""HTTP/3: the application that HTTP/1.1 serves, on the streams of a QUIC connection.

A stream is a request and its answer. Bounds are those of `http.limits`, by the same names; the windows of
quic_engine.py bound what is sent ahead. Fields are compressed without a dynamic table, because with one a few bytes
can stand for megabytes. A server that stops says which requests it will not carry out any more (GOAWAY), so that they
may be repeated elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote

import pylsqpack
from aioquic.buffer import encode_uint_var
from aioquic.h3.connection import ErrorCode, FrameType, H3Connection, Setting, encode_frame
from aioquic.h3.events import DataReceived, Headers, HeadersReceived
from aioquic.quic import events
from starlette.types import ASGIApp, Message, Scope

from whippet.transports.admission.stall_detector import StallDetector
from whippet.transports.quic_engine import Engine
from whippet.transports.reservations import CUT

if TYPE_CHECKING:
    from whippet.transports.quic_connection import Connection

_log = logging.getLogger(__name__)

AHEAD_BYTES_MAX = 256 << 10
"""Of a body that nobody has read yet."""
CONTROL_BYTES_MAX = 16 << 10
"""Of what is gathered of a stream that is no request."""
PIECE_BYTES = 64 << 10
CONNECTION_FIELDS = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"})
"""What has no meaning here, and must not be said."""


class Fields(H3Connection):
    """Without a dynamic table, in either direction, and without what nobody serves here: WebSocket over HTTP/3."""

    def _init_connection(self) -> None:
        self._max_table_capacity = self._blocked_streams = 0
        self._decoder = pylsqpack.Decoder(0, 0)
        super()._init_connection()

    def _get_local_settings(self) -> dict[int, int]:
        settings = super()._get_local_settings()
        del settings[Setting.ENABLE_CONNECT_PROTOCOL]
        return settings

    def go_away(self, stream_id: int) -> None:
        """Requests from this stream on are not carried out."""
        frame = encode_frame(FrameType.GOAWAY, encode_uint_var(stream_id))
        assert self._local_control_stream_id is not None
        self._quic.send_stream_data(self._local_control_stream_id, frame)

    def break_off(self, stream_id: int, code: int) -> None:
        """Nothing more is said on it."""
        if stream_id in self._stream:
            with self._get_or_create_stream(stream_id) as stream:
                stream.sending_ended = True
        if cast(Engine, self._quic).can_be_written(stream_id):
            self._quic.reset_stream(stream_id, code)

    def gathered(self, stream_id: int) -> tuple[int, int]:
        """Bytes of this stream that wait for the rest of a frame, and of what is to come of the fields of a request."""
        stream = self._stream.get(stream_id)
        if stream is None:
            return 0, 0
        fields = (stream.frame_size or 0) if stream.frame_type == FrameType.HEADERS else 0
        return len(stream.buffer), fields


class Http3:
    """All exchanges of one connection. Speaks for it, see transports/quic_connection.py."""

    OVER, OVERDUE = int(ErrorCode.H3_NO_ERROR), int(ErrorCode.H3_EXCESSIVE_LOAD)

    def __init__(self, connection: Connection, application: ASGIApp) -> None:
        self.connection = connection
        self.engine = connection.engine
        self.application = application
        self.limits = connection.listener.gateway.config.http.limits
        self.fields = Fields(connection.engine)
        self._exchanges: dict[int, Exchange] = {}
        self._begun: dict[int, float] = {}
        """Streams whose requests have not said what they want, since when."""
        self._heard: set[int] = set()
        """Those that have, and go on."""
        self._next = 0
        """The stream behind all on which something was said."""
        self._ended = False
        self._idle_since = time.monotonic()
        self._stalling = StallDetector()
        self.engine.allow_streams(connection.listener.streams_max)

    def on_event(self, event: events.QuicEvent) -> None:
        if isinstance(event, events.StreamReset | events.StopSendingReceived):
            self._disconnect(event.stream_id)
        for said in self.fields.handle_event(event):
            if isinstance(said, HeadersReceived):
                self._on_fields(said.stream_id, said.headers, said.stream_ended)
            elif isinstance(said, DataReceived) and (exchange := self._exchanges.get(said.stream_id)) is not None:
                exchange.on_body(said.data, said.stream_ended)
        if isinstance(event, events.StreamDataReceived):
            self._watch(event.stream_id, is_request=not event.stream_id & 3, has_ended=event.end_stream)
        elif isinstance(event, events.StreamReset):
            self._watch(event.stream_id, is_request=not event.stream_id & 3, has_ended=True)

    def _disconnect(self, stream_id: int) -> None:
        if (exchange := self._exchanges.get(stream_id)) is not None:
            exchange.disconnect()

    def _watch(self, stream_id: int, *, is_request: bool, has_ended: bool) -> None:
        gathered, announced = self.fields.gathered(stream_id)
        if announced > self.limits.headers_bytes or gathered > (
            self.limits.headers_bytes + PIECE_BYTES if is_request else CONTROL_BYTES_MAX
        ):
            self.connection.abort(ErrorCode.H3_EXCESSIVE_LOAD, "more than is taken at once")
        if not is_request:
            return
        self._next = max(self._next, stream_id + 4)
        if has_ended:
            self._begun.pop(stream_id, None)
            self._heard.discard(stream_id)
        elif stream_id not in self._heard:
            self._begun.setdefault(stream_id, time.monotonic())

    def _on_fields(self, stream_id: int, fields: Headers, is_all: bool) -> None:
        if not any(name == b":method" for name, _ in fields):
            # Behind a body, which may have been answered already.
            if is_all and (there := self._exchanges.get(stream_id)) is not None:
                there.on_body(b"", True)
            return
        self._begun.pop(stream_id, None)
        self._heard.add(stream_id)
        if self._ended:
            self.fields.break_off(stream_id, ErrorCode.H3_REQUEST_REJECTED)
            return
        exchange = self._exchanges[stream_id] = Exchange(self, stream_id)
        status = exchange.begin(fields, is_all)
        if status is not None:
            exchange.refuse(status)

    def forget(self, exchange: Exchange) -> None:
        if self._exchanges.get(exchange.stream_id) is exchange:
            del self._exchanges[exchange.stream_id]
        self.engine.release(exchange.stream_id)
        self._idle_since = time.monotonic()
        self.connection.touch()

    # ------------------------------------------------------------------------------------- as a connection wants it

    def on_taken(self) -> None:
        for exchange in list(self._exchanges.values()):
            exchange.on_taken()

    def overdue(self, now: float) -> str | None:
        limits = self.limits
        if any(now > since + limits.headers_time for since in self._begun.values()):
            return "a request takes too long to arrive"
        for exchange in list(self._exchanges.values()):
            exchange.check(now)
        if self._has_stalled(now):
            return "it does not take what it was sent"
        if not self._exchanges and now > self._idle_since + limits.idle_time:
            self.connection.end()
        return None

    def _has_stalled(self, now: float) -> bool:
        unsent, taken = self.engine.all_unsent, self.engine.taken_bytes
        is_contended = self.connection.listener.budgets.is_contended
        return self._stalling.has_stalled(now, unsent, self.limits.answer_time, taken=taken, is_contended=is_contended)

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            self.fields.go_away(self._next)
            for stream_id in self._begun:
                self.fields.break_off(stream_id, ErrorCode.H3_REQUEST_REJECTED)
            self._begun.clear()

    @property
    def is_done(self) -> bool:
        return not self._exchanges

    def close(self) -> None:
        self._ended = True
        for exchange in list(self._exchanges.values()):
            exchange.disconnect()


class Exchange:
    """A request and its answer, as ASGI wants them."""

    def __init__(self, http: Http3, stream_id: int) -> None:
        self.stream_id = stream_id
        self._http = http
        self._engine = http.engine
        self._body: deque[bytes] = deque()
        self._ahead = 0
        self._received = 0
        self._is_all = False
        self._is_gone = False
        self._has_answered = False
        self._is_over = False
        self._is_head = False
        self._has_told_all = False
        self._has_ended = False
        self._wants_room = False
        self._head: Headers = []
        self._begun_at = time.monotonic()
        self._changed: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------------------------------------- the request

    def begin(self, fields: Headers, is_all: bool) -> HTTPStatus | None:
        """Why it is not carried out, if it is not."""
        self._is_all = is_all
        limits = self._http.limits
        if len(fields) > limits.headers or sum(len(name) + len(value) for name, value in fields) > limits.headers_bytes:
            return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        pseudo = {name: value for name, value in fields if name.startswith(b":")}
        headers = [(name, value) for name, value in fields if not name.startswith(b":")]
        method, target = pseudo[b":method"], pseudo.get(b":path", b"")
        if method == b"CONNECT" or b":protocol" in pseudo:
            return HTTPStatus.NOT_IMPLEMENTED
        raw_path, _, query = target.partition(b"?")
        hosts = {value for name, value in headers if name == b"host"}
        if (
            not raw_path.startswith(b"/")
            or b"#" in target
            or not (target.isascii() and method.isascii())
            or not hosts <= {pseudo[b":authority"]}
        ):
            return HTTPStatus.BAD_REQUEST
        if not hosts:
            headers.insert(0, (b"host", pseudo[b":authority"]))
        self._is_head = method == b"HEAD"
        connection = self._http.connection
        host, _, port = connection.session.address.rpartition(":")
        here = connection.listener.address
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "3",
            "method": method.decode("ascii"),
            "scheme": "https",
            "path": unquote(raw_path.decode("ascii")),
            "raw_path": raw_path,
            "query_string": query,
            "root_path": "",
            "headers": headers,
            "client": (host.strip("[]"), int(port)),
            "server": (here.host, here.port),
            "state": {},
            CUT: self.give_way,
        }
        self._task = asyncio.create_task(self._run(scope))
        return None

    def on_body(self, data: bytes, is_all: bool) -> None:
        if self._is_over:
            return
        self._received += len(data)
        if data:
            self._body.append(data)
            self._ahead += len(data)
            if self._ahead > AHEAD_BYTES_MAX:
                self._engine.hold(self.stream_id)
        self._is_all = self._is_all or is_all
        self._change()

    def disconnect(self) -> None:
        """Nobody is there any more."""
        self._is_gone = True
        self._change()

    def check(self, now: float) -> None:
        """A body that comes too slowly is not waited for."""
        limits = self._http.limits
        if not self._is_all and not self._has_answered and not self._ahead:
            allowed = limits.body_time + self._received / limits.body_rate
            if now > self._begun_at + allowed:
                self.refuse(HTTPStatus.REQUEST_TIMEOUT)

    def on_taken(self) -> None:
        if self._wants_room and not self._is_ahead:
            self._wants_room = False
            self._change()

    @property
    def _is_ahead(self) -> bool:
        """So much of the answer waits for the client that the rest of it waits here. What the window of the connection
        has no room for, because other answers fill it, still goes on by a piece at a time."""
        unsent = self._engine.unsent(self.stream_id)
        return unsent >= PIECE_BYTES and self._engine.all_unsent >= self._http.connection.listener.send_window

    @property
    def _is_closed(self) -> bool:
        return self._is_gone or self._is_over

    def _change(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    async def _wait(self) -> None:
        if self._changed is None or self._changed.done():
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)

    async def _receive(self) -> Message:
        while not self._is_closed and (self._has_told_all or not (self._body or self._is_all)):
            await self._wait()
        if self._is_closed:
            return {"type": "http.disconnect"}
        part = b"".join(self._body)
        self._body.clear()
        self._ahead = 0
        self._has_told_all = self._is_all
        self._engine.release(self.stream_id)
        self._http.connection.touch()
        return {"type": "http.request", "body": part, "more_body": not self._is_all}

    # -------------------------------------------------------------------------------------------------- the answer

    async def _run(self, scope: Scope) -> None:
        try:
            await self._http.application(scope, self._receive, self._send)
        except asyncio.CancelledError:
            raise
        except Exception:  # noqa: BLE001 -- the application lets no exception out that it knows
            _log.exception("HTTP/3: a request ended in a defect")
        finally:
            if not self._is_over:
                self._break_off()

    async def _send(self, message: Message) -> None:
        if self._is_closed:
            # An application that does not ask whether anybody is there must not keep the loop from all others.
            await asyncio.sleep(0)
            return
        if message["type"] == "http.response.start":
            self._head = self._fields(message["status"], message.get("headers", ()))
        elif message["type"] == "http.response.body":
            await self._send_body(message.get("body", b""), not message.get("more_body", False))

    async def _send_body(self, body: bytes, is_all: bool) -> None:
        if self._is_head:
            body = b""
        if not self._engine.can_be_written(self.stream_id):
            self._is_gone = True
            return
        self._say_head(end=is_all and not body)
        view = memoryview(body)
        while view:
            piece, view = view[:PIECE_BYTES], view[PIECE_BYTES:]
            while self._is_ahead:
                self._wants_room = True
                self._http.connection.touch()
                await self._wait()
                if self._is_closed:
                    return
            if not self._engine.can_be_written(self.stream_id):
                self._is_gone = True
                return
            self._http.fields.send_data(self.stream_id, bytes(piece), end_stream=is_all and not view)
        if is_all:
            if body == b"" and not self._has_ended:
                self._http.fields.send_data(self.stream_id, b"", end_stream=True)
            self._finish()
        self._http.connection.touch()

    def _say_head(self, *, end: bool) -> None:
        if self._has_answered or not self._engine.can_be_written(self.stream_id):
            return
        self._has_answered = True
        self._has_ended = end
        self._http.fields.send_headers(self.stream_id, self._head, end_stream=end)

    @staticmethod
    def _fields(status: int, headers: Iterable[tuple[bytes, bytes]]) -> Headers:
        kept = [(name.lower(), value) for name, value in headers if name.lower() not in CONNECTION_FIELDS]
        return [(b":status", b"%d" % status), (b"date", _date(int(time.time()))), *kept]

    def refuse(self, status: HTTPStatus) -> None:
        """Without asking the application."""
        if self._task is not None:
            self._task.cancel()
        self._head = self._fields(status, [(b"content-length", b"0")])
        self._say_head(end=True)
        self._finish()

    def give_way(self) -> None:
        """Others need the memory that the request or its response holds."""
        if not self._has_answered:
            self.refuse(HTTPStatus.SERVICE_UNAVAILABLE)
            return
        if self._task is not None:
            self._task.cancel()
        self._http.fields.break_off(self.stream_id, ErrorCode.H3_EXCESSIVE_LOAD)
        self._finish()

    def _finish(self) -> None:
        self._is_over = True
        self._change()
        if not self._is_all and self._engine.is_being_received(self.stream_id):
            self._engine.stop_stream(self.stream_id, ErrorCode.H3_NO_ERROR)
        self._http.forget(self)

    def _break_off(self) -> None:
        """It ends without an answer, or in the middle of it."""
        if not self._has_answered and not self._is_gone:
            self.refuse(HTTPStatus.INTERNAL_SERVER_ERROR)
            return
        self._http.fields.break_off(self.stream_id, ErrorCode.H3_INTERNAL_ERROR)
        self._finish()


@lru_cache(maxsize=1)
def _date(seconds: int) -> bytes:
    return formatdate(seconds, usegmt=True).encode()
