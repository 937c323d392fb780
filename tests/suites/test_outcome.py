"""The reports of each language's test runner are counted test by test, and a suite that was not run says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.suites.outcome import Outcome, of_go, of_junit, of_tap
from tests.suites.run import Unavailable, execute, need

JUNIT = """<testsuites><testsuite>
<testcase classname="tests.a" name="one"/><testcase classname="tests.a" name="two"><failure message="x"/></testcase>
<testcase classname="tests.b" name="three"><skipped/></testcase>
<testcase classname="tests.b" name="four"><error/></testcase>
</testsuite></testsuites>"""
TAP = """TAP version 13
# Subtest: e2e -> stream
    # Subtest: create
    ok 1 - create
      ---
      duration_ms: 1.2
      type: 'test'
      ...
    # Subtest: delete
    not ok 2 - delete
      ---
      type: 'test'
      ...
    ok 3 - later # SKIP no cluster
      ---
      type: 'test'
      ...
    1..3
not ok 1 - e2e -> stream
  ---
  duration_ms: 3.4
  type: 'suite'
  ...
1..1
"""
GO = """{"Action":"run","Test":"TestA"}
{"Action":"pass","Test":"TestA/sub"}
{"Action":"pass","Test":"TestA"}
not json
{"Action":"fail","Test":"TestB"}
{"Action":"skip","Test":"TestC"}
{"Action":"fail","Package":"x"}
"""


def test_pytest_tests_are_counted_from_the_report() -> None:
    assert of_junit("x", JUNIT) == Outcome("x", 1, ("tests.a::two", "tests.b::four"), 1)


def test_node_tests_are_counted_without_summary_points() -> None:
    assert of_tap("x", TAP) == Outcome("x", 1, ("delete",), 1)


def test_go_tests_are_counted_from_the_events() -> None:
    assert of_go("x", GO) == Outcome("x", 2, ("TestB",), 1)


def test_an_outcome_names_the_failures_or_why_nothing_was_run() -> None:
    assert str(Outcome("go", 3, ("TestB",), 1)) == "go: 3 of 4 passed, 1 skipped by the suite\n    failed: TestB"
    assert str(Outcome("go", because="go is not installed")) == "go: skipped: go is not installed"


def test_a_language_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Unavailable, match=r"^mvn is not installed$"):
        need("mvn")


def test_a_step_that_fails_is_named_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"^`sh -c .*` failed: npm error code E404$"):
        execute(["sh", "-c", "echo npm error code E404 >&2; echo more >&2; exit 1"], tmp_path)
