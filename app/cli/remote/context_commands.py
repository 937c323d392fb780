"""`whippet context`: named servers. A context with a user but without a secret asks for the password."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from whippet.app.cli.remote import contexts, destination, rows, secret_input
from whippet.app.cli.remote.failures import Failure, NotFound, UsageFailure
from whippet.app.cli.remote.framework import Local
from whippet.app.cli.remote.output import Done

Name = Annotated[str, typer.Argument(metavar="NAME", help="the name of the context")]
MaybeName = Annotated[str | None, typer.Argument(metavar="NAME", help="default: the one in use")]
Address = Annotated[
    str,
    typer.Option("--server", metavar="URL", help="its connection string, such as iggy://host:8090, without secrets"),
]
Username = Annotated[str | None, typer.Option("--username", "-u", help="the user")]
PasswordFile = Annotated[
    str | None, typer.Option(metavar="FILE", help="keep the password in this file's first line; `-` is standard input")
]
TokenFile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="keep the personal access token in this file's first line; `-` is standard input"
    ),
]


def create(
    on: Local,
    name: Name,
    server: Address = destination.DEFAULT,
    username: Username = None,
    password_file: PasswordFile = None,
    token_file: TokenFile = None,
) -> Done:
    """The first context is in use at once. `whippet login` gives it a token."""
    from whippet.app.client.address import parse  # noqa: PLC0415 -- not for --help

    if not name or "/" in name or not name.isprintable():
        raise UsageFailure(f"{name!r} cannot be the name of a context: it has slashes, control characters, or nothing")
    found = destination.without_secrets(server, "--server")
    try:
        parse(found.server)
    except ValueError as error:
        raise UsageFailure(f"--server {found.server}: {error}") from None
    if token_file and (username or password_file):
        raise UsageFailure("--token-file excludes --username and --password-file")
    if password_file and not username:
        raise UsageFailure("--password-file needs --username")
    context = contexts.Context(
        found.server,
        username,
        password=secret_input.read_file(password_file) if password_file else None,
        token=secret_input.read_file(token_file) if token_file else None,
    )
    with contexts.changing() as known:
        if name in known.contexts:
            raise Failure(f"there is a context {name!r}; delete it first with `whippet context delete {name}`")
        contexts.put(known, name, context)
        known.current = known.current or name
    return Done(f"created context {name}")


def list_all(on: Local) -> list[rows.Context]:
    known = contexts.read()
    return [_row(name, context, known) for name, context in sorted(known.contexts.items())]


def show(on: Local, name: MaybeName = None) -> rows.Context:
    known = contexts.read()
    wanted = known.current if name is None else name
    if wanted is None:
        raise NotFound("no context is in use; `whippet context create` makes one")
    if wanted not in known.contexts:
        raise _missing(wanted)
    return _row(wanted, known.contexts[wanted], known)


def use(on: Local, name: Name) -> Done:
    with contexts.changing() as known:
        if name not in known.contexts:
            raise _missing(name)
        known.current = name
    return Done(f"context {name} is in use")


def delete(on: Local, name: Name) -> Done:
    """A token that `whippet login` has created stays on the server until it expires; `whippet logout` deletes it."""
    with contexts.changing() as known:
        if name not in known.contexts:
            raise _missing(name)
        contexts.forget_secret(known, name)
        del known.contexts[name]
        if known.current == name:
            known.current = None
    return Done(f"deleted context {name}")


def _missing(name: str) -> NotFound:
    return NotFound(f"there is no context {name!r}; `whippet context list` shows those that there are")


def _row(name: str, context: contexts.Context, known: contexts.Contexts) -> rows.Context:
    secret = "keyring" if context.in_keyring else "file" if context.password or context.token else "none"
    return rows.Context(name, context.server, context.username, secret, name == known.current)


def without_secret(context: contexts.Context) -> contexts.Context:
    return msgspec.structs.replace(context, password=None, token=None, token_name=None, in_keyring=False)
