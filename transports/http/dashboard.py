"""The dashboard at `/ui`, where Iggy has its own, and how a browser gets there: it is what asks for `/` and wants HTML.

In front of the API, which knows nothing of it. Its files are read before anything is served, and are the same for
everybody; what the page may see is decided by the channel that it opens.
"""

from __future__ import annotations

from http import HTTPStatus

from starlette.types import ASGIApp, Receive, Scope, Send

from whippet.app import dashboard
from whippet.transports.http.answering import Answer, Headers, compressed, send_answer, tagged, weights_of
from whippet.transports.http.errors import Refused, not_found, of_refusal

PATH = b"/ui"
METHODS = ("GET", "HEAD")
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        # With this a browser lets it open a WebSocket to the same host as well.
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # Nothing that is a text can become a part of the page in another way than as a text.
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


def answers() -> dict[bytes, Answer]:
    """By the name of the file."""
    return {
        name.encode(): Answer(
            HTTPStatus.OK, octets, ((b"content-type", (dashboard.media_of(name) or "").encode()), *HEADERS)
        )
        for name, octets in dashboard.files().items()
    }


class Dashboard:
    def __init__(self, application: ASGIApp, files: dict[bytes, Answer]) -> None:
        self._application = application
        self._files = files

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: bytes = scope.get("raw_path", b"")
        if path == PATH or path.startswith(PATH + b"/"):
            await send_answer(await self._answer(scope, path.removeprefix(PATH).removeprefix(b"/")), send)
        elif path == b"/" and scope["method"] in METHODS and _wants_html(scope):
            await send_answer(_ELSEWHERE, send)
        else:
            await self._application(scope, receive, send)

    async def _answer(self, scope: Scope, name: bytes) -> Answer:
        if scope["method"] not in METHODS:
            allow = (b"allow", ", ".join(METHODS).encode())
            return of_refusal(Refused(HTTPStatus.METHOD_NOT_ALLOWED, "Method Not Allowed", headers=(allow,)))
        # What looks like no file is a place within the page, which finds it by itself.
        found = self._files.get(name if b"." in name else dashboard.PAGE.encode())
        if found is None:
            return of_refusal(not_found())
        headers = dict(scope["headers"])
        answer = tagged(found, headers.get(b"if-none-match"))
        return await compressed(answer, headers.get(b"accept-encoding"))


_ELSEWHERE = Answer(
    HTTPStatus.TEMPORARY_REDIRECT, b"", ((b"location", PATH), (b"vary", b"accept"), (b"cache-control", b"no-store"))
)


def _wants_html(scope: Scope) -> bool:
    """By name: SDKs and curl take anything."""
    headers = dict(scope["headers"])
    return weights_of(headers.get(b"accept", b"")).get(b"text/html", 0.0) > 0.0
