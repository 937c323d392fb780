"""Commands about users: what managers may see and change in other users, and all users in their own account.

A manager may change only users whose rights they have themselves, and only the root user may change the root user.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whippet.app.access import permissions as may
from whippet.app.access.users import Authorize, User
from whippet.app.commands import groups, requests, responses
from whippet.app.commands.authorization import current_user, refuse_changing_root, refuse_escalation
from whippet.app.commands.target import Target
from whippet.app.errors import Code, CommandError
from whippet.app.model.options import OptionScope, refuse_any
from whippet.storage.shielding import shielded

if TYPE_CHECKING:
    from whippet.app.gateway import Gateway
    from whippet.app.model.identity import Login
    from whippet.app.model.sessions import Session


async def get_user(
    gateway: Gateway, session: Session, request: requests.GetUser, target: Target
) -> responses.UserDetails | None:
    user = gateway.users.find(request.user)
    return None if user is None else _details(user)


async def get_users(
    gateway: Gateway, session: Session, request: requests.GetUsers, target: Target
) -> tuple[responses.UserInfo, ...]:
    return tuple(_info(user) for user in gateway.users)


@shielded
async def create_user(
    gateway: Gateway, session: Session, request: requests.CreateUser, target: Target
) -> responses.UserDetails:
    login = session.login

    def authorize() -> None:
        refuse_escalation(_manager(gateway, login), None, request.permissions)

    refuse_any(request.options, OptionScope.USER)
    user = await gateway.users.create(
        request.username, request.password, request.status, request.permissions, authorize
    )
    return _details(user)


@shielded
async def delete_user(gateway: Gateway, session: Session, request: requests.DeleteUser, target: Target) -> None:
    """The tokens of a deleted user are void, so it does no harm if their files cannot be removed at once."""
    user = await gateway.users.delete(request.user, _authorize_change(gateway, session.login))
    end_sessions_of(gateway, user, caller=session)
    await gateway.personal_tokens.forget_user(user)


@shielded
async def update_user(gateway: Gateway, session: Session, request: requests.UpdateUser, target: Target) -> None:
    refuse_any(request.options, OptionScope.USER)
    authorize = _authorize_change(gateway, session.login)
    user = await gateway.users.update(request.user, request.username, request.status, authorize)
    if not user.is_active:
        end_sessions_of(gateway, user, caller=session)
        await gateway.personal_tokens.forget_void(gateway.users)


@shielded
async def update_permissions(
    gateway: Gateway, session: Session, request: requests.UpdatePermissions, target: Target
) -> None:
    login = session.login

    def authorize(user: User) -> None:
        refuse_escalation(_manager(gateway, login), user.permissions, request.permissions)

    await gateway.users.change_permissions(request.user, request.permissions, authorize)


@shielded
async def change_password(gateway: Gateway, session: Session, request: requests.ChangePassword, target: Target) -> None:
    """Ends sessions and access tokens, which may have been stolen; personal access tokens only if requested."""
    login = session.login

    def authorize(user: User) -> None:
        refuse_changing_root(_manager(gateway, login, of=user), user)

    ends_tokens = request.end_personal_access_tokens
    user = await gateway.users.change_password(
        request.user,
        request.current_password,
        request.new_password,
        session.address,
        end_tokens=ends_tokens,
        authorize=authorize,
    )
    end_sessions_of(gateway, user, caller=session)
    if ends_tokens:
        await gateway.personal_tokens.forget_void(gateway.users)


@shielded
async def end_sessions(gateway: Gateway, session: Session, request: requests.EndSessions, target: Target) -> None:
    ends_tokens = request.personal_access_tokens
    authorize = _authorize_change(gateway, session.login)
    user = await gateway.users.end_sessions(request.user, end_tokens=ends_tokens, authorize=authorize)
    end_sessions_of(gateway, user, caller=session)
    if ends_tokens:
        await gateway.personal_tokens.forget_void(gateway.users)


def end_sessions_of(gateway: Gateway, user: User, caller: Session) -> None:
    """Their logins are void already. This closes the connections, except the one that waits for the response."""
    for session in gateway.sessions.of_user(user.mark):
        session.login = None
        session.ended_login = True
        groups.leave_all(gateway, session)
        if session is not caller:
            session.end()


def _authorize_change(gateway: Gateway, login: Login | None) -> Authorize:
    """Users may end their own sessions; otherwise a manager must have all rights of the user to be changed."""

    def authorize(user: User) -> None:
        caller = _manager(gateway, login, of=user)
        refuse_changing_root(caller, user)
        if caller is not user:
            refuse_escalation(caller, user.permissions, None)

    return authorize


def _manager(gateway: Gateway, login: Login | None, of: User | None = None) -> User:
    """Returns the caller if they may manage users, or are the user `of`. The table of commands has checked that
    already, before the command had to wait."""
    caller = current_user(gateway, login)
    may_manage = caller.permissions is not None and may.manage_users(caller.permissions, 0, 0)
    if not may_manage and caller is not of:
        raise CommandError(Code.UNAUTHORIZED, f"user {caller.username!r} may not manage users")
    return caller


def _info(user: User) -> responses.UserInfo:
    return responses.UserInfo(user.id, user.created_at, user.status, user.username)


def _details(user: User) -> responses.UserDetails:
    return responses.UserDetails(_info(user), user.permissions)
