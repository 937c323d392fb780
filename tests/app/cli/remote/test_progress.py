"""Progress is for terminals: how much, how fast, and how long it will still take."""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path

import pytest

from whippet.app.cli.remote.progress import Meter, size_of_files


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_terminal_shows_it_now_and_then(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    meter = Meter(total=8 << 20)
    meter.show(1, 1)
    assert terminal.getvalue() == ""
    clock[0] += 2
    meter.show(1000, 1 << 20)
    meter.show(1001, 1 << 20)
    clock[0] += 0.5
    meter.show(9000, 9 << 20)
    meter.end()
    first, second = terminal.getvalue().rstrip("\n").split("\r\x1b[K")[1:]
    assert first == "1,000 messages, 1.0 MiB, 512.0 KiB/s, 0:14 left "
    assert second == "9,000 messages, 9.0 MiB, 3.6 MiB/s, 0:00 left "


def test_long_times_have_hours_and_an_unknown_total_has_none(
    monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    known, unknown = Meter(total=3700), Meter()
    clock[0] += 1
    known.show(1, 1)
    unknown.show(1, 1)
    assert "1:01:39 left" in terminal.getvalue()
    assert terminal.getvalue().endswith("1 messages, 1 B, 1 B/s ")


def test_elsewhere_nothing_is_shown(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    meter = Meter()
    clock[0] += 5
    meter.show(5, 5)
    meter.end()
    assert capsys.readouterr().err == ""


def test_the_size_of_files_is_known_unless_one_is_a_pipe_or_missing(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12")
    (tmp_path / "b").write_bytes(b"345")
    assert size_of_files([str(tmp_path / "a"), str(tmp_path / "b")]) == 5
    assert size_of_files([str(tmp_path / "a"), str(tmp_path / "none")]) is None
    assert size_of_files([str(tmp_path)]) is None
