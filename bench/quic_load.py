"""The load generator for QUIC: aioquic's client without pacing, with one stream per request.

`python -m whippet.bench.quic_load` runs jobs as described in load.py. The same bytes are sent repeatedly.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import Any

import uvloop
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

from whippet.app.client.wires import WIRES, Prepared
from whippet.bench.load import Exchange, Outcome, Refused, prepare_exchange, prepare_login, run_jobs
from whippet.bench.quic_unpaced import unpace

OVERTIME_S = 60


class Requester(QuicConnectionProtocol):
    """A connection that sends the next request when it gets a response."""

    def __init__(self, quic: QuicConnection, stream_handler: Any = None) -> None:
        super().__init__(quic, stream_handler)
        unpace(quic)
        self._frame = b""
        self._left = 0
        self._answered = 0
        self._count = 0
        self._lengths: dict[int, int] = {}
        self.received = 0
        self.done: asyncio.Future[None] = self._loop.create_future()

    async def ask(self, frame: bytes, count: int, in_flight: int) -> None:
        self._frame, self._left, self._count, self._answered = frame, count, count, 0
        self.done = self._loop.create_future()
        for _ in range(min(in_flight, count)):
            self._next()
        self.transmit()
        await self.done

    def _next(self) -> None:
        self._left -= 1
        self._quic.send_stream_data(self._quic.get_next_available_stream_id(), self._frame, end_stream=True)

    def quic_event_received(self, event: events.QuicEvent) -> None:
        if isinstance(event, events.StreamDataReceived):
            before = self._lengths.get(event.stream_id, 0)
            if not before and event.data[:4].strip(b"\0"):
                self._fail(f"a refusal: {event.data[:8].hex()}")
            self._lengths[event.stream_id] = before + len(event.data)
            if event.end_stream:
                self.received += self._lengths.pop(event.stream_id)
                self._answered += 1
                if self._left:
                    self._next()
                elif self._answered == self._count and not self.done.done():
                    self.done.set_result(None)
        elif isinstance(event, events.ConnectionTerminated | events.StreamReset):
            self._fail(f"the server closed it: {event}")

    def _fail(self, sentence: str) -> None:
        if not self.done.done():
            self.done.set_exception(Refused(sentence))


def encode(wire: str, prepared: Prepared) -> bytes:
    return b"".join(WIRES[wire]().frame(prepared))


async def run(job: Exchange) -> Outcome:
    configuration = QuicConfiguration(
        verify_mode=ssl.CERT_NONE, server_name="localhost", max_datagram_size=job.datagram_bytes, idle_timeout=30.0
    )
    transport, requester = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: Requester(QuicConnection(configuration=configuration)), local_addr=("127.0.0.1", 0)
    )
    try:
        requester.connect(("127.0.0.1", job.place.port))
        await requester.wait_connected()
        wire = job.place.wire
        if job.place.token:
            await requester.ask(encode(wire, prepare_login(job.place, WIRES[wire]())), 1, 1)
        frame = encode(wire, prepare_exchange(job))
        requester.received = 0
        start = time.perf_counter()
        async with asyncio.timeout(OVERTIME_S):
            await requester.ask(frame, job.requests, job.in_flight)
        seconds = time.perf_counter() - start
        received = requester.received
        requester.done = asyncio.get_running_loop().create_future()
        requester.close()
    finally:
        transport.close()
    return Outcome(seconds, received)


if __name__ == "__main__":
    run_jobs(Exchange, lambda job: uvloop.run(run(job)))
