"""`whippet pat`: the personal access tokens of the user who is logged in."""

from __future__ import annotations

from typing import Annotated

import typer

from whippet.app.cli.remote import rows
from whippet.app.cli.remote.arguments import Expiry, expiry
from whippet.app.cli.remote.framework import Online
from whippet.app.cli.remote.output import NEVER, Done

Name = Annotated[str, typer.Argument(metavar="NAME", help="the name of the token")]


async def create(on: Online, name: Name, expires: Expiry = None) -> rows.RawToken:
    """The token is shown once. Without EXPIRY it does not expire."""
    after = expiry(expires)
    created = await on.client.create_personal_access_token(name, 0 if after == NEVER else after)
    return rows.RawToken(name, created.token)


async def delete(on: Online, name: Name) -> Done:
    await on.client.delete_personal_access_token(name)
    return Done(f"deleted token {name}")


async def list_all(on: Online) -> list[rows.Token]:
    return [rows.Token(each.name, each.expires_at) for each in await on.client.get_personal_access_tokens()]
