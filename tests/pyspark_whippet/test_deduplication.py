"""The warning about deduplication windows that are too small."""

from __future__ import annotations

import logging
import math

import pytest

from pyspark_whippet import deduplication
from pyspark_whippet.deduplication import OFF, UNLIMITED, Window


def test_a_batch_larger_than_the_window_causes_a_warning() -> None:
    sentence = deduplication.warning("s/t", Window(10_000, 60), 20_000)
    assert sentence is not None
    assert "a batch put 20000 messages into one partition of s/t, which remembers 10000 ids for 60 s" in sentence
    assert deduplication.warning("s/t", Window(20_000, 60), 20_000) is None
    assert deduplication.warning("s/t", Window(UNLIMITED, math.inf), 10**9) is None


def test_a_disabled_or_unknown_window_causes_a_warning() -> None:
    sentence = str(deduplication.warning("s/t", OFF, 1))
    assert "s/t remembers no ids" in sentence
    assert """-d '{"name": "t", "options": {"message_deduplication": "true"}}' <url>/streams/s/topics/t""" in sentence
    assert "does not report whether s/t drops" in str(deduplication.warning("s/t", None, 1))


def test_the_window_is_read_from_the_details_of_a_topic() -> None:
    options = {
        "message_deduplication": {"value": "true"},
        "message_deduplication_max_entries": {"value": "7"},
        "message_deduplication_expiry": {"value": "60000000"},
    }
    assert deduplication.window_of({"options": options}) == Window(7, 60)
    forever = {**options, "message_deduplication_expiry": {"value": str(UNLIMITED)}}
    assert deduplication.window_of({"options": forever}) == Window(7, math.inf)
    assert deduplication.window_of({"options": {**options, "message_deduplication": {"value": "false"}}}) == OFF
    assert deduplication.window_of({"options": {}}) == OFF
    assert deduplication.window_of({}) is None


def test_a_warning_is_given_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for sentence in ("one", "one", None, "another"):
            deduplication.warn_once(sentence)
    assert [record.message for record in caplog.records] == ["one", "another"]
