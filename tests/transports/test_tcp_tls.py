"""TLS on the TCP port: clients like the official SDKs, and clients that are still in their handshake."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.transports.support.raw import LOG_IN, PING, Served, asked, frame, make_topic, message_body, poll, served
from tests.transports.wire.classic.support.plainly import parse
from whippet.app.commands import requests
from whippet.app.config import ConfigError
from whippet.app.config.listeners import Tls
from whippet.transports import certificates, tcp, tls_handshakes

MIB = 1 << 20
SELF_SIGNED = Tls(enabled=True, self_signed=True, cert_file="not there", key_file="not there")


def server(tls: Tls = SELF_SIGNED) -> ssl.SSLContext:
    context = certificates.context(tls, "tcp.tls")
    assert context is not None
    return context


def unverified() -> ssl.SSLContext:
    """Like clients that do not verify certificates."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class Secure:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def say(self, octets: bytes) -> tuple[int, bytes]:
        self.writer.write(octets)
        return await self.answer()

    async def answer(self) -> tuple[int, bytes]:
        status, length = struct.unpack("<II", await self.reader.readexactly(8))
        return status, await self.reader.readexactly(length)


@contextlib.asynccontextmanager
async def connected(world: Served, context: ssl.SSLContext, name: str | None = None) -> AsyncIterator[Secure]:
    where = world.listener.address
    reader, writer = await asyncio.open_connection(
        where.host, where.port, ssl=context, server_hostname=name, limit=32 * MIB
    )
    try:
        yield Secure(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def test_a_client_without_verification_works_with_a_self_signed_certificate(tmp_path: Path) -> None:
    async with served(tmp_path, tls=server()) as world, connected(world, unverified()) as client:
        assert await client.say(LOG_IN) == (0, bytes(4))
        assert (await client.say(asked(requests.CreateStream("s"))))[0] == 0
        assert (await client.say(asked(requests.CreateTopic("s", "t", 1))))[0] == 0
        client.writer.write((frame(101, message_body(*[MIB] * 4)) + PING) * 3)
        assert [await client.answer() for _ in range(6)] == [(0, b"")] * 6
        status, payload = await client.say(poll(100))
        assert status == 0
        assert [len(one.payload) for one in parse(payload[16:], 64)] == [MIB] * 12


async def test_a_configured_certificate_is_verified_by_clients_that_trust_it(tmp_path: Path) -> None:
    certificate, key = certificates.self_signed()
    (tmp_path / "cert.pem").write_bytes(certificate)
    (tmp_path / "key.pem").write_bytes(key)
    tls = Tls(enabled=True, self_signed=False, cert_file=str(tmp_path / "cert.pem"), key_file=str(tmp_path / "key.pem"))
    trusting = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))

    async with served(tmp_path / "data", tls=server(tls)) as world:
        for name in ("localhost", "127.0.0.1"):
            async with connected(world, trusting, name) as client:
                assert await client.say(PING) == (0, b"")
        for context, name in ((trusting, "elsewhere"), (ssl.create_default_context(), "localhost")):
            with pytest.raises(ssl.SSLCertVerificationError):
                async with connected(world, context, name):
                    pass


def test_unusable_tls_files_are_refused_by_name(tmp_path: Path) -> None:
    certificate, key = (tmp_path / name for name in ("cert.pem", "key.pem"))
    tls = Tls(enabled=True, self_signed=False, cert_file=str(certificate), key_file=str(key))
    with pytest.raises(ConfigError, match=r"cert\.pem is missing"):
        server(tls)
    certificate.write_bytes(certificates.self_signed()[0])
    with pytest.raises(ConfigError, match=r"key\.pem is missing"):
        server(tls)
    for wrong in (certificates.self_signed()[1], b"nonsense", b""):
        key.write_bytes(wrong)
        with pytest.raises(ConfigError, match=r"tcp.tls.cert_file, tcp.tls.key_file: cannot be used"):
            server(tls)


async def test_a_client_without_tls_is_closed_without_a_log_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        async with served(tmp_path, tls=server()) as world:
            for octets in (PING, b"GET / HTTP/1.1\r\n\r\n", bytes(300), b"\x16\x03\x01\xff\xff" + bytes(10)):
                client = await world.stranger()
                await client.send(octets)
                with contextlib.suppress(ConnectionResetError):
                    # At most a TLS alert.
                    assert len(await client.rest()) < 10
            for beginning in (b"", b"\x16\x03\x01"):
                client = await world.stranger()
                await client.send(beginning)
                client.reset()
            async with connected(world, unverified()) as client_of_tls:
                assert await client_of_tls.say(PING) == (0, b"")
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []
    assert not [record for record in caplog.records if "handshake" in record.message]


async def test_a_client_that_leaves_with_requests_in_progress_causes_no_log_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with served(tmp_path, tls=server()) as world:
            for _ in range(20):
                async with connected(world, unverified()) as client:
                    client.writer.write(LOG_IN + asked(requests.GetStats()) * 50)
    assert not caplog.records


async def test_an_unfinished_handshake_is_closed_like_a_silent_client(tmp_path: Path) -> None:
    async with served(tmp_path, tls=server(), silence_before_login=0.3) as world:
        silent = [await world.stranger() for _ in range(50)]
        await silent[0].send(b"\x16\x03\x01\x02")
        await asyncio.gather(*(client.is_closed() for client in silent))


async def test_a_handshake_in_progress_counts_as_a_connection(tmp_path: Path) -> None:
    async with served(tmp_path, tls=server(), connections=3) as world, connected(world, unverified()) as client:
        silent = [await world.stranger() for _ in range(2)]
        assert await (await world.stranger()).is_closed()
        assert await client.say(PING) == (0, b"")
        silent[0].reset()
        assert world.listener._handshakes is not None
        while len(world.listener._handshakes) == 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        async with connected(world, unverified()) as next_one:
            assert await next_one.say(PING) == (0, b"")


async def test_a_stop_waits_neither_for_handshakes_nor_for_tls_shutdowns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_handshakes, "FAREWELL_SECONDS", 0.2)

    async with served(tmp_path, tls=server()) as world:
        silent = await world.stranger()
        deaf = await world.stranger()
        away, home = ssl.MemoryBIO(), ssl.MemoryBIO()
        machine = unverified().wrap_bio(home, away)
        while True:
            try:
                machine.do_handshake()
            except ssl.SSLWantReadError:
                await deaf.send(away.read())
                home.write(await asyncio.get_running_loop().sock_recv(deaf.link, 65536))
            else:
                break
        await deaf.send(away.read())
        while not world.connections:  # noqa: ASYNC110
            await asyncio.sleep(0)
        async with asyncio.timeout(5):
            await world.listener.stop(60)
        assert await silent.is_closed()


async def test_tls_on_a_plain_port_is_closed_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        async with served(tmp_path) as world:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                async with connected(world, unverified()):
                    pass
    assert [record.message for record in caplog.records if record.name == tcp.__name__ and "TLS" in record.message]


async def test_a_topic_created_over_tls_is_visible_without_tls(tmp_path: Path) -> None:
    async with served(tmp_path) as world:
        await make_topic(await world.root())
    async with served(tmp_path, tls=server()) as world, connected(world, unverified()) as client:
        assert await client.say(LOG_IN) == (0, bytes(4))
        assert b"t" in (await client.say(asked(requests.GetTopic("s", "t"))))[1]
