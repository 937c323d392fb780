"""Who puts load on a WebSocket server: prepared requests go out in frames, answers are counted and thrown away.

`python -m whippet.bench.ws_load` reads a job from each line of its input and prints its outcome, as bench/load.py does
for TCP. Frames have a mask of zeros: whoever receives them takes it off as any other, and here it costs nothing.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import resource
import socket
import sys
import time
from array import array
from collections.abc import Sequence
from typing import cast

import msgspec
import numpy as np
import uvloop

from whippet.app.client.wires import WIRES, Prepared, Wire
from whippet.app.commands import requests
from whippet.bench.load import PERCENTILES, SCRATCH_BYTES, Outcome, Place, Refused, logging_in, send, sending
from whippet.storage.batch import Readable

TEXT, BINARY = 0x81, 0x82
HANDSHAKE_KEY = "AAAAAAAAAAAAAAAAAAAAAA=="
CREDIT = 2**32 - 1
SETTLES_S = 10.0
"""For how long subscribers may go on to receive after the last message was sent."""
PAYLOAD = b'"payload":"'
TIME_DIGITS = 21
"""Of nanoseconds, with zeros in front: a multiple of three has no padding in base64."""
TIME_BYTES = TIME_DIGITS // 3 * 4


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Sends of `messages` payloads of `payload` bytes; polls of so many messages where there is no payload; pings where
    there are no messages. `requests` of them over all connections."""

    place: Place
    stream: int
    topic: int
    messages: int
    payload: int
    requests: int
    in_flight: int = 1


class Fan(msgspec.Struct, frozen=True, tag=True):
    """So many subscribers of a topic, and single messages at a rate, open loop. Without a token in its place this is
    the yardstick, which passes on what it is sent."""

    place: Place
    subscribers: int
    per_second: int
    seconds: float


Job = Ask | Fan


