"""The client can do the same in both protocols."""

from __future__ import annotations

import pytest

from tests.app.client.support.server import Server
from whippet.app.client.wires import WIRES

IN_BOTH = ("test_commands", "test_producer", "test_consumer")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.rpartition(".")[2] in IN_BOTH:
        metafunc.parametrize("wire", WIRES, indirect=True)


@pytest.fixture(autouse=True)
def wire(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Server, "wire", getattr(request, "param", Server.wire))
