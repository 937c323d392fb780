"""The yardstick for QUIC: what aioquic without pacing achieves when it does next to nothing.

A stream is read to its end and its bytes are written to one file. The response is eight zeros and ANSWER_BYTES more
bytes. `python -m whippet.bench.quic_yardstick FILE DATAGRAM_BYTES ANSWER_BYTES WRITER` prints its port and runs until
SIGTERM. WRITER is `loop`, which writes in the event loop, or `thread`: a thread writes what has gathered, and then the
responses are sent.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import queue
import signal
import socket
import struct
import sys
import threading
from typing import Any

import uvloop
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import serve
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from whippet.bench.quic_unpaced import unpace

BUFFER_BYTES = 4 << 20
PIECES_MAX = 1_024
"""Limit for one call of `writev`."""


class Receiver(QuicConnectionProtocol):
    handle: int
    answer: bytes

    def __init__(self, quic: QuicConnection, stream_handler: Any = None) -> None:
        super().__init__(quic, stream_handler)
        unpace(quic)
        self._parts: dict[int, list[bytes]] = {}

    def quic_event_received(self, event: events.QuicEvent) -> None:
        if isinstance(event, events.StreamDataReceived):
            parts = self._parts.setdefault(event.stream_id, [])
            parts.append(event.data)
            if event.end_stream:
                self.take(event.stream_id, b"".join(self._parts.pop(event.stream_id)))

    def take(self, stream_id: int, octets: bytes) -> None:
        os.write(self.handle, octets)
        self._quic.send_stream_data(stream_id, self.answer, end_stream=True)


class Threaded(Receiver):
    """Writes in a thread."""

    asked: queue.SimpleQueue[tuple[Threaded, int, bytes]] = queue.SimpleQueue()

    def take(self, stream_id: int, octets: bytes) -> None:
        self.asked.put((self, stream_id, octets))

    @classmethod
    def write(cls, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            gathered = [cls.asked.get()]
            while not cls.asked.empty() and len(gathered) < PIECES_MAX:
                gathered.append(cls.asked.get())
            os.writev(cls.handle, [octets for _, _, octets in gathered])
            loop.call_soon_threadsafe(cls.written, gathered)

    @staticmethod
    def written(gathered: list[tuple[Threaded, int, bytes]]) -> None:
        for receiver, stream_id, _ in gathered:
            receiver._quic.send_stream_data(stream_id, receiver.answer, end_stream=True)
        for receiver in {each for each, _, _ in gathered}:
            receiver.transmit()


def certified(datagram_bytes: int) -> QuicConfiguration:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([])
    now = datetime.datetime.now(datetime.UTC)
    until = now + datetime.timedelta(days=1)
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, until)
    configuration = QuicConfiguration(is_client=False, max_datagram_size=datagram_bytes)
    configuration.certificate, configuration.private_key = made.sign(key, hashes.SHA256()), key
    return configuration


async def _serve(path: str, datagram_bytes: str, answer_bytes: str, writer: str) -> None:
    Receiver.handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    Receiver.answer = struct.pack("<II", 0, int(answer_bytes)) + os.urandom(int(answer_bytes))
    receiver = Receiver
    if writer == "thread":
        receiver = Threaded
        threading.Thread(target=Threaded.write, args=(asyncio.get_running_loop(),), daemon=True).start()
    server = await serve("127.0.0.1", 0, configuration=certified(int(datagram_bytes)), create_protocol=receiver)
    assert server._transport is not None
    link = server._transport.get_extra_info("socket")
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        # As large as the server's: losses for lack of buffer space say nothing about the library.
        link.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
    print(link.getsockname()[1], flush=True)
    terminated = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
    await terminated.wait()


if __name__ == "__main__":
    uvloop.run(_serve(*sys.argv[1:]))
