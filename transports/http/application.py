"""The HTTP application: the table of routes as something a server can call.

The composition root creates it and hands it to the HTTP server. It opens nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from whippet.app.config import Config, ConfigError
from whippet.app.config.formats import Address
from whippet.app.config.listeners import HttpMetrics
from whippet.app.telemetry.measured import Measured
from whippet.transports.http import dashboard, metrics, routes
from whippet.transports.http.answering import send_answer
from whippet.transports.http.api import Api
from whippet.transports.http.cors import Cors
from whippet.transports.http.dashboard import Dashboard
from whippet.transports.http.endpoint import Endpoint
from whippet.transports.http.errors import of_bug
from whippet.transports.http.hosts import Hosts, Known
from whippet.transports.http.operation import Operation
from whippet.transports.http.router import Router

_log = logging.getLogger(__name__)

METRICS = tuple(operation for operation in routes.OPERATIONS if operation.handler is metrics.get_metrics)
"""For a listener that has nothing else to offer."""


def create(api: Api, operations: Sequence[Operation] = routes.OPERATIONS, address: Address | None = None) -> Starlette:
    """`address` is where the listener is; that of HTTP, where nothing is said."""
    cors, hosts = api.config.cors, Hosts(api.config.allowed_hosts, address or api.config.address)
    has_dashboard = is_shown(api.gateway.config) and operations is not METRICS
    application = Application(
        middleware=[
            Middleware(Outermost, measured=api.gateway.measured),
            *([] if hosts.is_any else [Middleware(Known, hosts=hosts)]),
            *([Middleware(Cors, config=cors)] if cors.enabled else []),
            *([Middleware(Dashboard, files=dashboard.answers())] if has_dashboard else []),
        ],
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


class Application(Starlette):
    def build_middleware_stack(self) -> ASGIApp:
        """Leaves out the two layers in which Starlette handles exceptions: they would cost every request as much as
        its permissions do, and endpoints let no exception out."""
        stack: ASGIApp = self.router
        for cls, args, kwargs in reversed(self.user_middleware):
            stack = cls(stack, *args, **kwargs)
        return stack


class Outermost:
    """Counts every request, whatever becomes of it, and answers where something around the endpoints has a defect."""

    def __init__(self, application: ASGIApp, measured: Measured) -> None:
        self._application = application
        self._measured = measured

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._measured.http_requests += 1
        try:
            await self._application(scope, receive, send)
        except Exception:  # noqa: BLE001 -- a defect of ours; the client is told, the connection goes on
            _log.exception("%s %s ended in a defect", scope.get("method"), scope.get("path"))
            await send_answer(of_bug(), send)
