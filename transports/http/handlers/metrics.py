"""GET /metrics: the metrics of app/telemetry/metrics.py, in the format of Prometheus or as OpenMetrics.

They are public by default, so frequent scrapes must be cheap: concurrent scrapes share one rendering, and metrics that
took long are cached for ten times as long.
"""

from __future__ import annotations

import asyncio
import time
from http import HTTPStatus

from whippet.app.telemetry import metrics
from whippet.transports.http.forms.responses import NO_STORE, HttpResponse, compress
from whippet.transports.http.operation import Call

CHEAP_SECONDS = 0.005
"""Metrics that take no longer than this are rendered for every scrape."""
KEPT_FACTOR = 10


class Scrapes:
    """Caches the last rendered metrics, by format."""

    def __init__(self) -> None:
        self._texts: dict[bool, asyncio.Future[bytes]] = {}
        self._until: dict[bool, float] = {}

    async def text(self, call: Call, *, as_openmetrics: bool) -> bytes:
        last = self._texts.get(as_openmetrics)
        if last is not None and (not last.done() or time.monotonic() < self._until[as_openmetrics]):
            return await asyncio.shield(last)
        making = self._texts[as_openmetrics] = asyncio.ensure_future(self._make(call, as_openmetrics))
        return await asyncio.shield(making)

    async def _make(self, call: Call, as_openmetrics: bool) -> bytes:
        self._until[as_openmetrics] = 0.0
        began = time.monotonic()
        sampled = metrics.sample(call.api.gateway)
        took = time.monotonic() - began
        text = await asyncio.to_thread(metrics.render, sampled, as_openmetrics=as_openmetrics)
        if took > CHEAP_SECONDS:
            self._until[as_openmetrics] = time.monotonic() + KEPT_FACTOR * took
        return text


async def get_metrics(call: Call) -> HttpResponse:
    headers = dict(call.scope["headers"])
    as_openmetrics = b"application/openmetrics-text" in headers.get(b"accept", b"")
    text = await call.api.scrapes.text(call, as_openmetrics=as_openmetrics)
    kind = metrics.OPENMETRICS_TYPE if as_openmetrics else metrics.TEXT_TYPE
    response = HttpResponse(HTTPStatus.OK, text, ((b"content-type", kind.encode()), NO_STORE, (b"vary", b"accept")))
    return await compress(response, headers.get(b"accept-encoding"))
