"""One row of the table of routes, and what its handler is handed: a call.

A handler translates and decides nothing: what came in is in the call, typed as the row says; it asks the command layer
and gives back a value of the row's answer type, None for no body, or a response of its own making.
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
from whippet.transports.reservations import CUT, POLL_BYTES_MIN, Reservation, reserve_poll, wait_for_poll

if TYPE_CHECKING:
    from starlette.types import Receive, Scope

    from whippet.transports.http.api import Api

Handler = Callable[["Call"], Awaitable[Any]]


class BodyFormat(NamedTuple):
    """A body of a request that is not JSON."""

    media: str
    read: Callable[[Call, Any], Any]
    """Its bytes become what the handler finds as the body of the call."""
    description: str
    items: Callable[[Any], int]
    """How many items its bytes have: many are read beside the event loop."""
    writable: bool = False
    """The bytes are given away: they become part of something that is changed in place."""


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """Unique; the OpenAPI operation id, which generated clients turn into a function."""
    method: str
    path: str
    """Parameters in braces; what each one may be is in transports/http/forms/parameters.py."""
    summary: str
    subject: str
    handler: Handler
    public: bool = False
    """Served without a token; the `Authorization` header is not even looked at."""
    ended_too: bool = False
    """Done already for an access token that has ended with all sessions of its user."""
    ticket: bool = False
    """May be asked for with `?ticket=`, by clients that cannot send the header."""
    query: type[msgspec.Struct] | None = None
    admits: type[Request] | None = None
    """The request that it becomes; whether the caller may send it to the stream and the topic in the path is checked
    before the body is read."""
    body: Any = None
    """What the JSON body is decoded into; None: no body is read."""
    decode: Callable[[Any, bytes], Any] | None = None
    """How the bytes of the body are decoded, where it is not done like everywhere."""
    forms: tuple[BodyFormat, ...] = ()
    """What else than JSON the body may be, by its content type."""
    headers: tuple[tuple[str, str], ...] = ()
    """Headers that a request may have besides those that all may have, and what they are for."""
    status: int = 200
    also: tuple[tuple[int, str], ...] = ()
    """Other statuses that are no refusals, and when they are answered."""
    refusals: tuple[tuple[int, str], ...] = ()
    """Statuses of refusals that most operations do not have, and when they are answered."""
    answer: Any = None
    """The type of the JSON answer; None: the answer has no body, or not a JSON one."""
    media: str | None = None
    """The content type of an answer that is not JSON."""
    media_also: tuple[str, ...] = ()
    """Content types that an answer has for who asks for them with `Accept`."""
    text: str | None = None
    """The plain text that a success answers, where it is always the same."""
    catalogue: bool = False
    """Reads metadata: may be asked for with a consistency, and answers with an ETag. No cache may keep the
    answers of other operations."""


class Call:
    """One request on its way. Made by the endpoint, alive until it is answered."""

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
        "scope",
        "session",
        "turn",
    )

    def __init__(self, api: Api, operation: Operation, scope: Scope, receive: Receive, session: Session) -> None:
        self.api = api
        self.operation = operation
        self.scope = scope
        self.receive = receive
        self.session = session
        self.headers: Mapping[bytes, bytes] = {}
        """By their names in small letters."""
        self.authorization: bytes | None = None
        """The header, or what a ticket stands for."""
        self.caller: Caller | None = None
        """None on public routes."""
        self.parameters: Mapping[str, Any] = {}
        self.query: Any = None
        self.body: Any = None
        self.turn: Reservation | None = None
        """The room of a response that the client has not taken; closed by whoever sends the response."""

    def execute(self, request: Request) -> Awaitable[Any]:
        return execute(self.api.gateway, self.session, request)

    def response_reservation(self) -> Reservation:
        if self.turn is None:
            self.turn = Reservation(self.api.budgets.responses_to(self.session), self.scope.get(CUT))
        return self.turn

    def body_reservation(self) -> Reservation:
        return Reservation(self.api.budgets.bodies_of(self.session), self.scope.get(CUT))

    async def poll(self, request: PollMessages) -> Polled:
        """What is found, and no more than there is room for now."""
        turn, most = self.response_reservation(), request.room or POLL_BYTES_MIN
        bounded = reserve_poll(request, turn, most) or await wait_for_poll(request, turn)
        polled: Polled = await self.execute(bounded)
        turn.hold(sum(map(len, polled.batches)))
        return polled

    def close(self) -> None:
        """The response was taken, or nobody takes it any more."""
        if self.turn is not None:
            self.turn.close()
            self.turn = None

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
        """Whom the request acts as, as it was when the token was looked at."""
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
