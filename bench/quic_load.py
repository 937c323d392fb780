"""The load generator for QUIC: a client without pacing, with one stream per request.

It uses the parts of the server that either end of a connection can use, so that it is about as fast as the server:
several datagrams in one call, and the short paths beside aioquic. `python -m whippet.bench.quic_load` runs jobs as
described in load.py. The same bytes are sent repeatedly.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time

import uvloop
from aioquic import tls
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration

from whippet.app.client.wires import WIRES, Prepared
from whippet.bench.load import Exchange, Outcome, Refused, prepare_exchange, prepare_login, run_jobs
from whippet.bench.quic_unpaced import unpace
from whippet.transports.datagrams import BUFFER_BYTES, Datagrams, PeerAddress
from whippet.transports.quic_sending import SendingConnection

OVERTIME_S = 60
ACKNOWLEDGED_AT_ONCE = 10
"""So many datagrams are acknowledged at once, fewer a little later, or together with a request."""


class ClientConnection(SendingConnection):
    """The client's end of a connection."""

    @classmethod
    def create(cls, datagram_bytes: int) -> ClientConnection:
        configuration = QuicConfiguration(
            verify_mode=ssl.CERT_NONE, server_name="localhost", max_datagram_size=datagram_bytes, idle_timeout=30.0
        )
        connection = cls(configuration=configuration)
        unpace(connection)
        return connection

    def acknowledge(self, now: float) -> None:
        space = self._spaces[tls.Epoch.ONE_RTT]
        if space.ack_at is not None:
            space.ack_at = now


class Requester:
    """A connection that sends the next request when it gets a response."""

    def __init__(self, place: tuple[str, int], datagram_bytes: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._quic = ClientConnection.create(datagram_bytes)
        link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        link.setblocking(False)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            link.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
        link.bind(("127.0.0.1", 0))
        self._datagrams = Datagrams(link, self._receive, self._on_batch_end)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._unacknowledged = 0
        self._frame = b""
        self._left = self._answered = self._count = 0
        self._lengths: dict[int, int] = {}
        self.received = 0
        self.connected: asyncio.Future[None] = self._loop.create_future()
        self.done: asyncio.Future[None] = self._loop.create_future()
        self._quic.connect(place, time.monotonic())
        self._transmit()

    async def ask(self, frame: bytes, count: int, in_flight: int) -> None:
        self._frame, self._left, self._count, self._answered = frame, count, count, 0
        self.done = self._loop.create_future()
        for _ in range(min(in_flight, count)):
            self._next()
        self._transmit()
        await self.done

    def _next(self) -> None:
        self._left -= 1
        self._quic.send_stream_data(self._quic.get_next_available_stream_id(), self._frame, end_stream=True)

    # -------------------------------------------------------------------------------------------------- datagrams, time

    def _receive(self, datagrams: list[bytes], peer: PeerAddress) -> None:
        self._unacknowledged += len(datagrams)
        self._quic.receive_datagrams(datagrams, peer, time.monotonic())

    def _on_batch_end(self) -> None:
        left = self._left
        self._handle_events()
        if self._unacknowledged >= ACKNOWLEDGED_AT_ONCE or self._left < left:
            self._unacknowledged = 0
            self._quic.acknowledge(time.monotonic())
        self._transmit()

    def _handle_events(self) -> None:
        while (event := self._quic.next_event()) is not None:
            self._on_event(event)

    def _transmit(self) -> None:
        now = time.monotonic()
        self._quic.discard_streams()
        sent = self._quic.datagrams_to_send(now)
        if sent:
            self._datagrams.send([datagram for datagram, _ in sent], sent[0][1])
        self._set_timer(now)

    def _set_timer(self, now: float) -> None:
        at = self._quic.get_timer()
        if self._timer is not None:
            if at is not None and self._timer_at <= at:
                return
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer_at = at
            self._timer = self._loop.call_later(max(at - now, 0.001), self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        now = time.monotonic()
        if (at := self._quic.get_timer()) is not None and at <= now:
            self._quic.handle_timer(now)
            self._handle_events()
            self._transmit()
        else:
            self._set_timer(now)

    # ---------------------------------------------------------------------------------------------------------- events

    def _on_event(self, event: events.QuicEvent) -> None:
        if isinstance(event, events.StreamDataReceived):
            self._on_data(event)
        elif isinstance(event, events.HandshakeCompleted):
            self.connected.set_result(None)
        elif isinstance(event, events.ConnectionTerminated | events.StreamReset):
            self._fail(f"the server closed it: {event}")

    def _on_data(self, event: events.StreamDataReceived) -> None:
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

    def _fail(self, sentence: str) -> None:
        for waiting in (self.connected, self.done):
            if not waiting.done():
                waiting.set_exception(Refused(sentence))

    def close(self) -> None:
        self._quic.close()
        self._transmit()
        if self._timer is not None:
            self._timer.cancel()
        self._datagrams.close()
        for waiting in (self.connected, self.done):
            waiting.cancel()


def encode(wire: str, prepared: Prepared) -> bytes:
    return b"".join(WIRES[wire]().frame(prepared))


async def run(job: Exchange) -> Outcome:
    requesters: list[Requester] = []
    try:
        async with asyncio.timeout(OVERTIME_S):
            while len(requesters) < job.connections:
                requesters.append(await connect(job))
            frame = encode(job.place.wire, prepare_exchange(job))
            each = job.requests // job.connections
            start = time.perf_counter()
            await asyncio.gather(*(requester.ask(frame, each, job.in_flight) for requester in requesters))
            seconds = time.perf_counter() - start
    finally:
        for requester in requesters:
            requester.close()
    return Outcome(seconds, sum(requester.received for requester in requesters))


async def connect(job: Exchange) -> Requester:
    """Connects and logs in."""
    requester = Requester(("127.0.0.1", job.place.port), job.datagram_bytes)
    try:
        await requester.connected
        if job.place.token:
            wire = job.place.wire
            await requester.ask(encode(wire, prepare_login(job.place, WIRES[wire]())), 1, 1)
        requester.received = 0
    except BaseException:
        requester.close()
        raise
    return requester


if __name__ == "__main__":
    run_jobs(Exchange, lambda job: uvloop.run(run(job)))
