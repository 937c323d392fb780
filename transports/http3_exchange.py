"""One request over HTTP/3 and its response, as an ASGI application sees them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import unquote

from aioquic.h3.connection import ErrorCode
from aioquic.h3.events import Headers
from starlette.types import Message, Scope

from whippet.transports.reservations import CUT

if TYPE_CHECKING:
    from whippet.transports.http3 import Http3

_log = logging.getLogger(__name__)

BUFFERED_BYTES_MAX = 256 << 10
"""Bytes of a body that the application has not read."""
PIECE_BYTES = 64 << 10
CONNECTION_HEADERS = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"})
"""Headers of HTTP/1.1 that HTTP/3 forbids."""


class Exchange:
    def __init__(self, http: Http3, stream_id: int) -> None:
        self.stream_id = stream_id
        self._http = http
        self._engine = http.engine
        self._body: deque[bytes] = deque()
        self._buffered = 0
        self._received = 0
        self._is_complete = False
        self._is_disconnected = False
        self._has_responded = False
        self._is_finished = False
        self._is_head = False
        self._has_delivered_end = False
        self._has_ended = False
        self._is_waiting_to_send = False
        self._response_headers: Headers = []
        self._begun_at = time.monotonic()
        self._changed: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------------------------------------- the request

    def begin(self, fields: Headers, is_complete: bool) -> HTTPStatus | None:
        """Starts the application, or returns the status that refuses the request."""
        self._is_complete = is_complete
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

    def on_body(self, data: bytes, is_complete: bool) -> None:
        if self._is_finished:
            return
        self._received += len(data)
        if data:
            self._body.append(data)
            self._buffered += len(data)
            if self._buffered > BUFFERED_BYTES_MAX:
                self._engine.freeze_window(self.stream_id)
        self._is_complete = self._is_complete or is_complete
        self._change()

    def disconnect(self) -> None:
        """The client has closed the stream."""
        self._is_disconnected = True
        self._change()

    def check(self, now: float) -> None:
        """Refuses a body that arrives too slowly."""
        limits = self._http.limits
        if not self._is_complete and not self._has_responded and not self._buffered:
            allowed = limits.body_time + self._received / limits.body_rate
            if now > self._begun_at + allowed:
                self.refuse(HTTPStatus.REQUEST_TIMEOUT)

    def on_acknowledged(self) -> None:
        if self._is_waiting_to_send and not self._is_backed_up:
            self._is_waiting_to_send = False
            self._change()

    @property
    def _is_backed_up(self) -> bool:
        """Whether sending has to wait for the client. A response whose connection is filled by others may still send a
        piece at a time."""
        unsent = self._engine.unacknowledged_on(self.stream_id)
        return unsent >= PIECE_BYTES and self._engine.unacknowledged_bytes >= self._http.connection.listener.send_window

    @property
    def _is_closed(self) -> bool:
        return self._is_disconnected or self._is_finished

    def _change(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    async def _wait(self) -> None:
        if self._changed is None or self._changed.done():
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)

    async def _receive(self) -> Message:
        while not self._is_closed and (self._has_delivered_end or not (self._body or self._is_complete)):
            await self._wait()
        if self._is_closed:
            return {"type": "http.disconnect"}
        part = b"".join(self._body)
        self._body.clear()
        self._buffered = 0
        self._has_delivered_end = self._is_complete
        self._engine.unfreeze_window(self.stream_id)
        self._http.connection.schedule_flush()
        return {"type": "http.request", "body": part, "more_body": not self._is_complete}

    # -------------------------------------------------------------------------------------------------- the response

    async def _run(self, scope: Scope) -> None:
        try:
            await self._http.application(scope, self._receive, self._send)
        except asyncio.CancelledError:
            raise
        except Exception:  # noqa: BLE001 -- the application handles every expected exception
            _log.exception("HTTP/3: a request failed because of a defect")
        finally:
            if not self._is_finished:
                self._abort()

    async def _send(self, message: Message) -> None:
        if self._is_closed:
            # An application that never checks for a disconnect must not block the event loop.
            await asyncio.sleep(0)
            return
        if message["type"] == "http.response.start":
            self._response_headers = self._header_list(message["status"], message.get("headers", ()))
        elif message["type"] == "http.response.body":
            await self._send_body(message.get("body", b""), not message.get("more_body", False))

    async def _send_body(self, body: bytes, is_complete: bool) -> None:
        if self._is_head:
            body = b""
        if not self._engine.can_be_written(self.stream_id):
            self._is_disconnected = True
            return
        self._send_headers(end=is_complete and not body)
        view = memoryview(body)
        while view:
            piece, view = view[:PIECE_BYTES], view[PIECE_BYTES:]
            while self._is_backed_up:
                self._is_waiting_to_send = True
                self._http.connection.schedule_flush()
                await self._wait()
                if self._is_closed:
                    return
            if not self._engine.can_be_written(self.stream_id):
                self._is_disconnected = True
                return
            self._http.framing.send_data(self.stream_id, bytes(piece), end_stream=is_complete and not view)
        if is_complete:
            if body == b"" and not self._has_ended:
                self._http.framing.send_data(self.stream_id, b"", end_stream=True)
            self._finish()
        self._http.connection.schedule_flush()

    def _send_headers(self, *, end: bool) -> None:
        if self._has_responded or not self._engine.can_be_written(self.stream_id):
            return
        self._has_responded = True
        self._has_ended = end
        self._http.framing.send_headers(self.stream_id, self._response_headers, end_stream=end)

    @staticmethod
    def _header_list(status: int, headers: Iterable[tuple[bytes, bytes]]) -> Headers:
        kept = [(name.lower(), value) for name, value in headers if name.lower() not in CONNECTION_HEADERS]
        return [(b":status", b"%d" % status), (b"date", _date(int(time.time()))), *kept]

    def refuse(self, status: HTTPStatus) -> None:
        """Responds without the application."""
        if self._task is not None:
            self._task.cancel()
        self._response_headers = self._header_list(status, [(b"content-length", b"0")])
        self._send_headers(end=True)
        self._finish()

    def give_way(self) -> None:
        """Ends the exchange, because others need the memory that it holds."""
        if not self._has_responded:
            self.refuse(HTTPStatus.SERVICE_UNAVAILABLE)
            return
        if self._task is not None:
            self._task.cancel()
        self._http.framing.reset(self.stream_id, ErrorCode.H3_EXCESSIVE_LOAD)
        self._finish()

    def _finish(self) -> None:
        self._is_finished = True
        self._change()
        if not self._is_complete and self._engine.is_being_received(self.stream_id):
            self._engine.stop_stream(self.stream_id, ErrorCode.H3_NO_ERROR)
        self._http.remove(self)

    def _abort(self) -> None:
        """Ends the stream when the application has returned without a whole response."""
        if not self._has_responded and not self._is_disconnected:
            self.refuse(HTTPStatus.INTERNAL_SERVER_ERROR)
            return
        self._http.framing.reset(self.stream_id, ErrorCode.H3_INTERNAL_ERROR)
        self._finish()


@lru_cache(maxsize=1)
def _date(seconds: int) -> bytes:
    return formatdate(seconds, usegmt=True).encode()
