"""What only the client over QUIC has: streams, which end without a response, and a server that nobody hears."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from aioquic.quic import events

from tests.app.access.support.world import refusal
from tests.app.client.support.reading import stored
from tests.app.client.support.server import connected, serving, until
from whippet.app.client import Client, Disconnected, quic_connection
from whippet.app.client.quic_connection import QuicConnection
from whippet.app.errors import Code

pytestmark = pytest.mark.parametrize("over", ["quic"], indirect=True)


async def test_nobody_who_listens_and_nobody_who_answers_are_both_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as server:
        address = server.address
    with pytest.raises(Disconnected, match=r"no connection to 127\.0\.0\.1:\d+: Connection refused"):
        await Client.connect(address)
    monkeypatch.setattr(quic_connection, "CONNECT_S", 0.05)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        with pytest.raises(Disconnected, match="nobody has answered") as raised:
            await Client.connect(f"iggy+quic://a:b@127.0.0.1:{silent.getsockname()[1]}")
    assert raised.value.code is Code.CANNOT_ESTABLISH_CONNECTION


async def test_requests_are_sent_one_after_the_other_and_stored_in_their_order(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        payloads = [b"%d" % number * (50_000 if number % 10 == 0 else 1) for number in range(100)]
        sends = [client.send_messages("s", "t", [payload]) for payload in payloads]
        await client.drained()
        await asyncio.gather(*sends)
        assert await stored(client) == payloads


async def test_a_stream_that_ends_without_a_response_ends_the_connection(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        connection = client._connection
        assert isinstance(connection, QuicConnection)
        waiting = client.get_streams()
        connection.quic_event_received(events.StreamReset(error_code=3, stream_id=4))
        with pytest.raises(Disconnected, match="with the code 3"):
            await waiting
        assert not client.is_connected
        await client.reconnect()
        connection = client._connection
        assert isinstance(connection, QuicConnection)
        waiting = client.get_streams()
        assert connection._stream_id is not None
        event = events.StreamDataReceived(data=b"short", end_stream=True, stream_id=connection._stream_id)
        connection.quic_event_received(event)
        with pytest.raises(Disconnected, match="bytes that are no response"):
            await waiting


async def test_a_server_that_stops_ends_the_connection_at_once(tmp_path: Path) -> None:
    async with connected(tmp_path) as (server, client):
        await server.stop()
        await until(lambda: not client.is_connected)
        assert await refusal(client.ping()) == Code.DISCONNECTED
        await server.start()
