"""A process serves WebSocket on the HTTP port, on that and an address of its own, or only on that address."""

from __future__ import annotations

import contextlib
import signal
import socket
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.app.support.process import Gateway, Start, starting
from tests.transports.support.raw import PING

PONG = bytes(8)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with starting(tmp_path / "data") as start_one:
        yield start_one


def client(address: str) -> ClientConnection:
    return connect(f"ws://{address}/", compression=None, proxy=None)


def answers(address: str) -> bool:
    with client(address) as link:
        link.send(PING)
        return link.recv() == PONG


def has_channel(address: str) -> bool:
    """Returns True if the address serves browsers."""
    with connect(f"ws://{address}/ws", compression=None, proxy=None) as link:
        link.send('{"id":1,"cmd":"ping"}')
        return link.recv() == '{"id":1,"ok":"pong"}'


def stop(gateway: Gateway) -> None:
    gateway.signal(signal.SIGTERM)
    assert gateway.end() == 0
    assert "Traceback" not in str(gateway)


def configured(tmp_path: Path) -> Any:
    return tomllib.loads((tmp_path / "data/runtime/current_config.toml").read_text())


def test_websocket_uses_the_port_of_http(start: Start, tmp_path: Path) -> None:
    gateway = start()
    http, websocket = gateway.address(), gateway.line(r" ws://(\S+)").group(1)
    assert http == websocket
    assert answers(http)
    assert has_channel(http)
    assert configured(tmp_path)["websocket"]["address"] == http
    stop(gateway)


def test_with_its_own_address_websocket_is_reachable_at_both(start: Start, tmp_path: Path) -> None:
    gateway = start(IGGY_WEBSOCKET_ADDRESS="127.0.0.2:0")
    http, websocket = gateway.address(), gateway.line(r" ws://(\S+)").group(1)
    assert websocket.startswith("127.0.0.2:")
    assert answers(http)
    assert answers(websocket)
    assert has_channel(websocket)
    assert configured(tmp_path)["websocket"]["address"] == websocket
    with socket.create_connection(websocket.split(":")) as plain:  # type: ignore[arg-type]
        plain.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert plain.recv(4096).startswith(b"HTTP/1.1 426 ")
    stop(gateway)


def test_without_http_websocket_uses_its_own_address(start: Start) -> None:
    gateway = start(IGGY_HTTP_ENABLED="false", IGGY_WEBSOCKET_ADDRESS="127.0.0.1:0")
    websocket = gateway.line(r" ws://(\S+)").group(1)
    assert answers(websocket)
    assert has_channel(websocket)
    assert "http://" not in str(gateway)
    stop(gateway)


def test_without_http_and_without_an_address_there_is_no_websocket(start: Start) -> None:
    gateway = start(IGGY_HTTP_ENABLED="false")
    gateway.line("stop  ")
    assert " ws://" not in str(gateway)
    stop(gateway)


def test_websocket_may_be_off(start: Start) -> None:
    gateway = start(IGGY_WEBSOCKET_ENABLED="false")
    assert " ws://" not in str(gateway)
    gateway.line("stop  ")
    assert gateway.get("/").text == "Iggy API"
    stop(gateway)


def test_clients_are_disconnected_when_the_server_stops(start: Start) -> None:
    gateway = start()
    with contextlib.ExitStack() as ends:
        links = [ends.enter_context(client(gateway.address())) for _ in range(20)]
        for link in links:
            link.send(PING)
            assert link.recv() == PONG
        gateway.signal(signal.SIGTERM)
        for link in links:
            with pytest.raises(ConnectionClosed):
                link.recv(timeout=10)
    assert gateway.end() == 0


@pytest.mark.parametrize("path", ["/ws", "/"])
def test_a_stop_does_not_wait_for_a_silent_client(start: Start, path: str) -> None:
    gateway = start(IGGY_SYSTEM_LIMITS_STOP_TIME="1 h", IGGY_SYSTEM_LIMITS_SILENCE_BEFORE_LOGIN="1 h")
    # Below the library, which would respond: nothing is read from this socket, and nothing sent.
    with gateway.connect() as silent:
        silent.sendall(
            f"GET {path} HTTP/1.1\r\nHost: {gateway.address()}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        assert silent.recv(12) == b"HTTP/1.1 101"
        stop(gateway)
