"""`whippet mcp`: an MCP server on standard input and output, for assistants that start it as a program."""

from __future__ import annotations

import asyncio
import enum
import importlib.util
import os
import signal
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from whippet.app.cli import exit_codes
from whippet.app.cli.remote import destination
from whippet.app.cli.remote.failures import Failure, UsageFailure
from whippet.app.cli.remote.framework import Located, connect

if TYPE_CHECKING:
    from whippet.app.client import Client


class Change(enum.StrEnum):
    """What tools may be allowed to do besides reading."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


AllowWrites = Annotated[bool, typer.Option("--allow-writes", help="offer all tools, not only those that read")]
Allow = Annotated[
    list[Change] | None, typer.Option("--allow", help="offer the tools that create, update or delete; repeatable")
]
ConsumerName = Annotated[str, typer.Option("--consumer", help="the consumer whose offsets the tools read and store")]
MaxItems = Annotated[int, typer.Option("--max-items", min=1, help="how many entries a list in a response may have")]
MaxResponseSize = Annotated[
    str, typer.Option("--max-response-size", metavar="SIZE", help="how long a response may be, such as 64KiB")
]

RETRIES = 3
PAUSE_S = 0.2
"""Soon the assistant learns that the server is gone; its next call tries again."""
RESPONSE_BYTES_MIN = 4096
MISSING = (
    "the MCP server needs the package mcp: install the extra, with pip install 'whippet-gateway[mcp]' (docs/install.md)"
)


async def serve(
    on: Located,
    allow_writes: AllowWrites = False,
    allow: Allow = None,
    consumer: ConsumerName = "mcp",
    max_items: MaxItems = 100,
    max_response_size: MaxResponseSize = "64KiB",
) -> int:
    """An assistant starts this as a program and speaks the Model Context Protocol with it. It reads; tools that change
    something are offered with --allow-writes or --allow, and every change is reported on standard error."""
    if importlib.util.find_spec("mcp") is None:
        raise Failure(MISSING)
    if on.given.password_file == "-" or on.given.token_file == "-":
        raise UsageFailure("standard input belongs to the assistant: put the secret into a file or the environment")

    from mcp.server.stdio import stdio_server  # noqa: PLC0415 -- of the extra

    from whippet.app.client import Reconnect  # noqa: PLC0415 -- with numpy
    from whippet.app.mcp import protocol  # noqa: PLC0415
    from whippet.app.mcp.work import EVERYTHING, READ_ONLY, Group, Limits, Work  # noqa: PLC0415
    from whippet.app.telemetry import logs  # noqa: PLC0415

    logs.configure("info", "text")
    found = destination.find(on.given)
    limits = Limits(max_items, _bytes(max_response_size))
    async with await connect(found, Reconnect(RETRIES, PAUSE_S)) as client:
        work = Work(
            execute=client.call,
            user=found.username or await _owner(client),
            peer=f"stdio to {found.server}",
            limits=limits,
            consumer_name=consumer,
            allowed=EVERYTHING if allow_writes else READ_ONLY | {Group(each) for each in allow or ()},
        )
        server = protocol.create(lambda request: work)
        # The package reads in a thread, for which a task that is cancelled would wait until the next line.
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, os._exit, exit_codes.INTERRUPTED)
        if sys.stdin.isatty():
            on.note("this speaks JSON with an assistant that starts it; Ctrl-C ends it (docs/mcp.md)")
        code = exit_codes.DONE
        try:
            async with stdio_server() as (received, sent):
                await server.run(received, sent, server.create_initialization_options())
        except* BrokenPipeError:
            code = exit_codes.PIPE_CLOSED
    return code


async def _owner(client: Client) -> str:
    """Returns the name of the user whose token it is, for the log."""
    from whippet.app.errors import CommandError  # noqa: PLC0415

    try:
        user_id = (await client.get_me()).user_id
        user = None if user_id is None else await client.get_user(user_id)
    except CommandError:
        # An Iggy server shows users only to those who may read all, and HTTP has no such command.
        return "of the token"
    return "of the token" if user is None else user.info.username


def _bytes(text: str) -> int:
    from whippet.app.config.formats import Invalid, parse_size  # noqa: PLC0415

    try:
        size = parse_size(text)
    except Invalid:
        raise UsageFailure(f"{text!r} is no size; an example is 64KiB") from None
    if size < RESPONSE_BYTES_MIN:
        raise UsageFailure(f"--max-response-size must be at least {RESPONSE_BYTES_MIN} bytes")
    return size
