"""`whippet login` and `logout`: a session is a personal access token, which the server forgets after a while.

The token is kept with the context in use. If there is none, `login` creates the context `default`.
"""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from whippet.app.cli.remote import contexts, destination
from whippet.app.cli.remote.arguments import expiry
from whippet.app.cli.remote.context_commands import without_secret
from whippet.app.cli.remote.failures import Failure, UsageFailure
from whippet.app.cli.remote.framework import Located, connect
from whippet.app.cli.remote.output import NEVER, Done

if TYPE_CHECKING:
    from whippet.app.client import Client

DEFAULT_NAME = "default"
DEFAULT_EXPIRY = "1d"
TokenExpiry = Annotated[
    list[str] | None,
    typer.Argument(metavar="EXPIRY", help=f"how long the session lasts, such as 8h or 7d (default: {DEFAULT_EXPIRY})"),
]


async def login(on: Located, lasts: TokenExpiry = None) -> Done:
    """Asks for user and password unless they are given, and keeps a token instead of the password."""
    after = expiry(lasts or [DEFAULT_EXPIRY])
    if after in (0, NEVER):
        raise UsageFailure("a session must end; for a token that does not, use `whippet pat create`")
    found = destination.find(on.given, asks=False)
    if found.token is not None and not on.given.token_file:
        # A session cannot renew itself: its token may be over.
        found = msgspec.structs.replace(found, token=None)
    found = destination.complete(found)
    name = found.context or DEFAULT_NAME
    _refuse_another_server(contexts.read(), name, found)
    token_name = f"whippet-{os.uname().nodename[:12]}-{secrets.token_hex(4)}"
    async with await connect(found) as client:
        created = await client.create_personal_access_token(token_name, after)
        with contexts.changing() as known:
            old = known.contexts.get(name)
            context = contexts.Context(found.server, found.username, token=created.token, token_name=token_name)
            contexts.put(known, name, context)
            known.current = known.current or name
        if old is not None and old.token_name and (old.server, old.username) == (found.server, found.username):
            await _delete(client, old.token_name)
    return Done(f"logged in to {found.server} as {found.username or 'the owner of the token'}; context {name}")


def _refuse_another_server(known: contexts.Contexts, name: str, found: destination.Found) -> None:
    old = known.contexts.get(name)
    if old is not None and found.context is None and old.server != found.server:
        raise Failure(
            f"the context {name!r} is for {old.server}: create one for {found.server} with "
            "`whippet context create NAME --server URL`, then log in with --context NAME"
        )


async def _delete(client: Client, token_name: str) -> None:
    """Deletes the token of an earlier session, unless the server has forgotten it already."""
    from whippet.app.error_codes import Code  # noqa: PLC0415
    from whippet.app.errors import CommandError  # noqa: PLC0415 -- loaded with the client

    try:
        await client.delete_personal_access_token(token_name)
    except CommandError as error:
        if error.code is not Code.RESOURCE_NOT_FOUND:
            raise


async def logout(on: Located) -> Done:
    """Deletes the token of the session on the server, and forgets all secrets of the context."""
    named = contexts.named(on.given.context or os.environ.get("WHIPPET_CONTEXT"))
    if named is None:
        raise Failure("no context is in use, so nobody is logged in")
    name, context = named
    found = destination.Found(context.server, context.username, context.password, context.token)
    try:
        if context.token_name and found.has_credentials:
            async with await connect(found) as client:
                await _delete(client, context.token_name)
    finally:
        # Also if the server is not reachable: the secret must not stay here.
        with contexts.changing() as known:
            contexts.forget_secret(known, name)
            known.contexts[name] = without_secret(context)
    return Done(f"logged out of {context.server}")
