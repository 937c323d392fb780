"""Reports about the progress of opening."""

from __future__ import annotations

import pytest

from tests.support.clocks import Seconds
from whippet.storage import opening_progress


def test_the_progress_of_opening_is_reported_once_a_second_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = Seconds()
    monkeypatch.setattr(opening_progress, "time", seconds)
    reports: list[tuple[int, int]] = []
    counter = opening_progress.ProgressCounter(80, lambda progress: reports.append((progress.opened, progress.total)))
    for _ in range(7):
        counter.add(10)
        seconds.now += 0.5
    counter.add(10)
    # At least a second has to pass between two reports, and a little more.
    assert reports == [(0, 80), (40, 80), (70, 80), (80, 80)]
