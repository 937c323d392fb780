"""`whippet user`: creates, shows, changes and deletes users. Passwords are never arguments."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from whippet.app.cli.remote import rows, secret_input
from whippet.app.cli.remote.arguments import User
from whippet.app.cli.remote.framework import Online, identifier, required
from whippet.app.cli.remote.output import Done

Username = Annotated[str, typer.Argument(metavar="USERNAME", help="the name of the new user")]
NewName = Annotated[str, typer.Argument(metavar="NEW_NAME", help="the new name")]
Status = Annotated[Literal["active", "inactive"], typer.Argument(metavar="STATUS", help="active or inactive")]
StatusOption = Annotated[
    Literal["active", "inactive"], typer.Option("--user-status", help="inactive users cannot log in")
]
Everywhere = Annotated[
    list[str] | None,
    typer.Option("--global-permissions", "-g", metavar="NAME,...", help="such as read_streams,poll_messages"),
]
InStreams = Annotated[
    list[str] | None,
    typer.Option(
        "--stream-permissions",
        "-s",
        metavar="STREAM:NAME,...",
        help="by ids, with topics after #, such as 1:read_stream#2:poll_messages; repeatable",
    ),
]
NewPasswordFile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="a file with the new password, `-` for standard input (default: WHIPPET_NEW_PASSWORD, or a prompt)",
    ),
]
CurrentPasswordFile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="a file with the present password (default: WHIPPET_CURRENT_PASSWORD, or a prompt)",
    ),
]


async def create(
    on: Online,
    username: Username,
    new_password_file: NewPasswordFile = None,
    user_status: StatusOption = "active",
    global_permissions: Everywhere = None,
    stream_permissions: InStreams = None,
) -> rows.UserDetails:
    from whippet.app.cli.remote.permission_texts import parse  # noqa: PLC0415 -- not for --help
    from whippet.app.model.identity import UserStatus  # noqa: PLC0415

    permissions = parse(global_permissions or (), stream_permissions or ())
    password = secret_input.password_for("New password", new_password_file, "WHIPPET_NEW_PASSWORD", twice=True)
    created = await on.client.create_user(username, password, permissions, UserStatus[user_status.upper()])
    return rows.user_details(created)


async def delete(on: Online, user: User) -> Done:
    on.confirm(f"Delete the user {user}?")
    await on.client.delete_user(identifier(user))
    return Done(f"deleted user {user}")


async def get(on: Online, user: User) -> rows.UserDetails:
    found = await on.client.get_user(identifier(user))
    return rows.user_details(required(found, f"the user {user}", "`whippet user list` shows those that there are"))


async def list_all(on: Online) -> list[rows.User]:
    return [rows.user(each) for each in await on.client.get_users()]


async def name(on: Online, user: User, new_name: NewName) -> Done:
    await on.client.update_user(identifier(user), username=new_name)
    return Done(f"renamed user {user} to {new_name}")


async def status(on: Online, user: User, status: Status) -> Done:
    from whippet.app.model.identity import UserStatus  # noqa: PLC0415

    await on.client.update_user(identifier(user), status=UserStatus[status.upper()])
    return Done(f"user {user} is {status}")


async def password(
    on: Online,
    user: User,
    current_password_file: CurrentPasswordFile = None,
    new_password_file: NewPasswordFile = None,
) -> Done:
    """All sessions of the user end."""
    current = secret_input.password_for(
        f"Present password of {user}", current_password_file, "WHIPPET_CURRENT_PASSWORD"
    )
    new = secret_input.password_for("New password", new_password_file, "WHIPPET_NEW_PASSWORD", twice=True)
    await on.client.change_password(identifier(user), current, new)
    return Done(f"changed the password of user {user}")


async def permissions(
    on: Online, user: User, global_permissions: Everywhere = None, stream_permissions: InStreams = None
) -> Done:
    """Replaces all permissions of the user; without any, all are removed."""
    from whippet.app.cli.remote.permission_texts import parse  # noqa: PLC0415

    granted = parse(global_permissions or (), stream_permissions or ())
    if granted is None:
        on.confirm(f"Remove all permissions of the user {user}?")
    await on.client.update_permissions(identifier(user), granted)
    return Done(f"{'replaced' if granted else 'removed'} the permissions of user {user}")
