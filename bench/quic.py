"""`whippet bench quic`: measures the server over QUIC on this machine, each figure beside its yardstick.

The yardstick is aioquic without pacing (quic_unpaced.py), which receives the same bytes and does next to nothing with
them. The load comes from a third process, whose packets cost about as much as the server's (quic_load.py): where the
client is the slowest part, both have its speed. On two cores they all share, so a ratio says more than a rate.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import NamedTuple

import numpy as np

from whippet.bench import processes
from whippet.bench.command import Given, Measure, Subject
from whippet.bench.load import Exchange, Place
from whippet.bench.measure import Figure, Row, Target, figure, race, rates
from whippet.bench.processes import Load, Server, exchanging

BATCH = 1000
SIZES = (1_200, 1_452, 8_952, 16_384)
"""Sizes of datagrams: what every path carries, Ethernet, jumbo frames, and what only the loopback device carries."""
USUAL = 1_452
CONNECTIONS = 8
PING_MS_MAX = 50.0
MOST = Target("ratio", ">=", 0.7)
BY_A_THREAD = "the yardstick writes in a thread as well, and then responds"


class Scale(NamedTuple):
    """How much work a run does."""

    rounds: int
    round_bytes: int
    singles: int
    pings: int


FULL = Scale(5, 12 << 20, 3_000, 400)
QUICK = Scale(1, 2 << 20, 100, 20)


class Bench(NamedTuple):
    folder: str
    scale: Scale
    load: Load

    def server(self, name: str, datagram_bytes: int = USUAL, **more: str) -> AbstractAsyncContextManager[Server]:
        settings = more | {
            "QUIC_ENABLED": "true",
            "QUIC_ADDRESS": "127.0.0.1:0",
            "QUIC_MAX_DATAGRAM_SIZE": str(datagram_bytes),
        }
        return processes.server(f"{self.folder}/{name}", **settings)

    def yardstick(
        self, datagram_bytes: int = USUAL, answer_bytes: int = 0, writer: str = "loop"
    ) -> AbstractAsyncContextManager[Place]:
        arguments = (f"{self.folder}/yardstick-{writer}", str(datagram_bytes), str(answer_bytes), writer)
        return processes.yardstick(*arguments, module="whippet.bench.quic_yardstick")


class Shape(NamedTuple):
    messages: int
    payload: int
    requests: int
    in_flight: int = 1
    datagram_bytes: int = USUAL
    connections: int = 1


async def place_of(server: Server) -> Place:
    return Place(await processes.quic_port(server.process), server.token, server.wire)


async def produce(bench: Bench) -> list[Figure]:
    requests = max(bench.scale.round_bytes // (BATCH * 1024), 2)
    async with bench.yardstick() as bare, bench.server("produce") as server:
        place, ids = await place_of(server), await server.topic("produce")
        contenders = {}
        for in_flight in (1, 4):
            shape = Shape(BATCH, 1024, requests, in_flight)
            contenders[f"yardstick {in_flight}"] = exchanging(bench.load, Exchange(bare, 0, 0, *shape))
            contenders[f"server {in_flight}"] = exchanging(bench.load, Exchange(place, *ids, *shape))
        rows = [
            Row(f"produce 1,000 x 1 KB, {number} in flight", f"server {number}", f"yardstick {number}", MOST)
            for number in (1, 4)
        ]
        return rates(rows, await race(contenders, bench.scale.rounds), "msg/s")


async def consume(bench: Bench) -> list[Figure]:
    requests = max(bench.scale.round_bytes // (BATCH * 1024), 2)
    async with bench.yardstick(answer_bytes=BATCH * (1024 + 64) + 16) as bare, bench.server("consume") as server:
        place, ids = await place_of(server), await server.topic("consume")
        await bench.load.run(Exchange(place, *ids, BATCH, 1024, 1))
        shape = Shape(BATCH, 0, requests)
        contenders = {
            "yardstick": exchanging(bench.load, Exchange(bare, 0, 0, *shape)),
            "server": exchanging(bench.load, Exchange(place, *ids, *shape)),
        }
        rows = [Row("consume 1,000 x 1 KB", "server", "yardstick", MOST)]
        return rates(rows, await race(contenders, bench.scale.rounds), "msg/s")


async def small(bench: Bench) -> list[Figure]:
    """Sends at level `written` are compared with a yardstick that writes in a thread, and with one that writes in
    the loop."""
    async with (
        bench.yardstick() as bare,
        bench.yardstick(writer="thread") as writing,
        bench.server("memory", SYSTEM_PARTITION_MESSAGES_REQUIRED_TO_SAVE="10000") as memory,
        bench.server("written") as written,
    ):
        contenders, many = {}, f"{CONNECTIONS} connections"
        for level, server in (("memory", memory), ("written", written)):
            place, ids = await place_of(server), await server.topic("small")
            for in_flight in (1, 8):
                for what, messages, payload in (("ping", 0, 0), ("send", 1, 100)):
                    shape = Shape(messages, payload, bench.scale.singles, in_flight)
                    contenders[f"yardstick {what} {in_flight}"] = exchanging(bench.load, Exchange(bare, 0, 0, *shape))
                    contenders[f"{level} {what} {in_flight}"] = exchanging(bench.load, Exchange(place, *ids, *shape))
            shape = Shape(1, 100, bench.scale.singles, connections=CONNECTIONS)
            contenders[f"yardstick {many}"] = exchanging(bench.load, Exchange(bare, 0, 0, *shape))
            contenders[f"{level} {many}"] = exchanging(bench.load, Exchange(place, *ids, *shape))
        for in_flight in (1, 8):
            shape = Shape(1, 100, bench.scale.singles, in_flight)
            contenders[f"writing send {in_flight}"] = exchanging(bench.load, Exchange(writing, 0, 0, *shape))
        rows = [
            Row(f"{name}, {number} in flight", f"{level} {what} {number}", f"{beside} {what} {number}", target, note)
            for name, level, what, beside, target, note in (
                ("a ping", "memory", "ping", "yardstick", MOST, ""),
                ("one 100 B a request, memory", "memory", "send", "yardstick", MOST, ""),
                ("one 100 B a request, written", "written", "send", "writing", MOST, BY_A_THREAD),
                ("one 100 B a request, written, beside a loop that writes", "written", "send", "yardstick", None, ""),
            )
            for number in (1, 8)
        ]
        rows += [
            Row(
                f"one 100 B a request, {level}, {many}",
                f"{level} {many}",
                f"yardstick {many}",
            )
            for level in ("memory", "written")
        ]
        return rates(rows, await race(contenders, bench.scale.rounds), "req/s")


async def sizes(bench: Bench) -> list[Figure]:
    """Measures both directions for several sizes of datagrams."""
    figures: list[Figure] = []
    requests = max(bench.scale.round_bytes // (BATCH * 1024), 2)
    for size in SIZES:
        async with (
            bench.yardstick(size) as bare,
            bench.yardstick(size, BATCH * (1024 + 64) + 16) as sender,
            bench.server(f"size-{size}", size) as server,
        ):
            place, ids = await place_of(server), await server.topic("sizes")
            into, out = (Shape(BATCH, payload, requests, 1, size) for payload in (1024, 0))
            contenders = {
                "yardstick in": exchanging(bench.load, Exchange(bare, 0, 0, *into)),
                "server in": exchanging(bench.load, Exchange(place, *ids, *into)),
                "yardstick out": exchanging(bench.load, Exchange(sender, 0, 0, *out)),
                "server out": exchanging(bench.load, Exchange(place, *ids, *out)),
            }
            found = await race(contenders, max(bench.scale.rounds // 2, 1))
        megabytes = {name: rate * 1024 / 1e6 for name, rate in found.items()}
        rows = [
            Row(f"{what}, datagrams of {size:,} B", f"server {way}", f"yardstick {way}")
            for what, way in (("produce", "in"), ("consume", "out"))
        ]
        figures += rates(rows, megabytes, "MB/s")
    return figures


async def ping(bench: Bench) -> list[Figure]:
    """Measures how long a client on TCP waits while QUIC is saturated."""
    async with bench.server("ping") as server:
        place, ids = await place_of(server), await server.topic("ping")
        alone = await _pings(server, bench.scale.pings)
        over = asyncio.Event()
        saturating = asyncio.create_task(_saturate(bench, Exchange(place, *ids, BATCH, 1024, 20, 4, USUAL), over))
        await asyncio.sleep(0.2)
        while_busy = await _pings(server, bench.scale.pings)
        over.set()
        await saturating
    row = Row(
        "p99 of a ping over TCP while QUIC is saturated",
        "",
        target=Target("value", "<", PING_MS_MAX),
        note="the yardstick is the same without QUIC traffic",
    )
    return [
        figure(row, float(np.percentile(while_busy, 99)), float(np.percentile(alone, 99)), "ms", less_is_better=True)
    ]


async def _saturate(bench: Bench, job: Exchange, over: asyncio.Event) -> None:
    while not over.is_set():
        await bench.load.run(job)


async def _pings(server: Server, count: int) -> list[float]:
    found = []
    for _ in range(count):
        start = time.perf_counter()
        await server.client.ping()
        found.append((time.perf_counter() - start) * 1000)
        await asyncio.sleep(0.005)
    return found


MEASURES = (
    Measure("produce", produce),
    Measure("consume", consume),
    Measure("small", small),
    Measure("sizes", sizes),
    Measure("ping", ping),
)


@asynccontextmanager
async def _bench(given: Given, folder: str, scale: Scale) -> AsyncIterator[Bench]:
    async with processes.load("whippet.bench.quic_load") as load:
        yield Bench(folder, scale, load)


SUBJECT = Subject("quic", MEASURES, FULL, QUICK, _bench)
run = SUBJECT.run
