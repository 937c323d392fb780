"""A comparison finds what is there, and nothing where there is nothing."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from tests.app.cli.remote.support.commands import Whippet
from tests.bench.run.support.results import result
from whippet.bench.run.comparison import Outcome, compare
from whippet.bench.run.result import BenchResult, read
from whippet.bench.run.statistics import block_means, quantile, ratio_of

SCHEMAS = json.loads((Path(__file__).parents[3] / "docs" / "bench.schema.json").read_text())
RUNS = 5


@pytest.fixture
def whippet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Whippet:
    monkeypatch.chdir(tmp_path)
    return Whippet(capsys)


def runs(seed: int, count: int = RUNS, **given: Any) -> list[BenchResult]:
    return [result(seed * 100 + number, **given) for number in range(count)]


@pytest.mark.parametrize(
    ("freedom", "confidence", "expected"),
    [(1, 0.99, 63.657), (4, 0.99, 4.604), (10, 0.95, 2.228), (30, 0.999, 3.646), (1000, 0.95, 1.962)],
)
def test_the_quantiles_of_students_t_are_those_of_the_tables(
    freedom: float, confidence: float, expected: float
) -> None:
    assert quantile(freedom, confidence) == pytest.approx(expected, abs=1e-3)


def test_the_interval_misses_the_truth_as_often_as_it_promises() -> None:
    source = random.Random(1)
    wrong = 0
    for _ in range(1000):
        first, second = ([source.lognormvariate(4.6, 0.05) for _ in range(RUNS)] for _ in range(2))
        wrong += not ratio_of(first, second, 0.95).contains_one
    assert 30 <= wrong <= 70


def test_equal_runs_show_no_difference_in_any_measure() -> None:
    wrong = 0
    for seed in range(20):
        changes = compare(runs(seed), runs(seed + 1000))
        assert len(changes) == 12
        wrong += any(change.outcome is not Outcome.SAME for change in changes)
    assert wrong <= 1


@pytest.mark.parametrize("count", [3, RUNS])
def test_ten_per_cent_slower_is_found(count: int) -> None:
    changes = compare(runs(1, count, noise=0.01), runs(2, count, speed=0.9, noise=0.01))
    found = {change.measure: change for change in changes}
    for name in ("producers: throughput", "producers: average latency", "consumers: p50 latency"):
        assert found[name].outcome is Outcome.SLOWER, found[name]
        assert found[name].slower_percent == pytest.approx(10, abs=3)
        assert 0 < (found[name].at_least_percent or 0) < found[name].slower_percent
    back = compare(runs(2, count, speed=0.9, noise=0.01), runs(1, count, noise=0.01))
    assert back[0].outcome is Outcome.FASTER
    assert back[0].slower_percent < 0


def test_noise_that_could_hide_much_is_named() -> None:
    change = compare(runs(1, 3, noise=0.2), runs(2, 3, noise=0.2))[0]
    assert change.outcome is Outcome.SAME
    assert "the noise could hide up to" in change.note


def test_a_single_run_is_compared_by_its_stretches_and_only_where_there_are_some() -> None:
    found = {change.measure: change for change in compare([result(1, noise=0)], [result(2, speed=0.9, noise=0)])}
    assert found["producers: throughput"].outcome is Outcome.SLOWER
    assert "what differs from run to run is not in it" in found["producers: throughput"].note
    assert found["producers: p99 latency"].outcome is Outcome.UNKNOWN
    assert "compare several" in found["producers: p99 latency"].note


def test_stretches_of_equal_runs_do_not_differ() -> None:
    wrong = sum(
        change.outcome not in (Outcome.SAME, Outcome.UNKNOWN)
        for seed in range(20)
        for change in compare([result(seed, noise=0)], [result(seed + 1000, noise=0)])
        if change.measure == "producers: throughput"
    )
    assert wrong <= 1


def test_a_run_that_is_too_short_tells_nothing() -> None:
    short = result(1)
    roles = [
        msgspec.structs.replace(role, series=msgspec.structs.replace(role.series, bytes=role.series.bytes[:50]))
        for role in short.roles
    ]
    change = compare([msgspec.structs.replace(short, roles=roles)], [result(2)])[0]
    assert (change.outcome, change.note) == (Outcome.UNKNOWN, "the run is too short to tell how much it varies")


def test_means_of_stretches_leave_out_what_is_not_known() -> None:
    assert block_means([1.0, 3.0, None, 5.0, None, None], 3) == [2.0, 5.0]


# ---------------------------------------------------------------------------------------------------------- the command


def write(folder: Path, results: list[BenchResult]) -> str:
    folder.mkdir()
    for number, each in enumerate(results):
        (folder / f"{number}.json").write_bytes(msgspec.json.encode(each))
    return folder.name


def test_folders_of_runs_are_compared_and_a_slower_one_fails(whippet: Whippet, tmp_path: Path) -> None:
    before = write(tmp_path / "before", runs(1, noise=0.005))
    after = write(tmp_path / "after", runs(2, speed=0.8, noise=0.005))
    shown = whippet("bench", "compare", before, after, "--output", "json").json
    jsonschema_rs.validate(SCHEMAS["bench compare"], shown)
    assert shown[0]["measure"] == "producers: throughput"
    assert shown[0]["verdict"] == "slower"
    assert "producers: throughput" in whippet("bench", "compare", before, after).out
    assert (
        "slower: producers: throughput by 2"
        in whippet("bench", "compare", before, after, "--fail-if-slower", "10", code=1).err
    )
    whippet("bench", "compare", before, after, "--fail-if-slower", "70")
    whippet("bench", "compare", before, before, "--fail-if-slower", "0")


def test_runs_with_other_settings_are_not_compared_by_mistake(whippet: Whippet, tmp_path: Path) -> None:
    before = write(tmp_path / "before", runs(1))
    after = write(tmp_path / "after", runs(2, message_size="10"))
    refused = whippet("bench", "compare", before, after, code=2).err
    assert "message bytes: {'low': 1000, 'high': 1000}, {'low': 10, 'high': 10}" in refused or "1000, 10" in refused
    assert "the runs differ in message bytes" in whippet("bench", "compare", before, after, "--anyway").err


def test_what_is_no_result_is_named(whippet: Whippet, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    good = result(1)
    (tmp_path / "newer.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(good, format="whippet-bench-2")))
    assert "a.json: it is no result" in whippet("bench", "compare", "a.json", "a.json", code=2).err
    assert "empty has no results" in whippet("bench", "compare", "empty", "a.json", code=2).err
    assert "its format is 'whippet-bench-2'" in whippet("bench", "compare", "newer.json", "a.json", code=2).err
    assert "No such file" in whippet("bench", "compare", "none.json", "a.json", code=1).err


def test_a_run_that_was_limited_or_failed_is_mentioned(whippet: Whippet, tmp_path: Path) -> None:
    good = result(1)
    assert good.verification is not None
    bad = msgspec.structs.replace(
        good,
        client=msgspec.structs.replace(good.client, is_limit=True),
        verification=msgspec.structs.replace(good.verification, is_good=False, problems=["3 messages did not arrive"]),
    )
    before, after = write(tmp_path / "before", [good]), write(tmp_path / "after", [bad])
    notes = whippet("bench", "compare", before, after).err
    assert "was limited by its client" in notes
    assert "3 messages did not arrive" in notes


def test_a_result_is_read_as_it_was_written() -> None:
    written = result(1)
    assert read(msgspec.json.encode(written)) == written
