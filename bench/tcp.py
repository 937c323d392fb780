"""`whippet bench tcp`: measures the server over TCP on this machine, each figure beside its yardstick.

The server is the real one, started as a process of its own on a temporary folder. The yardstick is the bare server of
tcp_yardstick.py: the same event loop, which reads the same frames, writes the same bytes and responds. The load comes
from a third process. On two cores they all share, so a ratio says more than a rate.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated, Literal, NamedTuple

import typer

from whippet.bench import processes, tcp_load, tcp_packed
from whippet.bench.command import AsJson, Given, Measure, Only, Path, Quick, Rounds, Subject
from whippet.bench.load import PERCENTILES, Place
from whippet.bench.measure import Figure, Row, Target, figure, race, rates
from whippet.bench.processes import Server
from whippet.bench.store_setup import Unsynced
from whippet.bench.tcp_contenders import BATCH, FULL, QUICK, Bench, Scale, consuming, fill_tail, producing
from whippet.storage.batch import FRAME_BYTES, HEADER_BYTES
from whippet.storage.documents import StreamDocument, TopicDocument
from whippet.storage.options import StoreOptions
from whippet.storage.store import Store

MANY = 64
SEVERAL = 16


class Level(NamedTuple):
    """A durability level, and the settings that select it."""

    name: str
    settings: dict[str, str]
    synced: bool = False


MEMORY = Level("memory", {"SYSTEM_PARTITION_MESSAGES_REQUIRED_TO_SAVE": "10000"})
WRITTEN = Level("written", {})
SYNCED = Level("synced", {"SYSTEM_PARTITION_ENFORCE_FSYNC": "true"}, synced=True)

HALF = Target("ratio", ">=", 0.5)
MOST = Target("ratio", ">=", 0.7)
SMALL_RATIO = Target("ratio", ">=", 0.6)
SMALL_WRITTEN = Target("ratio", ">=", 0.9)
SMALL_LATENCIES = (Target("value", "<", 300.0), None, Target("value", "<", 5_000.0))
"""Microseconds at half load, one for each of PERCENTILES."""
IS_PRODUCE = "the yardstick is sending them, one connection"
IS_GROUP_SYNC = "the yardstick syncs once per turn of its loop"


def _produce_rows(what: str, target: Target) -> tuple[Row, ...]:
    return tuple(
        Row(
            f"produce 1,000 x {what}, {number} connection{'s' * (number > 1)}",
            f"server {number}",
            f"yardstick {number}",
            target,
        )
        for number in (1, 8)
    )


IS_FROM_FILE = "the yardstick sends the same bytes from a file"


def _consume_rows(target: Target | None) -> tuple[Row, ...]:
    return tuple(
        row
        for what, prefix in (("1 KB", ""), ("100 B", "small "))
        for place in ("tail", "disk")
        for row in (
            Row(
                f"consume 1,000 x {what} from the {place}",
                f"{prefix}{place}",
                f"{prefix}produce",
                Target("ratio", ">=", 1),
                IS_PRODUCE,
            ),
            Row(
                f"consume 1,000 x {what} from the {place}, against a file",
                f"{prefix}{place}",
                f"{prefix}file",
                target if not prefix else None,
                IS_FROM_FILE,
            ),
        )
    )


class Expected(NamedTuple):
    """The targets for a wire."""

    kb_1: tuple[Row, ...]
    bytes_100: tuple[Row, ...]
    consume: tuple[Row, ...]


EXPECTED = {
    "classic": Expected(
        _produce_rows("1 KB", HALF), _produce_rows("100 B", Target("value", ">=", 1_500_000)), _consume_rows(None)
    ),
    "modern": Expected(
        _produce_rows("1 KB", MOST), _produce_rows("100 B", Target("value", ">=", 2_000_000)), _consume_rows(MOST)
    ),
}
SINGLE_ROWS = {
    "memory": (
        Row("one 100 B a request, memory, 1 connection", "server 1", "yardstick 1"),
        Row(f"one 100 B a request, memory, {MANY} connections", f"server {MANY}", f"yardstick {MANY}"),
    ),
    "written": (
        Row("one 100 B a request, written, 1 connection", "server 1", "yardstick 1", Target("value", ">=", 10_000)),
        Row(
            f"one 100 B a request, written, {MANY} connections",
            f"server {MANY}",
            f"yardstick {MANY}",
            Target("value", ">=", 40_000),
        ),
    ),
    "synced": (
        Row("one 100 B a request, synced, 1 connection", "server 1", "yardstick 1", note=IS_GROUP_SYNC),
        Row(
            f"one 100 B a request, synced, {MANY} connections",
            f"server {MANY}",
            f"yardstick {MANY}",
            Target("value", ">=", 15_000),
            IS_GROUP_SYNC,
        ),
    ),
}


# ------------------------------------------------------------------------------------------------------------ producing


async def _produce(bench: Bench, payload: int, rows: Sequence[Row]) -> list[Figure]:
    requests = max(bench.scale.round_bytes // (BATCH * payload), 8)
    async with (
        processes.yardstick(f"{bench.folder}/yardstick") as bare,
        bench.server(f"produce-{payload}") as server,
    ):
        await fill_tail(bench, server)
        contenders = {}
        for connections in (1, 8):
            shape = BATCH, payload, requests, connections
            contenders[f"yardstick {connections}"] = producing(bench, bare, *shape, None)
            contenders[f"server {connections}"] = producing(bench, server.place(), *shape, server)
        return rates(rows, await race(contenders, bench.scale.rounds), "msg/s")


async def produce_1kb(bench: Bench) -> list[Figure]:
    return await _produce(bench, 1024, EXPECTED[bench.wire].kb_1)


async def produce_100b(bench: Bench) -> list[Figure]:
    return await _produce(bench, 100, EXPECTED[bench.wire].bytes_100)


# ------------------------------------------------------------------------------------------------------------ consuming


async def consume(bench: Bench) -> list[Figure]:
    """The memory tail of one server holds everything that is read; that of the other holds nothing."""
    no_tail = {"SYSTEM_LIMITS_TAIL_BYTES": "1"}
    shapes = [
        (prefix, payload, max(bench.scale.round_bytes // share // (BATCH * payload), 8))
        for prefix, payload, share in (("", 1024, 2), ("small ", 100, 8))
    ]
    async with AsyncExitStack() as stack:
        produce = await stack.enter_async_context(bench.server("consume-produce"))
        tail = await stack.enter_async_context(bench.server("consume-tail"))
        disk = await stack.enter_async_context(bench.server("consume-disk", **no_tail))
        await fill_tail(bench, produce)
        contenders = {}
        for prefix, payload, requests in shapes:
            contenders[f"{prefix}produce"] = producing(bench, produce.place(), BATCH, payload, requests, 1, produce)
            for name, server in (("tail", tail), ("disk", disk)):
                ids = await server.topic(f"consume-{payload}")
                await bench.load.run(tcp_load.Produce(server.place(), *ids, BATCH, payload, requests))
                contenders[f"{prefix}{name}"] = consuming(bench, server.place(), ids, requests)
            size = HEADER_BYTES + BATCH * (FRAME_BYTES + payload)
            file = f"{bench.folder}/file-{payload}"
            bare = await stack.enter_async_context(processes.yardstick(file, "send", str(size), str(requests)))
            contenders[f"{prefix}file"] = consuming(bench, bare, (0, 0), requests)
        return rates(EXPECTED[bench.wire].consume, await race(contenders, bench.scale.rounds), "msg/s")


# ---------------------------------------------------------------------------------------- one message, and its latency


async def _singles(bench: Bench, level: Level) -> list[Figure]:
    scale = bench.scale
    many = scale.singles // 8 if level.synced else scale.singles
    async with (
        processes.yardstick(f"{bench.folder}/yardstick", *(["sync"] if level.synced else [])) as bare,
        bench.server(f"{level.name}", **level.settings) as server,
    ):
        contenders = {}
        for connections, requests in ((1, max(many // 8, 100)), (MANY, many)):
            shape = 1, 100, requests, connections
            contenders[f"yardstick {connections}"] = producing(bench, bare, *shape, None)
            contenders[f"server {connections}"] = producing(bench, server.place(), *shape, server)
        found = await race(contenders, scale.rounds)
        rate = found[f"server {MANY}"] / 2
        ids = await server.topic("latency")
        measured = await bench.load.run(tcp_load.OpenLoop(server.place(), *ids, 100, rate, scale.latency_s, MANY))
        against = await bench.load.run(tcp_load.OpenLoop(bare, 0, 0, 100, rate, scale.latency_s, MANY))
    note = f"open loop, {rate:,.0f} req/s, {MANY} connections"
    latencies = [
        figure(
            Row(f"latency p{percentile:g}, {level.name}", "", note=note), value, bare_value, "us", less_is_better=True
        )
        for percentile, value, bare_value in zip(PERCENTILES, measured.latencies_us, against.latencies_us, strict=True)
    ]
    return rates(SINGLE_ROWS[level.name], found, "req/s") + latencies


IS_ONLY_ANSWERING = "the yardstick reads the frame and responds"


async def small(bench: Bench) -> list[Figure]:
    """Compares one message a request with a server that only responds, and the level *written* with *memory*."""
    scale = bench.scale
    levels = (MEMORY, WRITTEN)
    async with AsyncExitStack() as stack:
        bare = await stack.enter_async_context(processes.yardstick(f"{bench.folder}/yardstick", "answer"))
        servers = {
            level.name: await stack.enter_async_context(bench.server(f"small-{level.name}", **level.settings))
            for level in levels
        }
        contenders = {}
        for connections, requests in ((1, max(scale.singles // 4, 100)), (SEVERAL, scale.singles)):
            shape = 1, 100, requests, connections
            contenders[f"yardstick {connections}"] = producing(bench, bare, *shape, None)
            for name, server in servers.items():
                contenders[f"{name} {connections}"] = producing(bench, server.place(), *shape, server)
        found = await race(contenders, scale.rounds)
        latencies = []
        for name, server in servers.items():
            latencies += await _half_load(bench, name, server, bare, found[f"{name} {SEVERAL}"] / 2)
    rows: list[Row] = []
    for connections in (1, SEVERAL):
        what = f"{connections} connection{'s' * (connections > 1)}"
        bare_one, memory, written = (f"{name} {connections}" for name in ("yardstick", "memory", "written"))
        rows += [
            Row(
                f"small, memory, {what}", memory, bare_one, SMALL_RATIO if connections > 1 else None, IS_ONLY_ANSWERING
            ),
            Row(f"small, written, {what}", written, bare_one, None, IS_ONLY_ANSWERING),
            Row(f"small, written, {what}, beside memory", written, memory, SMALL_WRITTEN, "the yardstick is memory"),
        ]
    return rates(rows, found, "req/s") + latencies


async def _half_load(bench: Bench, level: str, server: Server, bare: Place, rate: float) -> list[Figure]:
    """Measures the latency of requests that come at this rate, and the same of a server that only responds."""
    ids = await server.topic("latency")
    job = tcp_load.OpenLoop(server.place(), *ids, 100, rate, bench.scale.latency_s, SEVERAL)
    measured = await bench.load.run(job)
    against = await bench.load.run(tcp_load.OpenLoop(bare, 0, 0, 100, rate, bench.scale.latency_s, SEVERAL))
    note = f"open loop, {rate:,.0f} req/s, {SEVERAL} connections"
    found = zip(PERCENTILES, measured.latencies_us, against.latencies_us, SMALL_LATENCIES, strict=True)
    return [
        figure(
            Row(f"small, {level}, latency p{percentile:g}", "", target=target, note=note),
            value,
            bare_value,
            "us",
            less_is_better=True,
        )
        for percentile, value, bare_value, target in found
    ]


async def one_memory(bench: Bench) -> list[Figure]:
    return await _singles(bench, MEMORY)


async def one_written(bench: Bench) -> list[Figure]:
    return await _singles(bench, WRITTEN)


async def one_synced(bench: Bench) -> list[Figure]:
    return await _singles(bench, SYNCED)


# --------------------------------------------------------------------------------------------------- idle, and starting


async def idle(bench: Bench) -> list[Figure]:
    count = bench.scale.idle_connections
    async with bench.server("idle") as server:
        # The first half uses memory that was freed and kept before, such as that for a password's hash.
        await bench.load.run(tcp_load.Hold(server.place(), count - count // 2))
        before = server.resident_bytes()
        await bench.load.run(tcp_load.Hold(server.place(), count // 2))
        each = (server.resident_bytes() - before) / (count // 2)
        await bench.load.run(tcp_load.Hold(server.place(), 0))
    row = Row(f"memory of an idle connection, of {count:,}", "", target=Target("value", "<", 25.0))
    return [figure(row, max(each, 1.0) / 1024, None, "KiB")]


async def start(bench: Bench) -> list[Figure]:
    """The topics are created without the server and without syncs, because only the start is measured."""
    path = f"{bench.folder}/start"
    store = await Store.open(StoreOptions(path=path, catalog_syncs=False, saver_interval_s=None), files=Unsynced())
    await store.create_stream(StreamDocument(id=0, name="bench", created_at=1))
    for number in range(bench.scale.topics):
        document = TopicDocument(id=number, name=f"topic-{number}", created_at=1, partitions_count=1)
        await store.create_topic(0, document)
    await store.close()
    full, empty = [], []
    for number in range(min(bench.scale.rounds, 3)):
        async with processes.server(path, bench.wire) as server:
            assert len(await server.client.get_topics(0)) == bench.scale.topics
            full.append(server.seconds)
        async with bench.server(f"empty-{number}") as server:
            empty.append(server.seconds)
    row = Row(
        f"start with {bench.scale.topics:,} topics until it listens",
        "",
        target=Target("value", "<", 5.0),
        note="the yardstick is a start without topics",
    )
    return [figure(row, min(full), min(empty), "s", less_is_better=True)]


# -------------------------------------------------------------------------------------------------- the command line

MEASURES = (
    Measure("produce-1kb", produce_1kb),
    Measure("produce-100b", produce_100b),
    Measure("consume", consume),
    Measure("packed", tcp_packed.packed),
    Measure("one-memory", one_memory),
    Measure("one-written", one_written),
    Measure("one-synced", one_synced),
    Measure("small", small),
    Measure("idle", idle),
    Measure("start", start),
)


@asynccontextmanager
async def _bench(given: Given, folder: str, scale: Scale) -> AsyncIterator[Bench]:
    async with processes.load() as load:
        yield Bench(folder, scale, load, given.wire)


SUBJECT = Subject("tcp", MEASURES, FULL, QUICK, _bench)


def run(
    as_json: AsJson = False,
    only: Only = None,
    rounds: Rounds = None,
    path: Path = ".",
    quick: Quick = False,
    wire: Annotated[
        Literal["classic", "modern"], typer.Option(help="the protocol, of the clients 0.6 to 0.8 or since 0.9")
    ] = "classic",
) -> int:
    return SUBJECT.measure(Given(as_json, only, rounds, path, quick, wire=wire))
