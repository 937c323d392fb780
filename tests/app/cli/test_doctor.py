"""`whippet doctor`, without a server and with one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.support.process import Gateway, starting
from whippet.app.cli.main import main

QUICK = ("--time-server", "none")


@pytest.fixture(autouse=True)
def _own_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("IGGY_"):
            monkeypatch.delenv(name)
    for name in ("HTTP", "TCP", "QUIC"):
        monkeypatch.setenv(f"IGGY_{name}_ADDRESS", "127.0.0.1:0")
    monkeypatch.setenv("IGGY_SYSTEM_PATH", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    with starting(tmp_path / "data") as start:
        yield start()


def test_each_finding_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *QUICK]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert {line[:4] for line in lines} <= {"ok  ", "warn"}
    assert last.startswith(f"{len(lines)} findings: 0 fail")
    for check in ("configuration", "open files", "memory", "data folder", "disk speed", "clock", "port", "certificate"):
        assert any(line[6:].startswith(f"{check}: ") for line in lines), check
    assert list(tmp_path.iterdir()) == [], "nothing was made"


def test_a_failure_is_exit_code_1_and_says_what_to_change(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("IGGY_TCP_ADDRESS", "192.0.2.1:8090")
    assert main(["doctor", *QUICK, "--output", "json"]) == 1
    rows = json.loads(capsys.readouterr().out)
    (failed,) = (row for row in rows if row["status"] == "fail")
    assert failed["check"] == "port"
    assert "192.0.2.1" in failed["found"]
    assert failed["advice"] == "correct tcp.address"
    assert all(bool(row["advice"]) is (row["status"] != "ok") for row in rows)


def test_without_a_valid_configuration_the_rest_is_checked_as_far_as_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("IGGY_CONFIG_PATH", str(tmp_path / "server.toml"))
    (tmp_path / "server.toml").write_text("[tcp]\nenabled = 'perhaps'\n")
    assert main(["doctor", *QUICK, "--output", "ndjson"]) == 1
    first, *others = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["status"], first["check"]) == ("fail", "configuration")
    assert "tcp.enabled" in first["found"]
    assert {row["check"] for row in others} == {"clock"}


def test_a_secret_that_others_can_read_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "server.toml"
    file.write_text(f"[http.jwt]\nencoding_secret = '{'s' * 32}'\n")
    file.chmod(0o644)
    monkeypatch.setenv("IGGY_CONFIG_PATH", str(file))
    assert main(["doctor", *QUICK, "--output", "quiet"]) == 0
    shown = capsys.readouterr().out
    assert f"can read {file}, and http.jwt.encoding_secret in it" in shown
    assert "sss" not in shown


def test_a_running_server_is_recognised_and_not_disturbed(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = gateway.ping()
    monkeypatch.setenv("IGGY_HTTP_ADDRESS", gateway.address())
    assert main(["doctor", *QUICK, "--output", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    found = [row["found"] for row in rows]
    pid = gateway.process.pid
    assert any(f"process {pid} has it open" in each for each in found)
    assert any(f"http.address: process {pid}, the server, has {gateway.address()}" in each for each in found)
    assert any(f"tcp.address: process {pid}, the server, has 127.0.0.1:" in each for each in found)
    assert gateway.ping() == before
