"""Writers of tails: directly onto an HTTP/1.1 connection, with the same bytes for many clients, or through ASGI."""

from __future__ import annotations

import asyncio
from typing import Protocol as Interface

from starlette.types import Send

from whippet.transports.http.serving.protocol import Protocol


class TailWriter(Interface):
    is_framed: bool
    """Whether data must be framed as a chunk, as HTTP/1.1 frames a body without a length."""

    async def write(self, octets: bytes) -> None:
        """Writes, and returns when there is room for more."""

    def write_heartbeat(self, octets: bytes) -> None:
        """Writes something short, while nothing else is being written."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes that were written and not sent yet, as far as that is known."""

    @property
    def delivered_bytes(self) -> int:
        """Bytes that have reached the client; the count may have begun before the tail."""

    def can_finish(self) -> bool:
        """Whether a last event may follow. Everything that is written from now on is buffered."""


class ConnectionWriter:
    is_framed = True

    def __init__(self, connection: Protocol) -> None:
        self._connection = connection
        self.push = connection.write_chunk
        """Writes without waiting, and returns whether there is room for more."""
        self.room = connection.drain

    async def write(self, octets: bytes) -> None:
        self._connection.write_chunk(octets)
        await self._connection.drain()

    def write_heartbeat(self, octets: bytes) -> None:
        self._connection.write_chunk(octets)

    @property
    def unsent_bytes(self) -> int:
        return self._connection.unsent_bytes

    @property
    def delivered_bytes(self) -> int:
        return self._connection.delivered_bytes

    def can_finish(self) -> bool:
        self._connection.buffer_everything()
        return True


class AsgiWriter:
    """Nothing can follow an interrupted write, so a stalled client is disconnected without a last event."""

    is_framed = False

    def __init__(self, send: Send) -> None:
        self._send = send
        self._turn = asyncio.Lock()
        self._unsent = self._sent = 0
        self._heartbeats: set[asyncio.Task[None]] = set()

    async def write(self, octets: bytes) -> None:
        async with self._turn:
            self._unsent = len(octets)
            await self._send({"type": "http.response.body", "body": octets, "more_body": True})
            self._unsent = 0
            self._sent += len(octets)

    def write_heartbeat(self, octets: bytes) -> None:
        heartbeat = asyncio.get_running_loop().create_task(self.write(octets))
        self._heartbeats.add(heartbeat)
        heartbeat.add_done_callback(self._heartbeats.discard)

    @property
    def unsent_bytes(self) -> int:
        return self._unsent

    @property
    def delivered_bytes(self) -> int:
        return self._sent

    def can_finish(self) -> bool:
        return not self._unsent
