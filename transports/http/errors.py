"""How a failure looks over HTTP: one JSON object, the same for every route.

Numbers, names, statuses and fields of commands come from the one table, app/errors.py. What HTTP itself refuses has its
status for a number, as in Iggy 0.9, and says in its reason what is wrong and, where it is one, with which member.
"""

from __future__ import annotations

from http import HTTPStatus

import msgspec

from whippet.app.errors import TABLE, CommandError
from whippet.transports.http.forms.responses import JSON, Headers, HttpResponse

BUG_ID = 1
"""The number of Iggy's general error."""
RETRY_AFTER = (b"retry-after", b"1")
AGAIN = frozenset({HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS})
"""With these an answer says when to come again."""
CLOSE = (b"connection", b"close")


class ErrorBody(msgspec.Struct, frozen=True):
    id: int
    code: str
    reason: str
    field: str | None
    """The member of the request that is wrong; null, not absent, when it is none."""


class Refused(Exception):
    """What the HTTP layer refuses by itself: a request that cannot be read, a path that is not there."""

    def __init__(
        self,
        status: HTTPStatus,
        reason: str,
        field: str | None = None,
        headers: Headers = (),
        code: str | None = None,
    ) -> None:
        """`code` is the name of the error, where that of the status says too little."""
        super().__init__(reason)
        self.status = status
        self.code = code
        self.reason = reason
        self.field = field
        self.headers = headers


def limit_reached(code: str, sentence: str) -> Refused:
    """There are as many of something as are allowed."""
    return Refused(HTTPStatus.TOO_MANY_REQUESTS, sentence, headers=(RETRY_AFTER,), code=code)


_CODES = {
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "payload_too_large",
    HTTPStatus.UNPROCESSABLE_ENTITY: "unprocessable_entity",
}
"""Python 3.13 has other names for these than Python 3.12. Clients see the same ones whichever Python serves them."""


def not_found() -> Refused:
    return Refused(HTTPStatus.NOT_FOUND, "Resource not found")


def refusal_response(refused: Refused) -> HttpResponse:
    status = refused.status
    code = refused.code or _CODES.get(status) or status.name.lower()
    return error(status, ErrorBody(status, code, refused.reason, refused.field), refused.headers)


def command_error_response(refused: CommandError) -> HttpResponse:
    row = TABLE[refused.code]
    headers: Headers = (RETRY_AFTER,) if row.status in AGAIN else ()
    if refused.retry_after_s is not None:
        headers = ((b"retry-after", b"%d" % refused.retry_after_s),)
    return error(row.status, ErrorBody(refused.code, row.name, str(refused), row.field), headers)


def bug_response() -> HttpResponse:
    """An exception that no one expected. The server logs its trace; the client is told no more than that it is ours."""
    return error(HTTPStatus.INTERNAL_SERVER_ERROR, ErrorBody(BUG_ID, "error", "Internal server error", None))


def error(status: int, body: ErrorBody, headers: Headers = ()) -> HttpResponse:
    return HttpResponse(status, msgspec.json.encode(body), (JSON, *headers))
