"""Connecting with and without TLS, losing the connection, and reconnecting."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.app.access.support.world import refusal
from tests.app.client.support.server import SOON, Server, connected, serving, until
from tests.storage.support.world import SlowDisk, reached, settled
from tests.transports.http.support.serving import tls_context
from whippet.app.client import Client, Disconnected, Reconnect
from whippet.app.client.commands import FIRST
from whippet.app.commands.requests import Consumer, ConsumerKind
from whippet.app.errors import Code
from whippet.transports import certificates

ME = Consumer(ConsumerKind.CONSUMER, "me")


async def test_a_failed_login_leaves_no_connection_open(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        wrong = f"iggy://root:wrong@127.0.0.1:{server.port}"
        assert await refusal(Client.connect(wrong)) == Code.INVALID_CREDENTIALS
        token = f"iggy://nosuchtoken@127.0.0.1:{server.port}"
        assert await refusal(Client.connect(token)) == Code.RESOURCE_NOT_FOUND
        await until(lambda: not len(server.gateway.sessions))


async def test_a_token_logs_in(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, await server.client() as client:
        token = (await client.create_personal_access_token("build")).token
        async with await Client.connect(f"iggy+tcp://{token}@127.0.0.1:{server.port}") as other:
            assert (await other.get_me()).user_id == (await client.get_me()).user_id


async def test_an_address_without_a_listener_is_reported(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        address = server.address
    with pytest.raises(Disconnected, match=r"no connection to 127\.0\.0\.1:\d+: ") as raised:
        await Client.connect(address)
    assert raised.value.code is Code.CANNOT_ESTABLISH_CONNECTION


@pytest.mark.parametrize("over", ["classic", "quic", "ws", "http"], indirect=True)
async def test_tls_requires_a_trusted_certificate(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", tls=tls_context(tmp_path)) as server:
        certificate = tmp_path / "cert.pem"
        if Server.transport == "quic":
            # It has made its own.
            certificate = tmp_path / "data" / certificates.FOLDER / certificates.KEPT
        address = f"{server.address}&tls=true"
        assert await refusal(Client.connect(address)) == Code.CANNOT_ESTABLISH_CONNECTION
        trusted = f"{address}&tls_ca_file={certificate}"
        assert await refusal(Client.connect(f"{trusted}&tls_domain=elsewhere")) == Code.CANNOT_ESTABLISH_CONNECTION
        async with await Client.connect(trusted) as client:
            await client.create_stream("s")
            await client.create_topic("s", "t")
            await client.send_messages("s", "t", [b"x" * 150_000] * 10)
            polled = await client.poll_messages("s", "t", ME, partition_id=0, strategy=FIRST)
            assert polled.messages_count == 10
        context = ssl.create_default_context(cafile=certificate)
        if Server.transport == "quic":
            with pytest.raises(ValueError, match="tls_ca_file"):
                await Client.connect(server.address, tls=context)
            return
        async with await Client.connect(server.address, tls=context) as client:
            await client.ping()


async def test_without_reconnection_a_lost_connection_stays_lost(tmp_path: Path) -> None:
    async with connected(tmp_path) as (server, client):
        assert (client.is_connected, client.comes_back) == (True, False)
        waiting = [client.get_streams() for _ in range(3)]
        server.cut()
        for one in waiting:
            assert await refusal(one) == Code.DISCONNECTED
        assert not client.is_connected
        assert await refusal(client.ping()) == Code.DISCONNECTED
        await client.reconnect()
        assert [stream.name for stream in await client.get_streams()] == ["s"]


async def test_with_reconnection_queries_are_repeated_and_changes_are_not(tmp_path: Path) -> None:
    async with connected(tmp_path) as (server, _), await server.client(SOON) as client:
        question, change = client.get_streams(), client.create_stream("another")
        server.cut()
        assert await refusal(change) == Code.DISCONNECTED
        assert "s" in [stream.name for stream in await question]
        assert client.is_connected


async def test_requests_wait_for_a_restarting_server(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, await server.client(SOON) as client:
        await client.create_stream("s")
        await server.stop()
        await until(lambda: not client.is_connected)
        waiting = (client.get_stream("s"), client.create_topic("s", "t"), client.get_topics("s"))
        await settled()
        assert not any(one.done() for one in waiting)
        await server.start()
        stream, topic, topics = await asyncio.gather(*waiting)
        assert stream is not None
        assert topics == (topic.info,)


async def test_reconnection_ends_after_the_configured_number_of_attempts(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        client = await server.client(Reconnect(retries=2, interval_s=0))
        await server.stop()
        assert await refusal(client.ping()) == Code.CANNOT_ESTABLISH_CONNECTION
        await server.start()
        await client.ping()
        await client.close()


async def test_closing_ends_pending_requests_and_is_idempotent(tmp_path: Path) -> None:
    disk = SlowDisk()
    async with connected(tmp_path, files=disk) as (server, _):
        client = await server.client(SOON)
        disk.stop()
        try:
            sent = client.send_messages("s", "t", [b"x"])
            await reached(disk.reached)
            await client.close()
            await client.close()
            assert await refusal(sent) == Code.DISCONNECTED
            assert await refusal(client.ping()) == Code.DISCONNECTED
        finally:
            disk.go()


async def test_closing_ends_a_reconnection(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        client = await server.client(Reconnect(interval_s=3600))
        await server.stop()
        waiting = client.get_streams()
        await until(lambda: not client.is_connected)
        await settled()
        await client.close()
        with pytest.raises(Disconnected):
            await waiting
        await server.start()


async def test_an_idle_client_sends_pings(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        often = server.address.replace("heartbeat_interval=0", "heartbeat_interval=1ms")
        async with await Client.connect(often) as client:
            me = (await client.get_me()).client_id
            session = server.gateway.sessions.get(me)
            assert session is not None
            connected_at = session.last_heartbeat
            await until(lambda: session.last_heartbeat != connected_at)


@asynccontextmanager
async def answering(octets: bytes) -> AsyncIterator[str]:
    """The address of a server that responds to anything with these bytes, and disconnects."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(octets)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        yield f"iggy://{host}:{port}?heartbeat_interval=0"


@pytest.mark.parametrize(
    ("octets", "code"),
    [
        (b"", Code.DISCONNECTED),
        (b"HTTP/1.1 400 Bad Request", Code.ERROR),
        (bytes(4), Code.DISCONNECTED),
        (bytes(4) + b"\xff\xff\xff\xff", Code.DISCONNECTED),
        (bytes(4) + b"\x08\0\0\0" + bytes(7), Code.DISCONNECTED),
        (bytes(4) + b"\x08\0\0\0" + bytes(8), Code.INVALID_FORMAT),
        (b"\x1e\0\0\0" + bytes(4), Code.STALE_CLIENT),
        (b"\xff\xff\0\0" + bytes(4), Code.ERROR),
    ],
)
async def test_invalid_bytes_from_the_server_are_an_error_and_never_a_hang(octets: bytes, code: Code) -> None:
    async with answering(octets) as address, await Client.connect(address) as client:
        assert await refusal(client.get_me()) == code
