"""How a failure looks over HTTP: one JSON object, the same for every route.

The application and the handlers answer with it. It decides nothing about which failure it is: numbers, names and
sentences of commands come from the command layer; only what HTTP itself refuses is named here.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

BUG_ID = 1
"""The number of Iggy's general error."""


class ErrorBody(msgspec.Struct, frozen=True):
    id: int
    code: str
    reason: str
    field: str | None
    """The member of the request that is wrong; null, not absent, when it is none."""


def error_response(status: int, body: ErrorBody, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")


def refused_by_http(request: Request, exception: Exception) -> Response:
    """What the routing refuses: no such path, no such method. The status serves as number, as it does in Iggy 0.9."""
    assert isinstance(exception, HTTPException)
    status = HTTPStatus(exception.status_code)
    if status == HTTPStatus.NOT_FOUND:
        body = ErrorBody(status, "not_found", "Resource not found", None)
    else:
        body = ErrorBody(status, status.name.lower(), status.phrase, None)
    return error_response(status, body, exception.headers)


def bug(request: Request, exception: Exception) -> Response:
    """An exception that no one expected. The server logs its trace; the client is told no more than that it is ours."""
    return error_response(HTTPStatus.INTERNAL_SERVER_ERROR, ErrorBody(BUG_ID, "error", "Internal server error", None))
