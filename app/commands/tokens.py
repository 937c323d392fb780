"""Personal access tokens. Everybody makes, sees and deletes his own, and nobody else's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whippet.app.access.users import User
from whippet.app.commands import answers
from whippet.app.commands import requests as ask
from whippet.app.commands.target import Target
from whippet.app.errors import Code, CommandError

if TYPE_CHECKING:
    from whippet.app.gateway import Gateway
    from whippet.app.model.sessions import Session


async def get_tokens(
    gateway: Gateway, session: Session, request: ask.GetPersonalAccessTokens, target: Target
) -> tuple[answers.TokenInfo, ...]:
    tokens = gateway.tokens.of(_asker(gateway, session))
    return tuple(answers.TokenInfo(token.name, token.expires_at) for token in tokens)


async def create_token(
    gateway: Gateway, session: Session, request: ask.CreatePersonalAccessToken, target: Target
) -> answers.RawToken:
    user = _asker(gateway, session)
    text = await gateway.tokens.create(user, request.name, request.expiry)
    if not gateway.users.is_current(user):
        # Deleted while the token was written: what is left of him goes too.
        await gateway.tokens.forget_user(user)
        raise CommandError(Code.UNAUTHENTICATED)
    return answers.RawToken(text)


async def delete_token(
    gateway: Gateway, session: Session, request: ask.DeletePersonalAccessToken, target: Target
) -> None:
    await gateway.tokens.delete(_asker(gateway, session), request.name)


def _asker(gateway: Gateway, session: Session) -> User:
    user = gateway.users.active(session.user_id)
    if user is None:
        raise CommandError(Code.UNAUTHENTICATED)
    return user
