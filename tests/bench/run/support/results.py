"""Results of runs that never took place."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import numpy as np

from whippet.bench.run.histogram import Histogram
from whippet.bench.run.machine import Machine
from whippet.bench.run.result import (
    FORMAT,
    ActorResult,
    BenchResult,
    Client,
    Process,
    RoleResult,
    ServerInfo,
    TimeSeries,
    Verification,
    summary,
)
from whippet.bench.run.series import moving_average
from whippet.bench.run.settings import settings_of

INTERVALS = 400
INTERVAL_S = 0.01


def result(
    seed: int, *, speed: float = 1.0, noise: float = 0.02, kind: str = "pinned-producer-and-consumer", **given: Any
) -> BenchResult:
    """A run at this speed. `noise` is how much one run differs from the next; within it, the speed wanders as well."""
    source = random.Random(seed)
    own = speed * source.lognormvariate(0.0, noise)
    settings = settings_of(kind, {"producers": 2, "consumers": 2} | given, cores=2)
    return BenchResult(
        format=FORMAT,
        run=f"{seed:06x}",
        started_at="2026-01-02T03:04:05.678+00:00",
        remark="",
        settings=settings,
        machine=Machine("host", "Linux", "Linux 6", "a processor", 2, 1 << 30, "3.11.0"),
        client_version="0.1.0",
        server=ServerInfo("iggy://127.0.0.1:8090", "0.8.0", "host", "Linux", "6"),
        roles=[_role(name, source, own) for name in ("producers", "consumers")],
        verification=Verification(True, 10, 10, 0, 0, 0, []),
        client=Client([Process(1.0, 4.0)], 0.2, False),
        notes=[],
    )


def _role(name: str, source: random.Random, speed: float) -> RoleResult:
    wandering, sizes, latencies = 0.0, [], []
    for _ in range(INTERVALS):
        wandering = 0.5 * wandering + source.gauss(0.0, 0.05)
        sizes.append(int(1_000_000 * speed * np.exp(wandering)))
        latencies.append(1000.0 / speed * float(np.exp(-wandering)))
    histogram = Histogram()
    histogram.record_all(np.array([latency * 1000 for latency in latencies], np.int64))
    total = sum(sizes)
    seconds = INTERVALS * INTERVAL_S
    actor = ActorResult(
        f"all {name}",
        total // 1000,
        total,
        INTERVALS,
        0,
        seconds,
        total / 1000 / seconds,
        total / seconds / 1e6,
        summary(histogram),
        summary(histogram) if name == "consumers" else None,
    )
    rates = [size / INTERVAL_S / 1e6 for size in sizes]
    series = TimeSeries(
        INTERVAL_S,
        [size // 1000 for size in sizes],
        sizes,
        list(latencies),
        moving_average(rates, 20),
        moving_average(latencies, 20),
    )
    each = [msgspec.structs.replace(actor, name=f"{name.removesuffix('s')} {number}") for number in (1, 2)]
    encoded = histogram.encode()
    return RoleResult(name, actor, each, encoded, encoded if name == "consumers" else None, series)
