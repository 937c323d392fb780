"""The HTTP application: the table of routes as something a server can call, with one shape for every refusal.

The composition root creates it and hands it to the HTTP server. It holds no state and opens nothing.
"""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Route

from transports.http import routes
from transports.http.errors import bug, refused_by_http


def create() -> Starlette:
    application = Starlette(
        routes=[
            Route(operation.path, operation.handler, methods=[operation.method], name=operation.name)
            for operation in routes.OPERATIONS
        ],
        exception_handlers={HTTPException: refused_by_http, Exception: bug},
    )
    # To Iggy, /streams and /streams/ are different paths; a redirect would make clients resend bodies.
    application.router.redirect_slashes = False
    return application
