"""What the HTTP listener calls: the application, once there is one; until then what can be said without a store.

So whoever starts a server with much to recover can ask how far it is, and everybody else hears that it is coming.
"""

from __future__ import annotations

from http import HTTPStatus

from starlette.types import ASGIApp, Receive, Scope, Send

from whippet.app.readiness import Readiness
from whippet.transports.http import health
from whippet.transports.http.answering import Answer, send_answer
from whippet.transports.http.errors import RETRY_AFTER, Refused, of_refusal


class Front:
    def __init__(self, readiness: Readiness) -> None:
        self.application: ASGIApp | None = None
        self._readiness = readiness

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.application is not None:
            await self.application(scope, receive, send)
        else:
            await send_answer(self._answer(scope), send)

    def _answer(self, scope: Scope) -> Answer:
        if scope["method"] in ("GET", "HEAD"):
            if scope["raw_path"] == b"/health/live":
                return health.live()
            if scope["raw_path"] == b"/health/ready":
                return health.ready(self._readiness)
        reason = f"The server is not ready; it is {self._readiness.sentence()}"
        return of_refusal(
            Refused(HTTPStatus.SERVICE_UNAVAILABLE, reason, headers=(RETRY_AFTER,), code=health.NOT_READY)
        )
