"""The outcome of a suite, read from the reports of each language's test runner."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple
from xml.etree import ElementTree


class Outcome(NamedTuple):
    name: str
    passed: int = 0
    failed: tuple[str, ...] = ()
    skipped: int = 0
    because: str = ""
    """Why it was not run, or ended early."""

    def __str__(self) -> str:
        if not self.passed and not self.failed:
            return f"{self.name}: skipped: {self.because}"
        total = self.passed + len(self.failed)
        more = f", {self.skipped} skipped by the suite" if self.skipped else ""
        lines = [f"{self.name}: {self.passed} of {total} passed{more}", *(f"    failed: {one}" for one in self.failed)]
        return "\n".join([*lines, f"    {self.because}"] if self.because else lines)


def of_junit(name: str, text: str) -> Outcome:
    """Reads pytest's report."""
    passed, skipped, failed = 0, 0, []
    for case in ElementTree.fromstring(text).iter("testcase"):
        states = {child.tag for child in case}
        if states & {"failure", "error"}:
            failed.append(f"{case.get('classname')}::{case.get('name')}")
        elif "skipped" in states:
            skipped += 1
        else:
            passed += 1
    return Outcome(name, passed, tuple(failed), skipped)


def of_tap(name: str, text: str) -> Outcome:
    """Reads Node's report: the test points without subtests, one line each."""
    passed, skipped, failed = 0, 0, []
    lines = text.splitlines()
    for number, line in enumerate(lines):
        point = re.fullmatch(r"\s*(not )?ok \d+ - (.*?)(?: # (SKIP|TODO).*)?", line)
        if point is None or _is_suite(lines[number + 1 : number + 12]):
            continue
        if point[3]:
            skipped += 1
        elif point[1]:
            failed.append(point[2])
        else:
            passed += 1
    return Outcome(name, passed, tuple(failed), skipped)


def _is_suite(following: Iterable[str]) -> bool:
    """Whether the block after a point says that the point only sums up others."""
    for line in following:
        if line.strip() == "type: 'suite'":
            return True
        if line.strip() == "...":
            return False
    return False


def of_go(name: str, text: str) -> Outcome:
    """Reads the lines of `go test -json`. A test with subtests counts as one more, as Go counts it."""
    actions: dict[str, str] = {}
    for line in text.splitlines():
        if not line.startswith("{"):
            continue
        event = json.loads(line)
        if "Test" in event and event["Action"] in {"pass", "fail", "skip"}:
            actions[event["Test"]] = event["Action"]
    counts = Counter(actions.values())
    failed = tuple(test for test, action in actions.items() if action == "fail")
    return Outcome(name, counts["pass"], failed, counts["skip"])
