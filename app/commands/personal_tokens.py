"""Commands for personal access tokens. All users create, list and delete only their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whippet.app.commands import requests, responses
from whippet.app.commands.authorization import current_user
from whippet.app.commands.target import Target
from whippet.app.errors import Code, CommandError
from whippet.storage.shielding import shielded

if TYPE_CHECKING:
    from whippet.app.gateway import Gateway
    from whippet.app.model.sessions import Session


async def get_tokens(
    gateway: Gateway, session: Session, request: requests.GetPersonalAccessTokens, target: Target
) -> tuple[responses.TokenInfo, ...]:
    tokens = gateway.personal_tokens.of(current_user(gateway, session.login))
    return tuple(responses.TokenInfo(token.name, token.expires_at) for token in tokens)


@shielded
async def create_token(
    gateway: Gateway, session: Session, request: requests.CreatePersonalAccessToken, target: Target
) -> responses.RawToken:
    login = session.login
    text = await gateway.personal_tokens.create(current_user(gateway, login), request.name, request.expiry)
    if gateway.users.by_login(login) is None:
        # All logins of this user were ended while the token was being written, which its holder may be the reason for.
        await gateway.personal_tokens.revoke(text)
        raise CommandError(Code.UNAUTHENTICATED)
    return responses.RawToken(text)


@shielded
async def delete_token(
    gateway: Gateway, session: Session, request: requests.DeletePersonalAccessToken, target: Target
) -> None:
    await gateway.personal_tokens.delete(current_user(gateway, session.login), request.name)
