"""What several processes measured becomes one result."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pytest

from whippet.app.commands.responses import Stats
from whippet.bench.run.conductor import Measured
from whippet.bench.run.histogram import Histogram
from whippet.bench.run.jobs import CONSUMERS, PRODUCERS, Finished, Latency, Performance
from whippet.bench.run.result import BenchResult, result_of
from whippet.bench.run.series import Points
from whippet.bench.run.settings import settings_of
from whippet.bench.run.verification import judge

MS = 1_000_000


def latency(*milliseconds: int) -> Latency:
    histogram = Histogram()
    histogram.record_all(np.array(milliseconds, np.int64) * MS)
    return Latency(histogram.encode(), histogram.total, histogram.highest)


def performance(number: int, latencies: list[int], *, first_ms: int = 0, last_ms: int = 100) -> Performance:
    count = len(latencies)
    spent = latency(*latencies)
    return Performance(
        f"producer {number}", PRODUCERS, 10 * count, 1000 * count, count, 0, first_ms * MS, last_ms * MS, spent, None
    )


def finished(performances: list[Performance], *, cpu_s: float = 0.01) -> Finished:
    points = Points(0.05, [10, 20], [1000, 2000], [1, 2], [1.0, 2.0])
    return Finished(performances, {PRODUCERS: points, CONSUMERS: points}, {}, {}, cpu_s, 0.1)


def made(*processes: Finished, **given: Any) -> BenchResult:
    fields: dict[str, Any] = dict.fromkeys(Stats.__struct_fields__, 0) | dict.fromkeys(TEXTS, "")
    stats = Stats(**fields)
    at = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    measured = Measured(7, at, list(processes), judge(0, []), stats, [])
    return result_of(measured, settings_of("pp", {"producers": 3} | given, 2), "iggy://host:1", "")


TEXTS = {"hostname", "os_name", "os_version", "kernel_version", "server_version"}


def test_actors_of_all_processes_are_one_table_and_one_total() -> None:
    result = made(
        finished([performance(2, [30, 40], first_ms=10, last_ms=90)]),
        finished([performance(10, [50]), performance(1, [10, 20])]),
    )
    (role,) = result.roles
    assert [actor.name for actor in role.actors] == ["producer 1", "producer 2", "producer 10"]
    assert (role.total.messages, role.total.bytes, role.total.requests) == (50, 5000, 5)
    assert role.total.seconds == pytest.approx(0.1)
    assert role.total.messages_s == pytest.approx(500)
    assert role.total.megabytes_s == pytest.approx(0.05)
    assert role.total.latency.average == pytest.approx(30_000)
    assert role.total.latency.p50 == pytest.approx(30_000, rel=1e-3)
    assert role.total.latency.highest == 50_000
    assert role.actors[1].seconds == pytest.approx(0.08)
    assert role.series.messages == [20, 40]
    assert role.series.latency_us == [1.0, 1.0]
    assert result.run == "000007"


def test_a_process_that_used_most_of_its_core_was_the_limit() -> None:
    assert not made(finished([performance(1, [90])], cpu_s=0.05)).client.is_limit
    busy = made(finished([performance(1, [90])], cpu_s=0.095))
    assert busy.client.is_limit
    assert "used 95% of a core; with more --processes" in busy.notes[0]


def test_actors_that_are_mostly_without_a_request_were_the_limit() -> None:
    result = made(finished([performance(1, [20, 20])]))
    assert result.client.between_requests == pytest.approx(0.6)
    assert "prepared or inspected messages in 60% of the time" in result.notes[0]


def test_a_rate_limit_makes_actors_wait_which_is_not_the_fault_of_the_client() -> None:
    result = made(finished([performance(1, [20, 20])]), rate_limit=1000)
    assert (result.client.between_requests, result.client.is_limit) == (None, False)


def test_an_actor_without_requests_has_figures_as_well() -> None:
    result = made(finished([performance(1, [100]), performance(2, [], last_ms=0)]))
    assert result.roles[0].actors[1].messages_s == 0
    assert result.roles[0].total.seconds == pytest.approx(0.1)
