"""Users, as those see and change them who may, and as everybody sees and changes himself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whippet.app.access.users import User
from whippet.app.commands import answers, groups
from whippet.app.commands import requests as ask
from whippet.app.commands.target import Target
from whippet.app.model.options import OptionScope, refuse_any

if TYPE_CHECKING:
    from whippet.app.gateway import Gateway
    from whippet.app.model.sessions import Session


async def get_user(
    gateway: Gateway, session: Session, request: ask.GetUser, target: Target
) -> answers.UserDetails | None:
    user = gateway.users.find(request.user)
    return None if user is None else _details(user)


async def get_users(
    gateway: Gateway, session: Session, request: ask.GetUsers, target: Target
) -> tuple[answers.UserInfo, ...]:
    return tuple(_info(user) for user in gateway.users)


async def create_user(
    gateway: Gateway, session: Session, request: ask.CreateUser, target: Target
) -> answers.UserDetails:
    refuse_any(request.options, OptionScope.USER)
    user = await gateway.users.create(request.username, request.password, request.status, request.permissions)
    return _details(user)


async def delete_user(gateway: Gateway, session: Session, request: ask.DeleteUser, target: Target) -> None:
    """The tokens go first: should that fail, he is still there and can be deleted again."""
    user = gateway.users.deletable(request.user)
    await gateway.tokens.forget_user(user)
    await gateway.users.delete(user)
    end_sessions(gateway, user, asker=session)
    # One that he has made meanwhile.
    await gateway.tokens.forget_user(user)


async def update_user(gateway: Gateway, session: Session, request: ask.UpdateUser, target: Target) -> None:
    refuse_any(request.options, OptionScope.USER)
    user = await gateway.users.update(request.user, request.username, request.status)
    if not user.is_active:
        end_sessions(gateway, user, asker=session)


async def update_permissions(
    gateway: Gateway, session: Session, request: ask.UpdatePermissions, target: Target
) -> None:
    await gateway.users.change_permissions(request.user, request.permissions)


async def change_password(gateway: Gateway, session: Session, request: ask.ChangePassword, target: Target) -> None:
    await gateway.users.change_password(request.user, request.current_password, request.new_password, session.address)


def end_sessions(gateway: Gateway, user: User, asker: Session) -> None:
    """He may do nothing any more. Who has done that to himself still gets his answer."""
    for session in gateway.sessions.of_user(user.id):
        session.user_id = None
        groups.leave_all(gateway, session)
        if session is not asker:
            session.end()


def _info(user: User) -> answers.UserInfo:
    return answers.UserInfo(user.id, user.created_at, user.status, user.username)


def _details(user: User) -> answers.UserDetails:
    return answers.UserDetails(_info(user), user.permissions)
