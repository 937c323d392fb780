"""Runs a selection of tests repeatedly while every core is busy, and counts which of them failed.

`make test-often N=20 K=EXPR` calls it. Every run is a separate pytest process, so that nothing that a run leaves behind
affects the next one. A test that depends on the speed of the machine fails here first.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

BURNER = """
import os, sys
parent = int(sys.argv[1])
while os.getppid() == parent:
    sum(range(100_000))
"""
"""Ends by itself when the process that started it is gone, however that happened."""
NOTHING_SELECTED = 5
"""pytest's exit code."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="run tests N times with every core busy")
    parser.add_argument("runs", type=int, metavar="N")
    parser.add_argument("pytest", nargs=argparse.REMAINDER, help="what pytest is given")
    given = parser.parse_args(arguments)
    if given.runs < 1:
        parser.error("N: at least 1")
    with busy(os.cpu_count() or 1):
        return repeat(given.runs, given.pytest)


def repeat(runs: int, selection: list[str]) -> int:
    """Returns the exit code: 0 if every run passed, 1 if a test failed, pytest's own if it could not run any."""
    failures: Counter[str] = Counter()
    failed_runs = 0
    for run in range(1, runs + 1):
        began = time.monotonic()
        code, output, failed = run_once(selection)
        summary = output.rstrip().rpartition("\n")[2].strip("= ")
        report(f"run {run} of {runs}: {summary} ({time.monotonic() - began:.0f} s)")
        if code == 0:
            continue
        report(output)
        if not failed:
            report(f"pytest ended with exit code {code} and names no test that failed")
            return 1 if code == NOTHING_SELECTED else code
        failed_runs += 1
        failures.update(failed)
    for name, count in failures.most_common():
        report(f"{name} failed in {count} of {runs} runs")
    report(f"{runs - failed_runs} of {runs} runs passed")
    return 1 if failures else 0


def run_once(selection: list[str]) -> tuple[int, str, list[str]]:
    """Returns pytest's exit code, its output, and the failed tests."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results.xml")
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={results}", f"--basetemp={folder}/tests"]
        done = subprocess.run(
            [*command, *selection], check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        return done.returncode, done.stdout, failed_tests(results) if results.exists() else []


def failed_tests(results: Path) -> list[str]:
    cases = ET.parse(results).iter("testcase")
    return [
        f"{case.get('classname')}::{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    ]


@contextlib.contextmanager
def busy(cores: int) -> Iterator[None]:
    with contextlib.ExitStack() as burning:
        for _ in range(cores):
            burner = burning.enter_context(subprocess.Popen([sys.executable, "-c", BURNER, str(os.getpid())]))
            burning.callback(burner.kill)
        yield


def report(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
