"""The load generator for WebSocket: sends prepared requests in frames.

`python -m whippet.bench.ws_load` runs jobs as described in load.py. Frames have a mask of zeros, which the receiver
removes like any other, and which costs nothing here.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import time
from typing import Literal, cast

import msgspec
import uvloop

from whippet.app.client.wires import WIRES, Prepared, Wire
from whippet.bench.load import (
    Deliveries,
    Exchange,
    Outcome,
    Place,
    Refused,
    Run,
    discard,
    prepare_exchange,
    prepare_login,
    prepare_send,
    run_jobs,
)
from whippet.bench.tcp_load import SCRATCH_BYTES, send_all
from whippet.storage.batch import Readable

TEXT, BINARY = 0x81, 0x82
HANDSHAKE_KEY = "AAAAAAAAAAAAAAAAAAAAAA=="
CREDIT = 2**32 - 1
PAYLOAD = b'"payload":"'
TIME_DIGITS = 21
"""Digits of a time in nanoseconds, with leading zeros: a multiple of three needs no padding in base64."""
TIME_BYTES = TIME_DIGITS // 3 * 4


class FanOut(msgspec.Struct, frozen=True, tag=True):
    """Opens subscribers of a topic, and sends single messages at a rate (open loop). Without a token in its place it
    talks to the yardstick, which passes on what it is sent."""

    place: Place
    subscribers: int
    per_second: int
    seconds: float


class Sends(msgspec.Struct, frozen=True, tag=True):
    """Sends single messages of `payload` bytes over all connections, in binary or, over the channel of browsers, as
    text."""

    place: Place
    stream: int
    topic: int
    form: Literal["binary", "text"]
    payload: int
    requests: int
    connections: int


WsJob = Exchange | FanOut | Sends


def handshake(place: Place, path: str) -> bytes:
    lines = [f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{place.port}", "Connection: Upgrade", "Upgrade: websocket"]
    lines += ["Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {HANDSHAKE_KEY}"]
    if path != "/" and place.token:
        lines.append(f"Authorization: Bearer {place.token}")
    return "\r\n".join((*lines, "", "")).encode()


def header(first: int, size: int) -> bytes:
    """The mask is zeros."""
    if size < 126:
        return bytes((first, 0x80 | size, 0, 0, 0, 0))
    if size < 1 << 16:
        return bytes((first, 0x80 | 126)) + size.to_bytes(2, "big") + bytes(4)
    return bytes((first, 0x80 | 127)) + size.to_bytes(8, "big") + bytes(4)


def text_frame(message: object) -> bytes:
    content = json.dumps(message).encode()
    return header(TEXT, len(content)) + content


# ---------------------------------------------------------------------------------------------------------- closed loop


class Link:
    """An upgraded connection with plain blocking calls."""

    def __init__(self, place: Place, wire: Wire) -> None:
        self._wire = wire
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._link = socket.create_connection(("127.0.0.1", place.port))
        self._link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._link.sendall(handshake(place, "/"))
        response = b""
        while b"\r\n\r\n" not in response:
            response += self._more(1 << 16)
        if not response.startswith(b"HTTP/1.1 101"):
            raise Refused(f"no upgrade: {response[:300]!r}")
        self._rest = response.partition(b"\r\n\r\n")[2]

    def _more(self, size: int) -> bytes:
        found = self._link.recv(size)
        if not found:
            raise Refused("the connection was closed")
        return found

    def send(self, prepared: Prepared) -> None:
        buffers: list[Readable] = self._wire.frame(prepared)
        size = sum(map(len, buffers))
        send_all(self._link, [header(BINARY, size), *buffers])

    def answer(self) -> tuple[bytes, int]:
        """Returns the beginning of the next response and its length. It must be one message, not in fragments."""
        data = self._rest
        while len(data) < 10 + self._wire.head_bytes and not _is_whole(data):
            data += self._more(1 << 16)
        size, at = _size(data)
        head = data[at : at + self._wire.head_bytes]
        if not self._wire.is_success(memoryview(head)):
            raise Refused(f"a refusal: {head[:80].hex()}")
        beginning = data[at : at + size]
        self._rest = data[at + size :]
        left = size - len(beginning)
        while left > 0:
            read = self._link.recv_into(self._scratch[: min(left, SCRATCH_BYTES)])
            if not read:
                raise Refused("the connection was closed")
            left -= read
        return beginning, size

    def log_in(self, place: Place) -> None:
        login = prepare_login(place, self._wire)
        self.send(login)
        found, _ = self.answer()
        if place.token:
            head = self._wire.head_bytes
            self._wire.decode_response(login, memoryview(found)[:head], memoryview(found)[head:])

    def close(self) -> None:
        self._link.close()


def _size(data: bytes) -> tuple[int, int]:
    """Returns the length of the message that begins here, and where it begins after its header."""
    short = data[1]
    if short < 126:
        return short, 2
    if short == 126:
        return int.from_bytes(data[2:4], "big"), 4
    return int.from_bytes(data[2:10], "big"), 10


def _is_whole(data: bytes) -> bool:
    if len(data) < 10:
        return len(data) >= 2 and data[1] < 126 and len(data) >= 2 + data[1]
    size, at = _size(data)
    return len(data) >= at + size


def closed_loop(job: Exchange) -> Outcome:
    wire = WIRES[job.place.wire]()
    link = Link(job.place, wire)
    if job.place.token:
        link.log_in(job.place)
    prepared = prepare_exchange(job)
    received = 0
    start = time.perf_counter()
    for _ in range(job.in_flight):
        link.send(prepared)
    for number in range(job.in_flight, job.requests + job.in_flight):
        received += link.answer()[1]
        if number < job.requests:
            link.send(prepared)
    seconds = time.perf_counter() - start
    link.close()
    return Outcome(seconds, received)


# --------------------------------------------------------------------------------------------------- many connections


class Requester(asyncio.Protocol):
    """A connection that sends the next request when it gets a response. The response to the upgrade, and that to the
    login if there is one, only mark it as ready."""

    def __init__(self, run: Run[bytes], job: Sends) -> None:
        self._run = run
        self._job = job
        self._wire = WIRES[job.place.wire]()
        self._prepared = prepare_send(job.place.wire, job.stream, job.topic, 1, job.payload)
        self._transport = cast(asyncio.Transport, None)
        self._rest = b""
        self._is_upgraded = False
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(handshake(self._job.place, "/ws" if self._job.form == "text" else "/"))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(Refused("the connection was closed"))
        self._run.fail("a connection was closed")

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data, self._rest = self._rest + data, b""
        if not self._is_upgraded:
            head, end, data = data.partition(b"\r\n\r\n")
            if not end:
                self._rest = head
                return
            if not head.startswith(b"HTTP/1.1 101"):
                self.ready.set_exception(Refused(f"no upgrade: {head[:300]!r}"))
                return
            self._is_upgraded = True
            if self._job.form == "binary" and self._job.place.token:
                login = prepare_login(self._job.place, self._wire)
                self._transport.write(binary_frame(self._wire, login))
            else:
                self.ready.set_result(None)
        while data and _is_whole(data):
            size, at = _size(data)
            self._on_answer(data[at : at + size])
            data = data[at + size :]
        self._rest = data

    def _on_answer(self, content: bytes) -> None:
        run, head = self._run, self._wire.head_bytes
        is_text = content.startswith(b"{")
        if not (b'"ok":' in content if is_text else self._wire.is_success(memoryview(content)[:head])):
            run.fail(f"a refusal: {content[:300]!r}")
            return
        if not self.ready.done():
            login = prepare_login(self._job.place, self._wire)
            self._wire.decode_response(login, memoryview(content)[:head], memoryview(content)[head:])
            self.ready.set_result(None)
            return
        run.answered += 1
        run.received += len(content)
        if run.sent < run.count:
            self.ask()
        elif run.answered == run.count and not run.done.done():
            run.done.set_result(None)

    def ask(self) -> None:
        self._run.sent += 1
        if self._job.form == "text":
            self._transport.write(self._run.prepared)
        else:
            self._transport.write(binary_frame(self._wire, self._prepared))

    def close(self) -> None:
        self._transport.abort()


def binary_frame(wire: Wire, prepared: Prepared) -> bytes:
    content = b"".join(wire.frame(prepared))
    return header(BINARY, len(content)) + content


async def send_all_singles(job: Sends) -> Outcome:
    loop = asyncio.get_running_loop()
    command = {
        "id": 1,
        "cmd": "send_messages",
        "stream": job.stream,
        "topic": job.topic,
        "partitioning": {"kind": "balanced", "value": ""},
        "messages": [{"payload": base64.b64encode(os.urandom(job.payload)).decode()}],
    }
    run = Run(text_frame(command), job.requests)
    made = [
        (await loop.create_connection(lambda: Requester(run, job), "127.0.0.1", job.place.port))[1]
        for _ in range(job.connections)
    ]
    await asyncio.gather(*(requester.ready for requester in made))
    start = time.perf_counter()
    for requester in made:
        if run.sent < run.count:
            requester.ask()
    await run.done
    seconds = time.perf_counter() - start
    for requester in made:
        requester.close()
    return Outcome(seconds, run.received)


# ------------------------------------------------------------------------------------------------------------- fan-out


class Subscriber(asyncio.Protocol):
    def __init__(self, deliveries: Deliveries, place: Place) -> None:
        self._deliveries = deliveries
        self._place = place
        self._transport = cast(asyncio.Transport, None)
        self._awaits = b"\r\n\r\n"
        self._rest = b""
        self.received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(handshake(self._place, "/ws"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._deliveries.fail("a subscriber was closed")

    def data_received(self, data: bytes) -> None:
        if self._awaits:
            self._begin(data)
            return
        now = time.perf_counter_ns()
        deliveries = self._deliveries
        if self._rest:
            data = self._rest + data
        at = data.find(PAYLOAD)
        if at >= 0 and len(data) >= at + len(PAYLOAD) + TIME_BYTES:
            sent_ns = base64.b64decode(data[at + len(PAYLOAD) : at + len(PAYLOAD) + TIME_BYTES])
            deliveries.latencies.append((now - int(sent_ns)) / 1000)
        self.received += data.count(PAYLOAD)
        self._rest = data[1 - len(PAYLOAD) :]
        if self.received >= deliveries.expected:
            deliveries.count_down()

    def _begin(self, data: bytes) -> None:
        self._rest += data
        if self._awaits not in self._rest:
            return
        if self._awaits == b"\r\n\r\n" and self._place.token:
            if not self._rest.startswith(b"HTTP/1.1 101"):
                self._deliveries.fail(f"no upgrade: {self._rest[:300]!r}")
            self._transport.write(
                text_frame(
                    {"id": 1, "cmd": "subscribe", "to": "topic", "stream": "bench", "topic": "fan", "credit": CREDIT}
                )
            )
            self._awaits, self._rest = b'"ok":', b""
            return
        self._awaits = self._rest = b""
        self._deliveries.count_down()

    def close(self) -> None:
        self._transport.abort()


def message(place: Place) -> bytes:
    now = base64.b64encode(str(time.perf_counter_ns()).zfill(TIME_DIGITS).encode()).decode()
    command = {
        "id": 1,
        "cmd": "send_messages",
        "stream": "bench",
        "topic": "fan",
        "partitioning": {"kind": "balanced", "value": ""},
        "messages": [{"id": 0, "payload": now}],
    }
    content = json.dumps(command, separators=(",", ":")).encode()
    return header(TEXT, len(content)) + content


async def fan_out(job: FanOut) -> Outcome:
    loop = asyncio.get_running_loop()
    deliveries = Deliveries(job.subscribers)
    subscribers = [
        (await loop.create_connection(lambda: Subscriber(deliveries, job.place), "127.0.0.1", job.place.port))[1]
        for _ in range(job.subscribers)
    ]
    await deliveries.wait()
    reader, writer = await asyncio.open_connection("127.0.0.1", job.place.port)
    writer.write(handshake(job.place, "/ws"))
    await reader.readuntil(b"\r\n\r\n")
    reading = asyncio.create_task(discard(reader))
    count = int(job.per_second * job.seconds)
    deliveries.expect(count)
    start = time.perf_counter()
    for number in range(count):
        if (wait := start + number / job.per_second - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        writer.write(message(job.place))
    await deliveries.wait_for_the_last(lambda: sum(each.received for each in subscribers))
    seconds = time.perf_counter() - start
    for each in subscribers:
        each.close()
    reading.cancel()
    writer.close()
    return Outcome(seconds, count * job.subscribers, deliveries.percentiles())


def run(job: WsJob) -> Outcome:
    if isinstance(job, Sends):
        return uvloop.run(send_all_singles(job))
    return uvloop.run(fan_out(job)) if isinstance(job, FanOut) else closed_loop(job)


if __name__ == "__main__":
    run_jobs(WsJob, run)
