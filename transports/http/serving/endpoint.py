"""Processes the requests of one operation:

    token -> path -> query -> body -> handler -> JSON -> ETag -> compression

Every refusal on the way becomes an error response of the same shape. Unexpected exceptions are logged here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from whippet.app.config.formats import host_and_port
from whippet.app.errors import CommandError
from whippet.app.model.sessions import Session, Transport
from whippet.app.telemetry import trace_context
from whippet.transports import offload
from whippet.transports.admission.budget import FREE_BYTES
from whippet.transports.http.api import Api
from whippet.transports.http.errors import Refused, bug_response, command_error_response, refusal_response
from whippet.transports.http.forms import decompression, parameters, request_bodies
from whippet.transports.http.forms.request_bodies import Body, count_values
from whippet.transports.http.forms.responses import (
    JSON,
    NO_STORE,
    VIEW,
    Headers,
    HttpResponse,
    compress,
    send_response,
    with_etag,
)
from whippet.transports.http.operation import AtOnce, BodyFormat, Call, Operation, admit_call, missing
from whippet.transports.http.serving import authentication
from whippet.transports.http.serving.protocol import CONNECTION, PEER
from whippet.transports.http.serving.repeated_heads import NOTES

if TYPE_CHECKING:
    from whippet.transports.http.serving.router import Match

_log = logging.getLogger(__name__)

PUBLIC_BODY_BYTES_MAX = 64 << 10
"""Enough for every login."""
REQUEST_ID_MAX = 128
_encode = msgspec.json.Encoder().encode


class Endpoint:
    def __init__(self, api: Api, operation: Operation) -> None:
        self.operation = operation
        self._api = api
        self._handler = operation.handler
        self._decoder = None if operation.body is None else msgspec.json.Decoder(operation.body)
        self._decode = operation.decode or request_bodies.decode
        self._forms = {form.media.encode(): form for form in operation.forms}
        self._query = operation.query or (CatalogueQuery if operation.catalogue else parameters.NoQuery)
        limit = api.config.max_request_size
        self._body_limit = min(limit, PUBLIC_BODY_BYTES_MAX) if operation.public else limit
        self._headers: Headers = (JSON, VIEW) if operation.catalogue else (JSON, NO_STORE, VIEW)

    async def __call__(self, match: Match, scope: Scope, receive: Receive, send: Send) -> None:
        session = Session(Transport.HTTP, peer(scope), self._api.gateway.clock(), _keep_connection)
        call = Call(self._api, self.operation, scope, receive, session)
        try:
            try:
                response = await self._respond(call, match)
            except Refused as refused:
                response = refusal_response(refused)
            except CommandError as refused:
                response = authentication.with_challenge(command_error_response(refused))
            except ClientDisconnect:
                return
            except Exception:  # noqa: BLE001 -- a bug; the client gets a 500, the connection stays open
                _log.exception("%s: %s failed because of a defect", peer(scope), self.operation.name)
                response = bug_response()
            if isinstance(response, Response):
                self._api.gateway.measurements.http_responses[response.status_code // 100] += 1
                await response(scope, receive, send)
            else:
                self._api.gateway.measurements.http_responses[response.status // 100] += 1
                if len(response.body) > FREE_BYTES:
                    # It may have to wait until the client has read earlier responses.
                    call.response_reservation().hold(len(response.body))
                await send_response(response, scope, send)
            if (connection := scope.get(CONNECTION)) is not None and connection.is_full:
                # The transport has buffered the response, but the client has not read it.
                call.response_reservation().hold(connection.unsent_bytes)
                await connection.drain()
        finally:
            call.close()

    def at_once(self, match: Match, scope: Scope) -> AtOnce | None:
        """Returns what answers requests with the same head in fewer steps, if anything does."""
        create = self.operation.at_once
        if create is None:
            return None
        try:
            headers = _headers_of(scope)
            facts = self._body_facts(scope, headers)
            limit = min(self._body_limit, FREE_BYTES)
            if facts.coding is not None or not request_bodies.is_json(facts.media) or (facts.announced or 0) > limit:
                return None
            return create(self._api, match.parameters, headers, scope["query_string"])
        except (Refused, CommandError):
            # Why is for callers with a token.
            return None

    async def _respond(self, call: Call, match: Match) -> HttpResponse | Response:
        operation, api, scope, session = self.operation, self._api, call.scope, call.session
        notes: dict[object, Any] | None = scope.get(NOTES)
        known: Known | None = None if notes is None else notes.get(self)
        headers = call.headers = _headers_of(scope) if known is None else known.headers
        if (request_id := headers.get(b"x-request-id")) is not None:
            session.request_id = _shown_id(request_id)
        if api.gateway.exporter is not None:
            session.trace = trace_context.parse(headers.get(b"traceparent"))
        if not operation.public:
            call.authorization = headers.get(b"authorization")
            if call.authorization is None and operation.ticket:
                call.authorization = authentication.redeem_ticket(api, scope["query_string"])
            if operation.accepts_ended_token and authentication.token_has_ended(api, call.authorization):
                return await self._encode_response(None, headers, {})
            call.caller = caller = authentication.recognize(
                api, call.authorization
            ) or await authentication.authenticate(api, call.authorization, session)
            session.login = caller.user.login
        call.parameters = match.parameters
        if known is None:
            query: bytes = scope["query_string"]
            if query or operation.query is not None:
                call.query = parameters.decode_query(query, self._query)
            known = Known(headers, call.query)
            if notes is not None:
                notes[self] = known
        else:
            call.query = known.query
        if self._decoder is None:
            if api.budgets.are_responses_many and operation.method == "GET":
                await call.response_reservation().wait_for_share()
            result = await self._handler(call)
        else:
            result = await self._with_body(call, known, self._decoder)
        if isinstance(result, HttpResponse | Response):
            return result
        return await self._encode_response(result, headers, call.parameters)

    async def _with_body(self, call: Call, known: Known, decoder: msgspec.json.Decoder[Any]) -> Any:
        limit = self._body_limit
        if known.body is None:
            known.body = self._body_facts(call.scope, known.headers)
        announced, coding, media, form = known.body
        is_readable = form is not None or request_bodies.is_json(media)
        is_small = is_readable and coding is None and announced is not None and announced <= FREE_BYTES
        if not is_small:
            admit_call(call)
        if not is_readable:
            request_bodies.check_json(media, self._forms)
        writable = form is not None and form.writable and coding is None
        if is_small and announced is not None and announced <= limit:
            body = await request_bodies.read(call.receive, limit, writable=writable)
            await self._decode_body(call, body, form, decoder, is_small=True)
            return await self._handler(call)
        reading = request_bodies.reading(
            call.receive, announced, limit, call.body_reservation, grows=coding is not None, writable=writable
        )
        async with reading as body:
            if coding is not None:
                body = await decompression.decompress(bytes(body), coding, limit)  # noqa: PLW2901
            await self._decode_body(call, body, form, decoder, is_small=is_small)
            del body
            return await self._handler(call)

    def _body_facts(self, scope: Scope, headers: Mapping[bytes, bytes]) -> BodyFacts:
        media = request_bodies.media_type(headers.get(b"content-type"))
        coding = decompression.find_coding(headers.get(b"content-encoding"))
        return BodyFacts(_announced_length(scope, headers), coding, media, self._forms.get(media))

    async def _decode_body(
        self, call: Call, body: Body, form: BodyFormat | None, decoder: msgspec.json.Decoder[Any], *, is_small: bool
    ) -> None:
        size = len(body)
        try:
            if form is not None:
                call.body = await offload.call(size, form.items(body), form.read, call, body)
            elif size <= offload.ITEMS_AT_ONCE:
                # It cannot have more items than bytes.
                call.body = self._decode(decoder, bytes(body))
            else:
                call.body = await offload.call(size, count_values(body), self._decode, decoder, bytes(body))
        except (CommandError, Refused):
            if is_small:
                # Decoding a small body is faster than this check, which the command repeats anyway. But errors in a
                # body are not for callers who may not send it.
                admit_call(call)
            raise

    async def _encode_response(
        self, result: Any, headers: dict[bytes, bytes], parameters: Mapping[str, Any]
    ) -> HttpResponse:
        operation = self.operation
        if operation.response is None:
            return HttpResponse(operation.status, b"", (VIEW,))
        if result is None:
            raise missing(operation, parameters)
        response = HttpResponse(operation.status, _encode(result), self._headers)
        if operation.catalogue:
            response = with_etag(response, headers.get(b"if-none-match"))
        return await compress(response, headers.get(b"accept-encoding"))


class BodyFacts(NamedTuple):
    """What the head of a request says about its body."""

    announced: int | None
    """The length; None if it is unknown until its end, as over HTTP/3."""
    coding: decompression.Coding | None
    media: bytes
    form: BodyFormat | None


class Known:
    """What an endpoint makes of the head of a request, which is kept if the head may be repeated."""

    __slots__ = ("body", "headers", "query")

    def __init__(self, headers: dict[bytes, bytes], query: Any) -> None:
        self.headers = headers
        self.query = query
        self.body: BodyFacts | None = None


class CatalogueQuery(msgspec.Struct, frozen=True):
    """On a single node both mean the same."""

    consistency: Literal["serializable", "linearizable"] = "serializable"


SINGLE_HEADERS = (
    *(b"authorization", b"content-type", b"content-length", b"content-encoding", b"host"),
    *(b"producer-id", b"producer-epoch", b"producer-seq"),
)


def _headers_of(scope: Scope) -> dict[bytes, bytes]:
    """Returns the headers by name. Some must not occur twice, because other programs might read the other one."""
    pairs: list[tuple[bytes, bytes]] = scope["headers"]
    headers = dict(pairs)
    if len(headers) != len(pairs):
        names = [name for name, _ in pairs]
        for name in SINGLE_HEADERS:
            if names.count(name) > 1:
                raise Refused(HTTPStatus.BAD_REQUEST, f"the header {name.decode()} occurs twice", name.decode())
    return headers


def _shown_id(given: bytes) -> str | None:
    """Returns what a client calls its request; None for what does not belong into a log."""
    text = given.decode("latin-1")
    return text if 0 < len(text) <= REQUEST_ID_MAX and text.isascii() and text.isprintable() else None


def _announced_length(scope: Scope, headers: Mapping[bytes, bytes]) -> int | None:
    """Returns the length of the body, None if it is unknown until its end, as over HTTP/3."""
    length = headers.get(b"content-length")
    if length is not None:
        return int(length)
    return None if b"transfer-encoding" in headers or scope["http_version"] == "3" else 0


def peer(scope: Scope) -> str:
    known: str | None = scope.get(PEER)
    if known is not None:
        return known
    client = scope.get("client")
    return "?:0" if client is None else host_and_port(*client[:2])


def _keep_connection() -> None:
    """Ends nothing: a connection over HTTP carries many sessions."""
