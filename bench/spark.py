"""`whippet bench spark`: measures the data source of Spark on this machine, including the gateway, beside yardsticks.

Spark runs as `local[2]`, and the gateway in a process of its own. The yardsticks are: Spark reading the same rows from
Parquet, decoding the same batches in one process, and posting the same bytes. On two cores they all share, so a ratio
says more than a rate.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

from whippet.bench import http_load, processes
from whippet.bench.command import Given, Measure, Subject
from whippet.bench.http_load import BATCH, Post
from whippet.bench.measure import Contender, Figure, Row, Target, figure, race, rates
from whippet.bench.processes import Load, Server
from whippet.bench.spark_jobs import Engine, NoSpark

PARTITIONS = 2
SMALL, LARGE = 100, 1_000
"""Bytes of a row."""
MESSAGES_PER_REQUEST = 1_000
POSTED_PER_REQUEST = 5_000
STREAMED_PER_BATCH = 100_000
TIMES = (1, 2, 4)


class Scale(NamedTuple):
    """How much work a run does."""

    rounds: int
    rows: int
    """Rows of 100 B in a round; a quarter as many of 1 KB."""
    streamed: int
    """Rows per batch of a stream."""
    singles: int


FULL = Scale(3, 2_000_000, STREAMED_PER_BATCH, 40)
QUICK = Scale(1, 8_000, 2_000, 5)


class Bench(NamedTuple):
    folder: str
    scale: Scale
    load: Load
    engine: Engine


@asynccontextmanager
async def serving(bench: Bench, name: str) -> AsyncIterator[Server]:
    """Starts a gateway for Spark."""
    path = f"{bench.folder}/{name}"
    async with processes.server(path, HTTP_ENABLED="true", HTTP_ADDRESS="127.0.0.1:0") as server:
        bench.engine.options = {"url": f"http://127.0.0.1:{server.http_port}", "token": server.token}
        yield server


async def filled(bench: Bench, server: Server, name: str, rows: int, size: int) -> str:
    """Creates a topic with this many rows of this many bytes, spread evenly over its partitions."""
    ids = await server.topic(name, PARTITIONS)
    for partition in range(PARTITIONS):
        path = f"/streams/{ids[0]}/topics/{ids[1]}/messages?partition={partition}"
        to = http_load.Target(server.http_port, path, server.token)
        await bench.load.run(Post(to, BATCH, MESSAGES_PER_REQUEST, size, rows // PARTITIONS // MESSAGES_PER_REQUEST, 2))
    return f"bench/{name}"


def in_thread(act: Callable[..., float], *arguments: Any) -> Contender:
    """Spark's calls block, so they run in a thread."""
    return partial(asyncio.to_thread, act, *arguments)


