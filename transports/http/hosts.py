"""The names by which this server may be asked for, where `http.allowed_hosts` says some.

A web page may have its own name lead here (DNS rebinding), and a browser then takes what is here for the page's own.
The name that it asks by gives it away: it is in the Host header of every request, of a handshake of WebSocket, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from whippet.transports.http.answering import send_answer
from whippet.transports.http.cors import ANY
from whippet.transports.http.errors import Refused, of_refusal


class Hosts:
    def __init__(self, allowed: Sequence[str]) -> None:
        names = [name.strip().lower().strip("[]") for name in allowed]
        self.is_any = ANY in names
        self._names = frozenset(names)
        self._endings = tuple(name[1:] for name in names if name.startswith("*."))

    def check(self, host: str) -> None:
        """`Refused`, unless it is one of them, whatever port it says."""
        if self.is_any:
            return
        name = _name(host)
        if name not in self._names and not (self._endings and name.endswith(self._endings)):
            sentence = f"The host {host[:255]!r} is not among http.allowed_hosts"
            raise Refused(HTTPStatus.MISDIRECTED_REQUEST, sentence, "host")


def _name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


class Known:
    """Around the application: who asks by another name is answered 421."""

    def __init__(self, application: ASGIApp, hosts: Hosts) -> None:
        self._application = application
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = next((value for name, value in scope["headers"] if name == b"host"), b"")
        try:
            self._hosts.check(host.decode("latin-1"))
        except Refused as refused:
            await send_answer(of_refusal(refused), send)
        else:
            await self._application(scope, receive, send)
