"""`whippet bench ws`: measures the server over WebSocket on this machine, each figure beside its yardstick.

The yardstick is a bare server of the `websockets` package, which receives the same messages and does next to nothing
with them. The load comes from a third process. On two cores they all share, so a ratio says more than a rate.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import NamedTuple

from whippet.bench import processes
from whippet.bench.command import Given, Measure, Subject
from whippet.bench.load import Exchange, Place
from whippet.bench.measure import Contender, Figure, Row, Target, figure, race, rates
from whippet.bench.processes import Load, Server, exchanging
from whippet.bench.ws_load import FanOut, Sends

BATCH = 1000
CONNECTIONS = 8
FAN_PER_SECOND = 200
FAN_MS_MAX = 200.0
HALF = Target("ratio", ">=", 0.5)
IS_NO_STORE = "the yardstick writes without a thread, and promises nothing"
IS_BINARY = "the yardstick takes binary messages"
IS_BROADCAST = "the yardstick passes on what it is sent"


class Scale(NamedTuple):
    """How much work a run does."""

    rounds: int
    round_bytes: int
    singles: int
    subscribers: int
    fan_seconds: float


FULL = Scale(5, 128 << 20, 10_000, 500, 10.0)
QUICK = Scale(1, 4 << 20, 200, 20, 0.5)


class Bench(NamedTuple):
    folder: str
    scale: Scale
    load: Load

    def server(self, name: str, wire: str = "classic", **more: str) -> AbstractAsyncContextManager[Server]:
        settings = more | {"HTTP_ENABLED": "true", "HTTP_ADDRESS": "127.0.0.1:0"}
        return processes.server(f"{self.folder}/{name}", wire, **settings)

    def yardstick(self, answer_bytes: int = 0) -> AbstractAsyncContextManager[Place]:
        return processes.yardstick(f"{self.folder}/yardstick", str(answer_bytes), module="whippet.bench.ws_yardstick")


class Shape(NamedTuple):
    messages: int
    payload: int
    requests: int
    in_flight: int = 1


def place_of(server: Server) -> Place:
    return Place(server.http_port, server.token, server.wire)


async def produce(bench: Bench) -> list[Figure]:
    requests = max(bench.scale.round_bytes // (BATCH * 1024), 2)
    async with (
        bench.yardstick() as bare,
        bench.server("classic") as classic,
        bench.server("modern", "modern") as modern,
    ):
        contenders: dict[str, Contender] = {}
        for in_flight in (1, 4):
            shape = Shape(BATCH, 1024, requests, in_flight)
            contenders[f"yardstick {in_flight}"] = exchanging(bench.load, Exchange(bare, 0, 0, *shape))
            for server in (classic, modern):
                ids = await server.topic("produce")
                contenders[f"{server.wire} {in_flight}"] = exchanging(
                    bench.load, Exchange(place_of(server), *ids, *shape)
                )
        rows = [
            Row(f"produce 1,000 x 1 KB, {wire}, {number} in flight", f"{wire} {number}", f"yardstick {number}", HALF)
            for wire in ("classic", "modern")
            for number in (1, 4)
        ]
        return rates(rows, await race(contenders, bench.scale.rounds), "msg/s")


async def consume(bench: Bench) -> list[Figure]:
    requests = max(bench.scale.round_bytes // (BATCH * 1024), 2)
    async with bench.yardstick(BATCH * (1024 + 64) + 16) as bare, bench.server("consume") as server:
        place, ids = place_of(server), await server.topic("consume")
        await bench.load.run(Exchange(place, *ids, BATCH, 1024, 1))
        shape = Shape(BATCH, 0, requests)
        contenders = {
            "yardstick": exchanging(bench.load, Exchange(bare, 0, 0, *shape)),
            "server": exchanging(bench.load, Exchange(place, *ids, *shape)),
        }
        rows = [Row("consume 1,000 x 1 KB", "server", "yardstick", HALF)]
        return rates(rows, await race(contenders, bench.scale.rounds), "msg/s")


async def small(bench: Bench) -> list[Figure]:
    async with (
        bench.yardstick() as bare,
        bench.server("memory", SYSTEM_PARTITION_MESSAGES_REQUIRED_TO_SAVE="10000") as memory,
        bench.server("written") as written,
    ):
        contenders: dict[str, Contender] = {}
        several = bench.scale.singles, CONNECTIONS
        for level, server in (("memory", memory), ("written", written)):
            ids = await server.topic("small")
            for in_flight in (1, 8):
                for what, messages, payload in (("ping", 0, 0), ("send", 1, 100)):
                    shape = Shape(messages, payload, bench.scale.singles, in_flight)
                    contenders[f"yardstick {what} {in_flight}"] = exchanging(bench.load, Exchange(bare, 0, 0, *shape))
                    contenders[f"{level} {what} {in_flight}"] = exchanging(
                        bench.load, Exchange(place_of(server), *ids, *shape)
                    )
            for form in ("binary", "text"):
                contenders[f"{level} {form}"] = sending(bench, Sends(place_of(server), *ids, form, 100, *several))
        contenders["yardstick"] = sending(bench, Sends(bare, 0, 0, "binary", 100, *several))
        rows = [
            Row(f"{name}, {number} in flight", f"{level} {what} {number}", f"yardstick {what} {number}", None, note)
            for name, level, what, note in (
                ("a ping", "memory", "ping", ""),
                ("one 100 B a request, memory", "memory", "send", ""),
                ("one 100 B a request, written", "written", "send", IS_NO_STORE),
            )
            for number in (1, 8)
        ]
        rows += [
            Row(f"small, {form}, {level}, {CONNECTIONS} connections", f"{level} {form}", "yardstick", None, note)
            for form, note in (("binary", IS_NO_STORE), ("text", IS_BINARY))
            for level in ("memory", "written")
        ]
        return rates(rows, await race(contenders, bench.scale.rounds), "req/s")


def sending(bench: Bench, job: Sends) -> Contender:
    async def contender() -> float:
        return job.requests / (await bench.load.run(job)).seconds

    return contender


async def fan(bench: Bench) -> list[Figure]:
    """Measures how long a message takes to reach all subscribers of its topic."""
    scale = bench.scale
    async with bench.yardstick() as bare, bench.server("fan") as server:
        await server.topic("fan")
        places = {"server": place_of(server), "yardstick": bare}
        # The first messages warm everything up.
        for place in places.values():
            await bench.load.run(FanOut(place, max(scale.subscribers // 10, 1), FAN_PER_SECOND, 0.5))
        found = {
            name: await bench.load.run(FanOut(place, scale.subscribers, FAN_PER_SECOND, scale.fan_seconds))
            for name, place in places.items()
        }
    what = f"{scale.subscribers} subscribers of a topic at {FAN_PER_SECOND} msg/s"
    figures = [
        figure(
            Row(f"{what}, p{percentile:g}", "", target=target, note=IS_BROADCAST),
            ours / 1000,
            theirs / 1000,
            "ms",
            less_is_better=True,
        )
        for percentile, ours, theirs, target in zip(
            (50.0, 99.0, 99.9),
            found["server"].latencies_us,
            found["yardstick"].latencies_us,
            (None, Target("value", "<", FAN_MS_MAX), None),
            strict=True,
        )
    ]
    row = Row(f"{what}, delivered", "", note="the run fails if one is missing")
    return [*figures, figure(row, found["server"].received_bytes / found["server"].seconds, None, "msg/s")]


MEASURES = (
    Measure("produce", produce),
    Measure("consume", consume),
    Measure("small", small),
    Measure("fan", fan),
)


@asynccontextmanager
async def _bench(given: Given, folder: str, scale: Scale) -> AsyncIterator[Bench]:
    async with processes.load("whippet.bench.ws_load") as load:
        yield Bench(folder, scale, load)


SUBJECT = Subject("ws", MEASURES, FULL, QUICK, _bench)
run = SUBJECT.run
