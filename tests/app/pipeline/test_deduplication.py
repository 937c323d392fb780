"""The warning about windows that are too small."""

from __future__ import annotations

import logging

import pytest

from app.pipeline import deduplication
from app.pipeline.deduplication import ENTRIES, EXPIRY, Window


def test_a_window_smaller_than_what_was_written_at_once_is_told() -> None:
    written = {("s/t", 0): 5_000, ("s/t", 1): 20_000}
    sentence = deduplication.too_small(Window(10_000, 60), written)
    assert sentence is not None
    assert "20000 messages went to s/t partition 1 at once, and the gateway keeps 10000 ids for 60 s" in sentence
    assert deduplication.too_small(Window(20_000, 60), written) is None
    assert deduplication.too_small(Window(0, 0), written) is None
    assert deduplication.too_small(Window(10, 60), {}) is None


def test_limits_tell_the_window_or_nothing() -> None:
    assert deduplication.of_limits([{"key": ENTRIES, "value": 7}, {"key": EXPIRY, "value": 60}]) == Window(7, 60)
    assert deduplication.of_limits([{"key": "http.max_request_size", "value": 7}]) is None


def test_a_warning_is_given_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for sentence in ("one", "one", None, "another"):
            deduplication.warn(sentence)
    assert [record.message for record in caplog.records] == ["one", "another"]
