"""Logging: the configured levels work as named, and times can be compared."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import pytest

from whippet.app.config.formats import LEVELS
from whippet.app.config.system import Logging
from whippet.app.telemetry import logs
from whippet.app.telemetry.log_files import NAME

WHY = "ValueError: invalid literal for int() with base 10: 'why'"


@pytest.mark.parametrize(("level", "shown"), [("info", True), ("warn", True), ("error", False), ("off", False)])
def test_a_level_hides_less_severe_records(level: str, shown: bool, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(level)
    logging.getLogger("storage").warning("the disk is slow")
    assert ("the disk is slow" in capsys.readouterr().err) is shown


def test_every_configurable_level_is_known() -> None:
    assert set(logs.LEVELS) == set(LEVELS)


def test_times_are_utc(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "text")
    record = logging.LogRecord("storage", logging.INFO, __file__, 1, "opened", None, None)
    record.created, record.msecs = 0.0, 0.0
    logging.getLogger().handle(record)
    assert capsys.readouterr().err == "1970-01-01T00:00:00.000Z INFO    storage: opened\n"


def test_a_line_of_json_has_every_field_and_the_trace_apart_from_the_message(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure("info", "json")
    try:
        int("in\nthe way")
    except ValueError:
        logging.getLogger("storage").exception("%s\nforged line", "half \ud800", extra={"fields": {"user": "a"}})
    (line,) = capsys.readouterr().err.splitlines()
    found = json.loads(line)
    assert found.pop("exception").endswith("with base 10: 'in\\nthe way'")
    assert found.pop("time").endswith("Z")
    assert found == {"level": "error", "logger": "storage", "message": "half \ud800\nforged line", "user": "a"}


@pytest.mark.parametrize(
    ("form", "terminal", "is_json"),
    [("auto", True, False), ("auto", False, True), ("text", False, False), ("json", True, True)],
)
def test_people_at_a_terminal_get_text_and_programs_json(
    form: str, terminal: bool, is_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    logs.configure("info", form)
    logging.getLogger("storage").warning("the disk is slow")
    assert capsys.readouterr().err.startswith("{") is is_json


def test_the_files_have_json_unless_text_is_wanted(tmp_path: Path) -> None:
    for form in ("auto", "text"):
        files = logs.configure("info", form, to_files=True)
        files.start(str(tmp_path), Logging(path=form))
        try:
            int("why")
        except ValueError:
            logging.getLogger("storage").exception("the disk is slow")
        files.stop()
    found = json.loads((tmp_path / "auto" / NAME).read_text())
    assert (found["message"], found["exception"].splitlines()[-1]) == ("the disk is slow", WHY)
    lines = (tmp_path / "text" / NAME).read_text().splitlines()
    assert lines[0].endswith("ERROR   storage: the disk is slow")
    assert lines[-1] == WHY
