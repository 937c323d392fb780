"""`tcp.socket` and `tcp.ipv6` are applied to the sockets of connected clients."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from tests.transports.support.raw import OK, Raw, Served, asked, frame, served
from tests.transports.wire.classic.support.plainly import TO_PARTITION_10, Classic, send_body
from whippet.app.commands import requests
from whippet.app.config.formats import Address
from whippet.app.config.listeners import Tcp, TcpSocket
from whippet.transports import listening, tcp
from whippet.transports.listening import ListenError

LINGER = 0.05


def accepted(world: Served) -> tcp.Connection:
    (connection,) = world.listener._connections
    assert isinstance(connection, tcp.Connection)
    return connection


async def option_of(tmp_path: Path, wanted: TcpSocket, level: int, option: int) -> int:
    async with served(tmp_path, tcp=Tcp(socket=wanted)) as world:
        client = await world.root()
        found: int = accepted(world)._transport.get_extra_info("socket").getsockopt(level, option)
        assert await client.is_alive()
        return found


@pytest.mark.parametrize("keepalive", [True, False])
@pytest.mark.parametrize("nodelay", [True, False])
async def test_keepalive_and_nodelay_are_configurable(tmp_path: Path, keepalive: bool, nodelay: bool) -> None:
    wanted = TcpSocket(override_defaults=True, keepalive=keepalive, nodelay=nodelay)
    assert bool(await option_of(tmp_path / "a", wanted, socket.SOL_SOCKET, socket.SO_KEEPALIVE)) is keepalive
    assert bool(await option_of(tmp_path / "b", wanted, socket.IPPROTO_TCP, socket.TCP_NODELAY)) is nodelay


@pytest.mark.parametrize(
    ("option", "wanted"),
    [
        (socket.SO_RCVBUF, TcpSocket(override_defaults=True, recv_buffer_size=50_000)),
        (socket.SO_SNDBUF, TcpSocket(override_defaults=True, send_buffer_size=50_000)),
    ],
)
async def test_buffer_sizes_are_configurable(tmp_path: Path, option: int, wanted: TcpSocket) -> None:
    # Linux reports twice the requested size.
    assert await option_of(tmp_path, wanted, socket.SOL_SOCKET, option) == 2 * 50_000


async def test_a_buffer_that_the_system_limits_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with served(tmp_path, tcp=Tcp(socket=TcpSocket(override_defaults=True, recv_buffer_size=2**30))):
        pass
    assert "tcp.socket.recv_buffer_size = 1073741824: the operating system grants " in caplog.text


async def test_nothing_is_set_unless_the_defaults_are_overridden(tmp_path: Path) -> None:
    ignored = TcpSocket(recv_buffer_size=5000, send_buffer_size=5000, keepalive=True, nodelay=False, linger=1.0)
    assert await option_of(tmp_path / "a", ignored, socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0
    assert await option_of(tmp_path / "b", ignored, socket.SOL_SOCKET, socket.SO_RCVBUF) != 10_000
    assert await option_of(tmp_path / "c", ignored, socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


async def stuck(world: Served) -> Raw:
    """A client that has requested more than the system buffers, less than the listener waits for, and reads nothing."""
    client = await world.root(receive_bytes=4096)
    for request in (requests.CreateStream("s"), requests.CreateTopic("s", "t", 11)):
        assert (await client.ask(request))[0] == 0
    await client.send(frame(101, send_body([Classic(0, 0, 0, 0, bytes(60_000))], 64, TO_PARTITION_10)))
    assert await client.answer() == OK
    whole = requests.Strategy(requests.StrategyKind.FIRST)
    await client.send(
        asked(requests.PollMessages(requests.Consumer(requests.ConsumerKind.CONSUMER, 1), 0, 0, 10, whole, 100, False))
    )
    while not accepted(world)._transport.get_write_buffer_size():  # noqa: ASYNC110
        await asyncio.sleep(0)
    return client


async def test_unread_bytes_are_dropped_when_a_closing_connection_lingers_too_long(tmp_path: Path) -> None:
    wanted = TcpSocket(override_defaults=True, send_buffer_size=4096, linger=LINGER)
    # Without it the client would be kept until it has stalled for longer than this test may take.
    async with served(tmp_path, tcp=Tcp(socket=wanted), stalled_seconds=3600.0) as world:
        client = await stuck(world)
        connection = accepted(world)
        connection.drain()
        while world.connections:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert len(await client.rest()) < 60_000


class BothKinds:
    """An event loop on which every name has an address of each family."""

    async def getaddrinfo(self, host: str, port: int, *, family: int, **_: object) -> list[tuple[object, ...]]:
        both = [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", port, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)),
        ]
        return [found for found in both if family in (socket.AF_UNSPEC, found[0])]


@pytest.mark.parametrize(("ipv6", "host"), [(True, "::1"), (False, "127.0.0.1")])
async def test_a_name_with_both_families_listens_on_the_configured_one(
    monkeypatch: pytest.MonkeyPatch, ipv6: bool, host: str
) -> None:
    monkeypatch.setattr(asyncio, "get_running_loop", BothKinds)
    with await listening.listen(Address("both.example", 0), "tcp.address", ipv6=ipv6) as listener:
        assert listening.effective(listener).host == host


async def test_ipv6_can_be_configured(tmp_path: Path) -> None:
    async with served(tmp_path, tcp=Tcp(ipv6=True), address=Address("::1", 0)) as world:
        assert await (await world.root()).is_alive()


async def test_an_ipv4_address_is_refused_with_ipv6(tmp_path: Path) -> None:
    with pytest.raises(ListenError, match=r"^cannot listen on 127\.0\.0\.1:0 \(tcp\.address\): "):
        async with served(tmp_path, tcp=Tcp(ipv6=True)):
            pass
