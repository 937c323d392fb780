"""A server process under floods: what they take is limited, other clients are served meanwhile, and nothing remains.

Memory is that of the process, as the operating system counts it. After each flood there are the same objects, tasks and
open files in it as before the first, and its log has no unexpected error.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from itertools import cycle
from pathlib import Path

import msgspec
import pytest
from aioquic.asyncio.client import connect
from aioquic.quic.configuration import QuicConfiguration

from tests.app.support.process import DEADLINE_S, Gateway, starting
from tests.transports.fuzzing.leftovers import TELLS, Leftovers
from tests.transports.fuzzing.over_quic import VERSION_1, hello
from tests.transports.support.quic import Client as QuicClient
from tests.transports.websocket.support.talking import frame, handshake
from whippet.app.client import Client as App
from whippet.transports.quic import RETRY_ABOVE

MIB = 1 << 20
EACH = 100
GROWTH_MAX = 64 * MIB
"""What a flood may add to the process: threads and allocators keep memory that they have used once."""
TOPIC = {"to": "topic", "stream": "s", "topic": "t"}
SETTINGS = {
    "IGGY_ROOT_USERNAME": "root",
    "IGGY_ROOT_PASSWORD": "root's password",
    "IGGY_HTTP_LIMITS_FIRST_BYTE_TIME": "2s",
    "IGGY_HTTP_LIMITS_HEADERS_TIME": "2s",
    "IGGY_HTTP_READERS_STALL_TIME": "1s",
    "IGGY_SYSTEM_LIMITS_SILENCE_BEFORE_LOGIN": "2s",
    "IGGY_SYSTEM_LIMITS_FRAME_TIME": "2s",
    "IGGY_SYSTEM_LIMITS_TAIL_BYTES": str(MIB),
    "IGGY_QUIC_MAX_IDLE_TIMEOUT": "2s",
}


class Besieged:
    """A server, and its state before the first client."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self._leftovers = Leftovers(gateway)
        self.token = ""
        asyncio.run(self._prepare())
        self._before = self._leftovers.there()
        self._bytes_before = self.resident_bytes

    def address(self, scheme: str) -> tuple[str, int]:
        host, port = self.gateway.line(rf"{scheme}://(\S+)").group(1).rsplit(":", 1)
        return host, int(port)

    async def _prepare(self) -> None:
        async with await self.root() as root:
            await root.create_stream("s")
            await root.create_topic("s", "t", 1)
            await root.send_messages("s", "t", [b"the first one"])
            self.token = (await root.create_personal_access_token("flood")).token
        for _ in range(5):
            await self.serves()

    async def root(self) -> App:
        return await App.connect("iggy://root:root's password@{}:{}".format(*self.address("tcp")))

    @property
    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.gateway.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    @property
    def channels(self) -> int:
        said = self.gateway.get("/metrics").text
        found = re.search(r'whippet_connections\{transport="websocket"\} (\d+)', said)
        assert found
        return int(found.group(1))

    async def serves(self) -> None:
        """A new client on each of the ports."""
        async with await self.root() as root:
            await root.ping()
            await root.get_streams()
        reader, writer = await asyncio.open_connection(*self.address("http"))
        writer.write(b"GET /ping HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        assert (await reader.read()).endswith(b"pong")
        writer.close()
        configuration = QuicConfiguration(verify_mode=ssl.CERT_NONE, server_name="localhost")
        async with connect(*self.address("quic"), configuration=configuration, create_protocol=QuicClient) as client:
            assert isinstance(client, QuicClient)
            assert await client.is_alive()

    @contextlib.asynccontextmanager
    async def flooded(self) -> AsyncIterator[None]:
        """Other clients are served during the flood, and once more after it."""
        over, most = asyncio.Event(), 0

        async def witness() -> None:
            nonlocal most
            while not over.is_set():
                await self.serves()
                most = max(most, self.resident_bytes)
                await asyncio.sleep(0.05)

        async with asyncio.timeout(2 * DEADLINE_S):
            watching = asyncio.create_task(witness())
            try:
                yield
            finally:
                over.set()
            await watching
            await self.serves()
        grown = max(most, self.resident_bytes) - self._bytes_before
        print(f"{grown / MIB:.1f} MiB more")  # noqa: T201
        assert grown < GROWTH_MAX

    def is_as_before(self) -> None:
        assert not (more := self._leftovers.more(self._before)), more


@pytest.fixture(scope="module")
def besieged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Besieged]:
    with starting(tmp_path_factory.mktemp("floods") / "data") as start:
        gateway = start(TELLS, **SETTINGS)
        yield Besieged(gateway)
        gateway.signal(signal.SIGTERM)
        assert gateway.end() == 0
        said = [*gateway.out, *gateway.err]
        assert not [line for line in said if "Traceback" in line or "ERROR" in line or "defect" in line]


