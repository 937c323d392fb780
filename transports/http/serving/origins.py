"""The origin of a page whose script sends a request: it must be this server's own, or one of `http.cors`.

Checked where a browser would send a request of any page without asking first, or where a stolen answer is worth more
than CORS protects: WebSocket handshakes, and assistants.
"""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import urlsplit

from whippet.app.config.listeners import HttpCors
from whippet.transports.http.errors import Refused
from whippet.transports.http.serving.cors import ANY


def check_origin(origin: str, scheme: str, host: str, cors: HttpCors) -> None:
    """Raises `Refused` unless pages of the origin may send requests to this server, which was reached as `host`."""
    allowed = [each.strip() for each in cors.allowed_origins] if cors.enabled else []
    if allowed[:1] == [ANY] or origin in allowed or _is_here(origin, scheme, host):
        return
    raise Refused(HTTPStatus.FORBIDDEN, f"The origin {origin[:255]!r} is not among http.cors.allowed_origins", "origin")


def _is_here(origin: str, scheme: str, host: str) -> bool:
    """Whether the page is from this server, by the name that the browser uses."""
    try:
        there, here = urlsplit(origin), urlsplit(f"{scheme}://{host}")
        return (there.scheme, there.hostname, _port(there.port, there.scheme)) == (
            scheme,
            here.hostname,
            _port(here.port, scheme),
        )
    except ValueError:
        return False


def _port(port: int | None, scheme: str) -> int:
    return port or (443 if scheme == "https" else 80)
