"""The yardstick for WebSocket: what the `websockets` package achieves when it does next to nothing.

A binary message is written to one file, and the response is eight zeros and ANSWER_BYTES more bytes. A text message is
passed on to all other connections. `python -m whippet.bench.ws_yardstick FILE ANSWER_BYTES` prints its port and runs
until SIGTERM.
"""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import sys

import uvloop
from websockets.asyncio.server import ServerConnection, broadcast, serve
from websockets.exceptions import ConnectionClosed


async def _serve(path: str, answer_bytes: str) -> None:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    answer = struct.pack("<II", 0, int(answer_bytes)) + os.urandom(int(answer_bytes))
    there: set[ServerConnection] = set()

    async def receive(link: ServerConnection) -> None:
        there.add(link)
        try:
            async for message in link:
                if isinstance(message, str):
                    broadcast(there - {link}, message)
                else:
                    os.write(handle, message)
                    await link.send(answer)
        except ConnectionClosed:
            pass
        finally:
            there.discard(link)

    async with serve(receive, "127.0.0.1", 0, compression=None, max_size=None) as server:
        print(next(iter(server.sockets)).getsockname()[1], flush=True)
        terminated = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
        await terminated.wait()


if __name__ == "__main__":
    uvloop.run(_serve(*sys.argv[1:]))
