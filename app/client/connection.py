"""What every transport of the client is: requests go in at any time, answers come out in the same order."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from whippet.app.commands.requests import Request
from whippet.app.errors import Code, CommandError


class Disconnected(CommandError):
    """The connection is gone. Whether a request that was under way has been carried out is not known."""

    def __init__(self, code: Code = Code.DISCONNECTED, detail: str | None = None) -> None:
        super().__init__(code, detail)


class Connection(Protocol):
    @property
    def is_open(self) -> bool:
        """Whether a request can be made."""

    @property
    def transport(self) -> str:
        """The name of the transport, as in a connection string."""

    def request(self, request: Request) -> asyncio.Future[Any]:
        """Sends at once and waits for nothing. The future has the answer, a CommandError, or a Disconnected.

        Cancelling the future ends the waiting, not the request.
        """

    async def drained(self) -> None:
        """Returns when most of what was sent is on its way: for whoever sends much without waiting for answers."""

    async def close(self) -> None:
        """Idempotent. Requests that have no answer yet end as Disconnected."""
