"""Clients of both binary protocols over QUIC. Their datagrams are corrupted, lost, duplicated and delayed; they send
invalid frames, cancel requests, change their address, and vanish.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import ssl
import struct
import time
from collections import deque
from typing import Any, cast

from aioquic import tls
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicPacketType, encode_quic_retry
from aioquic.quic.packet_builder import QuicPacketBuilder

from tests.transports.fuzzing import over_tcp
from tests.transports.fuzzing.place import Address, Place
from tests.transports.support import made_up
from tests.transports.support.quic import Client, Closed, Reset

NUMBERS = (0, 1, 2, 4, 8, 63, 64, 16_383, 1 << 20, (1 << 30) - 1, (1 << 62) - 1)
FRAMES = (*range(0x1F), 0x30, 0x31, 0x40, 1 << 20)
VERSION_1 = b"\0\0\0\1"


def configuration(**options: Any) -> QuicConfiguration:
    return QuicConfiguration(verify_mode=ssl.CERT_NONE, server_name="localhost", **options)


def hello(**options: Any) -> bytes:
    """The first datagram of a client."""
    connection = QuicConnection(configuration=configuration(**options))
    connection.connect(("127.0.0.1", 1), now=0.0)
    return connection.datagrams_to_send(now=0.0)[0][0]


def spoilt(rng: random.Random, octets: bytes) -> bytes:
    """Changes bytes, often in the headers, and may truncate."""
    found = bytearray(octets)
    for _ in range(rng.choice((1, 3, 30))):
        found[rng.randrange(min(60, len(found)) if rng.random() < 0.5 else len(found))] = rng.randrange(256)
    return bytes(found[: rng.choice((len(found), 1200, rng.randrange(len(found))))])


def garbage(rng: random.Random, ids: list[bytes], first: bytes) -> bytes:
    """A datagram that no connection has sent. `ids` are those of a real connection, `first` is a client hello."""
    there = rng.choice(ids) if ids else os.urandom(8)
    match rng.randrange(9):
        case 0:
            return rng.randbytes(rng.choice((1, 8, 9, 20, 100, 1200, 1452)))
        case 1:
            return spoilt(rng, first)
        case 2:
            return b"\x40" + there + rng.randbytes(rng.choice((0, 20, 1000)))
        case 3:
            # An Initial, early data or handshake packet for a real connection.
            kind = rng.choice((0xC0, 0xD0, 0xE0, 0xF0)) | rng.randrange(16)
            return bytes((kind,)) + VERSION_1 + b"\x08" + there + rng.randbytes(rng.choice((20, 1190)))
        case 4:
            # A packet of an unknown version, or a version negotiation.
            version = rng.choice((bytes(4), rng.randbytes(4), b"\x6b\x33\x43\xcf"))
            ends = bytes((rng.randrange(21),)) + rng.randbytes(20)
            return (b"\xc0" + version + ends + ends).ljust(rng.choice((50, 1200)), b"\0")
        case 5:
            token = rng.randbytes(rng.choice((0, 16, 64)))
            return encode_quic_retry(
                version=1, source_cid=there, destination_cid=there, original_destination_cid=there, retry_token=token
            )
        case 6:
            # With a token that nobody has issued.
            head = b"\xc0" + VERSION_1 + b"\x08" + os.urandom(8) + b"\0" + b"\x40\x40" + rng.randbytes(64)
            return (head + b"\x44\x00" + rng.randbytes(1024)).ljust(1200, b"\0")
        case 7:
            return first[: rng.choice((5, 6, 14, 30, 1199))]
        case _:
            return b"".join(rng.choice((first[:600], spoilt(rng, first)[:600])) for _ in range(2))


def attack(rng: random.Random, client: Client) -> None:
    """A packet with frames of any kind, significant numbers in them, and garbage after them. It is encrypted correctly,
    so that it is examined."""
    engine = client.quic
    if engine._state.name != "CONNECTED":
        return
    builder = QuicPacketBuilder(
        host_cid=engine.host_cid,
        is_client=True,
        max_datagram_size=1200,
        packet_number=engine._packet_number,
        peer_cid=engine._peer_cid.cid,
        version=engine._version or 1,
    )
    builder.start_packet(QuicPacketType.ONE_RTT, engine._cryptos[tls.Epoch.ONE_RTT])
    for _ in range(rng.choice((1, 3, 10))):
        buffer = builder._buffer
        buffer.push_uint_var(rng.choice(FRAMES))
        for _ in range(rng.randrange(5)):
            buffer.push_uint_var(rng.choice(NUMBERS))
        buffer.push_bytes(rng.randbytes(rng.choice((0, 1, 8, 20, 100))))
        if builder._packet is not None:
            builder._packet.is_ack_eliciting = True
        if builder.remaining_buffer_space < 200:
            break
    datagrams, _ = builder.flush()
    engine._packet_number = builder.packet_number
    for datagram in datagrams:
        cast(asyncio.DatagramTransport, client._transport).sendto(datagram, engine._network_paths[0].addr)


class Spoiling:
    """A path that damages datagrams, in place of a transport."""

    def __init__(self, transport: asyncio.DatagramTransport, rng: random.Random) -> None:
        self._transport = transport
        self._rng = rng
        self._recent: deque[bytes] = deque(maxlen=50)
        self.is_safe = True

    def sendto(self, data: bytes, addr: object = None) -> None:
        rng = self._rng
        self._recent.append(data)
        dice = 1.0 if self.is_safe else rng.random()
        if dice < 0.03:
            return
        if dice < 0.08:
            self._transport.sendto(spoilt(rng, data))
        elif dice < 0.12:
            self._transport.sendto(data)
        elif dice < 0.16:
            self._transport.sendto(rng.choice(self._recent))
        self._transport.sendto(data)

    def raw(self, datagram: bytes) -> None:
        self._transport.sendto(datagram)

    def abort(self) -> None:
        self._transport.abort()

    def close(self) -> None:
        self._transport.close()


class Hearing(asyncio.DatagramProtocol):
    """One connection of a client, which may have several in its life."""

    def __init__(self, client: Client, is_refused: asyncio.Event) -> None:
        self._client = client
        self._is_refused = is_refused

    def datagram_received(self, data: bytes, addr: object) -> None:
        self._client.datagram_received(data, self._client.quic._network_paths[0].addr)

    def error_received(self, exc: Exception) -> None:
        self._is_refused.set()


class Link:
    """A client, and the path of its datagrams."""

    def __init__(self, client: Client, address: Address, rng: random.Random) -> None:
        self.client = client
        self.is_refused = asyncio.Event()
        self.way: Spoiling = cast(Spoiling, None)
        self._address = address
        self._rng = rng
        self._first = b""

    async def move(self) -> None:
        """Moves to another port."""
        before = self.way
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: Hearing(self.client, self.is_refused), remote_addr=self._address
        )
        self.way = Spoiling(transport, self._rng)
        self.client._transport = cast(asyncio.DatagramTransport, self.way)
        if before is not None:
            self.way.is_safe = before.is_safe
            before.close()

    async def connect(self) -> bool:
        await self.move()
        self._first = hello()
        self.client.connect(self._address)
        waiting = asyncio.ensure_future(self.client.wait_connected())
        refused = asyncio.ensure_future(self.is_refused.wait())
        try:
            await asyncio.wait((waiting, refused), timeout=3, return_when=asyncio.FIRST_COMPLETED)
        finally:
            refused.cancel()
            if not waiting.done():
                waiting.cancel()
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await waiting
        return self.client._connected and not self.client.terminated.done()

    def throw_garbage(self) -> None:
        ids = [connection_id.cid for connection_id in self.client.quic._peer_cid_available]
        self.way.raw(garbage(self._rng, ids, self._first))

    def leave(self) -> None:
        if self._rng.random() < 0.6:
            self.client.close()
        self.client.vanish()
        for waiting in self.client.waiting.values():
            waiting.cancelled() or (waiting.done() and waiting.exception())


def made(quic: QuicConfiguration) -> Client:
    return Client(QuicConnection(configuration=quic))


async def client(place: Place, rng: random.Random, end: float) -> None:
    while time.monotonic() < end:
        link = Link(made(configuration()), place.quic, rng)
        try:
            is_connected = await link.connect()
            if link.is_refused.is_set():
                return
            if is_connected:
                link.way.is_safe = rng.random() < 0.5
                await _say(link, rng, over_tcp.any_wire(rng, place.token), end)
        finally:
            link.leave()


async def _say(link: Link, rng: random.Random, wire: over_tcp.Wire, end: float) -> None:
    client = link.client
    if rng.random() < 0.9:
        await _answers(client, wire, [client.begin(wire.beginning() or wire.login())])
    for _ in range(rng.choice((1, 5, 30))):
        asked = [client.begin(wire.login())]
        requests = [_request(client, rng, wire) for _ in range(rng.choice((1, 1, 5, 40)))]
        asked += [each for each in requests if each is not None]
        match rng.randrange(10):
            case 0 | 1 | 2:
                link.throw_garbage()
            case 3:
                await link.move()
            case 4 if rng.random() < 0.5:
                attack(rng, client)
        await _answers(client, wire, asked)
        if time.monotonic() > end or client.terminated.done() or link.is_refused.is_set():
            return


def _request(client: Client, rng: random.Random, wire: over_tcp.Wire) -> asyncio.Future[bytes] | None:
    """The response, if there will be one."""
    octets = wire.hostile(rng)
    is_whole = True
    match rng.randrange(12):
        case 0:
            octets = wire.out_of_step(rng) if rng.random() < 0.05 else octets[: rng.randrange(len(octets) + 1)]
            is_whole = False
        case 1:
            octets += rng.randbytes(rng.choice((1, 100)))
    stream_id = client.open()
    cut = rng.randrange(len(octets) + 1) if rng.random() < 0.2 else len(octets)
    client.say(stream_id, octets[:cut], fin=False)
    if rng.random() < 0.002:
        # It stays incomplete, and all requests after it wait.
        return None
    match rng.randrange(20):
        case 0:
            client.quic.reset_stream(stream_id, rng.choice(NUMBERS))
        case 1:
            client.quic.send_stream_data(stream_id, octets[cut:], True)
            client.quic.stop_stream(stream_id, rng.choice(NUMBERS))
        case 2:
            client.quic.reset_stream(stream_id, 0)
            client.quic.stop_stream(stream_id, 0)
        case 3 if is_whole:
            client.quic.send_stream_data(stream_id, octets[cut:])
        case _:
            client.quic.send_stream_data(stream_id, octets[cut:], True)
    client.transmit()
    return client.waiting[stream_id] if is_whole else None


async def _answers(client: Client, wire: over_tcp.Wire, asked: list[asyncio.Future[bytes]]) -> None:
    """The responses that arrive within a while; not all do."""
    for done in (await asyncio.wait(asked, timeout=0.3))[0]:
        with contextlib.suppress(Reset, Closed):
            octets = await done
            if isinstance(wire, made_up.Modern) and octets:
                assert struct.unpack_from("<I", octets, 48)[0] == len(octets)
                wire.heard(octets[:256], octets[256:])
    for stream_id, waiting in list(client.waiting.items()):
        if waiting.done():
            waiting.exception()
            del client.waiting[stream_id]
