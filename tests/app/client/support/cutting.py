"""A proxy between a client and a server that cuts connections after so many bytes, in one direction or the other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from random import Random


class Cutting:
    """Forwards to `port`. Each connection ends after a random number of bytes, up to `bytes_max`; 0 cuts nothing."""

    def __init__(self, port: int, chance: Random) -> None:
        self.target = port
        self.port = 0
        self.bytes_max = 0
        self.cuts = 0
        self._chance = chance
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        left = self._chance.randint(1, self.bytes_max) if self.bytes_max else None
        there = asyncio.create_task(self._pump(reader, far_writer, left))
        back = asyncio.create_task(self._pump(far_reader, writer, None if self._chance.random() < 0.5 else left))
        self._tasks |= {there, back}
        await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
        for task, end in ((there, far_writer), (back, writer)):
            task.cancel()
            self._tasks.discard(task)
            end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: int | None) -> None:
        with contextlib.suppress(ConnectionError):
            while octets := await reader.read(1 << 16):
                if left is not None and len(octets) >= left:
                    self.cuts += 1
                    writer.write(octets[:left])
                    await writer.drain()
                    return
                left = None if left is None else left - len(octets)
                writer.write(octets)
                await writer.drain()


@contextlib.asynccontextmanager
async def cutting(port: int, seed: int) -> AsyncIterator[Cutting]:
    proxy = Cutting(port, Random(seed))
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
