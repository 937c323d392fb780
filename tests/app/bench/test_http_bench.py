"""The benchmark over HTTP runs, and says what it promises to say. How fast the server is, is no test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

MAIN = "import sys; from app.cli.main import main; sys.exit(main(sys.argv[1:]))"

DEADLINE_S = 300


def bench(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", MAIN, "bench", "http", "--quick", "--path", str(path), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def test_every_figure_is_an_object_with_a_value_and_nothing_else_is_printed(tmp_path: Path) -> None:
    ran = bench(tmp_path, "--json")
    assert ran.returncode == 0, ran.stderr
    figures = json.loads(ran.stdout)
    assert len({figure["name"] for figure in figures}) == len(figures) > 12
    for figure in figures:
        assert figure["value"] > 0 or figure["unit"] == "MiB", figure
        assert (figure["yardstick"] is None) == (figure["ratio"] is None)
        assert (figure["target"] is None) == (figure["met"] is None)
    assert not list(tmp_path.iterdir())


def test_only_what_was_asked_for_is_measured_and_shown_as_a_table(tmp_path: Path) -> None:
    ran = bench(tmp_path, "--only", "singles", "--rounds", "1")
    assert ran.returncode == 0, ran.stderr
    _, *lines = ran.stdout.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["one message a POST, 64 connections"]


@pytest.mark.parametrize("arguments", [["--only", "nonsense"], ["--rounds", "0"]])
def test_a_usage_error_exits_with_2(tmp_path: Path, arguments: list[str]) -> None:
    ran = bench(tmp_path, *arguments)
    assert ran.returncode == 2
    assert "usage: whippet bench http" in ran.stderr
