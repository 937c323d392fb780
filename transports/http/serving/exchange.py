"""One request over HTTP/1.1 and its response, as an ASGI application sees them.

The connection (protocol.py) creates an exchange when the headers of a request are complete, runs the application in it,
and passes the body on as it arrives. An application that has the whole response calls `respond`, which the scope has
under `RESPOND`: that is one write, without messages in between.
"""

from __future__ import annotations

import asyncio
import logging
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Message, Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from whippet.transports.http.forms.responses import BODILESS, RESPOND, Headers

if TYPE_CHECKING:
    from whippet.transports.http.serving.protocol import Protocol

_log = logging.getLogger(__name__)

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
JOINED_BYTES_MAX = 64 << 10
"""Copying a body of up to this size costs less than another write."""
_CONTROL_CHARACTERS = bytes({*range(32), 127} - set(b"\t\r\n"))


class Exchange:
    __slots__ = (
        "_changed",
        "_expects_continue",
        "_is_chunked",
        "_is_head",
        "_left",
        "_news",
        "_protocol",
        "body",
        "disconnected",
        "keep_alive",
        "more_body",
        "response_complete",
        "response_started",
        "scope",
    )

    def __init__(self, protocol: Protocol, scope: Scope, *, keep_alive: bool, expects_continue: bool) -> None:
        self.scope = scope
        self.keep_alive = keep_alive
        """Whether another request may follow on the connection."""
        self.body: bytes = b""
        """What has arrived, and the application has not received yet."""
        self.more_body = True
        self.disconnected = False
        self.response_started = False
        self.response_complete = False
        self._protocol = protocol
        self._expects_continue = expects_continue
        self._is_head = scope["method"] == "HEAD"
        self._is_chunked = False
        self._left = 0
        """How much of a body with an announced length is still to be sent."""
        self._changed = False
        """Whether `receive` has something to return."""
        self._news: asyncio.Event | None = None

    async def run(self, application: ASGIApp) -> None:
        scope = self.scope
        scope[RESPOND] = self.respond
        try:
            await application(scope, self.receive, self.send)
            if not self.response_complete and not self.disconnected:
                _log.error("%s %s was not answered, because of a defect", scope["method"], scope["path"])
                self._fail()
        except BaseException:  # noqa: BLE001 -- the server does not end because of a request, nor a task when it stops
            _log.exception("%s %s failed because of a defect", scope["method"], scope["path"])
            self._fail()
        finally:
            # Without this, the scope and the exchange would keep each other alive.
            scope.pop(RESPOND, None)

    def _fail(self) -> None:
        if self.disconnected or self.response_complete:
            return
        if self.response_started:
            self._protocol.close_gracefully()
            return
        body = b"Internal Server Error"
        headers = (b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")
        self._write_response(HTTPStatus.INTERNAL_SERVER_ERROR, headers, body)

    # ------------------------------------------------------------------------------------------------- the request

    def change(self) -> None:
        """Part of the body has arrived, or the client has gone, or the response is complete."""
        self._changed = True
        if self._news is not None:
            self._news.set()

    async def receive(self) -> Message:
        if self._expects_continue:
            self._expects_continue = False
            self._protocol.write(CONTINUE)
        if not self.disconnected and not self.response_complete:
            self._protocol.flow.resume_reading()
            if not self._changed:
                if self._news is None:
                    self._news = asyncio.Event()
                self._news.clear()
                await self._news.wait()
            self._changed = False
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        body, self.body = self.body, b""
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    # ------------------------------------------------------------------------------------------------- the response

    def respond(self, status: int, headers: Headers, body: bytes) -> bool:
        """Writes a whole response. Returns False, and does nothing, if the client has to read earlier ones first:
        `send` waits for that."""
        if self.disconnected:
            return True
        if self._protocol.flow.write_paused:
            return False
        self._write_response(status, headers, body)
        return True

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Writes a whole response that is short enough to be buffered for any client."""
        if not self.disconnected:
            self._write_response(status, headers, body)

    def abort(self) -> None:
        self._protocol.transport.abort()

    @property
    def peer(self) -> str:
        return self._protocol.peer

    async def send(self, message: Message) -> None:
        flow = self._protocol.flow
        if flow.write_paused and not self.disconnected:
            await flow.drain()
        if self.disconnected:
            return
        if message["type"] == "http.response.start":
            self._protocol.write(self._begin(message["status"], message.get("headers", ())))
            return
        body, is_last = message.get("body", b""), not message.get("more_body", False)
        framed = self._framed(body, is_last=is_last)
        if framed:
            self._protocol.write(framed)
        if is_last:
            self._complete()

    def _write_response(self, status: int, headers: Headers, body: bytes) -> None:
        length = b"" if status in BODILESS else b"content-length: %d\r\n" % len(body)
        # Most responses of an operation have the same headers.
        encoded, closes = _encoded(headers) if type(headers) is tuple else _encode(headers)
        head = self._head(status, length + encoded, closes=closes)
        if self._is_head or not length:
            self._protocol.write(head)
        elif len(body) <= JOINED_BYTES_MAX:
            self._protocol.write(head + body)
        else:
            self._protocol.write(head)
            self._protocol.write(body)
        self._complete()

    def _begin(self, status: int, headers: Headers) -> bytes:
        """Returns the head of a response whose body follows."""
        encoded, closes = _encode(headers)
        for name, value in headers:
            if name == b"content-length":
                self._left = int(value)
                break
        else:
            if not self._is_head and status not in BODILESS:
                self._is_chunked = True
                encoded += b"transfer-encoding: chunked\r\n"
        return self._head(status, encoded, closes=closes)

    def _head(self, status: int, encoded: bytes, *, closes: bool) -> bytes:
        if self.response_started:
            raise RuntimeError("a response was begun twice")
        self.response_started = True
        self._expects_continue = False
        if closes:
            self.keep_alive = False
        after = b"\r\n" if self.keep_alive or closes else b"connection: close\r\n\r\n"
        return b"".join((STATUS_LINE[status], self._protocol.common_headers, encoded, after))

    def _framed(self, body: bytes, *, is_last: bool) -> bytes:
        """Returns what is sent for a part of the body."""
        if not self.response_started or self.response_complete:
            raise RuntimeError("a body before its response was begun, or after it was complete")
        if self._is_head:
            return b""
        if self._is_chunked:
            framed = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            return framed + b"0\r\n\r\n" if is_last else framed
        self._left -= len(body)
        if self._left < 0 or (is_last and self._left):
            raise RuntimeError("the body of a response does not have the announced length")
        return body

    def _complete(self) -> None:
        self.response_complete = True
        self.change()
        if not self.keep_alive:
            self._protocol.close_gracefully()
        self._protocol.on_response_complete()


def _encode(headers: Headers) -> tuple[bytes, bool]:
    """The lines of the headers, and whether one of them closes the connection."""
    lines = [b"%b: %b\r\n" % header for header in headers]
    octets, count = b"".join(lines), len(lines)
    if (
        octets.count(b"\n") != count
        or octets.count(b"\r") != count
        or octets.translate(None, _CONTROL_CHARACTERS) != octets
    ):
        raise ValueError(f"a header has a character that is not allowed: {octets!r}")
    # Hardly any response has this header.
    closes = b"connection: " in octets and any(name == b"connection" and b"close" in value for name, value in headers)
    return octets, closes


_encoded = lru_cache(maxsize=256)(_encode)
