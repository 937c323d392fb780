"""The common parts of the measures of `whippet bench tcp`: the amount of work, and contenders that send or poll
batches."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

from whippet.bench import processes, tcp_load
from whippet.bench.load import Place
from whippet.bench.measure import Contender
from whippet.bench.processes import Load, Server

BATCH = 1000


class Scale(NamedTuple):
    """The amount of work of a run."""

    rounds: int
    round_bytes: int
    """Sent or polled by one contender in one round."""
    singles: int
    """Requests of one message in one round, over all connections."""
    idle_connections: int
    topics: int
    latency_s: float
    """How long each open loop runs."""
    tail_bytes: int
    """Sent before the first round."""


FULL = Scale(5, 128 << 20, 40_000, 5_000, 10_000, 4.0, 320 << 20)
QUICK = Scale(1, 4 << 20, 500, 50, 100, 0.2, 1 << 20)


class Bench(NamedTuple):
    folder: str
    scale: Scale
    load: Load
    wire: str

    def server(self, name: str, **settings: str) -> AbstractAsyncContextManager[Server]:
        return processes.server(f"{self.folder}/{name}", self.wire, **settings)


def producing(
    bench: Bench, place: Place, messages: int, payload: int, requests: int, connections: int, server: Server | None
) -> Contender:
    """Measures messages per second into the topic of the server, or into the yardstick without a server."""

    async def contender() -> float:
        ids = (0, 0) if server is None else await server.topic("produce")
        job = tcp_load.Produce(place, *ids, messages, payload, requests, connections)
        return requests * messages / (await bench.load.run(job)).seconds

    return contender


async def fill_tail(bench: Bench, server: Server) -> None:
    """Fills the memory tail once before the measurement, because its memory is reused: page faults happen only the
    first time."""
    requests = bench.scale.tail_bytes // (BATCH * 1024) + 1
    await bench.load.run(tcp_load.Produce(server.place(), *await server.topic("produce"), BATCH, 1024, requests))


def consuming(bench: Bench, place: Place, ids: tuple[int, int], requests: int, connections: int = 1) -> Contender:
    times = 1 if bench.scale is QUICK else 8

    async def contender() -> float:
        job = tcp_load.Consume(place, *ids, BATCH, requests, times, connections)
        outcome = await bench.load.run(job)
        assert outcome.received_bytes > times * requests * BATCH * 64, "polls returned no messages"
        return times * requests * BATCH / outcome.seconds

    return contender
