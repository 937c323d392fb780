"""`make test-often`: tests that sometimes fail are counted, and no process is left running."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import often

SELECTION = """
from pathlib import Path

RUNS = Path(__file__).with_name("runs")

def test_passes_every_second_time():
    RUNS.write_text(RUNS.read_text() + "x" if RUNS.exists() else "x")
    assert len(RUNS.read_text()) % 2

def test_passes_always():
    pass
"""


@pytest.fixture
def selection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The two tests, for a pytest that knows nothing of this project and starts without its plugins."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (tmp_path / "test_selection.py").write_text(SELECTION)
    return ["-p", "no:cacheprovider", f"--rootdir={tmp_path}", "-c", os.devnull, str(tmp_path)]


def test_a_test_that_fails_in_some_runs_is_named_and_counted(
    selection: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert often.repeat(3, selection) == 1
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "test_selection::test_passes_every_second_time failed in 1 of 3 runs",
        "2 of 3 runs passed",
    ]


def test_runs_that_all_pass_are_a_success(selection: list[str]) -> None:
    assert often.main(["1", *selection, "-k", "always"]) == 0


def test_a_selection_of_nothing_is_a_failure(selection: list[str]) -> None:
    assert often.repeat(1, [*selection, "-k", "nowhere"]) == 1


def test_burners_end_with_the_process_that_started_them() -> None:
    """Also when it is killed: nothing of it runs then that could end them."""
    starter = f"""
import contextlib, os, signal, subprocess, sys
burner = subprocess.Popen([sys.executable, "-c", {often.BURNER!r}, str(os.getpid())], stdout=1)
os.kill(os.getpid(), signal.SIGKILL)
"""
    # The burner has the same pipe as its standard output, which ends only when both of them are gone.
    done = subprocess.run([sys.executable, "-c", starter], check=False, stdout=subprocess.PIPE, timeout=60)
    assert done.returncode == -9


def test_burners_end_with_the_run() -> None:
    with often.busy(2):
        children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
        assert len(children) >= 2
    left = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    assert len(left) == len(children) - 2
