"""Who puts load on a QUIC server or on its yardstick, with aioquic's client, unpaced: a stream a request.

`python -m whippet.bench.quic_load` reads a job from each line of its input and prints its outcome, as bench/load.py
does for TCP. The same bytes go out again and again; answers are counted and thrown away.
"""

from __future__ import annotations

import asyncio
import gc
import ssl
import sys
import time
from typing import Any

import msgspec
import uvloop
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

from whippet.app.client.wires import WIRES, Prepared
from whippet.app.commands import requests
from whippet.bench.load import Outcome, Place, Refused, logging_in, sending
from whippet.bench.quic_unpaced import unpace

OVERTIME_S = 60


class QuicJob(msgspec.Struct, frozen=True):
    """Sends of `messages` payloads of `payload` bytes; polls of so many messages where there is no payload; pings where
    there are no messages."""

    place: Place
    stream: int
    topic: int
    messages: int
    payload: int
    requests: int
    in_flight: int = 1
    datagram_bytes: int = 1200


class Requester(QuicConnectionProtocol):
    """A connection that asks again when it is answered."""

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
            self._fail(f"the server has ended it: {event}")

    def _fail(self, sentence: str) -> None:
        if not self.done.done():
            self.done.set_exception(Refused(sentence))


def whole(wire: str, prepared: Prepared) -> bytes:
    return b"".join(WIRES[wire]().frame(prepared))


async def run(job: QuicJob) -> Outcome:
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
            await requester.ask(whole(wire, logging_in(job.place, WIRES[wire]())), 1, 1)
        if not job.messages:
            frame = whole(wire, WIRES[wire]().prepare(requests.Ping()))
        elif job.payload:
            frame = whole(wire, sending(wire, job.stream, job.topic, job.messages, job.payload))
        else:
            consumer, strategy = (
                requests.Consumer(requests.ConsumerKind.CONSUMER, 1),
                requests.Strategy(requests.StrategyKind.FIRST),
            )
            poll = requests.PollMessages(consumer, job.stream, job.topic, 0, strategy, job.messages, False)
            frame = whole(wire, WIRES[wire]().prepare(poll))
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


def main() -> None:
    gc.disable()
    decoder = msgspec.json.Decoder(QuicJob)
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(run(decoder.decode(line)))) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
