"""Polls that are read while their response is sent: whole, in order, bounded in memory, and never a wrong frame."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from pathlib import Path

import pytest

from tests.transports.support.modern import FIRST, ME, Modern, batch_of, sending, with_topic
from tests.transports.support.raw import Raw, Served, served
from whippet.app.commands import requests
from whippet.app.config.listeners import Tls
from whippet.storage import long_reads
from whippet.transports import certificates, reservations, tcp

KIB = 1 << 10
EVERYTHING = requests.PollMessages(ME, 0, 0, 0, FIRST, 100_000, auto_commit=False)
MANY, SIZE = 60, 20 * KIB


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reservations, "HELD_BYTES_MAX", 100 * KIB)
    monkeypatch.setattr(long_reads, "PIECE_BYTES", 30 * KIB)
    monkeypatch.setattr(tcp, "PIECE_BYTES", 30 * KIB)


async def filled(world: Served, *, receive_bytes: int | None = None) -> Modern:
    client = await with_topic(world, receive_bytes=receive_bytes)
    for number in range(MANY):
        assert not await client.refused(sending(batch_of(b"%d." % number + b"x" * SIZE)))
    return client


async def unread(world: Served, client: Modern) -> tcp.Connection:
    """Polls for everything, and waits until the client would have to read to get more."""
    (connection,) = world.listener._connections
    assert isinstance(connection, tcp.Connection)
    connection._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    await client.send(client.asked(EVERYTHING))
    while connection._writable is None:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    return connection


async def test_a_long_response_is_whole_and_later_requests_are_answered_after_it(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await filled(world)
        await client.send(client.asked(EVERYTHING) + client.asked(requests.Ping()) + client.asked(EVERYTHING))
        replies = [await client.reply() for _ in range(3)]
        assert [len(reply.body) > MANY * SIZE for reply in replies] == [True, False, True]
        assert len(await client.polled(count=100_000)) == MANY
        found = await client.polled(count=MANY - 1)
        assert [message.payload.partition(b".")[0] for message in found] == [b"%d" % i for i in range(MANY - 1)]


async def test_a_client_that_does_not_read_a_long_response_holds_two_pieces(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        client = await filled(world, receive_bytes=4096)
        connection = await unread(world, client)
        assert world.listener.budgets.responses.used == 2 * 30 * KIB
        # A transport takes up to 64 KiB before it says that it is full.
        assert connection._transport.get_write_buffer_size() <= (64 + 30) * KIB
        # It is closed by the rule for all clients that do not read.
        assert connection.overdue(1.0) is None
        assert connection.overdue(2.0 + world.listener.stalled_seconds) == "it does not read what it was sent"
        assert len((await client.reply()).body) > MANY * SIZE


async def test_a_response_that_cannot_be_read_to_its_end_closes_the_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(tmp_path, store={"tail_bytes_max": 0}) as world:
        client = await filled(world, receive_bytes=4096)
        await unread(world, client)
        (log,) = tmp_path.rglob("*.log")
        os.truncate(log, 300 * KIB)
        with caplog.at_level(logging.WARNING), pytest.raises((EOFError, ConnectionResetError)):
            await client.reply()
        assert "closed in the middle of a response" in caplog.text


class Secure(Modern):
    """A client over TLS."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(Raw(writer.get_extra_info("socket")))
        self.reader, self.writer = reader, writer

    async def send(self, octets: bytes) -> None:
        self.writer.write(octets)
        await self.writer.drain()

    async def exactly(self, size: int) -> bytes:
        return await self.reader.readexactly(size)


async def test_a_long_response_is_whole_over_tls(tmp_path: Path) -> None:
    own = certificates.context(Tls(enabled=True, self_signed=True), "tcp.tls")
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    async with served(tmp_path, tls=own) as world:
        where = world.listener.address
        client = Secure(*await asyncio.open_connection(where.host, where.port, ssl=trusting, limit=4096))
        assert not (await client.register()).refused
        assert not await client.refused(requests.CreateStream("s"))
        assert not await client.refused(requests.CreateTopic("s", "t", 1))
        for number in range(MANY):
            assert not await client.refused(sending(batch_of(b"%d." % number + b"x" * SIZE)))
        await client.send(client.asked(EVERYTHING) + client.asked(requests.Ping()))
        assert [len((await client.reply()).body) > MANY * SIZE for _ in range(2)] == [True, False]
        client.writer.close()
        await client.writer.wait_closed()
