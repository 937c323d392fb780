"""Series, timers and the pace of requests."""

from __future__ import annotations

import asyncio
import time

import pytest

from whippet.bench.run import series
from whippet.bench.run.pacing import Pacer
from whippet.bench.run.precise_timer import PreciseTimer
from whippet.bench.run.recorder import Recorder, decoded
from whippet.bench.run.series import Points, Series, added, moving_average

MS = 1_000_000


def test_a_series_adds_up_what_ends_in_an_interval() -> None:
    found = Series(0.01)
    found.record(1 * MS, 10, 100, 1, 500.0)
    found.record(9 * MS, 20, 200, 1, 700.0)
    found.record(35 * MS, 1, 10, 1, 100.0)
    assert found.points() == Points(0.01, [30, 0, 0, 1], [300, 0, 0, 10], [2, 0, 0, 1], [1200.0, 0.0, 0.0, 100.0])


def test_a_long_series_has_longer_intervals_instead_of_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "POINTS_MAX", 4)
    found = Series(0.01)
    for index in range(11):
        found.record((index * 10 + 5) * MS, 1, 2, 1, 3.0)
    assert found.points() == Points(0.04, [4, 4, 3], [8, 8, 6], [4, 4, 3], [12.0, 12.0, 9.0])


def test_series_of_several_processes_are_added_whatever_their_intervals() -> None:
    fine = Points(0.01, [1, 1, 1, 1, 1], [2] * 5, [1] * 5, [3.0] * 5)
    coarse = Points(0.02, [5], [5], [5], [5.0])
    assert added([fine, coarse]) == Points(0.02, [7, 2, 1], [9, 4, 2], [7, 2, 1], [11.0, 6.0, 3.0])


def test_a_moving_average_is_over_the_last_values() -> None:
    assert moving_average([2.0, 4.0, 6.0, 8.0], 2) == [2.0, 3.0, 5.0, 7.0]


async def test_a_timer_wakes_those_who_wait_in_the_order_of_their_moments() -> None:
    timer, woken = PreciseTimer(), list[int]()
    begin = time.monotonic_ns()

    async def wait(number: int) -> None:
        await timer.wait_until(begin + number * MS)
        assert time.monotonic_ns() >= begin + number * MS
        woken.append(number)

    await asyncio.gather(*map(wait, (5, 3, 0, 4, -2)))
    assert (sorted(woken[:2]), woken[2:]) == ([-2, 0], [3, 4, 5])
    timer.close()


async def test_a_limited_pace_says_when_requests_are_due_however_late_they_are() -> None:
    timer, begin = PreciseTimer(), time.monotonic_ns() - 1000 * MS
    pacer = Pacer(timer, 1000.0, begin)
    assert await pacer.wait() == begin
    pacer.spend(100)
    assert pacer.due() == begin + 100 * MS
    assert await pacer.wait() == begin + 100 * MS
    pacer.restart(begin + 300 * MS)
    assert await pacer.wait() == begin + 300 * MS
    timer.close()


async def test_an_unlimited_pace_is_now() -> None:
    timer = PreciseTimer()
    pacer = Pacer(timer, None, 0)
    before = time.monotonic_ns()
    pacer.spend(1 << 40)
    assert before <= await pacer.wait() <= time.monotonic_ns()
    timer.close()


def test_requests_of_the_warm_up_are_not_measured_and_latency_begins_when_a_request_was_due() -> None:
    recorder = Recorder(1000 * MS, Series(0.01))
    recorder.request(999 * MS, 1001 * MS, 5, 50)
    recorder.request(1000 * MS, 1030 * MS, 10, 100)
    recorder.empty(999 * MS)
    recorder.empty(1001 * MS)
    found = recorder.performance("producer 1", "producers")
    assert (found.messages, found.size, found.requests, found.empty) == (10, 100, 1, 1)
    assert (found.first_ns, found.last_ns) == (0, 30 * MS)
    assert decoded(found.latency).highest == 30 * MS
