"""Datagrams that nobody should send to the QUIC port: whatever they are, memory is limited, and other clients are
served.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import socket
import ssl
import time
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicProtocolVersion

from tests.transports.fuzzing.over_quic import attack, hello, spoilt
from tests.transports.support.quic import Client, World, served
from tests.transports.support.raw import LOG_IN, PING, frame, message_body, poll
from whippet.app.commands import requests
from whippet.transports import quic
from whippet.transports.quic import HANDSHAKES_MAX, RETRY_ABOVE

MIB = 1 << 20
HANDSHAKE_KIB_MAX = 120
"""The memory of a client that has only sent a client hello."""


@contextlib.asynccontextmanager
async def attacked(path: Path) -> AsyncIterator[World]:
    """No client times out because the machine is busy. Unauthenticated ones are closed at the end instead."""
    async with served(path, quic={"max_idle_timeout": 600.0}) as world:
        yield world
        cut_strangers(world)


def cut_strangers(world: World) -> None:
    """Closes clients that have not finished their handshake or not logged in, as if their time were over."""
    world.listener.close_overdue(time.monotonic() + world.listener.limits.silence_before_login + 1)


class Socket:
    """Sends any datagrams, and collects what comes back."""

    def __init__(self, world: World) -> None:
        where = world.listener.address
        self.link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.link.setblocking(False)
        self.link.connect((where.host, where.port))
        world.ends.callback(self.link.close)

    def send(self, *datagrams: bytes) -> None:
        for datagram in datagrams:
            with contextlib.suppress(BlockingIOError, ConnectionRefusedError):
                self.link.send(datagram)

    def heard(self) -> list[bytes]:
        found = []
        try:
            while True:
                found.append(self.link.recv(65_536))
        except BlockingIOError:
            return found

    async def answers(self) -> list[bytes]:
        """Everything that arrives within a moment."""
        found: list[bytes] = []
        for _ in range(20):
            await asyncio.sleep(0.005)
            found += self.heard()
        return found


async def test_a_server_sends_at_most_three_times_what_it_received_before_validation(tmp_path: Path) -> None:
    """A client that has not proved its address could be the victim of an amplification attack."""

    async with attacked(tmp_path) as world:
        stranger = Socket(world)
        octets = hello()
        stranger.send(octets)
        heard = await stranger.answers()
        await asyncio.sleep(0.8)
        # Including retransmissions.
        heard += stranger.heard()
        assert 0 < sum(map(len, heard)) <= 3 * len(octets)


async def test_nor_to_an_address_that_a_client_only_pretends_to_have(tmp_path: Path) -> None:
    """Anybody can forge the address of a datagram: its owner must not be flooded."""

    async with attacked(tmp_path) as world:
        root = await world.root()
        assert (await root.ask(requests.CreateStream("s")))[0] == 0
        assert (await root.ask(requests.CreateTopic("s", "t", 1)))[0] == 0
        assert (await root.ask(frame(101, message_body(4 * MIB))))[0] == 0
        victim, own = Spoofing(Socket(world)), root._transport
        root._transport = victim  # type: ignore[assignment]
        for _ in range(5):
            root.begin(poll(1)).add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.sleep(0.3)
        root._transport = own
        # Including retransmissions.
        heard = sum(map(len, victim.link.heard()))
        assert 0 < heard <= 3 * victim.said_bytes
        # The client itself is still connected from its own address.
        assert await root.is_alive()


async def test_a_client_with_too_short_a_connection_id_is_ignored(tmp_path: Path) -> None:
    async with attacked(tmp_path) as world:
        stranger = Socket(world)
        for size in (0, 4, 7):
            connection = QuicConnection(configuration=QuicConfiguration(server_name="localhost"))
            connection._peer_cid.cid = bytes(size)
            connection.connect(("127.0.0.1", 1), now=0.0)
            stranger.send(connection.datagrams_to_send(now=0.0)[0][0])
        assert await stranger.answers() == []
        assert world.connections == 0


async def test_clients_must_prove_their_address_while_there_are_many_handshakes(tmp_path: Path) -> None:
    async with attacked(tmp_path) as world:
        witness = await world.root()
        flood = Socket(world)
        for _ in range(RETRY_ABOVE + 200):
            flood.send(hello())
            await asyncio.sleep(0)
        await world.until(lambda: world.connections > RETRY_ABOVE)
        heard = await flood.answers()
        retries = [answer for answer in heard if answer[0] & 0xF0 == 0xF0]
        assert retries
        assert world.connections <= RETRY_ABOVE + 1, "those who have proved nothing take no memory"
        assert await witness.is_alive()
        # A client that proves its address is still served.
        honest = await world.root()
        assert honest.quic._retry_count == 1
        assert await honest.is_alive()
        cut_strangers(world)
        await world.until(lambda: world.connections <= 2)


async def test_a_retry_token_is_valid_for_one_address_only(tmp_path: Path) -> None:
    async with attacked(tmp_path) as world:
        taken: list[bytes] = []
        prove = world.listener._retry.create_token
        world.listener._retry.create_token = lambda **given: taken.append(prove(**given)) or taken[-1]  # type: ignore[method-assign,func-returns-value]
        for _ in range(RETRY_ABOVE + 2):
            Socket(world).send(hello())
        await world.until(lambda: world.connections >= RETRY_ABOVE and bool(taken))
        there = world.connections
        thief = Socket(world)
        configuration = QuicConfiguration(verify_mode=ssl.CERT_NONE, server_name="localhost", token=taken[0])
        connection = QuicConnection(configuration=configuration)
        connection.connect(("127.0.0.1", 1), now=0.0)
        thief.send(connection.datagrams_to_send(now=0.0)[0][0])
        heard = await thief.answers()
        assert world.connections == there
        assert all(answer[0] & 0xF0 == 0xF0 for answer in heard), "at most it is asked to prove its address"


async def test_unfinished_handshakes_are_limited_in_number_and_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clients behave as if they came from many addresses, all of them real."""
    monkeypatch.setattr(quic, "RETRY_ABOVE", 10**9)
    monkeypatch.setattr(quic, "HANDSHAKES_MAX", 200)

    async with attacked(tmp_path) as world:
        witness = await world.root()
        hellos = [hello() for _ in range(400)]
        gc.collect()
        tracemalloc.start()
        flood = Socket(world)
        for octets in hellos:
            flood.send(octets)
            await asyncio.sleep(0)
        await world.until(lambda: world.connections >= 201)
        assert await witness.is_alive()
        assert world.connections == 201
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert taken / 200 < HANDSHAKE_KIB_MAX * 1024, taken / 200
        cut_strangers(world)
        await world.until(lambda: world.connections <= 1)


