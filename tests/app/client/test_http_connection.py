"""What only the client over HTTP has: tokens that end, leases, and responses that are no JSON."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.app.access.support.world import refusal
from tests.app.client.support.server import SOON, Server, connected, until
from whippet.app.client import Client, Disconnected, GroupConsumer, http_connection
from whippet.app.client.commands import FIRST
from whippet.app.client.http_commands import Exchange
from whippet.app.client.http_connection import HttpConnection
from whippet.app.commands.requests import Consumer, ConsumerKind
from whippet.app.errors import Code, CommandError
from whippet.storage.batch import Message, build

pytestmark = pytest.mark.parametrize("over", ["http"], indirect=True)


READER = Consumer(ConsumerKind.CONSUMER, 1)


def connection_of(client: Client) -> HttpConnection:
    connection = client._connection
    assert isinstance(connection, HttpConnection)
    return connection


async def test_the_token_is_renewed_before_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "RENEWED_AFTER", 1e-6)
    async with connected(tmp_path) as (_, client):
        connection = connection_of(client)
        tokens = {connection._token}
        while len(tokens) < 3:
            assert [stream.name for stream in await client.get_streams()] == ["s"]
            tokens.add(connection._token)
        await client.logout_user()
        assert connection._renewal is None
        assert await refusal(client.get_streams()) == Code.UNAUTHENTICATED


async def test_a_login_holds_back_what_comes_after_it(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        await client.create_user("ann", "ann's password")
        before, login, after = client.get_streams(), client.login_user("ann", "ann's password"), client.get_users()
        assert len(await before) == 1
        await login
        assert await refusal(after) == Code.UNAUTHORIZED


async def test_a_member_that_is_busy_keeps_its_lease_and_gives_it_back_when_it_leaves(tmp_path: Path) -> None:
    async with connected(tmp_path) as (server, client), await server.client(SOON) as other:
        member = GroupConsumer(other, "s", "t", "g")
        await member.join()
        (lease,) = server.api.leases._by_id.values()
        before = server.api.leases.expires_at(lease)
        await other.ping()
        await until(lambda: server.api.leases.expires_at(lease) > before)
        server.cut()
        await other.ping()
        assert len(server.api.leases) == 1, "a new connection has the leases of the one before it"
        await other.close()
        await client.reconnect()
        group = await client.get_consumer_group("s", "t", "g")
        assert group is not None
        assert group.members == ()


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[str]:
    """A server that sends the same to every request, and closes."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    try:
        yield f"iggy+http://user:password@127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def is_disconnected(error: CommandError) -> bool:
    return isinstance(error, Disconnected)


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
async def test_sends_are_compressed_if_the_connection_string_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, coding: str
) -> None:
    heads: list[tuple[bytes, int]] = []
    head = Exchange.head

    def noted(self: Exchange, *arguments: Any) -> bytes:
        made = head(self, *arguments)
        heads.append((made, sum(map(len, self.body))))
        return made

    async with connected(tmp_path) as (server, client):
        monkeypatch.setattr(Exchange, "head", noted)
        separator = "&" if "?" in server.address else "?"
        async with await Client.connect(f"{server.address}{separator}compression={coding}") as other:
            batch = bytearray(build([Message(b"x" * 1000) for _ in range(50)], 1, os.urandom))
            await other.send_messages("s", "t", batch)
            await other.create_stream("another")
        (sent,) = [each for each in heads if b"/messages" in each[0]]
        assert f"\r\ncontent-encoding: {coding}\r\n".encode() in sent[0]
        assert sent[1] < len(batch) // 5
        assert sum(b"content-encoding" in each for each, _ in heads) == 1
        polled = await client.poll_messages("s", "t", READER, partition_id=0, strategy=FIRST, count=100)
        assert polled.messages_count == 50


@pytest.mark.parametrize(
    ("answer", "holds"),
    [
        (b"", is_disconnected),
        (b"nonsense\r\n\r\n", is_disconnected),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", is_disconnected),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", is_disconnected),
        (b"HTTP/1.1 418 No\r\nContent-Length: 0\r\n\r\n", lambda error: "HTTP status 418" in str(error)),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", lambda error: error.code is Code.INVALID_FORMAT),
    ],
    ids=["leaves", "nonsense", "cut off", "starting", "a teapot", "something else"],
)
async def test_a_server_that_is_none_is_reported(answer: bytes, holds: Callable[[CommandError], bool]) -> None:
    assert Server.transport == "http"
    async with answering(answer) as address:
        with pytest.raises(CommandError) as refused:
            await Client.connect(address)
    assert holds(refused.value), refused.value
