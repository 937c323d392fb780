"""The interface of the client's transports: requests are sent at any time, responses arrive in the same order."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from whippet.app.commands.requests import Request
from whippet.app.errors import Code, CommandError


class Disconnected(CommandError):
    """The connection is lost. Whether a request without a response was executed is unknown."""

    def __init__(self, code: Code = Code.DISCONNECTED, detail: str | None = None) -> None:
        super().__init__(code, detail)


class Connection(Protocol):
    @property
    def is_open(self) -> bool:
        """True while a request can be sent."""

    @property
    def transport(self) -> str:
        """The name of the transport, as in a connection string."""

    def request(self, request: Request) -> asyncio.Future[Any]:
        """Sends at once and waits for nothing. The future gets the response, a CommandError, or a Disconnected.

        Cancelling the future ends the waiting, not the request.
        """

    async def drained(self) -> None:
        """Returns when most of what was sent has left the buffers: for callers that send much without waiting for
        responses."""

    async def close(self) -> None:
        """Idempotent. Requests without a response end as Disconnected."""
