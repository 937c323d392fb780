"""The HTTP application: the table of routes as something a server can call.

The composition root creates it and hands it to the HTTP server. It opens nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from whippet.app.config import Config, ConfigError
from whippet.app.config.formats import Address
from whippet.app.config.listeners import HttpMetrics
from whippet.app.telemetry.measured import Measured
from whippet.transports.http import dashboard, metrics, routes
from whippet.transports.http.api import Api
from whippet.transports.http.cors import Cors
from whippet.transports.http.dashboard import Dashboard
from whippet.transports.http.endpoint import Endpoint
from whippet.transports.http.errors import of_bug
from whippet.transports.http.hosts import Hosts, Known
from whippet.transports.http.operation import Operation
from whippet.transports.http.router import Router

METRICS = tuple(operation for operation in routes.OPERATIONS if operation.handler is metrics.get_metrics)
"""For a listener that has nothing else to offer."""


def create(api: Api, operations: Sequence[Operation] = routes.OPERATIONS, address: Address | None = None) -> Starlette:
    """`address` is where the listener is; that of HTTP, where nothing is said."""
    cors, hosts = api.config.cors, Hosts(api.config.allowed_hosts, address or api.config.address)
    has_dashboard = is_shown(api.gateway.config) and operations is not METRICS
    application = Starlette(
        middleware=[
            Middleware(Counted, measured=api.gateway.measured),
            *([] if hosts.is_any else [Middleware(Known, hosts=hosts)]),
            *([Middleware(Cors, config=cors)] if cors.enabled else []),
            *([Middleware(Dashboard, files=dashboard.answers())] if has_dashboard else []),
        ],
        exception_handlers={Exception: _bug},
    )
    application.router = Router([Endpoint(api, operation) for operation in configured(operations, api.config.metrics)])
    return application


def is_shown(config: Config) -> bool:
    """The dashboard speaks WebSocket alone."""
    return config.http.enabled and config.http.web_ui and config.websocket.enabled


def configured(operations: Sequence[Operation], config: HttpMetrics) -> Iterator[Operation]:
    """With the route of the metrics where the configuration wants it, if it wants it."""
    taken = {operation.path for operation in operations if operation.handler is not metrics.get_metrics}
    for operation in operations:
        if operation.handler is not metrics.get_metrics:
            yield operation
        elif config.enabled:
            if config.endpoint in taken or "{" in config.endpoint:
                raise ConfigError(
                    f"http.metrics.endpoint = {config.endpoint!r}: this path cannot be used; /metrics can"
                )
            yield msgspec.structs.replace(operation, path=config.endpoint, public=not config.require_token)


class Counted:
    """Around everything: whatever becomes of it, a request was there."""

    def __init__(self, application: ASGIApp, measured: Measured) -> None:
        self._application = application
        self._measured = measured

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        self._measured.http_requests += 1
        return self._application(scope, receive, send)


def _bug(request: Request, exception: Exception) -> Response:
    """Endpoints let no exception out; this is for what is around them."""
    answer = of_bug()
    return Response(answer.body, answer.status, media_type="application/json")