def handshake(place: Place, path: str) -> bytes:
    lines = [f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{place.port}", "Connection: Upgrade", "Upgrade: websocket"]
    lines += ["Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {HANDSHAKE_KEY}"]
    if path != "/" and place.token:
        lines.append(f"Authorization: Bearer {place.token}")
    return "\r\n".join((*lines, "", "")).encode()


def header(first: int, size: int) -> bytes:
    """With a mask of zeros."""
    if size < 126:
        return bytes((first, 0x80 | size, 0, 0, 0, 0))
    if size < 1 << 16:
        return bytes((first, 0x80 | 126)) + size.to_bytes(2, "big") + bytes(4)
    return bytes((first, 0x80 | 127)) + size.to_bytes(8, "big") + bytes(4)


def text(said: object) -> bytes:
    content = json.dumps(said).encode()
    return header(TEXT, len(content)) + content


# ---------------------------------------------------------------------------------------------------------- closed loop


class Link:
    """A connection that has been upgraded, driven by plain blocking calls."""

    def __init__(self, place: Place, wire: Wire) -> None:
        self._wire = wire
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._link = socket.create_connection(("127.0.0.1", place.port))
        self._link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._link.sendall(handshake(place, "/"))
        said = b""
        while b"\r\n\r\n" not in said:
            said += self._more(1 << 16)
        if not said.startswith(b"HTTP/1.1 101"):
            raise Refused(f"no upgrade: {said[:300]!r}")
        self._rest = said.partition(b"\r\n\r\n")[2]

    def _more(self, size: int) -> bytes:
        found = self._link.recv(size)
        if not found:
            raise Refused("the connection was closed")
        return found

    def send(self, prepared: Prepared) -> None:
        buffers: list[Readable] = self._wire.frame(prepared)
        size = sum(map(len, buffers))
        send(self._link, [header(BINARY, size), *buffers])

    def answer(self) -> tuple[bytes, int]:
        """The beginning of the next one, and how many bytes it has. It is one message, and not in pieces."""
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
        login = logging_in(place, self._wire)
        self.send(login)
        found, _ = self.answer()
        if place.token:
            head = self._wire.head_bytes
            self._wire.answer(login, memoryview(found)[:head], memoryview(found)[head:])

    def close(self) -> None:
        self._link.close()


def _size(data: bytes) -> tuple[int, int]:
    """How long the message that begins here is, and where it begins behind its header."""
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


def closed_loop(job: Ask) -> Outcome:
    wire = WIRES[job.place.wire]()
    link = Link(job.place, wire)
    if job.place.token:
        link.log_in(job.place)
    if not job.messages:
        prepared = wire.prepare(requests.Ping())
    elif job.payload:
        prepared = sending(job.place.wire, job.stream, job.topic, job.messages, job.payload)
    else:
        consumer, strategy = (
            requests.Consumer(requests.ConsumerKind.CONSUMER, 1),
            requests.Strategy(requests.StrategyKind.FIRST),
        )
        prepared = wire.prepare(
            requests.PollMessages(consumer, job.stream, job.topic, 0, strategy, job.messages, False)
        )
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


# ------------------------------------------------------------------------------------------------------------- fan-out


class Fans:
    """What the subscribers of one job share. A message says when it was sent; of each read the oldest is looked at."""

    def __init__(self, subscribers: int) -> None:
        self.latencies = array("d")
        self.left = subscribers
        """Who has not begun, or not received everything."""
        self.expected = sys.maxsize
        self.changed = asyncio.Event()
        self.problem = ""

    def count_down(self) -> None:
        self.left -= 1
        if not self.left:
            self.changed.set()

    def fail(self, problem: str) -> None:
        self.problem = self.problem or problem
        self.changed.set()


class Subscriber(asyncio.Protocol):
    def __init__(self, fans: Fans, place: Place) -> None:
        self._fans = fans
        self._place = place
        self._transport = cast(asyncio.Transport, None)
        self._awaits = b"\r\n\r\n"
        self._rest = b""
        self.received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(handshake(self._place, "/ws"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._fans.fail("a subscriber was closed")

    def data_received(self, data: bytes) -> None:
        if self._awaits:
            self._begin(data)
            return
        now = time.perf_counter_ns()
        fans = self._fans
        if self._rest:
            data = self._rest + data
        at = data.find(PAYLOAD)
        if at >= 0 and len(data) >= at + len(PAYLOAD) + TIME_BYTES:
            said = base64.b64decode(data[at + len(PAYLOAD) : at + len(PAYLOAD) + TIME_BYTES])
            fans.latencies.append((now - int(said)) / 1000)
        self.received += data.count(PAYLOAD)
        self._rest = data[1 - len(PAYLOAD) :]
        if self.received >= fans.expected:
            fans.count_down()

    def _begin(self, data: bytes) -> None:
        self._rest += data
        if self._awaits not in self._rest:
            return
        if self._awaits == b"\r\n\r\n" and self._place.token:
            if not self._rest.startswith(b"HTTP/1.1 101"):
                self._fans.fail(f"no upgrade: {self._rest[:300]!r}")
            self._transport.write(
                text({"id": 1, "cmd": "subscribe", "to": "topic", "stream": "bench", "topic": "fan", "credit": CREDIT})
            )
            self._awaits, self._rest = b'"ok":', b""
            return
        self._awaits = self._rest = b""
        self._fans.count_down()

    def close(self) -> None:
        self._transport.abort()


def message(place: Place) -> bytes:
    now = base64.b64encode(str(time.perf_counter_ns()).zfill(TIME_DIGITS).encode()).decode()
    said = {
        "id": 1,
        "cmd": "send_messages",
        "stream": "bench",
        "topic": "fan",
        "partitioning": {"kind": "balanced", "value": ""},
        "messages": [{"id": 0, "payload": now}],
    }
    content = json.dumps(said, separators=(",", ":")).encode()
    return header(TEXT, len(content)) + content


async def fan_out(job: Fan) -> Outcome:
    loop = asyncio.get_running_loop()
    fans = Fans(job.subscribers)
    subscribers = [
        (await loop.create_connection(lambda: Subscriber(fans, job.place), "127.0.0.1", job.place.port))[1]
        for _ in range(job.subscribers)
    ]
    await fans.changed.wait()
    _refuse(fans.problem)
    reader, writer = await asyncio.open_connection("127.0.0.1", job.place.port)
    writer.write(handshake(job.place, "/ws"))
    await reader.readuntil(b"\r\n\r\n")
    reading = asyncio.create_task(_throw_away(reader))
    count = int(job.per_second * job.seconds)
    fans.expected, fans.left = count, job.subscribers
    fans.changed.clear()
    start = time.perf_counter()
    for number in range(count):
        if (wait := start + number / job.per_second - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        writer.write(message(job.place))
    try:
        async with asyncio.timeout(SETTLES_S):
            await fans.changed.wait()
    except TimeoutError:
        missing = sum(count - each.received for each in subscribers)
        raise Refused(f"{missing} of {count * job.subscribers} messages were not delivered in {SETTLES_S} s") from None
    _refuse(fans.problem)
    seconds = time.perf_counter() - start
    for each in subscribers:
        each.close()
    reading.cancel()
    writer.close()
    found = np.percentile(np.array(fans.latencies), PERCENTILES)
    return Outcome(seconds, count * job.subscribers, tuple(found.tolist()))


async def _throw_away(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 16):
        pass


def _refuse(problem: str) -> None:
    if problem:
        raise Refused(problem)


def main(lines: Sequence[bytes] | None = None) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gc.disable()
    decoder = msgspec.json.Decoder(Job)
    for line in lines or sys.stdin.buffer:
        job = decoder.decode(line)
        outcome = uvloop.run(fan_out(job)) if isinstance(job, Fan) else closed_loop(job)
        sys.stdout.buffer.write(msgspec.json.encode(outcome) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
