"""Giving a ticket: whoever has a token gets something that may stand in a URL, once and for a short while."""

from __future__ import annotations

import msgspec

from whippet.app.errors import Code, CommandError
from whippet.transports.http.operation import Call


class TicketDetails(msgspec.Struct, frozen=True):
    ticket: str
    """For `?ticket=`, once."""
    expires_at: int
    """In us since 1970."""

    def __repr__(self) -> str:
        return "TicketDetails(...)"


async def make_ticket(call: Call) -> TicketDetails:
    if call.authorization is None:
        raise CommandError(Code.UNAUTHENTICATED)
    return TicketDetails(*call.api.tickets.give(call.authorization, call.bearer.user.mark))