async def test_version_negotiation_answers_full_datagrams_only(tmp_path: Path) -> None:
    async with attacked(tmp_path) as world:
        stranger = Socket(world)
        head = b"\xc0" + (0x1A2A3A4A).to_bytes(4, "big") + b"\x08" + bytes(8) + b"\x08" + bytes(8)
        stranger.send(head + bytes(100))
        assert await stranger.answers() == []
        stranger.send(head.ljust(1200, b"\0"))
        (said,) = await stranger.answers()
        assert said[1:5] == bytes(4)
        assert said.endswith(int(QuicProtocolVersion.VERSION_1).to_bytes(4, "big"))
        # A reset is not answered with a reset.
        stranger.send(said.ljust(1200, b"\0"))
        assert await stranger.answers() == []


async def test_an_unknown_client_is_reset_with_fewer_bytes_than_it_sent(tmp_path: Path) -> None:
    async with attacked(tmp_path) as world:
        stranger = Socket(world)
        for size in (9, 21, 22, 40, 1200):
            stranger.send(b"\x40" + os.urandom(size - 1))
            answers = await stranger.answers()
            assert all(len(answer) < size for answer in answers), (size, answers)
            assert bool(answers) == (size >= 22)
        for _ in range(1000):
            stranger.send(b"\x40" + os.urandom(99))
        assert len(await stranger.answers()) <= 2 * quic.RESETS_A_SECOND


