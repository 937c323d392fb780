"""The HTTP application: checks the host, applies CORS, serves the dashboard, and finds the endpoint of a request.

The composition root creates it and passes it to the HTTP server. It opens nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from whippet.app.config import Config, ConfigError
from whippet.app.config.formats import Address
from whippet.app.config.listeners import HttpMetrics
from whippet.transports.http import routes
from whippet.transports.http.api import Api
from whippet.transports.http.errors import Refused, bug_response, refusal_response
from whippet.transports.http.forms.responses import send_response
from whippet.transports.http.handlers import metrics
from whippet.transports.http.operation import Operation
from whippet.transports.http.serving.cors import Cors
from whippet.transports.http.serving.dashboard import Dashboard
from whippet.transports.http.serving.endpoint import Endpoint
from whippet.transports.http.serving.hosts import Hosts
from whippet.transports.http.serving.repeated_heads import AT_ONCE, NOTES
from whippet.transports.http.serving.router import Match, Router

_log = logging.getLogger(__name__)

METRICS = tuple(operation for operation in routes.OPERATIONS if operation.handler is metrics.get_metrics)
"""The operations of a listener that serves only the metrics."""


class Application:
    def __init__(
        self, api: Api, operations: Sequence[Operation] = routes.OPERATIONS, address: Address | None = None
    ) -> None:
        """`address` is that of the listener, `http.address` if absent."""
        config = api.config
        self._measured = api.gateway.measurements
        self._hosts = Hosts(config.allowed_hosts, address or config.address)
        self._cors = Cors(config.cors) if config.cors.enabled else None
        self._dashboard = Dashboard() if is_shown(api.gateway.config) and operations is not METRICS else None
        self._router = Router([Endpoint(api, operation) for operation in configured(operations, config.metrics)])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._measured.http_requests += 1
        response = None
        notes: dict[object, Any] | None = scope.get(NOTES)
        known: Match | None = None if notes is None else notes.get(self)
        try:
            if known is not None:
                await known.endpoint(known, scope, receive, send)
                return
            self._hosts.check_request(scope)
            plain = send
            if self._cors is not None:
                send, response = self._cors.apply(scope, send)
            if response is None and self._dashboard is not None:
                response = await self._dashboard.respond(scope) if self._dashboard.serves(scope) else None
            if response is None:
                match = self._router.find(scope)
                if notes is not None and send is plain:
                    notes[self] = match
                    notes[AT_ONCE] = match.endpoint.at_once(match, scope)
                await match.endpoint(match, scope, receive, send)
                return
        except Refused as refused:
            response = refusal_response(refused)
        except Exception:  # noqa: BLE001 -- a bug; the client gets a 500, the connection stays open
            _log.exception("%s %s failed because of a defect", scope.get("method"), scope.get("path"))
            response = bug_response()
        self._measured.http_responses[response.status // 100] += 1
        await send_response(response, scope, send)


def is_shown(config: Config) -> bool:
    """Returns True if the dashboard is served. It works over WebSocket only."""
    return config.http.enabled and config.http.web_ui and config.websocket.enabled


def configured(operations: Sequence[Operation], config: HttpMetrics) -> Iterator[Operation]:
    """The operations, with the metrics at the configured path, or without them if they are disabled."""
    taken = {operation.path for operation in operations if operation.handler is not metrics.get_metrics}
    for operation in operations:
        if operation.handler is not metrics.get_metrics:
            yield operation
        elif config.enabled:
            if config.endpoint in taken or "{" in config.endpoint:
                raise ConfigError(
                    f"http.metrics.endpoint = {config.endpoint!r}: this path is taken; choose another one"
                )
            yield msgspec.structs.replace(operation, path=config.endpoint, public=not config.require_token)
