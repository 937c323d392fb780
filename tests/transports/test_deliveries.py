"""The bytes that a client has received, as the event loop's side of the connection sees them."""

from __future__ import annotations

import asyncio
import select
import socket
from typing import cast

from whippet.transports.deliveries import delivered_bytes


class Sender(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)


async def connected() -> tuple[asyncio.Transport, socket.socket]:
    """A connection of the event loop, and the client's side of it, from which nothing is read."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await loop.sock_connect(client, listener.getsockname())
        accepted, _ = listener.accept()
    accepted.setblocking(False)
    # Without this, the system would make its buffer larger by and by.
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    transport, _ = await loop.create_connection(Sender, sock=accepted)
    return transport, client


def is_full(transport: asyncio.Transport) -> bool:
    """Returns True if the socket buffer is full at the moment."""
    return not select.select([], [transport.get_extra_info("socket").fileno()], [], 0)[1]


async def test_a_slow_client_is_seen_to_read_although_the_operating_system_takes_nothing_more() -> None:
    loop = asyncio.get_running_loop()
    transport, client = await connected()
    transport.write(bytes(8 << 20))
    while not is_full(transport):  # noqa: ASYNC110
        await asyncio.sleep(0)
    unsent, before = transport.get_write_buffer_size(), delivered_bytes(transport)
    assert unsent > 1 << 20
    assert before < 50_000
    read = 0
    while read < 200_000:
        read += len(await loop.sock_recv(client, 10_000))
    assert transport.get_write_buffer_size() == unsent
    assert 150_000 < delivered_bytes(transport) < 250_000
    transport.abort()
    client.close()


async def test_an_aborted_connection_has_delivered_nothing() -> None:
    transport, client = await connected()
    transport.abort()
    while transport.get_extra_info("socket").fileno() >= 0:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert delivered_bytes(transport) == 0
    client.close()
