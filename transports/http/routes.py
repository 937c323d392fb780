"""The table of HTTP routes: what is served where, by whom, and what it answers.

The application is built from it and the OpenAPI document is written from it, so that neither can know a route that
the other does not. Handlers live in a module per subject.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from transports.http import system


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """Unique; the OpenAPI operation id, which generated clients turn into a function."""
    method: str
    path: str
    summary: str
    handler: Callable[[Request], Awaitable[Response]]
    text: str
    """The plain text that a success answers."""


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        name="index",
        method="GET",
        path="/",
        summary="Name the API",
        handler=system.index,
        text="Iggy API",
    ),
    Operation(
        name="ping",
        method="GET",
        path="/ping",
        summary="Tell that the server is up and answering",
        handler=system.ping,
        text="pong",
    ),
)
