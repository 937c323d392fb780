"""The HTTP application: the table of routes as something a server can call.

The composition root creates it and hands it to the HTTP server. It opens nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from transports.http import routes
from transports.http.api import Api
from transports.http.cors import Cors
from transports.http.endpoint import Endpoint
from transports.http.errors import of_bug
from transports.http.operation import Operation
from transports.http.router import Router


def create(api: Api, operations: Sequence[Operation] = routes.OPERATIONS) -> Starlette:
    cors = api.config.cors
    application = Starlette(
        middleware=[Middleware(Cors, config=cors)] if cors.enabled else [],
        exception_handlers={Exception: _bug},
    )
    application.router = Router([Endpoint(api, operation) for operation in operations])
    return application


def _bug(request: Request, exception: Exception) -> Response:
    """Endpoints let no exception out; this is for what is around them."""
    answer = of_bug()
    return Response(answer.body, answer.status, media_type="application/json")
