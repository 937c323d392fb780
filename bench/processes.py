"""The processes of the benchmarks: the server as users start it, the yardsticks, and the load generators.

Each is a process of its own, so that what is measured shares no interpreter with the benchmark.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec

from whippet.app.client import Client
from whippet.bench.http_load import HttpJob
from whippet.bench.load import Exchange, Outcome, Place
from whippet.bench.measure import Contender
from whippet.bench.tcp_load import Job
from whippet.bench.ws_load import WsJob

STARTS_S = 60
USER, PASSWORD = "bench", "benchmark"
SERVE = "import sys; from whippet.app.cli.main import main; sys.exit(main(['serve']))"


class ChildFailed(Exception):
    """A process of the benchmark failed; its own error is on stderr."""


class Server(NamedTuple):
    """A running server, a client that is logged in as root, and a token for the load generator."""

    process: Process
    port: int
    client: Client
    token: str
    seconds: float
    """From the start of the process until it listened."""
    wire: str
    http_port: int = 0
    """0 if it does not serve HTTP."""

    def place(self) -> Place:
        return Place(self.port, self.token, self.wire)

    def resident_bytes(self) -> int:
        with open(f"/proc/{self.process.pid}/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    async def topic(self, name: str, partitions: int = 1) -> tuple[int, int]:
        """Returns the ids of the stream and of a topic, which are created if they do not exist."""
        stream = await self.client.get_stream("bench") or await self.client.create_stream("bench")
        topic = await self.client.get_topic("bench", name)
        if topic is None:
            topic = await self.client.create_topic("bench", name, partitions)
        return stream.info.id, topic.info.id


@asynccontextmanager
async def server(path: str, wire: str = "classic", **settings: str) -> AsyncIterator[Server]:
    """Starts a server for clients that speak `wire`. `settings` are environment variables without the prefix
    `IGGY_`; other such variables are not passed on."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("IGGY_", "RUST_LOG"))}
    environment |= {
        "IGGY_SYSTEM_PATH": path,
        "IGGY_TCP_ADDRESS": "127.0.0.1:0",
        "IGGY_HTTP_ENABLED": "false",
        "IGGY_QUIC_ENABLED": "false",
        "IGGY_ROOT_USERNAME": USER,
        "IGGY_ROOT_PASSWORD": PASSWORD,
        "IGGY_SYSTEM_LOGGING_LEVEL": "warn",
    } | {f"IGGY_{name}": value for name, value in settings.items()}
    start = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVE, stdin=DEVNULL, stdout=PIPE, env=environment
    )
    try:
        # The banner prints them in this order.
        http_port = (
            await _read_number(process, rb"http://\S+:(\d+)") if environment["IGGY_HTTP_ENABLED"] == "true" else 0
        )
        port = await _read_number(process, rb"tcp://\S+:(\d+)")
        seconds = time.perf_counter() - start
        async with await Client.connect(f"iggy://{USER}:{PASSWORD}@127.0.0.1:{port}") as client:
            # A folder may be served twice, and the token of the first time cannot be read again.
            await asyncio.gather(
                *(client.delete_personal_access_token(old.name) for old in await client.get_personal_access_tokens())
            )
            token = (await client.create_personal_access_token("load")).token
            yield Server(process, port, client, token, seconds, wire, http_port)
    finally:
        await _end(process)


@asynccontextmanager
async def yardstick(path: str, *mode: str, module: str = "whippet.bench.tcp_yardstick") -> AsyncIterator[Place]:
    """Starts a bare server, tcp_yardstick.py or another, which writes to or reads from this file."""
    arguments = [sys.executable, "-m", module, path, *mode]
    process = await asyncio.create_subprocess_exec(*arguments, stdin=DEVNULL, stdout=PIPE)
    try:
        yield Place(await _read_number(process, rb"(\d+)"), "")
    finally:
        await _end(process)


class Load:
    """The process that sends requests, one job at a time."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def run(self, job: Job | HttpJob | WsJob) -> Outcome:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(msgspec.json.encode(job) + b"\n")
        await self._process.stdin.drain()
        line = await self._process.stdout.readline()
        if not line:
            raise ChildFailed("the load generator ended early")
        return msgspec.json.decode(line, type=Outcome)


@asynccontextmanager
async def load(module: str = "whippet.bench.tcp_load") -> AsyncIterator[Load]:
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", module, stdin=PIPE, stdout=PIPE, limit=1 << 20)
    try:
        yield Load(process)
    finally:
        await _end(process)


def exchanging(load: Load, job: Exchange) -> Contender:
    """Measures messages per second, or requests per second if they have no messages."""

    async def contender() -> float:
        outcome = await load.run(job)
        if job.messages and not job.payload:
            assert outcome.received_bytes > job.requests * job.messages * 64, "polls returned no messages"
        return job.requests * max(job.messages, 1) / outcome.seconds

    return contender


async def quic_port(process: Process) -> int:
    """Reads the QUIC port, which the banner prints after that of TCP."""
    return await _read_number(process, rb"quic://\S+:(\d+)")


async def _read_number(process: Process, pattern: bytes) -> int:
    """Returns the number in the first line that matches."""
    assert process.stdout
    async with asyncio.timeout(STARTS_S):
        async for line in process.stdout:
            found = re.search(pattern, line)
            if found:
                return int(found.group(1))
    raise ChildFailed(f"a process of the benchmark ended before it was ready, with exit code {await process.wait()}")


async def _end(process: Process) -> None:
    if process.returncode is None:
        process.terminate()
    # Output at its end must not fill the pipe.
    await process.communicate()
