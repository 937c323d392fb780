"""GET /openapi.json: the OpenAPI document of this server, with its own path of the metrics."""

from __future__ import annotations

import asyncio
import threading
from functools import lru_cache
from http import HTTPStatus

import msgspec

from whippet.app.config.listeners import HttpMetrics
from whippet.transports.http.forms.responses import JSON, HttpResponse, compress, with_etag
from whippet.transports.http.operation import Call

_making = threading.Lock()


async def get_document(call: Call) -> HttpResponse:
    octets = await get_document_bytes(call)
    response = with_etag(HttpResponse(HTTPStatus.OK, octets, (JSON,)), call.headers.get(b"if-none-match"))
    return await compress(response, call.headers.get(b"accept-encoding"))


async def get_document_bytes(call: Call) -> bytes:
    return await asyncio.to_thread(_document_once, call.api.config.metrics)


def _document_once(config: HttpMetrics) -> bytes:
    """Many clients may ask before it is made, which takes a while."""
    with _making:
        return _document(config)


@lru_cache(maxsize=1)
def _document(config: HttpMetrics) -> bytes:
    # They import the table of routes, which has this handler.
    from whippet.transports.http import openapi, routes  # noqa: PLC0415
    from whippet.transports.http.application import configured  # noqa: PLC0415

    made = openapi.document(tuple(configured(routes.OPERATIONS, config)))
    made["servers"] = [{"url": "/", "description": "This server"}]
    return msgspec.json.encode(made)
