"""Authenticates requests: `Authorization: Bearer` with an access token or a personal access token, or a ticket.

An access token has two dots, a personal one has none. Neither ever appears in a response or the log.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec

from whippet.app.access.access_tokens import Caller
from whippet.app.commands import audited
from whippet.app.errors import TABLE, Code, CommandError
from whippet.transports.http.forms import parameters
from whippet.transports.http.forms.responses import HttpResponse

if TYPE_CHECKING:
    from whippet.app.model.sessions import Session
    from whippet.transports.http.api import Api

SCHEME = b"Bearer "
CHALLENGE = (b"www-authenticate", b"Bearer")
DOTS = 2


async def authenticate(api: Api, header: bytes | None, session: Session) -> Caller:
    """A token that is refused is recorded in the audit log, with the address of the session."""
    try:
        return await _authenticate(api, header)
    except CommandError as refused:
        if header is not None:
            audited.record(api.gateway, session, "authenticate", TABLE[refused.code].name, may_repeat=True)
        raise


async def _authenticate(api: Api, header: bytes | None) -> Caller:
    if header is None or not header.startswith(SCHEME):
        raise CommandError(Code.ACCESS_TOKEN_MISSING, "the request needs `Authorization: Bearer <token>`")
    try:
        text = header[len(SCHEME) :].decode("ascii")
    except UnicodeDecodeError:
        raise CommandError(Code.UNAUTHENTICATED) from None
    caller = await api.access_tokens.authenticate(text) if text.count(".") == DOTS else _of_personal_token(api, text)
    if caller is None:
        raise CommandError(Code.UNAUTHENTICATED, "the access token is not valid, or has expired")
    return caller


def recognize(api: Api, header: bytes | None) -> Caller | None:
    """The caller of a request whose token needs no verification, or was verified before; None if `authenticate` has to
    find out."""
    if header is None or not header.startswith(SCHEME) or not header.isascii():
        return None
    text = header[len(SCHEME) :].decode()
    return api.access_tokens.recognize(text) or (None if text.count(".") == DOTS else _of_personal_token(api, text))


def token_has_ended(api: Api, header: bytes | None) -> bool:
    """Whether an access token has ended together with all sessions of its user."""
    if header is None or not header.startswith(SCHEME) or not header.isascii():
        return False
    return api.access_tokens.has_ended(header[len(SCHEME) :].decode())


class TicketQuery(msgspec.Struct, frozen=True):
    ticket: str = ""


def redeem_ticket(api: Api, query: bytes) -> bytes | None:
    """Redeems the ticket in a query for its `Authorization` header; returns None without a ticket."""
    text = parameters.find_parameter(query, "ticket")
    if not text:
        return None
    found = api.tickets.redeem(text)
    if found is None:
        raise CommandError(Code.UNAUTHENTICATED, "the ticket was used before, or has expired")
    return found


def _of_personal_token(api: Api, text: str) -> Caller | None:
    try:
        return Caller(api.gateway.personal_tokens.owner(text, api.gateway.users), None, None)
    except CommandError:
        return None


def with_challenge(response: HttpResponse) -> HttpResponse:
    """Adds the challenge that a 401 must have."""
    if response.status != HTTPStatus.UNAUTHORIZED:
        return response
    return HttpResponse(response.status, response.body, (*response.headers, CHALLENGE))
