"""Accepts WebSocket connections: checks the path, enforces the connection limit, and tracks open connections.

An HTTP listener has one of these, and passes upgrade requests to it. It opens no socket itself.
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus

from starlette.types import Receive, Scope, Send

from whippet.app.errors import CommandError
from whippet.app.gateway import Gateway
from whippet.transports.admission.budgets import Budgets
from whippet.transports.admission.stall_detector import STALLED_SECONDS
from whippet.transports.connections import Connections, TrackedConnection
from whippet.transports.http.api import Api
from whippet.transports.http.errors import RETRY_AFTER, Refused, not_found, refusal_response
from whippet.transports.http.forms import parameters
from whippet.transports.http.forms.responses import send_response
from whippet.transports.http.serving import authentication
from whippet.transports.websocket import handshake
from whippet.transports.websocket.binary_connection import BinaryConnection
from whippet.transports.websocket.channel import Channel
from whippet.transports.websocket.commands import Commands
from whippet.transports.websocket.handshake import Upgrade
from whippet.transports.websocket.text_connection import TextConnection

_log = logging.getLogger(__name__)

BINARY_PATH, CHANNEL_PATH = "/", "/ws"
PROTOCOL = "whippet"
"""A browser that offers protocols expects one of them in the response."""
TOKEN = "bearer."
"""The prefix of an offered protocol that carries a token."""
CHECK_SECONDS = 1.0


async def upgrade_required(scope: Scope, receive: Receive, send: Send) -> None:
    """The application of a listener that serves WebSocket alone."""
    headers = ((b"upgrade", b"websocket"), (b"connection", b"Upgrade"))
    refused = Refused(HTTPStatus.UPGRADE_REQUIRED, "This port speaks WebSocket", headers=headers)
    await send_response(refusal_response(refused), scope, send)


class WebSockets(Connections[TrackedConnection]):
    """Created on a running event loop; ended by `stop`."""

    def __init__(
        self,
        gateway: Gateway,
        budgets: Budgets | None = None,
        api: Api | None = None,
        *,
        stalled_seconds: float = STALLED_SECONDS,
    ) -> None:
        """Without an `api` there is no channel for browsers."""
        super().__init__(gateway, budgets, stalled_seconds=stalled_seconds)
        self._stopping = False
        self._commands = None if api is None else Commands(api)
        self._channels: set[Channel] = set()
        self._checking: asyncio.Task[None] | None = None
        self.start_sweeping("websocket deadlines")

    def upgrade(self, request: Upgrade) -> tuple[bytes, asyncio.BufferedProtocol]:
        """Returns the response, and the protocol that takes over the connection."""
        if self._stopping or not self.has_room():
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "There are too many connections", headers=(RETRY_AFTER,))
        config = self.gateway.config
        if request.path == BINARY_PATH:
            return handshake.answer(request, config.http, None), BinaryConnection(self, config.websocket)
        if request.path == CHANNEL_PATH and self._commands is not None:
            authorization = _authorization(request, self._commands.api)
            return handshake.answer(request, config.http, PROTOCOL), TextConnection(self, authorization)
        raise not_found()

    # ------------------------------------------------------------------------------------------------- channels

    def open_channel(self, link: TextConnection) -> Channel:
        assert self._commands is not None
        channel = Channel(link, self._commands, self.gateway.config.websocket.channel.subscriptions)
        self._channels.add(channel)
        link.gone.add_done_callback(lambda _: self._channels.discard(channel))
        if self._checking is None:
            self._checking = asyncio.create_task(self._check(), name="websocket channels")
        return channel

    async def _check(self) -> None:
        """Checks at intervals which subscriptions may continue, as for the tails of HTTP."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            # A separate call, because local variables of a long-running task would keep objects alive.
            await self._check_all()

    async def _check_all(self) -> None:
        subscribed = [channel for channel in self._channels if channel.has_subscriptions]
        for channel in subscribed:
            await asyncio.sleep(0)
            try:
                await channel.check()
            except Exception:  # noqa: BLE001 -- logged with its trace; the others are still checked
                _log.exception("%s: cannot check the subscriptions", channel.session.address)

    async def stop(self, seconds_max: float) -> None:
        self._stopping = True
        if self._checking is not None:
            self._checking.cancel()
        await super().stop(seconds_max)


def _authorization(request: Upgrade, api: Api) -> bytes | None:
    """Returns the token of an offered protocol, of a ticket, or of the header; None: the first message signs in."""
    offered = ",".join(value.decode("latin-1") for name, value in request.headers if name == b"sec-websocket-protocol")
    for each in offered.split(","):
        if each.strip().startswith(TOKEN):
            return b"Bearer " + each.strip().removeprefix(TOKEN).encode("latin-1")
    query = request.query.encode("latin-1")
    parameters.decode_query(query, authentication.TicketQuery)
    header = request.header(b"authorization")
    if header:
        return header.encode("latin-1")
    try:
        return authentication.redeem_ticket(api, query)
    except CommandError as refused:
        raise Refused(HTTPStatus.UNAUTHORIZED, str(refused), "ticket") from None
