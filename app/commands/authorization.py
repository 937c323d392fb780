"""The user on whose behalf a command is executed. Checked again after every wait: meanwhile the user may have been
deleted, made inactive, or have lost a permission, and another user may have been given the number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whippet.app.access.permissions import Permissions, right_not_held
from whippet.app.access.users import ROOT, User
from whippet.app.errors import Code, CommandError

if TYPE_CHECKING:
    from whippet.app.gateway import Gateway
    from whippet.app.model.identity import Login


def current_user(gateway: Gateway, login: Login | None) -> User:
    user = gateway.users.by_login(login)
    if user is None:
        raise CommandError(Code.UNAUTHENTICATED)
    return user


def refuse_changing_root(caller: User, user: User) -> None:
    if user.id == ROOT and caller is not user:
        raise CommandError(Code.UNAUTHORIZED, "only the root user may change the root user")


def refuse_escalation(caller: User, before: Permissions | None, after: Permissions | None) -> None:
    """Users cannot grant or revoke rights that they do not have themselves."""
    right = right_not_held(caller.permissions, before, after)
    if right is not None:
        raise CommandError(
            Code.UNAUTHORIZED,
            f"user {caller.username!r} may not grant or revoke {right}, which they do not have themselves",
        )
