"""What `whippet doctor` says about the addresses of the listeners."""

from __future__ import annotations

import os
import socket

import msgspec
import pytest

from whippet.app.config import Config
from whippet.app.config.formats import Address
from whippet.app.diagnosis import ports, processes
from whippet.app.diagnosis.finding import Finding, Status


def only_tcp(address: Address) -> Config:
    config = Config()
    off = {
        name: msgspec.structs.replace(getattr(config, name), enabled=False) for name in ("http", "quic", "websocket")
    }
    return msgspec.structs.replace(config, tcp=msgspec.structs.replace(config.tcp, address=address), **off)


def about(host: str, port: int, server: int | None = None) -> list[Finding]:
    return list(ports.findings(only_tcp(Address(host, port)), server))


def test_a_port_that_is_free_is_ok_and_stays_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as link:
        port = link.getsockname()[1]
    (found,) = about("127.0.0.1", port)
    assert found.status is Status.OK
    socket.create_server(("127.0.0.1", port)).close()


def test_a_port_that_is_taken_names_the_process_that_has_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as link:
        port = link.getsockname()[1]
        (found,) = about("127.0.0.1", port)
        (own,) = about("127.0.0.1", port, os.getpid())
    assert found.status is Status.FAIL
    assert f"process {os.getpid()} (" in found.found
    assert own.status is Status.OK


def test_of_a_process_of_somebody_else_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_links", lambda _: iter(()))
    with socket.create_server(("127.0.0.1", 0)) as link:
        (found,) = about("127.0.0.1", link.getsockname()[1])
    assert (found.status, "another process" in found.found) == (Status.FAIL, True)


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host"])
def test_an_address_that_is_not_of_this_machine_fails(host: str) -> None:
    assert about(host, 0)[0].status is Status.FAIL


def test_an_address_for_other_machines_without_encryption_is_reported() -> None:
    free, exposed = about("0.0.0.0", 0)
    assert [free.status, exposed.status] == [Status.OK, Status.WARN]
    assert "not encrypted" in exposed.found


def test_two_listeners_with_one_address_fail() -> None:
    with socket.create_server(("127.0.0.1", 0)) as link:
        port = link.getsockname()[1]
    config = only_tcp(Address("127.0.0.1", port))
    metrics = msgspec.structs.replace(config.metrics, enabled=True, endpoint=Address("127.0.0.1", port))
    found = list(ports.findings(msgspec.structs.replace(config, metrics=metrics), None))
    assert [each.status for each in found] == [Status.OK, Status.FAIL]
