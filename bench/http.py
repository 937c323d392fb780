"""`whippet bench http`: measures the HTTP API on this machine, each figure beside its yardstick.

The server is the real one, started as a process of its own on a temporary folder. The yardstick is the bare application
of http_yardstick.py on the same uvicorn: it receives the same bodies, decodes the same JSON, and returns as many bytes.
The load comes from a third process. On two cores they all share, so a ratio says more than a rate.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from whippet.app.client.batching import pack
from whippet.bench import http_load, processes
from whippet.bench.command import Given, Measure, Subject
from whippet.bench.http_load import BATCH, JSON, NDJSON, Get, Media, Post, Stall, Tail, Wake
from whippet.bench.load import PERCENTILES
from whippet.bench.measure import Contender, Figure, Row, Target, figure, race, rates
from whippet.bench.processes import Load, Server

SEVERAL = 4
FEW = 8
MANY = 64
POLLED = 100
STALL_S = 1.0


class Scale(NamedTuple):
    """How much work a run does."""

    rounds: int
    bodies: int
    """Bodies of a thousand messages, sent by one contender in one round."""
    singles: int
    polls: int
    tails: int
    tail_seconds: float
    wakes: int


FULL = Scale(5, 200, 10_000, 4_000, 1000, 10.0, 500)
QUICK = Scale(1, 10, 300, 100, 50, 1.0, 20)


class Bench(NamedTuple):
    folder: str
    scale: Scale
    load: Load


RECEIVER = "the yardstick receives the body"
DECODER = "the yardstick decodes the body"
PLAIN = "the yardstick is a plain ASGI function"
GIVER = "the yardstick returns as many bytes"


@asynccontextmanager
async def serving(bench: Bench, name: str, **settings: str) -> AsyncIterator[Server]:
    async with processes.server(
        f"{bench.folder}/{name}", HTTP_ENABLED="true", HTTP_ADDRESS="127.0.0.1:0", **settings
    ) as server:
        yield server


@asynccontextmanager
async def bare() -> AsyncIterator[int]:
    async with processes.yardstick("", module="whippet.bench.http_yardstick") as place:
        yield place.port


async def target(server: Server, name: str, query: str = "") -> http_load.Target:
    """Returns the messages of a topic, which is created if it does not exist."""
    stream, topic = await server.topic(name)
    return http_load.Target(server.http_port, f"/streams/{stream}/topics/{topic}/messages{query}", server.token)


def posting(
    bench: Bench,
    to: http_load.Target,
    media: Media,
    messages: int,
    payload: int,
    requests: int,
    connections: int = SEVERAL,
) -> Contender:
    """Measures messages per second."""

    async def contender() -> float:
        job = Post(to, media, messages, payload, requests, connections)
        return requests * messages / (await bench.load.run(job)).seconds

    return contender


async def bodies(bench: Bench) -> list[Figure]:
    count = bench.scale.bodies
    async with bare() as port, serving(bench, "bodies") as server:
        take, decode = (http_load.Target(port, path) for path in ("/take", "/decode"))
        to, at_0 = await target(server, "bodies"), await target(server, "bodies", "?partition=0")
        found = await race(
            {
                "bare json": posting(bench, decode, JSON, 1000, 100, count),
                "json": posting(bench, to, JSON, 1000, 100, count),
                "ndjson": posting(bench, at_0, NDJSON, 1000, 100, count),
                "bare batch": posting(bench, take, BATCH, 1000, 1024, count),
                "batch": posting(bench, at_0, BATCH, 1000, 1024, count),
            },
            bench.scale.rounds,
        )
        # A body of a thousand messages of 1 KB is about a megabyte, and their frames.
        megabytes = len(pack([bytes(1024)] * 1000)) / 1e9
        rows = (
            Row(f"JSON 1,000 x 100 B, {SEVERAL} connections", "json", "bare json", Target("ratio", ">=", 0.6), DECODER),
            Row(f"JSON 1,000 x 100 B, {SEVERAL} connections, messages", "json", None, Target("value", ">=", 800_000)),
            Row(
                f"NDJSON 1,000 x 100 B, {SEVERAL} connections",
                "ndjson",
                "json",
                Target("ratio", ">=", 0.667),
                "the yardstick is our JSON",
            ),
            Row(
                f"batch 1,000 x 1 KB, {SEVERAL} connections",
                "batch",
                "bare batch",
                Target("ratio", ">=", 0.4),
                RECEIVER,
            ),
        )
        bytes_row = Row(
            f"batch 1,000 x 1 KB, {SEVERAL} connections, bytes", "", target=Target("value", ">=", 600.0), note=RECEIVER
        )
        speed, bare_speed = (found[name] * megabytes for name in ("batch", "bare batch"))
        return [*rates(rows, found, "msg/s"), figure(bytes_row, speed, bare_speed, "MB/s")]


async def singles(bench: Bench) -> list[Figure]:
    async with bare() as port, serving(bench, "singles") as server:
        shape = 1, 100, bench.scale.singles, MANY
        found = await race(
            {
                "bare": posting(bench, http_load.Target(port, "/decode"), JSON, *shape),
                "server": posting(bench, await target(server, "singles"), JSON, *shape),
            },
            bench.scale.rounds,
        )
        name = f"one message a POST, {MANY} connections"
        return rates((Row(name, "server", "bare", Target("value", ">=", 8_000), DECODER),), found, "req/s")


async def small(bench: Bench) -> list[Figure]:
    """One message a request over a few connections, beside a plain ASGI function, and what wakes a long poll."""
    scale = bench.scale
    memory = {"SYSTEM_PARTITION_MESSAGES_REQUIRED_TO_SAVE": "10000"}
    async with (
        bare() as port,
        serving(bench, "small-memory", **memory) as in_memory,
        serving(bench, "small-written") as written,
    ):
        plain = http_load.Target(port, "/bare")
        shape = 1, 100, scale.singles, FEW
        await bench.load.run(Post(await target(written, "polled"), JSON, 1, 100, 1))
        polled = await target(written, "polled", "?value=0&count=1")
        found = await race(
            {
                "bare": posting(bench, plain, JSON, *shape),
                "memory": posting(bench, await target(in_memory, "small"), JSON, *shape),
                "written": posting(bench, await target(written, "small"), JSON, *shape),
                "bare poll": getting(bench, plain, JSON, FEW),
                "poll": getting(bench, polled, JSON, FEW),
            },
            scale.rounds,
        )
        woken = await bench.load.run(Wake(await target(written, "woken"), scale.wakes))
    most = Target("ratio", ">=", 0.55)
    rows = (
        Row(f"small, JSON, memory, {FEW} connections", "memory", "bare", None, PLAIN),
        Row(f"small, JSON, written, {FEW} connections", "written", "bare", most, PLAIN),
        Row(f"small, poll of one message, {FEW} connections", "poll", "bare poll", None, PLAIN),
    )
    return [
        *rates(rows, found, "req/s"),
        *(
            figure(Row(f"small, from a send until a long poll is answered, p{percentile:g}", ""), value, None, "us")
            for percentile, value in zip(PERCENTILES, woken.latencies_us, strict=True)
        ),
    ]


async def polls(bench: Bench) -> list[Figure]:
    async with bare() as port, serving(bench, "polls") as server:
        to = await target(server, "polls")
        await bench.load.run(Post(to, BATCH, POLLED, 100, 1))
        from_0 = await target(server, "polls", f"?value=0&count={POLLED}")
        sizes = {
            accept: (await bench.load.run(Get(from_0, accept, 1))).received_bytes for accept in (JSON, NDJSON, BATCH)
        }
        contenders: dict[str, Contender] = {}
        for accept, size in sizes.items():
            assert size > POLLED * 100
            given = http_load.Target(port, f"/give/{size}")
            contenders[f"bare {accept}"] = getting(bench, given, accept)
            contenders[accept] = getting(bench, from_0, accept)
        rows = [
            Row(f"polls of {POLLED} x 100 B, {name}, {MANY} connections", accept, f"bare {accept}", wanted, GIVER)
            for name, accept, wanted in (
                ("JSON", JSON, Target("value", ">=", 4_000)),
                ("NDJSON", NDJSON, None),
                ("batch", BATCH, Target("value", ">=", 8_000)),
            )
        ]
        return rates(rows, await race(contenders, bench.scale.rounds), "req/s")


def getting(bench: Bench, of: http_load.Target, accept: str, connections: int = MANY) -> Contender:
    async def contender() -> float:
        return bench.scale.polls / (await bench.load.run(Get(of, accept, bench.scale.polls, connections))).seconds

    return contender


async def tails(bench: Bench) -> list[Figure]:
    scale, per_second = bench.scale, 500
    async with serving(bench, "tails") as server:
        to = await target(server, "tails")
        # The first tails fill memory that the process keeps afterwards.
        await bench.load.run(Tail(to, max(scale.tails // 10, 1), per_second, 0.5))
        before = server.resident_bytes()
        outcome = await bench.load.run(Tail(to, scale.tails, per_second, scale.tail_seconds))
        grown = max(server.resident_bytes() - before, 0) / (1 << 20)
    what = f"{scale.tails:,} tails of a topic at {per_second} msg/s"
    limits = {99.0: Target("value", "<", 250.0)}
    note = "of the oldest message in each read"
    figures = [
        figure(
            Row(
                f"{what}, p{percentile:g}",
                "",
                target=limits.get(percentile),
                note=note,
            ),
            latency / 1000,
            None,
            "ms",
        )
        for percentile, latency in zip((50.0, 99.0, 99.9), outcome.latencies_us, strict=True)
    ]
    all_of_them = Row(f"{what}, delivered", "", note="the run fails if one is missing")
    memory = Row(f"{what}, memory they use", "", target=Target("value", "<", 256.0))
    return [
        *figures,
        figure(all_of_them, outcome.received_bytes / outcome.seconds, None, "events/s"),
        figure(memory, grown, None, "MiB"),
    ]


async def stalled(bench: Bench) -> list[Figure]:
    async with serving(bench, "stalled", HTTP_READERS_STALL_TIME=f"{STALL_S:g}s") as server:
        to = await target(server, "stalled", "")
        outcome = await bench.load.run(Stall(to, 24 << 20, 3 * STALL_S + 1))
    row = Row("a stalled tail received, before its end event", "", target=Target("value", ">=", 1))
    return [figure(row, float(outcome.received_bytes), None, "events")]


# -------------------------------------------------------------------------------------------------- the command line

MEASURES = (
    Measure("bodies", bodies),
    Measure("singles", singles),
    Measure("small", small),
    Measure("polls", polls),
    Measure("tails", tails),
    Measure("stalled", stalled),
)


@asynccontextmanager
async def _bench(given: Given, folder: str, scale: Scale) -> AsyncIterator[Bench]:
    async with processes.load("whippet.bench.http_load") as load:
        yield Bench(folder, scale, load)


SUBJECT = Subject("http", MEASURES, FULL, QUICK, _bench)
run = SUBJECT.run
