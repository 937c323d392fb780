"""The requests of a connection that wait for their responses, in the order in which they were sent.

Connections own one and move the bytes; it encodes the requests, and settles the futures that callers wait for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from whippet.app.client.connection import Disconnected
from whippet.app.client.wires import Prepared, Wire
from whippet.app.commands.requests import Request
from whippet.app.errors import CommandError
from whippet.storage.batch import Readable


class Outstanding:
    """Used on the event loop only."""

    def __init__(self, address: str, wire: Wire) -> None:
        self.wire = wire
        self.reason: str | None = None
        """Why the connection has ended; the first that is known counts."""
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._pending: deque[tuple[Prepared, asyncio.Future[Any]]] = deque()
        """The oldest first."""

    def __len__(self) -> int:
        return len(self._pending)

    def begin(self, request: Request, *, is_open: bool) -> tuple[asyncio.Future[Any], list[Readable]]:
        """Returns the future of a request and the frame to send, in buffers: none if the future has failed already."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if not is_open:
            future.set_exception(self.disconnected())
            return future, []
        try:
            prepared = self.wire.prepare(request)
        except CommandError as refused:
            future.set_exception(refused)
            return future, []
        buffers = self.wire.frame(prepared)
        # The body is not needed any more.
        self._pending.append((prepared._replace(body=[]), future))
        return future, buffers

    def receive(self, head: memoryview, body: memoryview) -> None:
        """Settles the oldest request with its response, which is copied."""
        if not self._pending:
            self.end_because(self.wire.unsolicited(head))
            return
        prepared, future = self._pending.popleft()
        if future.done():
            return
        try:
            future.set_result(self.wire.decode_response(prepared, head, body))
        except CommandError as refused:
            future.set_exception(refused)

    def end_because(self, reason: str) -> None:
        self.reason = self.reason or reason

    def fail(self) -> None:
        """The connection has ended, and with it all requests."""
        pending, self._pending = self._pending, deque()
        for _, future in pending:
            if not future.done():
                future.set_exception(self.disconnected())

    def disconnected(self) -> Disconnected:
        return disconnected(self._address, self.reason)


def disconnected(address: str, reason: str | None) -> Disconnected:
    return Disconnected(detail=f"the connection to {address} is closed: {reason or 'it was ended'}")
