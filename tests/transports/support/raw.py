"""The TCP listener in the test's process, on the event loop of production, and sockets that send anything."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import Any, Self, TypeVar

import msgspec

from tests.app.access.support.world import CHEAP, ROOT, gateway_on
from tests.storage.support.world import opened
from tests.support.running import HANGS_S
from tests.transports.wire.classic.support.plainly import TO_PARTITION_10, Classic, send_body
from whippet.app.access.passwords import Passwords
from whippet.app.access.throttle import Throttle
from whippet.app.commands import requests as commands
from whippet.app.config import Config
from whippet.app.config.formats import Address
from whippet.app.config.listeners import Tcp
from whippet.storage.store import Store
from whippet.transports import tcp
from whippet.transports.admission.budgets import Budgets
from whippet.transports.admission.stall_detector import STALLED_SECONDS
from whippet.transports.tcp import TcpListener
from whippet.transports.wire.classic import frames, requests

Answer = TypeVar("Answer")
OK = (0, b"")
GIVES_BACK_S = 10


def frame(code: int, payload: bytes = b"") -> bytes:
    return bytes(frames.request(code, payload))


def asked(request: commands.Request) -> bytes:
    return frame(requests.code_of(request), bytes(requests.encode_request(request)))


PING = frame(1)
LOG_IN = asked(commands.LoginUser(ROOT["IGGY_ROOT_USERNAME"], ROOT["IGGY_ROOT_PASSWORD"], "test", "test"))


class ClassicClient(ABC):
    """A client of the classic protocol over any byte stream."""

    @abstractmethod
    async def send(self, octets: bytes) -> None: ...

    @abstractmethod
    async def exactly(self, size: int) -> bytes: ...

    async def answer(self) -> tuple[int, bytes]:
        status, length = struct.unpack("<II", await self.exactly(8))
        return status, await self.exactly(length)

    async def ask(self, request: commands.Request) -> tuple[int, bytes]:
        await self.send(asked(request))
        return await self.answer()

    async def log_in(self) -> Self:
        await self.send(LOG_IN)
        assert await self.answer() == (0, bytes(4))
        return self

    async def is_alive(self) -> bool:
        await self.send(PING)
        return await self.answer() == OK

    async def is_answered_in_order(self, streams: int) -> None:
        """Creates streams and gets each of them, all in one piece of bytes."""
        names = [f"stream {number}" for number in range(streams)]
        await self.send(
            b"".join(asked(commands.CreateStream(name)) + asked(commands.GetStream(name)) for name in names)
        )
        for number, name in enumerate(names):
            for _ in range(2):
                status, payload = await self.answer()
                assert status == 0
                assert struct.unpack_from("<I", payload)[0] == number
                assert name.encode() in payload


class Raw(ClassicClient):
    """A client's socket, which sends and receives bytes; `answer` decodes the next response."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self._loop = asyncio.get_running_loop()

    async def send(self, octets: bytes) -> None:
        await self._loop.sock_sendall(self.link, octets)

    async def exactly(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            piece = await self._loop.sock_recv(self.link, min(size - len(found), 1 << 20))
            if not piece:
                raise EOFError(f"closed after {len(found)} of {size} bytes: {bytes(found[:40])!r}")
            found += piece
        return bytes(found)

    async def some(self) -> bytes:
        """What has arrived, at least a byte."""
        found = await self._loop.sock_recv(self.link, 1 << 16)
        if not found:
            raise EOFError("closed")
        return found

    async def rest(self) -> bytes:
        """Everything until the server closes the connection."""
        found = bytearray()
        while piece := await self._loop.sock_recv(self.link, 1 << 16):
            found += piece
        return bytes(found)

    async def is_closed(self) -> bool:
        """Waits for the end. Receiving anything before is an error."""
        with contextlib.suppress(ConnectionResetError):
            assert await self._loop.sock_recv(self.link, 1) == b""
        return True

    def say_no_more(self) -> None:
        self.link.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        self.link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.link.close()


class Served:
    """A listener and the clients of a test, all of which end with it."""

    def __init__(self, listener: TcpListener, store: Store, passwords: Passwords) -> None:
        self.listener = listener
        self.store = store
        self.passwords = passwords
        self._links = contextlib.ExitStack()

    async def stranger(self, *, receive_bytes: int | None = None) -> Raw:
        """Connected, not logged in."""
        where = self.listener.address
        link = self._links.enter_context(socket.socket(socket.AF_INET6 if ":" in where.host else socket.AF_INET))
        link.setblocking(False)
        if receive_bytes is not None:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        await asyncio.get_running_loop().sock_connect(link, (where.host, where.port))
        return Raw(link)

    async def root(self, *, receive_bytes: int | None = None) -> Raw:
        return await (await self.stranger(receive_bytes=receive_bytes)).log_in()

    def close_links(self) -> None:
        self._links.close()

    @property
    def connections(self) -> int:
        return len(self.listener._connections)


@contextlib.asynccontextmanager
async def served(
    path: object,
    *,
    address: Address | None = None,
    tls: ssl.SSLContext | None = None,
    stalled_seconds: float = STALLED_SECONDS,
    store: dict[str, Any] | None = None,
    throttle: Throttle | None = None,
    tcp: Tcp | None = None,
    **limits: Any,
) -> AsyncIterator[Served]:
    async with opened(path, **(store or {})) as made:
        passwords = Passwords(CHEAP)
        config = Config()
        system = msgspec.structs.replace(config.system, limits=msgspec.structs.replace(config.system.limits, **limits))
        config = msgspec.structs.replace(config, system=system, tcp=tcp or config.tcp)
        gateway = await gateway_on(made, config, passwords=passwords, throttle=throttle)
        listener = TcpListener(gateway, stalled_seconds=stalled_seconds)
        await listener.listen(address or Address("127.0.0.1", 0), "tcp.address", tls)
        world = Served(listener, made, passwords)
        try:
            yield world
            world.close_links()
            await until_nobody_is_left(world)
            for session in gateway.sessions:
                # Sessions of 0.12 wait for their clients.
                session.end()
            assert listener.budgets.used == 0, "room that was taken was not given back"
            assert len(gateway.sessions) == 0
        finally:
            world.close_links()
            await listener.stop(HANGS_S)
            gateway.users.close()


async def until_nobody_is_left(world: Served) -> None:
    while world.connections or any("_respond_deferred" in str(task.get_coro()) for task in asyncio.all_tasks()):  # noqa: ASYNC110
        await asyncio.sleep(0)
    # A request that outlives its connection may wait for a disk before it ends.
    await gives_back(world.listener.budgets)


async def gives_back(budgets: Budgets) -> None:
    """Waits a few seconds until no memory is reserved."""
    give_up_at = time.monotonic() + GIVES_BACK_S
    while budgets.used and time.monotonic() < give_up_at:  # noqa: ASYNC110
        await asyncio.sleep(0)


def message_body(*sizes: int, partition_id: int = 0) -> bytes:
    """The payload of a send to stream 0, topic 0."""
    destination = TO_PARTITION_10[:-4] + struct.pack("<I", partition_id)
    return send_body([Classic(number + 1, 0, 0, 1, b"x" * size) for number, size in enumerate(sizes)], 64, destination)


async def make_topic(root: Raw, partitions: int = 1) -> None:
    """Stream 0 and its topic 0."""
    assert (await root.ask(commands.CreateStream("s")))[0] == 0
    assert (await root.ask(commands.CreateTopic("s", "t", partitions)))[0] == 0


def poll(count: int) -> bytes:
    consumer = commands.Consumer(commands.ConsumerKind.CONSUMER, 1)
    return asked(commands.PollMessages(consumer, 0, 0, 0, commands.Strategy(commands.StrategyKind.FIRST), count, False))


def only_other(world: Served, than: Raw | Sequence[Raw]) -> tcp.Connection:
    known = ["{}:{}".format(*raw.link.getsockname()[:2]) for raw in ([than] if isinstance(than, Raw) else than)]
    (found,) = (one for one in world.listener._connections if one.address not in known)
    assert isinstance(found, tcp.Connection)
    return found
