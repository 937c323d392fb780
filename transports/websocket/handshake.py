"""The opening handshake of WebSocket: checks the upgrade request and encodes the response.

The `websockets` package implements the handshake; this module decides who may connect. No extension is accepted, so
nothing is compressed. The Host header must name this server. A browser sends the origin of its page, which must be
allowed for CORS, or be this server; other clients send none.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import NamedTuple

from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from whippet.app.config.formats import Address
from whippet.app.config.listeners import Http
from whippet.transports.http.errors import Refused
from whippet.transports.http.serving.hosts import Hosts
from whippet.transports.http.serving.origins import check_origin


class Upgrade(NamedTuple):
    """An HTTP request for an upgrade. It has exactly one Host header."""

    method: str
    path: str
    query: str
    headers: Sequence[tuple[bytes, bytes]]
    version: str
    scheme: str
    listener: Address
    """The address of the listener that received the request."""

    def header(self, name: bytes) -> str:
        return next((value.decode("latin-1") for each, value in self.headers if each == name), "")


def answer(request: Upgrade, http: Http, protocol: str | None) -> bytes:
    """Returns the 101 response, or raises `Refused`. `protocol` is selected if the client offers it."""
    headers = Headers([(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers])
    Hosts(http.allowed_hosts, request.listener).check(request.header(b"host"))
    if any(name == b"origin" for name, _ in request.headers):
        check_origin(request.header(b"origin"), request.scheme, request.header(b"host"), http.cors)
    subprotocols = [] if protocol is None else [Subprotocol(protocol)]
    core = ServerProtocol(subprotocols=subprotocols, select_subprotocol=_select)
    response = core.accept(Request(request.path, headers, request.method, f"HTTP/{request.version}"))
    if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
        raise _refusal(response)
    return response.serialize()


def _select(core: ServerProtocol, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    """Replaces the library's choice, which refuses clients that do not offer a supported protocol."""
    return next((each for each in core.available_subprotocols or () if each in offered), None)


def _refusal(response: Response) -> Refused:
    text = response.body.decode() if response.body else ""
    reason = " ".join(text.partition("\n")[0].split())
    kept = ("Upgrade", "Allow")
    headers = [(name.lower().encode(), response.headers[name].encode()) for name in kept if name in response.headers]
    headers.append((b"sec-websocket-version", b"13"))
    return Refused(HTTPStatus(response.status_code), reason, headers=headers)
