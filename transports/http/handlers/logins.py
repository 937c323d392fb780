"""Logging in with a password or a personal access token, refreshing access tokens, logging out, and tickets."""

from __future__ import annotations

import re

import msgspec

from whippet.app.access.access_tokens import Issued
from whippet.app.commands import audited, requests
from whippet.app.errors import TABLE, Code, CommandError
from whippet.transports.http.operation import Call

CONCEALED = frozenset({Code.INVALID_USERNAME, Code.INVALID_PASSWORD, Code.USER_INACTIVE})
"""A failed login does not reveal what was wrong."""
REFRESH = "refresh_access_token"
"""The name in the audit log."""
UNKNOWN_TOKEN = frozenset({Code.RESOURCE_NOT_FOUND, Code.PERSONAL_ACCESS_TOKEN_EXPIRED})
_VERSION = re.compile(r"0\.(\d{1,4})\.", re.ASCII)
FIRST_AFTER_0_6 = 9
"""The core library of the clients 0.6 has the version 0.8, that of the next ones 0.9."""


class Login(msgspec.Struct, frozen=True):
    username: str
    password: str
    version: str | None = None
    context: str | None = None

    def __repr__(self) -> str:
        return "Login(...)"


class TokenBody(msgspec.Struct, frozen=True):
    token: str

    def __repr__(self) -> str:
        return "TokenBody(...)"


class AccessToken(msgspec.Struct, frozen=True):
    token: str
    expiry: int
    """In seconds since 1970, unlike all other times."""


class Identity(msgspec.Struct, frozen=True):
    user_id: int
    access_token: AccessToken


async def log_in(call: Call) -> Identity:
    body: Login = call.body
    try:
        await call.execute(requests.LoginUser(body.username, body.password, body.version or "", body.context or ""))
    except CommandError as refused:
        if refused.code in CONCEALED:
            raise CommandError(Code.INVALID_CREDENTIALS) from refused
        raise
    return _issue(call, _generation(body))


async def log_in_with_token(call: Call) -> Identity:
    body: TokenBody = call.body
    try:
        await call.execute(requests.LoginWithPersonalAccessToken(body.token))
    except CommandError as refused:
        if refused.code in UNKNOWN_TOKEN:
            raise CommandError(Code.INVALID_PERSONAL_ACCESS_TOKEN) from refused
        raise
    return _issue(call, None)


async def refresh(call: Call) -> Identity:
    body: TokenBody = call.body
    gateway, session = call.api.gateway, call.session
    try:
        issued = await call.api.access_tokens.refresh(body.token)
    except CommandError as refused:
        audited.record(gateway, session, REFRESH, TABLE[refused.code].name, may_repeat=True)
        raise
    user = gateway.users.find(issued.user_id)
    session.login = None if user is None else user.login
    audited.record(gateway, session, REFRESH, may_repeat=True)
    return _identity(issued)


async def log_out(call: Call) -> None:
    """Ends the access token. Tokens of other issuers and personal access tokens are not for one session, and stay."""
    claims = call.bearer.claims
    if claims is not None:
        await call.api.access_tokens.revoke(claims)
    audited.record(call.api.gateway, call.session, "logout_user", may_repeat=True)


def _issue(call: Call, generation: str | None) -> Identity:
    user = call.api.gateway.users.by_login(call.session.login)
    if user is None:
        raise CommandError(Code.INVALID_CREDENTIALS)
    return _identity(call.api.access_tokens.issue(user, generation))


def _identity(issued: Issued) -> Identity:
    return Identity(issued.user_id, AccessToken(issued.text, issued.expires_at))


def _generation(body: Login) -> str | None:
    """Detects clients of 0.6, which read polled messages in another format. Other clients send a context."""
    found = _VERSION.match(body.version or "")
    is_0_6 = body.context == "" and found is not None and int(found[1]) < FIRST_AFTER_0_6
    return "0.6" if is_0_6 else None


class TicketDetails(msgspec.Struct, frozen=True):
    ticket: str
    """For `?ticket=`, to be used once."""
    expires_at: int
    """In us since 1970."""

    def __repr__(self) -> str:
        return "TicketDetails(...)"


async def make_ticket(call: Call) -> TicketDetails:
    if call.authorization is None:
        raise CommandError(Code.UNAUTHENTICATED)
    return TicketDetails(*call.api.tickets.issue(call.authorization, call.bearer.user.mark))
