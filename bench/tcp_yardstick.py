"""The yardstick for TCP: what the same event loop achieves when it does next to nothing.

It reads frames as the server does, writes the bytes of each to one file, and responds with eight zeros: a success
without a payload. With `sync` it writes everything that arrived in one turn of the loop, syncs once, and then responds.
The file only grows, as the server's does: both have to allocate space. `python -m whippet.bench.tcp_yardstick FILE
[sync]` prints its port and runs until SIGTERM.

`python -m whippet.bench.tcp_yardstick FILE send BYTES COUNT` is the counterpart for reading: it fills the file with
COUNT times BYTES bytes, and responds to each frame with the next BYTES bytes, read from the file.

`python -m whippet.bench.tcp_yardstick FILE answer` writes nothing: it reads frames and responds.
"""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import sys
from typing import cast

import uvloop

ANSWER = bytes(8)
HEADER = struct.Struct("<II")
SCRATCH = memoryview(bytearray(256 << 10))
LENGTH = struct.Struct("<I")


class File:
    def __init__(self, path: str, sync: bool) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self._sync = sync
        self._waiting: list[tuple[bytes, asyncio.Transport]] = []

    def take(self, frame: memoryview, transport: asyncio.Transport) -> None:
        if not self._sync:
            os.write(self._handle, frame)
            transport.write(ANSWER)
            return
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._write)
        self._waiting.append((bytes(frame), transport))

    def _write(self) -> None:
        waiting, self._waiting = self._waiting, []
        os.write(self._handle, b"".join([frame for frame, _ in waiting]))
        os.fdatasync(self._handle)
        for _, transport in waiting:
            transport.write(ANSWER)


class Sender:
    """Responds to read requests."""

    def __init__(self, path: str, size: int, count: int) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self._size = size
        self._total = size * count
        self._position = 0
        self._header = HEADER.pack(0, size)
        chunk = os.urandom(size)
        for _ in range(count):
            os.write(self._handle, chunk)

    def take(self, frame: memoryview, transport: asyncio.Transport) -> None:
        octets = os.pread(self._handle, self._size, self._position)
        self._position = (self._position + self._size) % self._total
        transport.writelines((self._header, octets))


class Nothing:
    """Only responds."""

    def take(self, frame: memoryview, transport: asyncio.Transport) -> None:
        transport.write(ANSWER)


class Receiver(asyncio.BufferedProtocol):
    def __init__(self, file: File | Sender | Nothing) -> None:
        self._file = file
        self._transport = cast(asyncio.Transport, None)
        self._part = b""
        self._frame = memoryview(b"")
        self._filled = 0
        """How much of an incomplete frame has arrived; 0 if the next read starts a frame."""
        self._kept = memoryview(bytearray())
        """A buffer for frames, as large as the largest so far."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frame[self._filled :] if self._filled else SCRATCH

    def buffer_updated(self, nbytes: int) -> None:
        if self._filled:
            self._filled += nbytes
            if self._filled == len(self._frame):
                self._filled = 0
                self._file.take(self._frame, self._transport)
            return
        data = SCRATCH[:nbytes]
        if self._part:
            data = memoryview(self._part + bytes(data))
            self._part = b""
        while data:
            if len(data) < 4:
                self._part = bytes(data)
                return
            size = 4 + LENGTH.unpack_from(data)[0]
            if len(data) < size:
                if len(self._kept) < size:
                    self._kept = memoryview(bytearray(size))
                self._frame, self._filled = self._kept[:size], len(data)
                self._frame[: len(data)] = data
                return
            self._file.take(data[:size], self._transport)
            data = data[size:]


async def _serve(path: str, *mode: str) -> None:
    loop = asyncio.get_running_loop()
    file: File | Sender | Nothing
    if mode[:1] == ("send",):
        file = Sender(path, int(mode[1]), int(mode[2]))
    else:
        file = Nothing() if mode == ("answer",) else File(path, mode == ("sync",))
    server = await loop.create_server(lambda: Receiver(file), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    terminated = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, terminated.set)
    await terminated.wait()


if __name__ == "__main__":
    uvloop.run(_serve(*sys.argv[1:]))
