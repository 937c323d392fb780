"""`whippet bench cli`: measures the command line as users start it, each figure beside its yardstick.

Every contender is a process of its own, from its start to its end. The yardstick of `whippet send` is the load
generator of `whippet bench tcp`, which sends batches that are made already and starts before it is measured.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from whippet.bench import processes, tcp_load
from whippet.bench.command import Given, Measure, Subject
from whippet.bench.measure import Contender, Figure, Row, Target, race, rates, times
from whippet.bench.processes import PASSWORD, USER, ChildFailed, Load, Server

BATCH = 1000
LINE = 1000
SHORT = 100
WHIPPET = ("-c", "import sys; from whippet.app.cli.main import main; sys.exit(main())")
PIECE_BYTES = 1 << 20

START_ROWS = (
    Row("whippet --help", "help", "python", Target("value", "<", 150.0), "the yardstick is Python that does nothing"),
    Row("whippet ping", "ping", "python", Target("value", "<", 300.0), "the yardstick is Python that does nothing"),
)
IS_LOAD = "the yardstick has one connection"
SEND_ROW = Row(f"whippet send, lines of {LINE} B", "send", "produce", Target("ratio", ">=", 0.7), IS_LOAD)
TAIL_ROW = Row(f"whippet tail, lines of {SHORT} B", "tail", None, Target("value", ">=", 200_000.0))


class Scale(NamedTuple):
    """How much work a run does."""

    rounds: int
    file_bytes: int
    """The size of the file that is sent."""
    tailed: int
    """How many messages are followed."""


FULL = Scale(5, 1 << 30, 2_000_000)
QUICK = Scale(1, 4 << 20, 20_000)


class Bench(NamedTuple):
    folder: str
    scale: Scale
    load: Load


async def start(bench: Bench) -> list[Figure]:
    async with processes.server(f"{bench.folder}/start") as server:
        contenders = {
            "python": _running(server, "-c", "pass"),
            "help": _running(server, *WHIPPET, "--help"),
            "ping": _running(server, *WHIPPET, "ping"),
        }
        return times(START_ROWS, await race(contenders, max(bench.scale.rounds * 2, 1)), "ms", 1e3)


async def send(bench: Bench) -> list[Figure]:
    path, requests = f"{bench.folder}/lines", max(bench.scale.file_bytes // (LINE + 1) // BATCH, 1)
    _write_lines(path, requests)
    async with processes.server(f"{bench.folder}/send") as server:
        stream, topic = await server.topic("send")
        job = tcp_load.Produce(server.place(), stream, topic, BATCH, LINE, requests)

        async def produce() -> float:
            return requests * BATCH / (await bench.load.run(job)).seconds

        run = _running(server, *WHIPPET, "send", "bench/send", path)

        async def sending() -> float:
            return requests * BATCH * await run()

        return rates([SEND_ROW], await race({"produce": produce, "send": sending}, bench.scale.rounds), "msg/s")


async def tail(bench: Bench) -> list[Figure]:
    count = max(bench.scale.tailed // BATCH, 1) * BATCH
    async with processes.server(f"{bench.folder}/tail") as server:
        stream, topic = await server.topic("tail")
        await bench.load.run(tcp_load.Produce(server.place(), stream, topic, BATCH, SHORT, count // BATCH))
        contenders = {"tail": _tailing(server, count)}
        return rates([TAIL_ROW], await race(contenders, bench.scale.rounds), "msg/s")


MEASURES = (Measure("start", start), Measure("send", send), Measure("tail", tail))


def _write_lines(path: str, batches: int) -> None:
    line = (b'{"id":1,"text":"' + b"x" * LINE)[: LINE - 2] + b'"}\n'
    with open(path, "wb") as file:
        for _ in range(batches):
            file.write(line * BATCH)


def _environment(server: Server) -> dict[str, str]:
    address = f"iggy://127.0.0.1:{server.port}"
    return os.environ | {"WHIPPET_SERVER": address, "WHIPPET_USERNAME": USER, "WHIPPET_PASSWORD": PASSWORD}


def _running(server: Server, *arguments: str) -> Contender:
    """Measures how often a command could run in a second."""

    async def contender() -> float:
        began = time.perf_counter()
        process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, stdin=DEVNULL, stdout=DEVNULL, env=_environment(server)
        )
        if await process.wait():
            raise ChildFailed(f"whippet {' '.join(arguments[2:])} failed; its own error is above")
        return 1 / (time.perf_counter() - began)

    return contender


def _tailing(server: Server, count: int) -> Contender:
    """Measures messages per second, from the first line on: following something begins before it arrives."""

    async def contender() -> float:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *(*WHIPPET, "tail", "bench/tail", "--from", "first"),
            stdin=DEVNULL,
            stdout=PIPE,
            env=_environment(server),
            limit=PIECE_BYTES,
        )
        assert process.stdout
        began, lines = 0.0, 0
        while lines < count:
            piece = await process.stdout.read(PIECE_BYTES)
            if not piece:
                raise ChildFailed(f"whippet tail ended after {lines} of {count} lines; its own error is above")
            began = began or time.perf_counter()
            lines += piece.count(b"\n")
        seconds = time.perf_counter() - began
        process.terminate()
        await process.wait()
        return count / seconds

    return contender


@asynccontextmanager
async def _bench(given: Given, folder: str, scale: Scale) -> AsyncIterator[Bench]:
    async with processes.load() as load:
        yield Bench(folder, scale, load)


SUBJECT = Subject("cli", MEASURES, FULL, QUICK, _bench)
run = SUBJECT.run
