"""One row of the table of routes, and the call that its handler receives.

A handler translates and decides nothing: it reads the decoded request from the call, executes commands, and returns a
value of the row's response type, None for no body, or a whole response.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from whippet.app.access.access_tokens import Caller
from whippet.app.commands.registry import Destination, admit, execute
from whippet.app.commands.requests import Identifier, PollMessages, Request
from whippet.app.commands.responses import Polled
from whippet.app.errors import Code, CommandError
from whippet.app.model.identity import Login
from whippet.app.model.sessions import Session
from whippet.transports.http.errors import Refused, not_found
from whippet.transports.reservations import CUT, POLL_BYTES_MIN, Reservation, reserve_poll, wait_for_poll

if TYPE_CHECKING:
    from starlette.types import Receive, Scope

    from whippet.transports.http.api import Api
    from whippet.transports.http.serving.exchange import Exchange

Handler = Callable[["Call"], Awaitable[Any]]
AtOnce = Callable[["Exchange", bytes], bool]
"""Answers a request with this body, now or later, without a coroutine. Returns False if it has done nothing, because
anything about the request is unusual or wrong: then it is handled in the usual way."""


class BodyFormat(NamedTuple):
    """A format of request bodies other than JSON."""

    media: str
    read: Callable[[Call, Any], Any]
    """Decodes the bytes into what the handler finds as the body of the call."""
    description: str
    items: Callable[[Any], int]
    """Estimates how many items the bytes have: many are decoded in a thread."""
    writable: bool = False
    """Whether `read` takes over the bytes, to change them in place."""


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """Unique. It is the OpenAPI operation id, which generated clients turn into a function."""
    method: str
    path: str
    """The path, with parameters in braces; `PARAMETER_TYPES` in forms/parameters.py has their types."""
    summary: str
    subject: str
    handler: Handler
    public: bool = False
    """Whether it needs no token; the `Authorization` header is not even read."""
    accepts_ended_token: bool = False
    """Whether it succeeds, without its handler, for an access token that ended with all sessions of its user."""
    ticket: bool = False
    """Whether it accepts `?ticket=`, for clients that cannot send the header."""
    query: type[msgspec.Struct] | None = None
    admits: type[Request] | None = None
    """The command that it executes. Whether the caller may execute it on the stream and topic in the path is checked
    before the body is read."""
    body: Any = None
    """The type of the JSON body; None if no body is read."""
    decode: Callable[[Any, bytes], Any] | None = None
    """Decodes the JSON body in place of the default."""
    at_once: Callable[[Api, Mapping[str, Any], Mapping[bytes, bytes], bytes], AtOnce | None] | None = None
    """Creates what answers requests that repeat the path parameters, headers and query of another one, and have a small
    JSON body. None: nothing does."""
    forms: tuple[BodyFormat, ...] = ()
    """Other formats of the body, by content type."""
    headers: tuple[tuple[str, str], ...] = ()
    """Request headers of this operation alone, and what they are for."""
    status: int = 200
    other_statuses: tuple[tuple[int, str], ...] = ()
    """Other statuses of success, and when they are returned."""
    refusals: tuple[tuple[int, str], ...] = ()
    """Statuses of errors that most operations do not return, and when they are returned."""
    response: Any = None
    """The type of the JSON response; None if it has no body, or not a JSON one."""
    missing: tuple[Code, tuple[str, ...]] | None = None
    """The error whose sentence says what does not exist if there is no result, and the path parameters in it."""
    media: str | None = None
    """The content type of a response that is not JSON."""
    other_media: tuple[str, ...] = ()
    """Other content types, which `Accept` selects."""
    text: str | None = None
    """The plain text of the response, where it is always the same."""
    catalogue: bool = False
    """Whether it reads metadata: it accepts a consistency, and returns an ETag. Responses of other operations must not
    be cached."""


class Call:
    """One request. The endpoint creates it, and closes it once the response is sent."""

    __slots__ = (
        "api",
        "authorization",
        "body",
        "caller",
        "headers",
        "operation",
        "parameters",
        "query",
        "receive",
        "reservation",
        "scope",
        "session",
    )

    def __init__(self, api: Api, operation: Operation, scope: Scope, receive: Receive, session: Session) -> None:
        self.api = api
        self.operation = operation
        self.scope = scope
        self.receive = receive
        self.session = session
        self.headers: Mapping[bytes, bytes] = {}
        """Keyed by lowercase name."""
        self.authorization: bytes | None = None
        """The header, or the one that the ticket stands for."""
        self.caller: Caller | None = None
        """None on public routes."""
        self.parameters: Mapping[str, Any] = {}
        self.query: Any = None
        self.body: Any = None
        self.reservation: Reservation | None = None
        """Memory reserved for a response that the client has not read; released when it is sent."""

    def execute(self, request: Request) -> Awaitable[Any]:
        return execute(self.api.gateway, self.session, request)

    def response_reservation(self) -> Reservation:
        if self.reservation is None:
            self.reservation = Reservation(self.api.budgets.responses_to(self.session), self.scope.get(CUT))
        return self.reservation

    def body_reservation(self) -> Reservation:
        return Reservation(self.api.budgets.bodies_of(self.session), self.scope.get(CUT))

    async def poll(self, request: PollMessages) -> Polled:
        """Polls no more than the memory budget allows now."""
        reservation, most = self.response_reservation(), request.room or POLL_BYTES_MIN
        bounded = reserve_poll(request, reservation, most) or await wait_for_poll(request, reservation)
        polled: Polled = await self.execute(bounded)
        reservation.hold(sum(map(len, polled.batches)))
        return polled

    def close(self) -> None:
        """Releases the memory of the response: the client has read it, or has gone."""
        if self.reservation is not None:
            self.reservation.close()
            self.reservation = None

    @property
    def is_head(self) -> bool:
        return bool(self.scope["method"] == "HEAD")

    @property
    def bearer(self) -> Caller:
        if self.caller is None:
            raise CommandError(Code.UNAUTHENTICATED)
        return self.caller

    @property
    def login(self) -> Login:
        """The login for which the request acts, as of the check of its token."""
        if self.session.login is None:
            raise CommandError(Code.UNAUTHENTICATED)
        return self.session.login

    @property
    def stream(self) -> Identifier:
        found: Identifier = self.parameters["stream"]
        return found

    @property
    def topic(self) -> Identifier:
        found: Identifier = self.parameters["topic"]
        return found


def missing(operation: Operation, parameters: Mapping[str, Any]) -> Refused:
    """The error where a handler has found nothing. Its number is that of HTTP, as in Iggy."""
    if operation.missing is None:
        return not_found()
    code, names = operation.missing
    return not_found(str(CommandError(code, about=tuple([parameters[name] for name in names]))))


def admit_call(call: Call) -> None:
    """Refuses what the command would refuse for the sender or the destination, before a body is decoded."""
    wanted = call.operation.admits
    if wanted is not None:
        admit(call.api.gateway, call.session, wanted, Destination(call.stream, call.topic))


def require_topic(call: Call) -> None:
    """Raises the error that says which one is missing, unless the stream and the topic of the path exist."""
    stream = call.api.gateway.streams.find(call.stream)
    if stream is None:
        raise CommandError(Code.STREAM_ID_NOT_FOUND, about=(call.stream,))
    if stream.topics.find(call.topic) is None:
        raise CommandError(Code.TOPIC_ID_NOT_FOUND, about=(call.topic, call.stream))
