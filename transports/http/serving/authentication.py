"""Who a request comes from: `Authorization: Bearer`, and behind it an access token or a personal access token.

An access token has two dots, a personal one has none. Neither is ever repeated in an answer or a log.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec

from whippet.app.access.access_tokens import Caller
from whippet.app.errors import Code, CommandError
from whippet.transports.http.forms import parameters
from whippet.transports.http.forms.responses import HttpResponse

if TYPE_CHECKING:
    from whippet.transports.http.api import Api

SCHEME = b"Bearer "
CHALLENGE = (b"www-authenticate", b"Bearer")
DOTS = 2


async def authenticate(api: Api, header: bytes | None) -> Caller:
    if header is None or not header.startswith(SCHEME):
        raise CommandError(Code.ACCESS_TOKEN_MISSING, "the request needs `Authorization: Bearer <token>`")
    try:
        text = header[len(SCHEME) :].decode("ascii")
    except UnicodeDecodeError:
        raise CommandError(Code.UNAUTHENTICATED) from None
    caller = await api.access_tokens.authenticate(text) if text.count(".") == DOTS else _of_personal_token(api, text)
    if caller is None:
        raise CommandError(Code.UNAUTHENTICATED, "the access token is not valid, or not any more")
    return caller


def has_ended(api: Api, header: bytes | None) -> bool:
    """Whether an access token has ended with all sessions of its user."""
    if header is None or not header.startswith(SCHEME) or not header.isascii():
        return False
    return api.access_tokens.has_ended(header[len(SCHEME) :].decode())


class TicketQuery(msgspec.Struct, frozen=True):
    ticket: str = ""


def of_ticket(api: Api, query: bytes) -> bytes | None:
    """What the ticket in a query stands for: it is used up with that. None where there is none."""
    text = parameters.value_of(query, "ticket")
    if not text:
        return None
    found = api.tickets.redeem(text)
    if found is None:
        raise CommandError(Code.UNAUTHENTICATED, "the ticket was used, or has ended")
    return found


def _of_personal_token(api: Api, text: str) -> Caller | None:
    try:
        return Caller(api.gateway.personal_tokens.owner(text, api.gateway.users), None, None)
    except CommandError:
        return None


def challenged(answer: HttpResponse) -> HttpResponse:
    """A 401 says what would do."""
    if answer.status != HTTPStatus.UNAUTHORIZED:
        return answer
    return HttpResponse(answer.status, answer.body, (*answer.headers, CHALLENGE))
