"""The load generator for TCP: sends prepared requests, and discards the responses.

`python -m whippet.bench.tcp_load` runs jobs as described in load.py.

Closed loop: a connection sends the next request when it gets a response. One connection uses plain blocking calls,
several use an event loop. Open loop: requests are sent when they are due, whether or not earlier ones were answered,
and the latency of a request starts when it was due. So a server that stalls cannot hide that by getting fewer requests.
"""

from __future__ import annotations

import asyncio
import select
import socket
import time
from array import array
from collections import deque
from collections.abc import Sequence
from typing import cast

import msgspec
import numpy as np
import uvloop

from whippet.app.client.wires import WIRES, Prepared, Wire
from whippet.bench.load import (
    PERCENTILES,
    Outcome,
    Place,
    Refused,
    Run,
    prepare_login,
    prepare_poll,
    prepare_send,
    run_jobs,
)
from whippet.storage.batch import Readable

SCRATCH_BYTES = 1 << 20
OVERTIME_S = 30


class Produce(msgspec.Struct, frozen=True, tag=True):
    """Sends `requests` batches of `messages` payloads of `payload` bytes over all connections. Without a payload, they
    are orders (orders.py)."""

    place: Place
    stream: int
    topic: int
    messages: int
    payload: int
    requests: int
    connections: int = 1
    in_flight: int = 1


class Consume(msgspec.Struct, frozen=True, tag=True):
    """Polls a whole partition with `messages` per poll, repeatedly: once is too short to be measured."""

    place: Place
    stream: int
    topic: int
    messages: int
    requests: int
    """The number of requests that poll the partition once."""
    times: int = 1
    connections: int = 1
    in_flight: int = 1


class OpenLoop(msgspec.Struct, frozen=True, tag=True):
    """Sends single messages of `payload` bytes at a rate (open loop)."""

    place: Place
    stream: int
    topic: int
    payload: int
    per_second: float
    seconds: float
    connections: int


class Hold(msgspec.Struct, frozen=True, tag=True):
    """Opens this many more connections, logs in, and keeps them until another job, or a job without connections."""

    place: Place
    connections: int


Job = Produce | Consume | OpenLoop | Hold


# ------------------------------------------------------------------------------------------------------------- requests


def prepare_polls(job: Consume) -> list[Prepared]:
    wire = WIRES[job.place.wire]()
    offsets = range(0, job.requests * job.messages, job.messages)
    return [prepare_poll(wire, job.stream, job.topic, job.messages, offset) for offset in offsets]


# ---------------------------------------------------------------------------------------------------------- closed loop


def blocking(place: Place, prepared: Sequence[Prepared], count: int) -> Outcome:
    """Uses one connection with one request in flight, and repeats the prepared requests."""
    scratch = memoryview(bytearray(SCRATCH_BYTES))
    link, wire = connect(place, scratch)
    received = 0
    start = time.perf_counter()
    for number in range(count):
        send_all(link, wire.frame(prepared[number % len(prepared)]))
        received += read_response(link, wire, scratch)
    seconds = time.perf_counter() - start
    link.close()
    return Outcome(seconds, received)


def connect(place: Place, scratch: memoryview) -> tuple[socket.socket, Wire]:
    """Connects and logs in."""
    link = socket.create_connection(("127.0.0.1", place.port))
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    wire = WIRES[place.wire]()
    login = prepare_login(place, wire)
    send_all(link, wire.frame(login))
    if place.token:
        body_bytes = read_response(link, wire, scratch)
        head, body = scratch[: wire.head_bytes], scratch[wire.head_bytes : wire.head_bytes + body_bytes]
        wire.decode_response(login, head, body)
    else:
        read_response(link, wire, scratch)
    return link, wire


def send_all(link: socket.socket, buffers: list[Readable]) -> None:
    sent = link.sendmsg(buffers)
    for buffer in buffers:
        if sent < len(buffer):
            link.sendall(memoryview(buffer)[sent:])
        sent = max(sent - len(buffer), 0)


def read_response(link: socket.socket, wire: Wire, scratch: memoryview) -> int:
    """Reads one response and returns the length of its body; a short one is at the start of the scratch buffer."""
    head_bytes = wire.head_bytes
    read = link.recv_into(scratch)
    while read < head_bytes:
        more = link.recv_into(scratch[read:])
        if not more:
            raise Refused("the connection was closed")
        read += more
    if not wire.is_success(scratch[:head_bytes]):
        raise Refused(f"a refusal: {bytes(scratch[:head_bytes]).hex()}")
    length = wire.body_bytes(scratch[:head_bytes])
    left = length + head_bytes - read
    while left > 0:
        more = link.recv_into(scratch[read:] if read < head_bytes + 64 else scratch)
        if not more:
            raise Refused("the connection was closed")
        read += more
        left -= more
    return length


class TcpRun(Run[Sequence[Prepared]]):
    def __init__(self, prepared: Sequence[Prepared], count: int) -> None:
        super().__init__(prepared, count)
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))


