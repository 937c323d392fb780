"""Errors over HTTP: one JSON object, the same for every route.

Numbers, names, statuses and fields of command errors come from the table in app/errors.py. An error of HTTP itself has
its status as its number, as in Iggy 0.9; its reason says what is wrong, and its field which member of the request.
"""

from __future__ import annotations

from http import HTTPStatus

import msgspec

from whippet.app.errors import TABLE, CommandError
from whippet.transports.http.forms.responses import JSON, Headers, HttpResponse

BUG_ID = 1
"""The number of Iggy's general error."""
RETRY_AFTER = (b"retry-after", b"1")
RETRIABLE = frozenset({HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS})
"""Statuses whose responses say when to retry."""
CLOSE = (b"connection", b"close")


class ErrorBody(msgspec.Struct, frozen=True):
    id: int
    code: str
    reason: str
    field: str | None
    """The member of the request that is wrong; null, not absent, if it is none."""


class Refused(Exception):
    """A request that the HTTP layer refuses by itself, because it is invalid or its path does not exist."""

    def __init__(
        self,
        status: HTTPStatus,
        reason: str,
        field: str | None = None,
        headers: Headers = (),
        code: str | None = None,
    ) -> None:
        """`code` is the name of the error, the name of the status if absent."""
        super().__init__(reason)
        self.status = status
        self.code = code
        self.reason = reason
        self.field = field
        self.headers = headers


def limit_reached(code: str, sentence: str) -> Refused:
    """A limit on how many of something may be open is reached."""
    return Refused(HTTPStatus.TOO_MANY_REQUESTS, sentence, headers=(RETRY_AFTER,), code=code)


_CODES = {
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "payload_too_large",
    HTTPStatus.UNPROCESSABLE_ENTITY: "unprocessable_entity",
}
"""Python 3.13 renamed these. Clients see the same names with every Python."""


def not_found(reason: str = "Resource not found") -> Refused:
    return Refused(HTTPStatus.NOT_FOUND, reason)


def refusal_response(refused: Refused) -> HttpResponse:
    status = refused.status
    code = refused.code or _CODES.get(status) or status.name.lower()
    return error(status, ErrorBody(status, code, refused.reason, refused.field), refused.headers)


def command_error_response(refused: CommandError) -> HttpResponse:
    row = TABLE[refused.code]
    headers: Headers = (RETRY_AFTER,) if row.status in RETRIABLE else ()
    if refused.retry_after_s is not None:
        headers = ((b"retry-after", b"%d" % refused.retry_after_s),)
    return error(row.status, ErrorBody(refused.code, row.name, str(refused), row.field), headers)


def bug_response() -> HttpResponse:
    """The response to an unexpected exception. The log has the traceback; the client learns no details."""
    return error(HTTPStatus.INTERNAL_SERVER_ERROR, ErrorBody(BUG_ID, "error", "Internal server error", None))


def error(status: int, body: ErrorBody, headers: Headers = ()) -> HttpResponse:
    return HttpResponse(status, msgspec.json.encode(body), (JSON, *headers))
