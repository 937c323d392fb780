"""Where a tail writes. Over HTTP/1.1 straight onto the connection, the same bytes for many; else as ASGI has it."""

from __future__ import annotations

import asyncio
from typing import Protocol as Interface

from starlette.types import Receive, Send

from whippet.transports.http.serving.protocol import Protocol


class TailWriter(Interface):
    is_framed: bool
    """Whether what is written has to be a chunk already, as HTTP/1.1 frames a body without a length."""

    async def write(self, octets: bytes) -> None:
        """Returns when there is room for more."""

    def beat(self, octets: bytes) -> None:
        """Something short, while nothing else is being written."""

    @property
    def untaken_bytes(self) -> int:
        """Of what was written, as far as that can be seen."""

    def can_say_more(self) -> bool:
        """Whether last words may follow. From now on what is written is buffered, however much that is."""


class ConnectionWriter:
    is_framed = True

    def __init__(self, connection: Protocol) -> None:
        self._connection = connection
        self.push = connection.write_chunk
        """Without waiting for room; says whether there is some."""
        self.room = connection.drain

    async def write(self, octets: bytes) -> None:
        self._connection.write_chunk(octets)
        await self._connection.drain()

    def beat(self, octets: bytes) -> None:
        self._connection.write_chunk(octets)

    @property
    def untaken_bytes(self) -> int:
        return self._connection.untaken_bytes

    def can_say_more(self) -> bool:
        self._connection.make_room()
        return True


class AsgiWriter:
    """Nothing can follow a write that was cut short, so a reader that has stalled is dropped without a word."""

    is_framed = False

    def __init__(self, send: Send) -> None:
        self._send = send
        self._turn = asyncio.Lock()
        self._untaken = 0
        self._beats: set[asyncio.Task[None]] = set()

    async def write(self, octets: bytes) -> None:
        async with self._turn:
            self._untaken = len(octets)
            await self._send({"type": "http.response.body", "body": octets, "more_body": True})
            self._untaken = 0

    def beat(self, octets: bytes) -> None:
        beat = asyncio.get_running_loop().create_task(self.write(octets))
        self._beats.add(beat)
        beat.add_done_callback(self._beats.discard)

    @property
    def untaken_bytes(self) -> int:
        return self._untaken

    def can_say_more(self) -> bool:
        return not self._untaken


async def until_disconnected(receive: Receive) -> None:
    """Returns when the client is not there any more."""
    while (await receive())["type"] != "http.disconnect":
        pass
