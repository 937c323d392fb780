"""Runs `whippet bench` as a process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MAIN = "import sys; from whippet.app.cli.main import main; sys.exit(main(sys.argv[1:]))"
DEADLINE_S = 300


def bench(subject: str, path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", MAIN, "bench", subject, "--quick", "--path", str(path), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def measured(subject: str, path: Path, *, figures: int, may_be_zero: str = "", has_yardsticks: bool = False) -> None:
    """Asserts that a run prints at least this many figures, each an object, and nothing else, and leaves no files. A
    figure in the unit `may_be_zero` may be 0; with `has_yardsticks` each figure has a yardstick."""
    ran = bench(subject, path, "--json")
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert len({figure["name"] for figure in found}) == len(found) >= figures
    for figure in found:
        assert {"name", "value", "unit", "yardstick", "ratio"} <= figure.keys()
        assert figure["value"] > 0 or figure["unit"] == may_be_zero, figure
        assert figure["unit"]
        assert figure["yardstick"] is not None or not has_yardsticks, figure
        assert (figure["yardstick"] is None) == (figure["ratio"] is None)
        assert figure["yardstick"] is None or (figure["yardstick"] > 0 and figure["ratio"] > 0), figure
        assert (figure["target"] is None) == (figure["met"] is None)
    assert not list(path.iterdir())
