"""The load generator for HTTP: sends prepared requests, and discards the responses.

`python -m whippet.bench.http_load` runs jobs as described in load.py.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import socket
import time
from array import array
from typing import Literal, cast

import msgspec
import numpy as np
import uvloop

from whippet.app.client.batching import pack
from whippet.bench.load import (
    DELIVERY_S_MAX,
    PERCENTILES,
    Deliveries,
    Outcome,
    Refused,
    Run,
    discard,
    run_jobs,
)

Media = Literal["application/json", "application/x-ndjson", "application/vnd.iggy.batch"]
JSON: Media = "application/json"
NDJSON: Media = "application/x-ndjson"
BATCH: Media = "application/vnd.iggy.batch"
SENDERS = 16
"""A connection may only be this many requests ahead of its responses."""
WAITS_S = 0.002
"""Between a long poll and the message that wakes it."""
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)")


class Target(msgspec.Struct, frozen=True):
    """A path on a server of this machine; the yardstick needs no token."""

    port: int
    path: str
    token: str = ""


class Post(msgspec.Struct, frozen=True, tag=True):
    """Sends the same body repeatedly: `messages` messages of `payload` bytes."""

    target: Target
    media: Media
    messages: int
    payload: int
    requests: int
    connections: int = 1


class Get(msgspec.Struct, frozen=True, tag=True):
    target: Target
    accept: str
    requests: int
    connections: int = 1


class Tail(msgspec.Struct, frozen=True, tag=True):
    """Opens tails, and sends single messages at a rate (open loop). `target` is the path of the messages."""

    target: Target
    tails: int
    per_second: int
    seconds: float


class Stall(msgspec.Struct, frozen=True, tag=True):
    """Opens one tail that reads nothing while this many bytes are sent, until the server has dropped it; then it
    reads."""

    target: Target
    sent_bytes: int
    wait_s: float


class Wake(msgspec.Struct, frozen=True, tag=True):
    """Sends single messages, each when a long poll waits for it, and measures from the send until the poll is answered.
    `target` is the path of the messages of an empty topic."""

    target: Target
    messages: int


HttpJob = Post | Get | Tail | Stall | Wake


# ------------------------------------------------------------------------------------------------------------- requests


def request(method: str, target: Target, body: bytes = b"", **headers: str) -> bytes:
    lines = [f"{method} {target.path} HTTP/1.1", "Host: 127.0.0.1"]
    if target.token:
        lines.append(f"Authorization: Bearer {target.token}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join((*lines, "", "")).encode() + body


def body_of(media: Media, messages: int, payload: int) -> bytes:
    if media == BATCH:
        return bytes(pack([os.urandom(payload) for _ in range(messages)]))
    if media == NDJSON:
        empty = len(json.dumps({"number": 10**6, "text": ""}))
        lines = [{"number": 10**6 + i, "text": "x" * (payload - empty)} for i in range(messages)]
        return b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    sent = [{"payload": base64.b64encode(os.urandom(payload)).decode()} for _ in range(messages)]
    return json.dumps({"partitioning": {"kind": "balanced", "value": ""}, "messages": sent}).encode()


# ---------------------------------------------------------------------------------------------------------- closed loop


class Requester(asyncio.Protocol):
    """A connection that sends the next request when it gets a response."""

    def __init__(self, run: Run[bytes]) -> None:
        self._run = run
        self._transport = cast(asyncio.Transport, None)
        self._head = b""
        self._left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._run.fail("a connection was closed")

    def data_received(self, data: bytes) -> None:
        run = self._run
        if self._left:
            self._left -= len(data)
            if not self._left:
                self._on_answer()
            return
        if self._head:
            data, self._head = self._head + data, b""
        end = data.find(b"\r\n\r\n")
        if end < 0:
            self._head = data
            return
        found = _LENGTH.search(data, 0, end)
        if not data.startswith(b"HTTP/1.1 20") or found is None:
            run.fail(f"a refusal: {data[:400]!r}")
            return
        length = int(found[1])
        run.received += length
        self._left = length - (len(data) - end - 4)
        if not self._left:
            self._on_answer()

    def _on_answer(self) -> None:
        run = self._run
        run.answered += 1
        if run.sent < run.count:
            self.ask()
        elif run.answered == run.count and not run.done.done():
            run.done.set_result(None)

    def ask(self) -> None:
        self._run.sent += 1
        self._transport.write(self._run.prepared)

    def close(self) -> None:
        self._transport.abort()


async def closed_loop(port: int, prepared: bytes, count: int, connections: int) -> Outcome:
    loop = asyncio.get_running_loop()
    run = Run(prepared, count)
    requesters = [
        (await loop.create_connection(lambda: Requester(run), "127.0.0.1", port))[1] for _ in range(connections)
    ]
    start = time.perf_counter()
    for requester in requesters:
        if run.sent < count:
            requester.ask()
    await run.done
    seconds = time.perf_counter() - start
    for requester in requesters:
        requester.close()
    return Outcome(seconds, run.received)


# ------------------------------------------------------------------------------------------------------------- tails


class TailReader(asyncio.Protocol):
    def __init__(self, deliveries: Deliveries, prepared: bytes) -> None:
        self._deliveries = deliveries
        self._prepared = prepared
        self._transport = cast(asyncio.Transport, None)
        self._begun = False
        self.events = 0
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._prepared)

    def connection_lost(self, exc: Exception | None) -> None:
        self._deliveries.fail("a tail was closed")

    def data_received(self, data: bytes) -> None:
        deliveries = self._deliveries
        if not self._begun:
            if b"\nid: " not in data:
                if not data.startswith(b"HTTP/1.1 200"):
                    deliveries.fail(f"a tail was refused: {data[:400]!r}")
                return
            self._begun = True
            deliveries.count_down()
            return
        now = time.perf_counter_ns()
        if self._rest:
            data = self._rest + data
        at = data.find(b"\ndata: ")
        last = data.rfind(b"\n\n")
        if at < 0 or last < at:
            self._rest = data
            return
        self._rest = data[last + 1 :]
        deliveries.latencies.append((now - int(data[at + 7 : data.find(b"\n", at + 7)])) / 1000)
        self.events += data.count(b"\ndata: ", 0, last)
        if self.events >= deliveries.expected:
            deliveries.count_down()

    def close(self) -> None:
        self._transport.abort()


async def follow(job: Tail) -> Outcome:
    loop = asyncio.get_running_loop()
    deliveries = Deliveries(job.tails)
    path = msgspec.structs.replace(job.target, path=f"{job.target.path}/tail?form=text")
    prepared = request("GET", path)
    readers = [
        (await loop.create_connection(lambda: TailReader(deliveries, prepared), "127.0.0.1", job.target.port))[1]
        for _ in range(job.tails)
    ]
    await deliveries.wait()
    senders = [await asyncio.open_connection("127.0.0.1", job.target.port) for _ in range(SENDERS)]
    reading = [asyncio.create_task(discard(reader)) for reader, _ in senders]
    count = int(job.per_second * job.seconds)
    deliveries.expect(count)
    target = msgspec.structs.replace(job.target, path=f"{job.target.path}?partition=0")
    start = time.perf_counter()
    for number in range(count):
        due = start + number / job.per_second
        if (wait := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        body = b"%d" % time.perf_counter_ns()
        senders[number % SENDERS][1].write(request("POST", target, body, content_type="text/plain"))
    await deliveries.wait_for_the_last(lambda: sum(each.events for each in readers))
    seconds = time.perf_counter() - start
    for each in readers:
        each.close()
    for task, (_, writer) in zip(reading, senders, strict=True):
        task.cancel()
        writer.close()
    return Outcome(seconds, count * job.tails, deliveries.percentiles())


def stall(job: Stall) -> Outcome:
    """Returns the number of events before the end event, which must name the offset of the last of them."""
    stalled = socket.socket()
    stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stalled.connect(("127.0.0.1", job.target.port))
    path = msgspec.structs.replace(job.target, path=f"{job.target.path}/tail?form=text")
    stalled.sendall(request("GET", path))
    first = b""
    while b"\nid: " not in first:
        first += stalled.recv(1024)
    sender = socket.create_connection(("127.0.0.1", job.target.port))
    body = b"\n".join([b"x" * 1000] * 1000)
    prepared = request("POST", job.target, body, content_type="text/plain")
    for _ in range(job.sent_bytes // len(body) + 1):
        sender.sendall(prepared)
        answer = sender.recv(1 << 16)
        while answer and not answer.endswith(b"}"):
            answer += sender.recv(1 << 16)
        if not answer.startswith(b"HTTP/1.1 201"):
            raise Refused(f"a send was refused: {answer[:300]!r}")
    time.sleep(job.wait_s)
    start = time.perf_counter()
    stalled.settimeout(DELIVERY_S_MAX)
    received = bytearray(first)
    while piece := stalled.recv(1 << 20):
        received += piece
    seconds = time.perf_counter() - start
    events, _, end = received.rpartition(b"event: end\n")
    count = events.count(b"\ndata: ")
    ended = re.search(rb'"code":"stalled".*"last_offsets":\{"0":(\d+)\}', end)
    began = re.search(rb"\nid: 0:(\d+)", first)
    if ended is None or began is None or int(ended[1]) + 1 - int(began[1]) != count:
        raise Refused(f"the stalled tail had {count} events, and its end event was {bytes(end[:300])!r}")
    return Outcome(seconds, count)


# ---------------------------------------------------------------------------------------------------------- long polls


def wake(job: Wake) -> Outcome:
    """The poll is on its way when the message is sent. If it arrives a little later, it is answered all the sooner."""
    polling, sending = (socket.create_connection(("127.0.0.1", job.target.port)) for _ in range(2))
    for link in (polling, sending):
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    send = request("POST", job.target, body_of(JSON, 1, 100), content_type=JSON)
    latencies = array("d")
    begun = time.perf_counter()
    for offset in range(job.messages):
        of = msgspec.structs.replace(job.target, path=f"{job.target.path}?value={offset}&count=1&wait=10s")
        polling.sendall(request("GET", of, accept=JSON))
        time.sleep(WAITS_S)
        start = time.perf_counter()
        sending.sendall(send)
        _read_success(polling)
        latencies.append((time.perf_counter() - start) * 1e6)
        _read_success(sending)
    seconds = time.perf_counter() - begun
    polling.close()
    sending.close()
    return Outcome(seconds, 0, tuple(np.percentile(np.array(latencies), PERCENTILES).tolist()))


def _read_success(link: socket.socket) -> None:
    answer = link.recv(1 << 16)
    while (found := _LENGTH.search(answer)) is None or len(answer) < answer.find(b"\r\n\r\n") + 4 + int(found[1]):
        more = link.recv(1 << 16)
        if not more:
            raise Refused("the connection was closed")
        answer += more
    if not answer.startswith(b"HTTP/1.1 20"):
        raise Refused(f"a refusal: {answer[:300]!r}")


# ---------------------------------------------------------------------------------------------------------------- jobs


def run(job: HttpJob) -> Outcome:
    if isinstance(job, Stall):
        return stall(job)
    if isinstance(job, Tail):
        return uvloop.run(follow(job))
    if isinstance(job, Wake):
        return wake(job)
    if isinstance(job, Get):
        prepared = request("GET", job.target, accept=job.accept)
    else:
        prepared = request("POST", job.target, body_of(job.media, job.messages, job.payload), content_type=job.media)
    return uvloop.run(closed_loop(job.target.port, prepared, job.requests, job.connections))


if __name__ == "__main__":
    run_jobs(HttpJob, run)
