"""`whippet login` and `logout`: a session is a personal access token, which the server forgets after a while.

The token is kept with the context in use. If there is none, `login` creates the context `default`.
"""

from __future__ import annotations

import os
import secrets
from typing import Annotated

import msgspec
import typer

from whippet.app.cli.remote import contexts, destination
from whippet.app.cli.remote.arguments import expiry
from whippet.app.cli.remote.context_commands import without_secret
from whippet.app.cli.remote.failures import Failure, UsageFailure
from whippet.app.cli.remote.framework import Located, connect
from whippet.app.cli.remote.output import NEVER, Done

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
    token_name = f"whippet-{os.uname().nodename[:12]}-{secrets.token_hex(4)}"
    async with await connect(found) as client:
        created = await client.create_personal_access_token(token_name, after)
    with contexts.changing() as known:
        old = known.contexts.get(name)
        if old is not None and found.context is None and old.server != found.server:
            raise Failure(
                f"the context {name!r} is for {old.server}: create one for {found.server} with "
                "`whippet context create NAME --server URL`, then log in with --context NAME"
            )
        context = contexts.Context(found.server, found.username, token=created.token, token_name=token_name)
        contexts.put(known, name, context)
        known.current = known.current or name
    return Done(f"logged in to {found.server} as {found.username or 'the owner of the token'}; context {name}")


async def logout(on: Located) -> Done:
    """Deletes the token of the session on the server, and forgets all secrets of the context."""
    named = contexts.named(on.given.context)
    if named is None:
        raise Failure("no context is in use, so nobody is logged in")
    name, context = named
    found = destination.Found(context.server, context.username, context.password, context.token)
    try:
        if context.token_name and found.has_credentials:
            async with await connect(found) as client:
                await client.delete_personal_access_token(context.token_name)
    finally:
        # Also if the server is not reachable: the secret must not stay here.
        with contexts.changing() as known:
            contexts.forget_secret(known, name)
            known.contexts[name] = without_secret(context)
    return Done(f"logged out of {context.server}")
