"""The client can do the same over all transports, and in both protocols."""

from __future__ import annotations

import pytest

from tests.app.client.support.server import Server

OVER = {
    "classic": ("tcp", "classic"),
    "modern": ("tcp", "modern"),
    "quic": ("quic", "classic"),
    "ws": ("ws", "modern"),
    "http": ("http", "classic"),
}
"""Each transport, and each protocol over some."""
OVER_ALL = ("test_commands", "test_consumer", "test_numbered", "test_producer")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.rpartition(".")[2] in OVER_ALL:
        metafunc.parametrize("over", OVER, indirect=True)


@pytest.fixture(autouse=True)
def over(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    transport, wire = OVER[getattr(request, "param", "classic")]
    monkeypatch.setattr(Server, "transport", transport)
    monkeypatch.setattr(Server, "wire", wire)
