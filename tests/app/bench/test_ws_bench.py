"""The benchmark over WebSocket runs, and says what it promises to say. How fast the server is, is no test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

MAIN = "import sys; from app.cli.main import main; sys.exit(main(sys.argv[1:]))"

DEADLINE_S = 300


def bench(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", MAIN, "bench", "ws", "--quick", "--path", str(path), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def test_every_figure_is_an_object_with_a_positive_value_and_nothing_else_is_printed(tmp_path: Path) -> None:
    ran = bench(tmp_path, "--json")
    assert ran.returncode == 0, ran.stderr
    figures = json.loads(ran.stdout)
    assert len({figure["name"] for figure in figures}) == len(figures) > 10
    for figure in figures:
        assert figure["value"] > 0, figure
        assert figure["unit"]
        assert (figure["yardstick"] is None) == (figure["ratio"] is None)
        assert (figure["target"] is None) == (figure["met"] is None)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments", [["--only", "nonsense"], ["--rounds", "0"]])
def test_a_usage_error_exits_with_2(tmp_path: Path, arguments: list[str]) -> None:
    ran = bench(tmp_path, *arguments)
    assert ran.returncode == 2
    assert "usage: whippet bench ws" in ran.stderr