def decoding(bench: Bench, topic: str, rows: int) -> Callable[[], float]:
    """Measures rows per second from batches in memory to columns, on one core, without Spark and the gateway."""
    from pyspark.sql.types import StructType  # noqa: PLC0415

    from pyspark_whippet import batches, columns  # noqa: PLC0415
    from pyspark_whippet.options import decode  # noqa: PLC0415
    from pyspark_whippet.session import session_of, topic_path  # noqa: PLC0415

    settings = decode({**bench.engine.options, "subscribe": topic}, {})
    found = columns.schema(settings)
    assert isinstance(found, StructType)
    schema = columns.arrow_schema(found)
    session, count = session_of(settings.access), min(rows // PARTITIONS, 200_000)
    pages = []
    for at in range(0, count, settings.page_size):
        query = f"partition_id=0&kind=offset&value={at}&count={settings.page_size}"
        pending = session.begin("GET", f"{topic_path(topic)}/messages?{query}")
        pages.append(pending.finish().body)

    def act() -> float:
        start = time.perf_counter()
        for page in pages:
            columns.to_record_batch(batches.decode(page), topic, 0, schema, settings)
        return count / (time.perf_counter() - start)

    return act


# ------------------------------------------------------------------------------------------------------------- measures


async def read(bench: Bench) -> list[Figure]:
    return [
        *await _read(bench, "100 B", SMALL, bench.scale.rows, 1_000_000),
        *await _read(bench, "1 KB", LARGE, bench.scale.rows // 4, 350_000),
    ]


async def _read(bench: Bench, shown: str, size: int, rows: int, least: int) -> list[Figure]:
    engine, parquet, streamed = bench.engine, f"{bench.folder}/parquet-{size}", bench.scale.streamed
    async with serving(bench, f"read-{size}") as server:
        topic = await filled(bench, server, "read", rows, size)
        await asyncio.to_thread(engine.make_parquet, topic, parquet, streamed)
        contenders: dict[str, Contender] = {
            "parquet": in_thread(engine.read_parquet, parquet, rows),
            "bare": in_thread(decoding(bench, topic, rows)),
            "read": in_thread(engine.read, topic, rows),
            "value": in_thread(engine.read, topic, rows, "value binary"),
        }
        if size == SMALL:
            contenders["stream"] = in_thread(engine.stream, topic, streamed)
            contenders["stream parquet"] = in_thread(engine.stream_parquet, parquet, 1)
        found = await race(contenders, bench.scale.rounds)
    rows_of = [
        Row(
            f"read {shown} rows",
            "read",
            "parquet",
            Target("value", ">=", least),
            "the yardstick reads Parquet, where rows repeat",
        ),
        Row(f"read {shown} rows, beside decoding", "read", "bare", None, "of batches in memory, on one core"),
        Row(f"read {shown} rows, only the value", "value", "parquet", None, "the yardstick reads all columns"),
    ]
    if size == SMALL:
        name, target = f"stream {shown} rows in batches of {streamed:,}", Target("value", ">=", 600_000)
        rows_of.append(Row(name, "stream", "stream parquet", target, "the yardstick streams Parquet"))
    return rates(rows_of, found, "rows/s")


async def write(bench: Bench) -> list[Figure]:
    rows, engine = bench.scale.rows // 2, bench.engine
    async with serving(bench, "write") as server:
        ids = await server.topic("posted", PARTITIONS)
        await server.topic("written", PARTITIONS)
        to = http_load.Target(server.http_port, f"/streams/{ids[0]}/topics/{ids[1]}/messages", server.token)
        await asyncio.to_thread(engine.make_rows, rows, SMALL)
        # A topic that Spark creates remembers ids.
        await asyncio.to_thread(engine.write, "bench/once", createTopic=str(PARTITIONS))

        async def posted() -> float:
            job = Post(to, BATCH, POSTED_PER_REQUEST, SMALL, max(rows // POSTED_PER_REQUEST, 1), PARTITIONS)
            return job.requests * job.messages / (await bench.load.run(job)).seconds

        async def written(topic: str) -> float:
            await server.client.purge_topic("bench", topic)
            return await asyncio.to_thread(engine.write, f"bench/{topic}")

        contenders: dict[str, Contender] = {"posted": posted}
        contenders |= {topic: partial(written, topic) for topic in ("written", "once")}
        found = await race(contenders, bench.scale.rounds)
    note = "the yardstick posts as many bytes"
    rows_of = (
        Row("write 100 B rows, ids derived", "written", "posted", Target("value", ">=", 700_000), note),
        Row("write 100 B rows, ids derived and remembered", "once", "posted", None, note),
    )
    return rates(rows_of, found, "rows/s")


async def single(bench: Bench) -> list[Figure]:
    """Measures the cost of a batch with one row."""
    engine, rows = bench.engine, bench.scale.singles
    async with serving(bench, "single") as server:
        ids = await server.topic("single")
        await server.topic("copied")
        path = f"/streams/{ids[0]}/topics/{ids[1]}/messages?partition=0"
        await bench.load.run(Post(http_load.Target(server.http_port, path, server.token), BATCH, 1, SMALL, rows))
        floor = await asyncio.to_thread(engine.single_rows_of_spark, rows)
        alone = await asyncio.to_thread(engine.single_rows, "bench/single", None)
        copied = await asyncio.to_thread(engine.single_rows, "bench/single", "bench/copied")
    target, note = Target("value", "<", 300.0), "the yardstick is one of Spark's own sources"
    return [
        figure(Row(name, "", None, target, note), value, floor, "ms", less_is_better=True)
        for name, value in (("a batch of one row", alone), ("a batch of one row, into a topic", copied))
    ]


async def files(bench: Bench) -> list[Figure]:
    """Reads segments after their gateway has ended; a second gateway is there for comparison."""
    engine, rows = bench.engine, bench.scale.rows
    async with serving(bench, "files") as server:
        topic = await filled(bench, server, "files", max(TIMES) * rows, SMALL)

    def scanned(times: int) -> float:
        ends = {topic: {str(partition): times * rows // PARTITIONS for partition in range(PARTITIONS)}}
        more = {"from": "files", "path": f"{bench.folder}/files", "endingOffsets": json.dumps(ends)}
        return engine.read(topic, times * rows, **more)

    async with serving(bench, "beside") as server:
        same = await filled(bench, server, "files", rows, SMALL)
        contenders = {str(times): in_thread(scanned, times) for times in TIMES}
        contenders["read"] = in_thread(engine.read, same, rows)
        found = await race(contenders, bench.scale.rounds)
    name, gateway, once = "offline scan of 100 B rows", "the yardstick asks the gateway", "the yardstick is the first"
    rows_of = [Row(name, "1", "read", Target("ratio", ">=", 1.0), gateway)]
    rows_of += [Row(f"{name}, {n} times as many", str(n), "1", Target("ratio", ">=", 0.9), once) for n in TIMES[1:]]
    return rates(rows_of, found, "rows/s")


# ----------------------------------------------------------------------------------------------------- the command line

MEASURES = (
    Measure("read", read),
    Measure("write", write),
    Measure("single", single),
    Measure("files", files),
)


@asynccontextmanager
async def _bench(given: Given, folder: str, scale: Scale) -> AsyncIterator[Bench]:
    engine = await asyncio.to_thread(Engine, folder)
    try:
        async with processes.load("whippet.bench.http_load") as load:
            yield Bench(folder, scale, load, engine)
    finally:
        await asyncio.to_thread(engine.close)


SUBJECT = Subject("spark", MEASURES, FULL, QUICK, _bench, (NoSpark,))
run = SUBJECT.run