class Requester(asyncio.BufferedProtocol):
    """A connection that sends the next request when it gets a response. The response to the login only marks it as
    ready."""

    def __init__(self, run: TcpRun, place: Place) -> None:
        self._run = run
        self._wire = WIRES[place.wire]()
        self._login = prepare_login(place, self._wire)
        self._transport = cast(asyncio.Transport, None)
        self._part = b""
        self._left = 0
        """Bytes left in the body of a response."""
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.writelines(self._wire.frame(self._login))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(Refused("the connection was closed"))
        self._run.fail("a connection was closed")

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._run.scratch

    def buffer_updated(self, nbytes: int) -> None:
        data = self._run.scratch[:nbytes]
        if self._part:
            data = memoryview(self._part + bytes(data))
            self._part = b""
        position, size = 0, len(data)
        while position < size:
            if self._left:
                taken = min(self._left, size - position)
                position += taken
                self._left -= taken
                if not self._left:
                    self._on_answer()
                continue
            head = data[position : position + self._wire.head_bytes]
            if len(head) < self._wire.head_bytes:
                self._part = bytes(data[position:])
                return
            if not self._wire.is_success(head):
                self._run.fail(f"a refusal: {bytes(head).hex()}")
                return
            self._left = self._wire.body_bytes(head)
            position += len(head)
            self._run.received += self._left
            if not self.ready.done() and position + self._left <= size:
                self._log_in(head, data[position : position + self._left])
            if not self._left:
                self._on_answer()

    def _log_in(self, head: memoryview, body: memoryview) -> None:
        """The response to a login arrives in one piece; that of the yardstick is empty."""
        if body:
            self._wire.decode_response(self._login, head, body)

    def _on_answer(self) -> None:
        if not self.ready.done():
            self.ready.set_result(None)
            return
        run = self._run
        run.answered += 1
        if run.sent < run.count:
            self.ask()
        elif run.answered == run.count and not run.done.done():
            run.done.set_result(None)

    def ask(self) -> None:
        run = self._run
        self._transport.writelines(self._wire.frame(run.prepared[run.sent % len(run.prepared)]))
        run.sent += 1

    def close(self) -> None:
        self._transport.abort()


async def looping(place: Place, prepared: Sequence[Prepared], count: int, connections: int, in_flight: int) -> Outcome:
    loop = asyncio.get_running_loop()
    run = TcpRun(prepared, count)
    made = [
        (await loop.create_connection(lambda: Requester(run, place), "127.0.0.1", place.port))[1]
        for _ in range(connections)
    ]
    await asyncio.gather(*(requester.ready for requester in made))
    run.received = 0
    start = time.perf_counter()
    for requester in made:
        for _ in range(in_flight):
            if run.sent < count:
                requester.ask()
    await run.done
    seconds = time.perf_counter() - start
    for requester in made:
        requester.close()
    return Outcome(seconds, run.received)


def closed_loop(job: Produce | Consume) -> Outcome:
    if isinstance(job, Produce):
        prepared, count = [prepare_send(job.place.wire, job.stream, job.topic, job.messages, job.payload)], job.requests
    else:
        prepared, count = prepare_polls(job), job.requests * job.times
    if job.connections == job.in_flight == 1:
        return blocking(job.place, prepared, count)
    return uvloop.run(looping(job.place, prepared, count, job.connections, job.in_flight))


# ------------------------------------------------------------------------------------------------------------ open loop


def open_loop(job: OpenLoop) -> Outcome:
    """Uses `select` instead of an event loop, because its timeout is exact to the microsecond."""
    request = prepare_send(job.place.wire, job.stream, job.topic, 1, job.payload)
    scratch = memoryview(bytearray(SCRATCH_BYTES))
    connected = [connect(job.place, scratch) for _ in range(job.connections)]
    wires = dict(connected)
    links = list(wires)
    # All responses have the same size, because all requests are the same.
    answer_bytes = 0
    due_times: dict[socket.socket, deque[float]] = {link: deque() for link in links}
    latencies = array("d")
    interval = 1 / job.per_second
    count = int(job.per_second * job.seconds)
    sent = 0
    now = start = time.perf_counter()
    while len(latencies) < count:
        while sent < count and (due := start + sent * interval) <= now:
            link = links[sent % len(links)]
            send_all(link, wires[link].frame(request))
            due_times[link].append(due)
            sent += 1
            if sent % 16 == 0:
                # When sending is far behind, responses have to be read as well.
                break
        wait = max(start + sent * interval - time.perf_counter(), 0) if sent < count else OVERTIME_S
        readable, _, _ = select.select(links, (), (), wait)
        now = time.perf_counter()
        if not readable and sent == count:
            raise Refused(f"no answer in {OVERTIME_S} s")
        for link in readable:
            read, wire = link.recv_into(scratch), wires[link]
            if not read or not wire.is_success(scratch[: wire.head_bytes]):
                raise Refused("an answer was no success")
            answer_bytes = answer_bytes or wire.head_bytes + wire.body_bytes(scratch[: wire.head_bytes])
            if read % answer_bytes:
                raise Refused("an answer was cut off")
            waiting = due_times[link]
            for _ in range(read // answer_bytes):
                latencies.append(now - waiting.popleft())
    for link in links:
        link.close()
    # The first tenth is warm-up.
    found = np.percentile(np.array(latencies[count // 10 :]) * 1e6, PERCENTILES)
    return Outcome(now - start, 0, tuple(found.tolist()))


# ---------------------------------------------------------------------------------------------------------------- jobs


def hold(job: Hold) -> tuple[Outcome, list[socket.socket]]:
    start = time.perf_counter()
    scratch = memoryview(bytearray(1024))
    links = [connect(job.place, scratch)[0] for _ in range(job.connections)]
    return Outcome(time.perf_counter() - start), links


def main() -> None:
    held: list[socket.socket] = []

    def run(job: Job) -> Outcome:
        if not isinstance(job, Hold) or not job.connections:
            for link in held:
                link.close()
            held.clear()
        if isinstance(job, Hold):
            outcome, links = hold(job)
            held.extend(links)
            return outcome
        return open_loop(job) if isinstance(job, OpenLoop) else closed_loop(job)

    run_jobs(Job, run)


if __name__ == "__main__":
    main()
