"""The host names under which requests are accepted: `http.allowed_hosts`, or a default that follows from the address.

A web page may let its own name resolve to this server (DNS rebinding); a browser then treats the server as part of the
page. The Host header, in requests and in WebSocket handshakes, reveals this. Such pages attack servers on loopback
addresses, which have no names other than those of the machine itself.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.types import Scope

from whippet.app.config.formats import Address
from whippet.transports.http.errors import Refused
from whippet.transports.http.serving.cors import ANY

LOCAL = "localhost"


class Hosts:
    def __init__(self, allowed: Sequence[str], address: Address) -> None:
        """`address` is that of the listener, which decides if no names are configured."""
        names = [name.strip().lower().strip("[]") for name in allowed if name.strip()]
        self._only_loopback = not names and _is_loopback(address.host)
        self.is_any = ANY in names or (not names and not self._only_loopback)
        self._names = frozenset(names)
        self._endings = tuple(name[1:] for name in names if name.startswith("*."))
        self._allowed_last: bytes | None = None

    def check_request(self, scope: Scope) -> None:
        """Raises `Refused` for a host that is not allowed. Nearly all requests name the same one, so the last allowed
        host is not checked again."""
        if self.is_any:
            return
        host = b""
        for name, value in scope["headers"]:
            if name == b"host":
                host = value
                break
        if host != self._allowed_last:
            self.check(host.decode("latin-1"))
            self._allowed_last = host

    def check(self, host: str) -> None:
        """Raises `Refused` unless the host is allowed, with any port."""
        if self.is_any:
            return
        name = _name(host)
        if self._only_loopback:
            # Every browser sends a host. A client that sends none is a simple probe.
            if host and not _is_loopback(name):
                sentence = f"The host {host[:255]!r} is not a loopback name: set http.allowed_hosts to allow others"
                raise Refused(HTTPStatus.MISDIRECTED_REQUEST, sentence, "host")
        elif name not in self._names and not (self._endings and name.endswith(self._endings)):
            sentence = f"The host {host[:255]!r} is not among http.allowed_hosts"
            raise Refused(HTTPStatus.MISDIRECTED_REQUEST, sentence, "host")


def _is_loopback(name: str) -> bool:
    name = name.lower().removesuffix(".")
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == LOCAL or name.endswith(f".{LOCAL}")


def _name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
