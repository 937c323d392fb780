"""The client can do the same over all transports, and in both protocols."""

from __future__ import annotations

import pytest

from tests.app.client.support.server import Server
from tests.support.sizes import mostly_long

OVER = {
    "classic": ("tcp", "classic"),
    "modern": ("tcp", "modern"),
    "quic": ("quic", "classic"),
    "ws": ("ws", "modern"),
    "http": ("http", "classic"),
}
"""Each transport, and each protocol over some."""
OVER_ALL = ("test_commands", "test_numbered")
OVER_MOST = ("test_consumer", "test_producer")
"""In `make test` only over what differs most: QUIC and WebSocket carry the same frames as TCP."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    name = metafunc.module.__name__.rpartition(".")[2]
    if name in OVER_ALL:
        metafunc.parametrize("over", OVER, indirect=True)
    elif name in OVER_MOST:
        metafunc.parametrize("over", mostly_long(OVER, ("classic", "modern", "http")), indirect=True)


@pytest.fixture(autouse=True)
def over(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    transport, wire = OVER[getattr(request, "param", "classic")]
    monkeypatch.setattr(Server, "transport", transport)
    monkeypatch.setattr(Server, "wire", wire)
