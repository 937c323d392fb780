"""CORS, as configured, for every response including errors.

An origin that is not allowed gets responses without CORS headers: its requests are processed if they have a token, but
its scripts cannot read the responses, and browsers do not even send those that need a preflight.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

from starlette.types import Message, Scope, Send

from whippet.app.config.listeners import HttpCors
from whippet.transports.http.forms.responses import RESPOND, HttpResponse

ANY = "*"
VARY = (b"vary", b"origin, access-control-request-method, access-control-request-headers")
PREFLIGHT_SECONDS = b"600"


class Cors:
    def __init__(self, config: HttpCors) -> None:
        origins = [origin.strip() for origin in config.allowed_origins if origin.strip()]
        self._any = bool(origins) and origins[0] == ANY
        self._origins = frozenset(origin.encode() for origin in origins)
        self._actual = [VARY]
        self._preflight = [
            VARY,
            (b"access-control-allow-methods", _list(config.allowed_methods)),
            (b"access-control-allow-headers", _list(config.allowed_headers)),
            (b"access-control-max-age", PREFLIGHT_SECONDS),
        ]
        if exposed := _list(config.exposed_headers):
            self._actual.append((b"access-control-expose-headers", exposed))
        if config.allow_credentials:
            for headers in (self._actual, self._preflight):
                headers.append((b"access-control-allow-credentials", b"true"))
        self._private_network = config.allow_private_network

    def apply(self, scope: Scope, send: Send) -> tuple[Send, HttpResponse | None]:
        """Returns a `send` that adds the headers of CORS, and the response to a preflight request."""
        origin, preflight, private = None, False, False
        for name, value in scope["headers"]:
            if name == b"origin":
                origin = value
            elif name == b"access-control-request-method":
                preflight = True
            elif name == b"access-control-request-private-network":
                private = value == b"true"
        if origin is None:
            return send, None
        # The headers are added to messages.
        scope.pop(RESPOND, None)
        if not self._any and origin not in self._origins:
            return _with_headers(send, [VARY]), None
        if preflight and scope["method"] == "OPTIONS":
            headers = [*self._allowed(origin), *self._preflight]
            if private and self._private_network:
                headers.append((b"access-control-allow-private-network", b"true"))
            return send, HttpResponse(HTTPStatus.OK, b"", headers)
        return _with_headers(send, [*self._allowed(origin), *self._actual]), None

    def _allowed(self, origin: bytes) -> list[tuple[bytes, bytes]]:
        return [(b"access-control-allow-origin", b"*" if self._any else origin)]


def _with_headers(send: Send, added: Sequence[tuple[bytes, bytes]]) -> Send:
    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *added]
        await send(message)

    return with_headers


def _list(values: Sequence[str]) -> bytes:
    return ",".join(value.strip() for value in values if value.strip()).encode()
