"""What browsers let scripts of other origins do here: CORS, as configured. Around everything, so also around refusals.

Nothing here protects the server: a token does. A browser sends none by itself, so the wildcard gives nothing away.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from whippet.app.config.listeners import HttpCors
from whippet.transports.http.answering import Answer, send_answer

ANY = "*"
VARY = (b"vary", b"origin, access-control-request-method, access-control-request-headers")
PREFLIGHT_SECONDS = b"600"


class Cors:
    def __init__(self, application: ASGIApp, config: HttpCors) -> None:
        self._application = application
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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin, preflight, private = None, False, False
        for name, value in scope["headers"]:
            if name == b"origin":
                origin = value
            elif name == b"access-control-request-method":
                preflight = True
            elif name == b"access-control-request-private-network":
                private = value == b"true"
        if origin is None:
            await self._application(scope, receive, send)
        elif preflight and scope["method"] == "OPTIONS":
            headers = [*self._allowed(origin), *self._preflight]
            if private and self._private_network:
                headers.append((b"access-control-allow-private-network", b"true"))
            await send_answer(Answer(HTTPStatus.OK, b"", headers), send)
        else:
            added = [*self._allowed(origin), *self._actual]

            async def with_headers(message: Message) -> None:
                if message["type"] == "http.response.start":
                    message["headers"] = [*message["headers"], *added]
                await send(message)

            await self._application(scope, receive, with_headers)

    def _allowed(self, origin: bytes) -> list[tuple[bytes, bytes]]:
        if self._any:
            return [(b"access-control-allow-origin", b"*")]
        return [(b"access-control-allow-origin", origin)] if origin in self._origins else []


def _list(values: Sequence[str]) -> bytes:
    return ",".join(value.strip() for value in values if value.strip()).encode()