HALF = (
    b"",
    b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: webso",
    handshake("/ws")[:-2],
    handshake("/"),
    handshake("/ws"),
    handshake("/") + frame(2, b"\x04\0\0\0")[:7],
    handshake("/ws") + frame(1, b'{"id":1,"cmd":"pi')[:9],
)
"""Everything that a connection sends."""


async def test_connections_that_stop_after_they_open(besieged: Besieged) -> None:
    """They are open at the same time, and each is closed when its time is over."""

    async with besieged.flooded():
        links = [(await asyncio.open_connection(*besieged.address("http")), said) for said in HALF * EACH]
        for (reader, writer), said in links:
            head, end, rest = said.partition(b"\r\n\r\n")
            writer.write(head + end)
            if rest:
                # A client sends nothing until its upgrade is answered.
                await reader.readuntil(b"\r\n\r\n")
                writer.write(rest)
        for (reader, writer), _ in links:
            with contextlib.suppress(ConnectionError):
                while await reader.read(1 << 16):
                    pass
            writer.close()
    besieged.is_as_before()


def unfinished(rng: random.Random) -> bytes:
    """It looks like an Initial from outside; its content cannot be decrypted."""
    head = b"\xc0" + VERSION_1 + b"\x08" + rng.randbytes(8) + b"\x08" + rng.randbytes(8) + b"\0\x44\x80"
    return (head + rng.randbytes(1152)).ljust(1200, b"\0")


async def test_quic_handshakes_from_many_addresses_that_never_finish(besieged: Besieged) -> None:
    """All addresses of the loopback are our own. They get no more than three times what they sent."""
    rng = random.Random(1)
    hellos = [hello() for _ in range(100)]

    said = heard = retries = 0
    async with besieged.flooded():
        links = []
        for number in range(200):
            link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            link.bind((f"127.77.{number // 100}.{number % 100 + 1}", 0))
            link.connect(besieged.address("quic"))
            link.setblocking(False)
            links.append(link)
        for number, link in zip(range(5000), cycle(links)):
            octets = hellos.pop() if number % 20 == 0 and hellos else unfinished(rng)
            link.send(octets)
            said += len(octets)
            if number % 50 == 0:
                await asyncio.sleep(0.01)
        await asyncio.sleep(1)
        for link in links:
            with contextlib.suppress(BlockingIOError):
                while octets := link.recv(1 << 16):
                    heard += len(octets)
                    retries += octets[0] & 0xF0 == 0xF0
            link.close()
    assert 0 < heard <= 3 * said
    assert retries > 1000, f"beyond the first {RETRY_ABOVE} every client has to prove its address"
    besieged.is_as_before()


async def test_ten_thousand_subscribes_on_one_connection(besieged: Besieged) -> None:
    async with besieged.flooded():
        reader, writer = await channel(besieged)
        said = b"".join(
            frame(1, msgspec.json.encode({"id": number, "cmd": "subscribe", **TOPIC})) for number in range(10_000)
        )
        writer.write(said)
        answers = [await text(reader) for _ in range(10_000)]
        refusals = [answer for answer in answers if b'"error"' in answer]
        assert len(refusals) == 10_000 - 100
        assert all(b"websocket.channel.subscriptions" in refusal for refusal in refusals)
        writer.close()
    besieged.is_as_before()


async def test_subscribers_that_stop_reading(besieged: Besieged) -> None:
    """They have the highest credit. They are closed; a client that reads receives everything."""

    async with besieged.flooded():
        stalled = [await channel(besieged, receive_bytes=4096) for _ in range(10)]
        reading, own = await channel(besieged)
        for _, writer in (*stalled, (reading, own)):
            said = {"id": 1, "cmd": "subscribe", "credit": 2**32 - 1, **TOPIC}
            writer.write(frame(1, msgspec.json.encode(said)))
        assert b'"ok"' in await text(reading)
        sent = 0
        async with await besieged.root() as root:
            while sent < 20 or besieged.channels > 1:
                await root.send_messages("s", "t", [bytes(100_000)] * 10)
                sent, heard = sent + 1, 0
                while heard < 10:
                    heard += (await text(reading)).count(b'"partition_id"')
        for _, writer in stalled:
            writer.close()
        own.close()
    besieged.is_as_before()


async def channel(
    besieged: Besieged, receive_bytes: int | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client that has signed in."""
    link = socket.socket()
    if receive_bytes is not None:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    link.setblocking(False)
    await asyncio.get_running_loop().sock_connect(link, besieged.address("http"))
    reader, writer = await asyncio.open_connection(sock=link, limit=4096)
    writer.write(handshake("/ws", f"Authorization: Bearer {besieged.token}"))
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
    return reader, writer


async def text(reader: asyncio.StreamReader) -> bytes:
    """The next message."""
    _, size = await reader.readexactly(2)
    if size == 126:
        size = int.from_bytes(await reader.readexactly(2), "big")
    elif size == 127:
        size = int.from_bytes(await reader.readexactly(8), "big")
    return await reader.readexactly(size)
