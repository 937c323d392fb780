"""Login and logout: which user a session acts as. Another login replaces the user."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whippet.app.access.users import User
from whippet.app.commands import groups, requests, responses
from whippet.app.commands.target import Target
from whippet.app.errors import Code, CommandError
from whippet.app.model.sessions import Registration

if TYPE_CHECKING:
    from whippet.app.gateway import Gateway
    from whippet.app.model.sessions import Session


async def login_user(
    gateway: Gateway, session: Session, request: requests.LoginUser, target: Target
) -> responses.LoggedIn:
    return _bind(gateway, session, await gateway.users.log_in(request.username, request.password, session.address))


async def login_with_token(
    gateway: Gateway, session: Session, request: requests.LoginWithPersonalAccessToken, target: Target
) -> responses.LoggedIn:
    return _bind(gateway, session, gateway.personal_tokens.owner(request.token, gateway.users))


async def logout_user(gateway: Gateway, session: Session, request: requests.LogoutUser, target: Target) -> None:
    """Clients that have changed their password, which ends their login, log out before they log in with the new one."""
    groups.leave_all(gateway, session)
    session.login = session.registration = session.attached = None
    session.ended_login = False


async def attach(gateway: Gateway, session: Session, request: requests.AttachSession, target: Target) -> None:
    """Serves clients that poll on one connection and are group members on another, as is necessary in a cluster."""
    other = gateway.sessions.registered(Registration(request.client, request.number))
    if other is None or other.registration is None:
        raise CommandError(Code.CLIENT_NOT_FOUND, "there is no such session to attach to")
    if other.login != session.login:
        raise CommandError(Code.UNAUTHORIZED, "the session to attach to belongs to another user")
    session.attached = None if other is session else (other, other.registration)


def _bind(gateway: Gateway, session: Session, user: User) -> responses.LoggedIn:
    """Must not wait after the user was checked, who may be deleted the next moment. Memberships of a previous user
    end."""
    if session.login is not None and session.login.mark != user.mark:
        groups.leave_all(gateway, session)
        session.attached = None
    session.login = user.login
    session.ended_login = False
    return responses.LoggedIn(user.id)
