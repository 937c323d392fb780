"""Clients that may return are remembered, also over a restart, and errors do no harm."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.clocks import Clock
from whippet.app.returning_clients import AWAY_MAX, NAME, RETURN_US, ReturningClients

WHO, OTHER = "10.0.0.1 iggy", "10.0.0.2 iggy"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def clients(tmp_path: Path, clock: Clock) -> ReturningClients:
    return ReturningClients(str(tmp_path), clock)


def test_a_client_is_expected_while_connected_and_for_a_while_after(clients: ReturningClients, clock: Clock) -> None:
    assert not clients.expects(WHO)
    clients.arrived(WHO)
    clients.arrived(WHO)
    clients.left(WHO)
    clock.now += 10 * RETURN_US
    assert clients.expects(WHO), "one connection is left"
    clients.left(WHO)
    clock.now += RETURN_US - 1
    assert clients.expects(WHO)
    clock.now += 1
    assert not clients.expects(WHO)
    assert not clients.expects(OTHER)


def test_a_client_is_expected_for_as_long_after_a_restart(
    clients: ReturningClients, tmp_path: Path, clock: Clock
) -> None:
    clients.arrived(WHO)
    clients.arrived(OTHER)
    clients.left(OTHER)
    clock.now += 10 * RETURN_US
    after = ReturningClients(str(tmp_path), clock)
    assert after.expects(WHO)
    clock.now += RETURN_US
    assert not after.expects(WHO)


def test_a_client_that_does_not_return_is_forgotten_when_the_next_one_arrives(
    clients: ReturningClients, tmp_path: Path, clock: Clock
) -> None:
    clients.arrived(WHO)
    clients.left(WHO)
    clock.now += RETURN_US
    clients.arrived(OTHER)
    after = ReturningClients(str(tmp_path), clock)
    assert after.expects(OTHER)
    assert not after.expects(WHO)


def test_the_number_of_absent_clients_is_limited(clients: ReturningClients) -> None:
    for number in range(AWAY_MAX + 1):
        clients._connections[f"{number}"] = 1
        clients.left(f"{number}")
    assert not clients.expects("0")
    assert clients.expects("1")


@pytest.mark.parametrize("content", [b"", b"{", b'{"a": 1}', b"\xff", b'["\xff"]'])
def test_an_invalid_file_is_ignored_and_set_aside(tmp_path: Path, clock: Clock, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    clients = ReturningClients(str(tmp_path), clock)
    clients.arrived(WHO)
    assert (tmp_path / f"{NAME}.damaged").read_bytes() == content
    assert ReturningClients(str(tmp_path), clock).expects(WHO)


def test_an_unwritable_folder_does_no_harm(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "file").touch()
    clients = ReturningClients(str(tmp_path / "file"), clock)
    clients.arrived(WHO)
    assert clients.expects(WHO)
