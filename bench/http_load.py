"""Who puts load on an HTTP server: prepared requests go out, answers are counted and thrown away.

`python -m whippet.bench.http_load` reads a job from each line of its input and prints its outcome, as bench/load.py
does for the binary protocols. A refusal ends a job at once.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import os
import re
import resource
import socket
import sys
import time
from array import array
from collections.abc import Sequence
from typing import Literal, cast

import msgspec
import numpy as np
import uvloop

from whippet.app.client.batching import pack
from whippet.bench.load import Outcome, Refused

Media = Literal["application/json", "application/x-ndjson", "application/vnd.iggy.batch"]
JSON: Media = "application/json"
NDJSON: Media = "application/x-ndjson"
BATCH: Media = "application/vnd.iggy.batch"
SENDERS = 16
"""A connection may only be so many requests ahead of its answers."""
SETTLES_S = 10.0
"""For how long tails may go on to receive after the last message was sent."""
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)")


class Target(msgspec.Struct, frozen=True):
    """A path on a server of this machine; the yardstick asks for no token."""

    port: int
    path: str
    token: str = ""


class Post(msgspec.Struct, frozen=True, tag=True):
    """The same body again and again: so many messages of so many bytes."""

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
    """So many tails, and single messages at a rate, open loop. `target` is the path of the messages."""

    target: Target
    tails: int
    per_second: int
    seconds: float


class Stall(msgspec.Struct, frozen=True, tag=True):
    """One tail that takes nothing while so many bytes are sent, until it has been dropped; then it reads."""

    target: Target
    sent_bytes: int
    wait_s: float


HttpJob = Post | Get | Tail | Stall


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


class Run:
    """What the connections of one job share."""

    def __init__(self, prepared: bytes, count: int) -> None:
        self.prepared = prepared
        self.count = count
        self.sent = self.answered = self.received = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(self, sentence: str) -> None:
        if not self.done.done():
            self.done.set_exception(Refused(sentence))


class Asker(asyncio.Protocol):
    """A connection that asks again when it is answered."""

    def __init__(self, run: Run) -> None:
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
    askers = [(await loop.create_connection(lambda: Asker(run), "127.0.0.1", port))[1] for _ in range(connections)]
    start = time.perf_counter()
    for asker in askers:
        if run.sent < count:
            asker.ask()
    await run.done
    seconds = time.perf_counter() - start
    for asker in askers:
        asker.close()
    return Outcome(seconds, run.received)


# ------------------------------------------------------------------------------------------------------------- tails


class Tails:
    """What the tails of one job share. Each message says when it was sent; of each piece the oldest is looked at."""

    def __init__(self) -> None:
        self.latencies = array("d")
        self.left = 0
        """Tails that have not begun, or have not received everything."""
        self.expected = sys.maxsize
        self.changed: asyncio.Event = asyncio.Event()
        self.problem = ""


class Follower(asyncio.Protocol):
    def __init__(self, tails: Tails, prepared: bytes) -> None:
        self._tails = tails
        self._prepared = prepared
        self._transport = cast(asyncio.Transport, None)
        self._begun = False
        self.events = 0
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._prepared)

    def connection_lost(self, exc: Exception | None) -> None:
        self._tails.problem = self._tails.problem or "a tail was closed"
        self._tails.changed.set()

    def data_received(self, data: bytes) -> None:
        tails = self._tails
        if not self._begun:
            if b"\nid: " not in data:
                if not data.startswith(b"HTTP/1.1 200"):
                    tails.problem = f"a tail was refused: {data[:400]!r}"
                    tails.changed.set()
                return
            self._begun = True
            self._count_down()
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
        tails.latencies.append((now - int(data[at + 7 : data.find(b"\n", at + 7)])) / 1000)
        self.events += data.count(b"\ndata: ", 0, last)
        if self.events >= tails.expected:
            self._count_down()

    def _count_down(self) -> None:
        self._tails.left -= 1
        if not self._tails.left:
            self._tails.changed.set()

    def close(self) -> None:
        self._transport.abort()


async def follow(job: Tail) -> Outcome:
    loop = asyncio.get_running_loop()
    tails = Tails()
    path = msgspec.structs.replace(job.target, path=f"{job.target.path}/tail?form=text")
    prepared = request("GET", path)
    tails.left = job.tails
    followers = [
        (await loop.create_connection(lambda: Follower(tails, prepared), "127.0.0.1", job.target.port))[1]
        for _ in range(job.tails)
    ]
    await tails.changed.wait()
    _refuse(tails.problem)
    senders = [await asyncio.open_connection("127.0.0.1", job.target.port) for _ in range(SENDERS)]
    reading = [asyncio.create_task(_throw_away(reader)) for reader, _ in senders]
    count = int(job.per_second * job.seconds)
    tails.expected, tails.left = count, job.tails
    tails.changed.clear()
    target = msgspec.structs.replace(job.target, path=f"{job.target.path}?partition=0")
    start = time.perf_counter()
    for number in range(count):
        due = start + number / job.per_second
        if (wait := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        body = b"%d" % time.perf_counter_ns()
        senders[number % SENDERS][1].write(request("POST", target, body, content_type="text/plain"))
    try:
        async with asyncio.timeout(SETTLES_S):
            await tails.changed.wait()
    except TimeoutError:
        missing = sum(count - follower.events for follower in followers)
        raise Refused(f"{missing} of {count * job.tails} events were not delivered in {SETTLES_S} s") from None
    _refuse(tails.problem)
    seconds = time.perf_counter() - start
    for follower in followers:
        follower.close()
    for task, (_, writer) in zip(reading, senders, strict=True):
        task.cancel()
        writer.close()
    found = np.percentile(np.array(tails.latencies), (50.0, 99.0, 99.9))
    return Outcome(seconds, count * job.tails, tuple(found.tolist()))


async def _throw_away(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 16):
        pass


def _refuse(problem: str) -> None:
    if problem:
        raise Refused(problem)


def stall(job: Stall) -> Outcome:
    """Received bytes are the events that came before the last one, which has to say the offset of the one before it."""
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
    stalled.settimeout(SETTLES_S)
    received = bytearray(first)
    while piece := stalled.recv(1 << 20):
        received += piece
    seconds = time.perf_counter() - start
    events, _, end = received.rpartition(b"event: end\n")
    count = events.count(b"\ndata: ")
    said = re.search(rb'"code":"stalled".*"last_offsets":\{"0":(\d+)\}', end)
    began = re.search(rb"\nid: 0:(\d+)", first)
    if said is None or began is None or int(said[1]) + 1 - int(began[1]) != count:
        raise Refused(f"the stalled tail had {count} events and was told {bytes(end[:300])!r}")
    return Outcome(seconds, count)


# ---------------------------------------------------------------------------------------------------------------- jobs


def outcome_of(job: HttpJob) -> Outcome:
    if isinstance(job, Stall):
        return stall(job)
    if isinstance(job, Tail):
        return uvloop.run(follow(job))
    if isinstance(job, Get):
        prepared = request("GET", job.target, accept=job.accept)
    else:
        prepared = request("POST", job.target, body_of(job.media, job.messages, job.payload), content_type=job.media)
    return uvloop.run(closed_loop(job.target.port, prepared, job.requests, job.connections))


def main(lines: Sequence[bytes] | None = None) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gc.disable()
    decoder = msgspec.json.Decoder(HttpJob)
    for line in lines or sys.stdin.buffer:
        sys.stdout.buffer.write(msgspec.json.encode(outcome_of(decoder.decode(line))) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
