"""Completes names of streams, topics, groups, users and contexts. It never asks, and never complains: the person is
still typing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from whippet.app.cli.remote import contexts, destination
from whippet.app.cli.remote.failures import Failure

if TYPE_CHECKING:
    from whippet.app.client import Client

DEADLINE_S = 2


def streams(ctx: typer.Context, incomplete: str) -> list[str]:
    return _starting(incomplete, _asked(ctx, lambda client: client.get_streams()))


def topics(ctx: typer.Context, incomplete: str) -> list[str]:
    stream = _identifier(ctx, "stream")
    return _starting(incomplete, _asked(ctx, lambda client: client.get_topics(stream)))


def groups(ctx: typer.Context, incomplete: str) -> list[str]:
    place = _identifier(ctx, "stream"), _identifier(ctx, "topic")
    return _starting(incomplete, _asked(ctx, lambda client: client.get_consumer_groups(*place)))


def users(ctx: typer.Context, incomplete: str) -> list[str]:
    return _starting(incomplete, _asked(ctx, lambda client: client.get_users()))


def places(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completes `stream/topic`."""
    stream, slash, _ = incomplete.partition("/")
    if not slash:
        return [f"{name}/" for name in streams(ctx, incomplete)]
    found = _asked(ctx, lambda client: client.get_topics(stream))
    return _starting(incomplete, [f"{stream}/{name}" for name in found])


def context_names(incomplete: str) -> list[str]:
    try:
        return _starting(incomplete, sorted(contexts.read().contexts))
    except (Failure, OSError):
        return []


def _starting(incomplete: str, names: list[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _identifier(ctx: typer.Context, name: str) -> int | str:
    from whippet.app.cli.remote.framework import identifier  # noqa: PLC0415 -- it imports this module's users

    return identifier(str(ctx.params.get(name) or ""))


def _asked(ctx: typer.Context, query: Callable[[Client], Any]) -> list[str]:
    """Returns the names in the response of a server; none if there is any trouble."""
    from whippet.app.cli.remote.framework import connect  # noqa: PLC0415
    from whippet.app.errors import CommandError  # noqa: PLC0415

    given = destination.Given(
        **{name: ctx.params.get(f"common_{name}") for name in destination.Given.__struct_fields__}
    )

    async def ask() -> list[str]:
        found = destination.find(given, asks=False)
        async with asyncio.timeout(DEADLINE_S), await connect(found) as client:
            return [getattr(each, "username", None) or each.name for each in await query(client)]

    try:
        return asyncio.run(ask())
    except (Failure, CommandError, TimeoutError, OSError):
        return []
