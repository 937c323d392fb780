"""Hostile clients of many kinds against a server process, and an ordinary producer and consumer beside them.

A kind is an asynchronous context manager: inside it, all of its clients hold what they could get. The memory of the
server is what the operating system counts: `VmRSS` now, `VmHWM` at its peak.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import ssl
import struct
import threading
import time
from collections.abc import AsyncIterator, Callable
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
from aioquic.asyncio.client import connect
from aioquic.h3.connection import H3Connection
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

from tests.app.support.process import Gateway
from tests.transports.support.quic import Client as QuicClient
from tests.transports.support.raw import Raw, asked
from tests.transports.websocket.support.talking import frame, handshake
from whippet.app.access.permissions import GlobalPermissions, Permissions
from whippet.app.client import Client as App
from whippet.app.commands import requests

MIB = 1 << 20
ROOT_PASSWORD = "root's password"
SETTINGS = {"IGGY_ROOT_USERNAME": "root", "IGGY_ROOT_PASSWORD": ROOT_PASSWORD}
USERS = {
    "ordinary": GlobalPermissions(poll_messages=True, send_messages=True, read_streams=True),
    "hostile": GlobalPermissions(poll_messages=True, send_messages=True, read_streams=True),
    "powerless": GlobalPermissions(),
}
LARGE_MESSAGE_BYTES = MIB
MESSAGES = "/streams/s/topics/{topic}/messages"
FIRST = requests.Strategy(requests.StrategyKind.FIRST)
ROUND_BYTES = 20_000
"""The number of messages that the ordinary producer sends at once."""
OWN = requests.Consumer(requests.ConsumerKind.CONSUMER, 1)
TO_FIRST = requests.Partitioning(requests.PartitioningKind.PARTITION_ID, partition_id=0)


class Besieged:
    """The server, its users, and a stream with the topics `ordinary`, `large` (which has messages already) and `synced`
    (whose acknowledged messages are on disk)."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.tokens: dict[str, str] = {}
        self._addresses = count(2)

    async def prepare(self, large_bytes: int) -> None:
        async with await self.client("root", ROOT_PASSWORD) as root:
            await root.create_stream("s")
            for topic in ("ordinary", "large"):
                await root.create_topic("s", topic, 1)
            for name, rights in USERS.items():
                await root.create_user(name, "password of " + name, Permissions(rights))
        root_token = await self._log_in("root", ROOT_PASSWORD)
        synced = {"name": "synced", "partitions_count": 1, "options": {"durability": "persisted"}}
        status, said = await self.http("POST", "/streams/s/topics", root_token, synced)
        if status != 200:
            raise AssertionError(said)
        for name in USERS:
            self.tokens[name] = await self._log_in(name, "password of " + name)
        async with await self.client("ordinary") as client:
            for _ in range(large_bytes // (8 * LARGE_MESSAGE_BYTES)):
                await client.send_messages("s", "large", [os.urandom(LARGE_MESSAGE_BYTES)] * 8, TO_FIRST)

    # ------------------------------------------------------------------------------------------------ who speaks to it

    def address(self, scheme: str) -> tuple[str, int]:
        host, port = self.gateway.line(rf"{scheme}://(\S+)").group(1).rsplit(":", 1)
        return host, int(port)

    async def client(self, name: str, password: str | None = None) -> App:
        password = password or "password of " + name
        return await App.connect("iggy://{}:{}@{}:{}".format(name, password, *self.address("tcp")))

    async def link(self, scheme: str = "tcp", *, receive_bytes: int = 4096, own_address: bool = False) -> Raw:
        """A socket with a small buffer for what nobody reads."""
        link = socket.socket()
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        if own_address:
            number = next(self._addresses)
            link.bind((f"127.{1 + number // 60_000}.{number // 250 % 250}.{number % 250 + 1}", 0))
        link.setblocking(False)
        await asyncio.get_running_loop().sock_connect(link, self.address(scheme))
        return Raw(link)

    async def logged_in(self, name: str, *, receive_bytes: int = 4096) -> Raw:
        raw = await self.link(receive_bytes=receive_bytes)
        await raw.send(asked(requests.LoginUser(name, "password of " + name)))
        assert (await raw.answer())[0] == 0
        return raw

    def head(self, method: str, path: str, token: str, *lines: str) -> bytes:
        head = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {token}", *lines]
        return "\r\n".join((*head, "", "")).encode()

    async def http(self, method: str, path: str, token: str, body: Any = None) -> tuple[int, Any]:
        reader, writer = await asyncio.open_connection(*self.address("http"))
        octets = b"" if body is None else msgspec.json.encode(body)
        lines = ("Connection: close", "Content-Type: application/json", f"Content-Length: {len(octets)}")
        writer.write(self.head(method, path, token, *lines) + octets)
        head, _, said = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        return int(head.split()[1]), msgspec.json.decode(said) if said[:1] in b"{[" else said

    async def _log_in(self, name: str, password: str) -> str:
        _, said = await self.http("POST", "/users/login", "", {"username": name, "password": password})
        token: str = said["access_token"]["token"]
        return token

    async def channel(self, name: str, *, receive_bytes: int = 4096) -> Raw:
        """A text WebSocket that has signed in."""
        raw = await self.link("http", receive_bytes=receive_bytes)
        await upgrade(raw, f"Authorization: Bearer {self.tokens[name]}")
        return raw

    # ----------------------------------------------------------------------------------------------------- its memory

    def _status(self, name: str) -> int:
        status = Path(f"/proc/{self.gateway.process.pid}/status").read_text()
        found = re.search(rf"{name}:\s+(\d+) kB", status)
        assert found
        return int(found.group(1)) << 10

    @property
    def resident_bytes(self) -> int:
        return self._status("VmRSS")

    @property
    def peak_bytes(self) -> int:
        """Since `forget_peak`."""
        return self._status("VmHWM")

    def forget_peak(self) -> None:
        Path(f"/proc/{self.gateway.process.pid}/clear_refs").write_text("5")

    @property
    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.gateway.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    async def limit(self, *keys: str) -> int:
        """The sum of these in GET /limits."""
        _, limits = await self.http("GET", "/limits", self.tokens["ordinary"])
        found = {each["key"]: each["value"] for each in limits}
        return sum(found[key] for key in keys)


async def upgrade(raw: Raw, *lines: str, path: str = "/ws") -> None:
    await raw.send(handshake(path, *lines))
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += await raw.exactly(1)
    assert head.startswith(b"HTTP/1.1 101 ")


# ------------------------------------------------------------------------------------------------- the ordinary pair


class Ordinary:
    """A round is a send over TCP, one over HTTP, and a poll that returns both."""

    def __init__(self, producer: App, over_http: Raw, head: bytes, consumer: App) -> None:
        self._producer = producer
        self._over_http = over_http
        self._consumer = consumer
        self._offset = 0
        self._payload = os.urandom(ROUND_BYTES)
        self._request = head + self._payload

    async def begin(self) -> None:
        await self._producer.send_messages("s", "ordinary", [self._payload], TO_FIRST)
        last = requests.Strategy(requests.StrategyKind.LAST)
        polled = await self._consumer.poll_messages("s", "ordinary", OWN, partition_id=0, strategy=last, count=1)
        self._offset = polled.current_offset + 1

    async def round(self) -> None:
        await self._producer.send_messages("s", "ordinary", [self._payload], TO_FIRST)
        await self._over_http.send(self._request)
        await self._accepted()
        start = requests.Strategy(requests.StrategyKind.OFFSET, self._offset)
        polled = await self._consumer.poll_messages("s", "ordinary", OWN, partition_id=0, strategy=start, count=100)
        assert polled.messages_count == 2
        self._offset = polled.current_offset + 1

    async def _accepted(self) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += await self._over_http.some()
        head, _, body = head.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 201 "), head
        length = re.search(rb"content-length: (\d+)", head)
        assert length
        await self._over_http.exactly(int(length.group(1)) - len(body))

    async def rounds(self, number: int) -> None:
        for _ in range(number):
            await self.round()

    async def rounds_in(self, seconds: float, *, pause: float = 0.0) -> int:
        end, rounds = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            await self.round()
            rounds += 1
            await asyncio.sleep(pause)
        return rounds


@contextlib.asynccontextmanager
async def ordinary(besieged: Besieged) -> AsyncIterator[Ordinary]:
    lines = ("Content-Type: application/octet-stream", f"Content-Length: {ROUND_BYTES}")
    path = MESSAGES.format(topic="ordinary") + "?partition_id=0"
    head = besieged.head("POST", path, besieged.tokens["ordinary"], *lines)
    over_http = await besieged.link("http", receive_bytes=1 << 16)
    async with await besieged.client("ordinary") as producer, await besieged.client("ordinary") as consumer:
        pair = Ordinary(producer, over_http, head, consumer)
        await pair.begin()
        yield pair
    over_http.link.close()


# ------------------------------------------------------------------------------------------------- the hostile kinds


@contextlib.asynccontextmanager
async def held(links: list[Raw]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for each in links:
            each.link.close()


async def say(raw: Raw, octets: bytes, seconds: float = 0.2) -> None:
    """Writes until the server stops reading."""
    with contextlib.suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(seconds):
            await raw.send(octets)


@contextlib.asynccontextmanager
async def partial_texts(besieged: Besieged, clients: int) -> AsyncIterator[None]:
    """No client has signed in; each has sent 52 KB of a text message, from an address of its own."""
    links = []
    for _ in range(clients):
        raw = await besieged.link("http", own_address=True)
        await upgrade(raw)
        links.append(raw)
    said = frame(1, b'{"id":1,"cmd":"ping","x":"' + b"x" * 52_000, fin=False)
    await asyncio.gather(*(say(raw, said) for raw in links))
    async with held(links):
        yield


@contextlib.asynccontextmanager
async def announced(besieged: Besieged, clients: int) -> AsyncIterator[None]:
    """Each announces 128 MiB and sends 18 bytes."""
    links = [await besieged.logged_in("powerless") for _ in range(clients)]
    for raw in links:
        await raw.send(struct.pack("<II", 128 * MIB - 4, 101) + bytes(10))
    async with held(links):
        yield


@contextlib.asynccontextmanager
async def tiny_chunks(besieged: Besieged, clients: int) -> AsyncIterator[None]:
    """Bodies without a length, of which one byte has arrived."""
    lines = ("Content-Type: application/octet-stream", "Transfer-Encoding: chunked")
    head = besieged.head("POST", MESSAGES.format(topic="ordinary"), besieged.tokens["hostile"], *lines)
    links = [await besieged.link("http") for _ in range(clients)]
    for raw in links:
        await raw.send(head + b"1\r\nx\r\n")
    async with held(links):
        yield


def poll_of(topic: str, number: int = 1_000_000) -> requests.PollMessages:
    return requests.PollMessages(OWN, "s", topic, 0, FIRST, number, False)


@contextlib.asynccontextmanager
async def unread_polls(besieged: Besieged, clients: int) -> AsyncIterator[None]:
    """Each polls as much as possible, and reads nothing."""
    links = [await besieged.logged_in("hostile") for _ in range(clients)]
    for raw in links:
        await raw.send(asked(poll_of("large")))
    async with held(links):
        yield


@contextlib.asynccontextmanager
async def unread_polls_of_websocket(besieged: Besieged, clients: int) -> AsyncIterator[None]:
    """The binary protocol over WebSocket."""
    links = []
    for _ in range(clients):
        raw = await besieged.link("http")
        await upgrade(raw, path="/")
        await raw.send(frame(2, asked(requests.LoginUser("hostile", "password of hostile"))))
        await raw.exactly(2 + 12)
        await raw.send(frame(2, asked(poll_of("large"))))
        links.append(raw)
    async with held(links):
        yield


def http_polls(accept: str) -> Callable[[Besieged, int], contextlib.AbstractAsyncContextManager[None]]:
    @contextlib.asynccontextmanager
    async def unread(besieged: Besieged, clients: int) -> AsyncIterator[None]:
        path = MESSAGES.format(topic="large") + "?value=0&count=1000000"
        links = [await besieged.link("http") for _ in range(clients)]
        for raw in links:
            await raw.send(besieged.head("GET", path, besieged.tokens["hostile"], f"Accept: {accept}"))
        async with held(links):
            yield

    return unread


@contextlib.asynccontextmanager
async def unread_polls_of_channel(besieged: Besieged, clients: int) -> AsyncIterator[None]:
    """Sixteen of them wait on each channel."""
    command = {"cmd": "poll_messages", "stream": "s", "topic": "large", "value": 0, "count": 1_000_000, "wait": "1s"}
    links = [await besieged.channel("hostile") for _ in range(clients)]
    for raw in links:
        for number in range(16):
            await raw.send(frame(1, msgspec.json.encode(command | {"id": number})))
    async with held(links):
        yield


@contextlib.asynccontextmanager
async def unread_subscriptions(besieged: Besieged, clients: int) -> AsyncIterator[None]:
    """They start at different messages, so that nothing that is read for one can be used for another."""
    command = {"to": "topic", "cmd": "subscribe", "stream": "s", "topic": "large", "credit": 2**32 - 1}
    offsets = count()
    links = [await besieged.channel("hostile") for _ in range(clients)]
    for raw in links:
        for number in range(20):
            await raw.send(frame(1, msgspec.json.encode(command | {"id": number, "offset": next(offsets) % 40})))
    async with held(links):
        yield


@contextlib.asynccontextmanager
async def unread_tails(besieged: Besieged, clients: int) -> AsyncIterator[None]:
    """They start at different messages, as above."""
    links = [await besieged.link("http") for _ in range(clients)]
    for number, raw in enumerate(links):
        path = MESSAGES.format(topic="large") + f"/tail?offset={number % 40}"
        await raw.send(besieged.head("GET", path, besieged.tokens["hostile"]))
    async with held(links):
        yield


@contextlib.asynccontextmanager
async def unread_documents(besieged: Besieged, clients: int) -> AsyncIterator[None]:
    """Responses without messages, as many as a connection may have queued."""
    links = [await besieged.link("http") for _ in range(clients)]
    for raw in links:
        await raw.send(besieged.head("GET", "/openapi.json", besieged.tokens["hostile"]) * 60)
    async with held(links):
        yield


@contextlib.asynccontextmanager
async def unheard_sends(besieged: Besieged, clients: int) -> AsyncIterator[None]:
    """`ack=none`, one after the other and as fast as possible, on a topic whose acknowledged messages are on disk."""
    body = os.urandom(1_900_000)
    path = MESSAGES.format(topic="synced") + "?partition_id=0&ack=none"
    lines = ("Content-Type: application/octet-stream", f"Content-Length: {len(body)}")
    request = besieged.head("POST", path, besieged.tokens["hostile"], *lines) + body
    over = threading.Event()

    def flood() -> int:
        sent = 0
        with socket.create_connection(besieged.address("http")) as link, contextlib.suppress(OSError):
            link.settimeout(0.5)
            while not over.is_set():
                link.sendall(request)
                while not over.is_set():
                    with contextlib.suppress(TimeoutError):
                        if not link.recv(1 << 16).startswith(b"HTTP/1.1 202 "):
                            raise AssertionError("not accepted")
                        sent += 1
                        break
        return sent

    floods = [asyncio.create_task(asyncio.to_thread(flood)) for _ in range(clients)]
    try:
        yield
    finally:
        over.set()
        await asyncio.gather(*floods)


class Deaf(QuicConnection):
    """Acknowledges datagrams, and never moves a window."""

    def _write_connection_limits(self, builder: Any, space: Any) -> None:
        """Does nothing."""

    def _write_stream_limits(self, builder: Any, space: Any, stream: Any) -> None:
        """Does nothing."""


async def quic(besieged: Besieged, ends: contextlib.AsyncExitStack, *protocols: str, window: int) -> QuicClient:
    options: dict[str, Any] = {"alpn_protocols": list(protocols)} if protocols else {}
    configuration = QuicConfiguration(
        verify_mode=ssl.CERT_NONE, server_name="localhost", max_data=window, max_stream_data=window, **options
    )
    made = connect(*besieged.address("quic"), configuration=configuration, create_protocol=QuicClient)
    client = await ends.enter_async_context(made)
    assert isinstance(client, QuicClient)
    client.quic.__class__ = Deaf
    return client


STREAMS_PER_CONNECTION = 50


@contextlib.asynccontextmanager
async def unread_http3(besieged: Besieged, clients: int) -> AsyncIterator[None]:
    """Many streams, fifty on a connection, each of which polls as much as possible."""
    fields = [
        (b":method", b"GET"),
        (b":scheme", b"https"),
        (b":authority", b"localhost"),
        (b":path", MESSAGES.format(topic="large").encode() + b"?value=0&count=1000000"),
        (b"accept", b"application/vnd.iggy.batch"),
        (b"authorization", f"Bearer {besieged.tokens['hostile']}".encode()),
    ]
    async with contextlib.AsyncExitStack() as ends:
        left = clients
        while left:
            client = await quic(besieged, ends, "h3", window=100_000)
            http = H3Connection(client.quic)
            for _ in range(min(left, STREAMS_PER_CONNECTION)):
                http.send_headers(client.quic.get_next_available_stream_id(), fields, end_stream=True)
                left -= 1
            client.transmit()
        await asyncio.sleep(0.3)
        yield


@contextlib.asynccontextmanager
async def unread_quic(besieged: Besieged, clients: int) -> AsyncIterator[None]:
    """Many connections, each with polls on twenty streams."""
    async with contextlib.AsyncExitStack() as ends:
        for _ in range(clients):
            client = await quic(besieged, ends, window=100_000)
            assert (await client.ask(requests.LoginUser("hostile", "password of hostile")))[0] == 0
            for _ in range(20):
                client.begin(asked(poll_of("large", 9))).add_done_callback(lambda done: done.exception())
        await asyncio.sleep(0.3)
        yield


KINDS: dict[str, Callable[[Besieged, int], contextlib.AbstractAsyncContextManager[None]]] = {
    "partial texts": partial_texts,
    "announced": announced,
    "tiny chunks": tiny_chunks,
    "unread polls, TCP": unread_polls,
    "unread polls, WebSocket": unread_polls_of_websocket,
    "unread polls, HTTP JSON": http_polls("application/json"),
    "unread polls, HTTP batches": http_polls("application/vnd.iggy.batch"),
    "unread polls, /ws": unread_polls_of_channel,
    "unread polls, HTTP/3": unread_http3,
    "unread polls, QUIC": unread_quic,
    "unread subscriptions": unread_subscriptions,
    "unread tails": unread_tails,
    "unread documents": unread_documents,
    "unheard sends": unheard_sends,
}
