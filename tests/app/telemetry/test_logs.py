"""Logging: the configured levels work as named, and times can be compared."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from whippet.app.config.formats import LEVELS
from whippet.app.telemetry import logs


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root, uvicorn = logging.getLogger(), logging.getLogger("uvicorn.error")
    before = root.handlers[:], root.level, uvicorn.level
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    uvicorn.setLevel(before[2])


@pytest.mark.parametrize(("level", "shown"), [("info", True), ("warn", True), ("error", False), ("off", False)])
def test_a_level_hides_less_severe_records(level: str, shown: bool, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(level)
    logging.getLogger("storage").warning("the disk is slow")
    assert ("the disk is slow" in capsys.readouterr().err) is shown


def test_every_configurable_level_is_known() -> None:
    assert set(logs.LEVELS) == set(LEVELS)


def test_times_are_utc(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info")
    record = logging.LogRecord("storage", logging.INFO, __file__, 1, "opened", None, None)
    record.created, record.msecs = 0.0, 0.0
    logging.getLogger().handle(record)
    assert capsys.readouterr().err == "1970-01-01T00:00:00.000Z INFO    storage: opened\n"
