"""Logging in and out: which user speaks on a session. Logging in again replaces who spoke before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.access.users import User
from app.commands import answers, groups
from app.commands import requests as ask
from app.commands.target import Target

if TYPE_CHECKING:
    from app.gateway import Gateway
    from app.model.sessions import Session


async def login_user(gateway: Gateway, session: Session, request: ask.LoginUser, target: Target) -> answers.LoggedIn:
    return _bind(session, await gateway.users.log_in(request.username, request.password, session.address))


async def login_with_token(
    gateway: Gateway, session: Session, request: ask.LoginWithPersonalAccessToken, target: Target
) -> answers.LoggedIn:
    return _bind(session, gateway.tokens.owner(request.token, gateway.users))


async def logout_user(gateway: Gateway, session: Session, request: ask.LogoutUser, target: Target) -> None:
    groups.leave_all(gateway, session)
    session.user_id = None


def _bind(session: Session, user: User) -> answers.LoggedIn:
    """Without waiting for anything after the user was looked at: he may be deleted the next moment."""
    session.user_id = user.id
    return answers.LoggedIn(user.id)
