"""The benchmarks run and print the promised figures. How fast the server is, is not tested."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.support.command import bench, measured
from whippet.app.cli.main import main
from whippet.bench import report
from whippet.bench.measure import Figure

FIGURES = {"storage": 30, "archive": 12, "tcp": 45, "http": 19, "ws": 15, "quic": 11, "cli": 4}
HEADING = ["measure", "value", "unit", "yardstick", "ratio", "target", "met", "note"]


@pytest.mark.long
@pytest.mark.parametrize(("subject", "figures"), FIGURES.items())
def test_every_figure_is_an_object_with_a_positive_value_and_nothing_else_is_printed(
    tmp_path: Path, subject: str, figures: int
) -> None:
    measured(subject, tmp_path, figures=figures, may_be_zero="MiB" if subject == "http" else "")


@pytest.mark.parametrize(
    ("subject", "only", "names"),
    [
        (
            "storage",
            ["read-tail", "check", "memory"],
            [
                "read 1,000 x 1 KB from the tail, 8 in flight",
                "read 1,000 x 1 KB from the tail, 1 in flight",
                "check 1,000 x 1 KB of JSON, plain",
                "check 1,000 x 1 KB of JSON, plain, one process",
                "check 1,000 x 1 KB of JSON, AES-256-GCM",
                "check 1,000 x 1 KB of JSON, zstd and AES",
                "resident memory, most",
                "resident memory, now",
            ],
        ),
        (
            "archive",
            ["takeover", "copies"],
            [
                "first message after a takeover of 50 partitions",
                "all 50 partitions in the data folder",
                "restore an archive in a folder",
                "check an archive in a folder",
            ],
        ),
        ("tcp", ["produce-1kb"], ["produce 1,000 x 1 KB, 1 connection", "produce 1,000 x 1 KB, 8 connections"]),
        ("cli", ["start", "tail"], ["whippet --help", "whippet ping", "whippet tail, lines of 100 B"]),
        ("http", ["singles"], ["one message a POST, 64 connections"]),
        (
            "http",
            ["small"],
            [
                "small, JSON, memory, 8 connections",
                "small, JSON, written, 8 connections",
                "small, poll of one message, 8 connections",
                *(f"small, from a send until a long poll is answered, p{which}" for which in ("50", "99", "99.9")),
            ],
        ),
        ("ws", ["consume"], ["consume 1,000 x 1 KB"]),
        ("quic", ["consume"], ["consume 1,000 x 1 KB"]),
    ],
)
def test_only_selected_measures_run_and_are_shown_as_a_table(
    tmp_path: Path, subject: str, only: list[str], names: list[str]
) -> None:
    ran = bench(subject, tmp_path, "--only", ",".join(only), "--rounds", "1")
    assert ran.returncode == 0, ran.stderr
    heading, *lines = [line for line in ran.stdout.splitlines() if not line.startswith("NO: ")]
    assert heading.split() == HEADING
    assert [line.split("  ")[0] for line in lines] == names


def test_a_goal_that_was_missed_is_explained_below_the_table() -> None:
    figures = [
        Figure(name="sends", value=0.7, unit="MB/s", yardstick=1.0, ratio=0.7, target=">= 0.8 x yardstick", met=False),
        Figure(name="start", value=3000.0, unit="ms", target="< 2,000", met=False),
        Figure(name="reads", value=1.0, unit="MB/s", target=">= 1", met=True),
    ]
    assert report.as_table(figures).splitlines()[4:] == [
        "NO: sends: the goal is at least 0.8 of the yardstick's speed, and 0.70 was measured "
        "(0.7 MB/s, the yardstick 1)",
        "NO: start: the goal is less than 2,000 ms, and 3,000 were measured",
    ]


@pytest.mark.parametrize("subject", [*FIGURES, "spark"])
def test_a_usage_error_exits_with_code_2(subject: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--only", "nonsense"], ["--rounds", "0"], ["--rounds", "many"]):
        assert main(["bench", subject, *arguments]) == 2
        assert f"Usage: whippet bench {subject}" in capsys.readouterr().err


def test_a_group_selects_several_measures(tmp_path: Path) -> None:
    ran = bench("storage", tmp_path, "--only", "small", "--rounds", "1")
    assert ran.returncode == 0, ran.stderr
    assert "append one 100 B, written, 1 waiting" in ran.stdout
    assert "read one message at an offset, file" in ran.stdout
    assert "1,000 x 1 KB" not in ran.stdout


def test_a_missing_folder_is_one_line_and_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "storage", "--quick", "--path", str(tmp_path / "missing")]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "No such file or directory" in said.err
