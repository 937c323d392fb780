"""What the HTTP/1.1 connections of one listener share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.types import ASGIApp

from whippet.app.config.formats import Address
from whippet.app.config.listeners import HttpLimits
from whippet.transports.admission.budgets import Budgets
from whippet.transports.connections import ConnectionLimit
from whippet.transports.http.serving.repeated_heads import RepeatedHeads

if TYPE_CHECKING:
    from whippet.transports.http.serving.protocol import Protocol
    from whippet.transports.websocket.listener import WebSockets


class Listener:
    def __init__(self, limits: HttpLimits, address: Address) -> None:
        self.limits = limits
        self.address = address
        self.application: ASGIApp | None = None
        """Replaces the application with which the server was started."""
        self.connections: set[Protocol] = set()
        self.http3_connections = 0
        """The number of HTTP/3 connections, which count towards the same limit."""
        self.websockets: WebSockets | None = None
        """Accepts upgrades to WebSocket; None if upgrades are ignored."""
        self.budgets: Budgets | None = None
        """Overdue reservations are reclaimed in the same sweep."""
        self.heads = RepeatedHeads()
        self._limit = ConnectionLimit("http.limits.connections", limits.connections)
        self._common_headers: list[tuple[bytes, bytes]] = []
        self._encoded_headers = b""

    def has_room(self, more: int = 0) -> bool:
        return self._limit.allows_one_more(len(self.connections) + self.http3_connections + more)

    def encoded(self, common_headers: list[tuple[bytes, bytes]]) -> bytes:
        """Encodes the headers of all responses, which uvicorn replaces every second."""
        if common_headers is not self._common_headers:
            self._common_headers = common_headers
            self._encoded_headers = b"".join([b"%b: %b\r\n" % header for header in common_headers])
        return self._encoded_headers

    def sweep(self, now: float) -> None:
        for connection in list(self.connections):
            connection.check(now)
        if self.budgets is not None:
            self.budgets.reclaim(now)
