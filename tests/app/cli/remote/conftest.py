"""A live server, and `whippet` as a function that is called with the words of a command line."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.cli.remote.support.commands import PASSWORD, USER, Whippet
from tests.app.support.process import Gateway, starting


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with starting(tmp_path_factory.mktemp("server") / "data") as start:
        yield start(IGGY_ROOT_USERNAME=USER, IGGY_ROOT_PASSWORD=PASSWORD, IGGY_WEBSOCKET_ADDRESS="127.0.0.1:0")


@pytest.fixture(scope="module")
def address(gateway: Gateway) -> str:
    return gateway.line(r"tcp://(\S+)").group(1)


@pytest.fixture(scope="module")
def addresses(gateway: Gateway, address: str) -> dict[str, str]:
    others = {name: gateway.line(rf"\b{name}://(\S+)").group(1) for name in ("quic", "ws", "http")}
    return {"tcp": f"iggy://{address}"} | {name: f"iggy+{name}://{at}" for name, at in others.items()}


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("IGGY_", "WHIPPET_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("WHIPPET_CONFIG", str(tmp_path / "config" / "contexts.json"))
    monkeypatch.setenv("WHIPPET_KEYRING", "off")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def nobody(address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Whippet:
    """Knows the server, and no credentials."""
    monkeypatch.setenv("WHIPPET_SERVER", f"iggy://{address}")
    return Whippet(capsys)


@pytest.fixture
def whippet(nobody: Whippet, monkeypatch: pytest.MonkeyPatch) -> Whippet:
    monkeypatch.setenv("WHIPPET_USERNAME", USER)
    monkeypatch.setenv("WHIPPET_PASSWORD", PASSWORD)
    return nobody


@pytest.fixture(autouse=True)
def _ctrl_c() -> Iterator[None]:
    """Commands react to Ctrl-C, also where these tests were started by something that ignores it: processes inherit
    that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, signal.default_int_handler if before is None else before)
