"""Serves the dashboard at `/ui`, like Iggy, and redirects browsers, which request HTML, from `/` to it.

Its files are read before anything is served, and are the same for everybody; the channel that the page opens decides
what it may see.
"""

from __future__ import annotations

from http import HTTPStatus

from starlette.types import Scope

from whippet.app import dashboard
from whippet.transports.http.errors import Refused, not_found, refusal_response
from whippet.transports.http.forms.responses import (
    Headers,
    HttpResponse,
    compress,
    quality_values,
    with_etag,
)

PATH = b"/ui"
METHODS = ("GET", "HEAD")
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        # This allows a WebSocket to the same host as well.
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # Strings can enter the page only as text.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS: Headers = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
)


def responses() -> dict[bytes, HttpResponse]:
    """Returns the responses by file name."""
    return {
        name.encode(): HttpResponse(
            HTTPStatus.OK, octets, ((b"content-type", (dashboard.media_of(name) or "").encode()), *HEADERS)
        )
        for name, octets in dashboard.files().items()
    }


class Dashboard:
    def __init__(self) -> None:
        self._files = responses()

    def serves(self, scope: Scope) -> bool:
        path: bytes = scope["raw_path"]
        return path == PATH or path.startswith(PATH + b"/") or (path == b"/" and _wants_html(scope))

    async def respond(self, scope: Scope) -> HttpResponse:
        path: bytes = scope["raw_path"]
        if path == b"/":
            return _REDIRECT
        name = path.removeprefix(PATH).removeprefix(b"/")
        if scope["method"] not in METHODS:
            allow = (b"allow", ", ".join(METHODS).encode())
            return refusal_response(Refused(HTTPStatus.METHOD_NOT_ALLOWED, "Method Not Allowed", headers=(allow,)))
        # A name without a dot is a view of the page, which the page finds by itself.
        found = self._files.get(name if b"." in name else dashboard.PAGE.encode())
        if found is None:
            return refusal_response(not_found())
        headers = dict(scope["headers"])
        response = with_etag(found, headers.get(b"if-none-match"))
        return await compress(response, headers.get(b"accept-encoding"))


_REDIRECT = HttpResponse(
    HTTPStatus.TEMPORARY_REDIRECT, b"", ((b"location", PATH), (b"vary", b"accept"), (b"cache-control", b"no-store"))
)


def _wants_html(scope: Scope) -> bool:
    """Returns True if a browser sent the request: SDKs and curl accept anything, and do not name HTML."""
    if scope["method"] not in METHODS:
        return False
    headers = dict(scope["headers"])
    return quality_values(headers.get(b"accept", b"")).get(b"text/html", 0.0) > 0.0
