"""Serves HTTP until the store is open: the two health checks, and 503 for everything else.

So clients can follow the progress of a server that has much to recover.
"""

from __future__ import annotations

from http import HTTPStatus

from starlette.types import ASGIApp, Receive, Scope, Send

from whippet.app.readiness import Readiness
from whippet.transports.http.errors import RETRY_AFTER, Refused, refusal_response
from whippet.transports.http.forms.responses import HttpResponse, send_response
from whippet.transports.http.handlers import health


def startup_application(readiness: Readiness) -> ASGIApp:
    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        await send_response(_response(scope, readiness), scope, send)

    return respond


def _response(scope: Scope, readiness: Readiness) -> HttpResponse:
    if scope["method"] in ("GET", "HEAD"):
        if scope["raw_path"] == b"/health/live":
            return health.live()
        if scope["raw_path"] == b"/health/ready":
            return health.ready(readiness)
    reason = f"The server is not ready; it is {readiness.sentence()}"
    return refusal_response(
        Refused(HTTPStatus.SERVICE_UNAVAILABLE, reason, headers=(RETRY_AFTER,), code=health.NOT_READY)
    )
