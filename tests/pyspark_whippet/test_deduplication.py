"""The warning about windows that are too small."""

from __future__ import annotations

import logging
import math

import pytest

from pyspark_whippet import deduplication
from pyspark_whippet.deduplication import OFF, UNLIMITED, Window


def test_a_window_smaller_than_what_was_written_at_once_is_told() -> None:
    sentence = deduplication.warning("s/t", Window(10_000, 60), 20_000)
    assert sentence is not None
    assert "20000 messages went to a partition of s/t at once, which keeps 10000 ids for 60 s" in sentence
    assert deduplication.warning("s/t", Window(20_000, 60), 20_000) is None
    assert deduplication.warning("s/t", Window(UNLIMITED, math.inf), 10**9) is None


def test_nothing_remembered_and_nothing_known_are_told_too() -> None:
    assert "s/t keeps no ids" in str(deduplication.warning("s/t", OFF, 1))
    assert "does not say that s/t drops" in str(deduplication.warning("s/t", None, 1))


def test_the_details_of_a_topic_tell_the_window_or_nothing() -> None:
    options = {
        "message_deduplication": {"value": "true"},
        "message_deduplication_max_entries": {"value": "7"},
        "message_deduplication_expiry": {"value": "60000000"},
    }
    assert deduplication.window_of({"options": options}) == Window(7, 60)
    for_ever = {**options, "message_deduplication_expiry": {"value": str(UNLIMITED)}}
    assert deduplication.window_of({"options": for_ever}) == Window(7, math.inf)
    assert deduplication.window_of({"options": {**options, "message_deduplication": {"value": "false"}}}) == OFF
    assert deduplication.window_of({"options": {}}) == OFF
    assert deduplication.window_of({}) is None


def test_a_warning_is_given_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for sentence in ("one", "one", None, "another"):
            deduplication.warn(sentence)
    assert [record.message for record in caplog.records] == ["one", "another"]