@pytest.mark.parametrize("seed", range(4))
async def test_garbage_does_not_affect_other_connections(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Noise, corrupted client hellos, and corrupted datagrams of a live connection."""

    rng = random.Random(seed)
    async with attacked(tmp_path) as world:
        witness = await world.root()
        victim = await world.root()
        flood = Socket(world)
        ids = [connection_id.cid for connection_id in victim.quic._peer_cid_available]
        for number in range(1500):
            if number % 100 == 0:
                # Also so that they do not time out if all this takes long.
                assert await witness.is_alive() and await victim.is_alive()
            match rng.randrange(4):
                case 0:
                    octets = rng.randbytes(rng.choice((1, 20, 100, 1200, 1452)))
                case 1:
                    octets = spoilt(rng, hello())
                case 2:
                    octets = b"\x40" + rng.choice(ids) + rng.randbytes(rng.choice((20, 1000)))
                case _:
                    octets = b"\xc0\0\0\0\1\x08" + rng.choice(ids) + rng.randbytes(rng.choice((20, 1190)))
            flood.send(octets)
            if rng.random() < 0.1:
                await asyncio.sleep(0)
        assert await witness.is_alive()
        assert await victim.is_alive()
        assert world.connections <= HANDSHAKES_MAX + 2
    assert "defect" not in caplog.text, caplog.text


@pytest.mark.parametrize("seed", range(6))
async def test_invalid_frames_end_their_own_connection_only(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """They are encrypted correctly, so that they are examined."""

    rng = random.Random(seed)
    async with attacked(tmp_path) as world:
        witness = await world.root()
        for _ in range(25):
            attacker = await world.stranger()
            for _ in range(rng.choice((1, 4))):
                attack(rng, attacker)
                await asyncio.sleep(0)
        assert await witness.is_alive()
    assert "defect" not in caplog.text, caplog.text


async def test_an_endless_handshake_message_is_not_collected(tmp_path: Path) -> None:
    async with attacked(tmp_path) as world:
        from aioquic import tls  # noqa: PLC0415

        client = await world.beginning()
        sender = client.quic._crypto_streams[tls.Epoch.INITIAL].sender
        client.quic._crypto_streams[tls.Epoch.INITIAL].sender.write(bytes(100_000))
        # A message of 16 MB is announced.
        sender._buffer[:4] = b"\x01\xff\xff\xff"
        sender._pending.add(0, sender._buffer_stop)
        sender.buffer_is_empty = False
        client.transmit()
        await client.terminated


async def test_a_client_that_changes_its_address_often_takes_no_more_memory(tmp_path: Path) -> None:
    """Its datagrams arrive from another port each time; responses go to the newest one, once it is validated."""

    async with attacked(tmp_path) as world:
        client = await world.root()
        engine = next(iter(world.listener._connections)).engine
        where = world.listener.address
        world.ends.callback(client._transport.close)  # type: ignore[union-attr]
        for _ in range(30):
            transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
                lambda: Forward(client), remote_addr=(where.host, where.port)
            )
            world.ends.callback(transport.close)
            client._transport = Redirect(transport)  # type: ignore[assignment]
            assert await client.is_alive()
        assert len(engine._network_paths) <= 8
        assert len(world.listener._by_id) <= 20
        assert world.connections == 1
        assert (await client.ask(LOG_IN))[0] == 0


class Spoofing:
    """Datagrams of a client with the address of another, who receives the responses."""

    def __init__(self, link: Socket) -> None:
        self.link = link
        self.said_bytes = 0

    def sendto(self, data: bytes, addr: object = None) -> None:
        self.said_bytes += len(data)
        self.link.send(data)


class Forward(asyncio.DatagramProtocol):
    def __init__(self, client: Client) -> None:
        self._client = client

    def datagram_received(self, data: bytes, addr: object) -> None:
        where = self._client.quic._network_paths[0].addr
        self._client.datagram_received(data, where)


class Redirect:
    def __init__(self, transport: asyncio.DatagramTransport) -> None:
        self._transport = transport

    def sendto(self, data: bytes, addr: object = None) -> None:
        self._transport.sendto(data)

    def abort(self) -> None:
        self._transport.abort()

    def close(self) -> None:
        self._transport.close()


async def test_there_is_no_resumption_and_no_early_data(tmp_path: Path) -> None:
    """Otherwise writes could be replayed."""

    async with attacked(tmp_path) as world:
        tickets: list[object] = []
        client = await world.stranger()
        client.quic._session_ticket_handler = tickets.append
        assert await client.is_alive()
        await asyncio.sleep(0.05)
        assert not tickets
        assert not client.quic.tls.early_data_accepted


async def test_short_lived_streams_leave_nothing_behind(tmp_path: Path) -> None:
    """Opened, reset, stopped, abandoned: thousands of them on one connection."""

    rng = random.Random(5)
    async with attacked(tmp_path) as world:
        client = await world.root()
        engine = next(iter(world.listener._connections)).engine
        for number in range(1500):
            stream_id = client.open()
            client.waiting[stream_id].add_done_callback(lambda done: done.cancelled() or done.exception())
            match rng.randrange(4):
                case 0:
                    client.say(stream_id, PING)
                case 1:
                    client.say(stream_id, PING[:5], fin=False)
                    client.quic.reset_stream(stream_id, 1)
                case 2:
                    client.say(stream_id, PING)
                    client.quic.stop_stream(stream_id, 1)
                case _:
                    client.say(stream_id, b"")
            if number % 5 == 0:
                assert await client.is_alive()
        assert await client.is_alive()
        for _ in range(200):
            if len(engine._streams) < 20:
                break
            await asyncio.sleep(0.01)
            assert await client.is_alive()
        assert len(engine._streams) < 20
