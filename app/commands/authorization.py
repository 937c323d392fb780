"""Who asks for a command. It is looked at again after every wait: a user may meanwhile have been deleted or made
inactive, may have lost a permission, and somebody else may have been given the user's number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whippet.app.access.permissions import Permissions, beyond
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


def refuse_changing_root(asker: User, user: User) -> None:
    if user.id == ROOT and asker is not user:
        raise CommandError(Code.UNAUTHORIZED, "only the root user may change the root user")


def refuse_escalation(asker: User, before: Permissions | None, after: Permissions | None) -> None:
    """Nobody grants or revokes what they may not do themselves."""
    right = beyond(asker.permissions, before, after)
    if right is not None:
        raise CommandError(
            Code.UNAUTHORIZED,
            f"user {asker.username!r} may not grant or revoke {right}, which they do not have themselves",
        )
