"""Who comes in over WebSocket: what path he asks for, whether there is room, and everyone who is there.

An HTTP listener has one of these, and hands it whoever asks for an upgrade. It listens on nothing itself.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from starlette.types import Receive, Scope, Send

from app.gateway import Gateway
from transports.http.answering import send_answer
from transports.http.errors import RETRY_AFTER, Refused, not_found, of_refusal
from transports.tcp import STALLED_SECONDS, Connections, FramesBudget
from transports.websocket import handshake
from transports.websocket.binary import BinaryConnection
from transports.websocket.handshake import Upgrade

BINARY_PATH = "/"


async def upgrade_required(scope: Scope, receive: Receive, send: Send) -> None:
    """The application of a listener that has nothing but WebSocket."""
    headers = ((b"upgrade", b"websocket"), (b"connection", b"Upgrade"))
    refused = Refused(HTTPStatus.UPGRADE_REQUIRED, "This port speaks WebSocket", headers=headers)
    await send_answer(of_refusal(refused), send)


class WebSockets(Connections):
    """Made on a running loop; ended by `stop`."""

    def __init__(
        self, gateway: Gateway, budget: FramesBudget | None = None, *, stalled_seconds: float = STALLED_SECONDS
    ) -> None:
        super().__init__(gateway, budget, stalled_seconds=stalled_seconds)
        self._stopping = False
        self.start_sweeping("websocket deadlines")

    def upgrade(self, asked: Upgrade) -> tuple[bytes, asyncio.BufferedProtocol]:
        """What is answered, and who goes on with the connection."""
        if self._stopping or not self.has_room():
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "There are too many connections", headers=(RETRY_AFTER,))
        config = self.gateway.config
        if asked.path == BINARY_PATH:
            return handshake.answer(asked, config.http.cors, None), BinaryConnection(self, config.websocket)
        raise not_found()

    async def stop(self, seconds_max: float) -> None:
        self._stopping = True
        await super().stop(seconds_max)
