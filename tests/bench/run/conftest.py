"""A live server for the load, and `whippet` as a function."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.cli.remote.support.commands import PASSWORD, USER, Whippet
from tests.app.support.process import Gateway, starting


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with starting(tmp_path_factory.mktemp("server") / "data") as start:
        yield start(IGGY_ROOT_USERNAME=USER, IGGY_ROOT_PASSWORD=PASSWORD, IGGY_WEBSOCKET_ADDRESS="127.0.0.1:0")


@pytest.fixture
def whippet(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Iterator[Whippet]:
    for name in list(os.environ):
        if name.startswith(("IGGY_", "WHIPPET_")):
            monkeypatch.delenv(name)
    address = gateway.line(r"tcp://(\S+)").group(1)
    monkeypatch.setenv("WHIPPET_CONFIG", str(tmp_path / "contexts.json"))
    monkeypatch.setenv("WHIPPET_KEYRING", "off")
    monkeypatch.setenv("WHIPPET_SERVER", f"iggy://{address}")
    monkeypatch.setenv("WHIPPET_USERNAME", USER)
    monkeypatch.setenv("WHIPPET_PASSWORD", PASSWORD)
    monkeypatch.chdir(tmp_path)
    whippet = Whippet(capsys)
    yield whippet
    # What a test that failed has left would be in the way of the others.
    for stream in whippet("stream", "list", "--output", "quiet").out.split():
        whippet("stream", "delete", stream, "--yes")
