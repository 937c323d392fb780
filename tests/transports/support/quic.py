"""The QUIC listener in the test's process, on the event loop of production, and aioquic's client."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import msgspec
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection, QuicConnectionState
from starlette.types import ASGIApp

from tests.app.access.support.world import gateway_on
from tests.storage.support.world import opened
from tests.support.running import HANGS_S
from tests.transports.support.raw import LOG_IN, PING, asked
from whippet.app.access.throttle import Throttle
from whippet.app.commands import requests
from whippet.app.config import Config
from whippet.app.config.formats import Address
from whippet.app.gateway import Gateway
from whippet.transports.admission.budgets import Budgets
from whippet.transports.admission.stall_detector import STALLED_SECONDS
from whippet.transports.http.serving.listener import Listener
from whippet.transports.quic import QuicListener


class Reset(Exception):
    """The server has ended a stream without a response."""


class Closed(Exception):
    """The server has closed the connection."""


class Client(QuicConnectionProtocol):
    """A connection like those of official clients: no ALPN, any certificate."""

    def __init__(self, quic: QuicConnection, stream_handler: Any = None) -> None:
        super().__init__(quic)
        self.quic = quic
        self.parts: dict[int, bytearray] = {}
        self.waiting: dict[int, asyncio.Future[bytes]] = {}
        self.terminated: asyncio.Future[events.ConnectionTerminated] = self._loop.create_future()
        self.resets: list[events.StreamReset] = []
        self.stops: list[events.StopSendingReceived] = []
        self.heard: Callable[[events.QuicEvent], None] = lambda event: None

    def quic_event_received(self, event: events.QuicEvent) -> None:
        self.heard(event)
        if isinstance(event, events.StreamDataReceived):
            self.parts.setdefault(event.stream_id, bytearray()).extend(event.data)
            if event.end_stream:
                self._end(event.stream_id)
        elif isinstance(event, events.StreamReset):
            self.resets.append(event)
            if (waiting := self.waiting.get(event.stream_id)) is not None and not waiting.done():
                waiting.set_exception(Reset(event.error_code))
        elif isinstance(event, events.StopSendingReceived):
            self.stops.append(event)
        elif isinstance(event, events.ConnectionTerminated):
            self._terminate(event)

    def datagram_received(self, data: bytes | str, addr: Any) -> None:
        """aioquic reports that the server has closed the connection three probe timeouts later: after seconds on a busy
        machine."""
        super().datagram_received(data, addr)
        closed = self.quic._close_event
        if closed is not None and self.quic._state is QuicConnectionState.DRAINING:
            self._terminate(closed)

    def _terminate(self, event: events.ConnectionTerminated) -> None:
        if not self.terminated.done():
            self.terminated.set_result(event)
        for waiting in self.waiting.values():
            if not waiting.done():
                waiting.set_exception(Closed(event.error_code, event.reason_phrase))

    def _end(self, stream_id: int) -> None:
        if (waiting := self.waiting.get(stream_id)) is not None and not waiting.done():
            waiting.set_result(bytes(self.parts.pop(stream_id)))

    def open(self) -> int:
        stream_id = self.quic.get_next_available_stream_id()
        self.quic.send_stream_data(stream_id, b"")
        self.waiting[stream_id] = self._loop.create_future()
        return stream_id

    def say(self, stream_id: int, octets: bytes, *, fin: bool = True) -> None:
        self.quic.send_stream_data(stream_id, octets, fin)
        self.transmit()

    def begin(self, octets: bytes, *, fin: bool = True) -> asyncio.Future[bytes]:
        """Sends a request on its own stream; the response is everything until the stream ends."""
        stream_id = self.open()
        self.say(stream_id, octets, fin=fin)
        return self.waiting[stream_id]

    async def whole(self, octets: bytes) -> bytes:
        return await self.begin(octets)

    async def ask(self, request: requests.Request | bytes) -> tuple[int, bytes]:
        """Status and payload."""
        answer = await self.whole(request if isinstance(request, bytes) else asked(request))
        status, length = struct.unpack_from("<II", answer)
        assert len(answer) == 8 + length
        return status, answer[8:]

    async def log_in(self) -> Client:
        assert await self.ask(LOG_IN) == (0, bytes(4))
        return self

    async def is_alive(self) -> bool:
        return await self.ask(PING) == (0, b"")

    def vanish(self) -> None:
        """Stops sending and receiving."""
        if self._timer is not None:
            self._timer.cancel()
        cast(asyncio.DatagramTransport, self._transport).abort()


class World:
    """A listener and the clients of a test, all of which end with it."""

    def __init__(self, listener: QuicListener, gateway: Gateway) -> None:
        self.listener = listener
        self.gateway = gateway
        self.clients: list[Client] = []
        self.ends = contextlib.ExitStack()

    async def stranger(self, configuration: QuicConfiguration | None = None, **options: Any) -> Client:
        """Connected, not logged in."""
        client = await self.beginning(configuration, **options)
        await client.wait_connected()
        return client

    async def beginning(self, configuration: QuicConfiguration | None = None, **options: Any) -> Client:
        """Connecting."""
        configuration = configuration or QuicConfiguration(
            verify_mode=ssl.CERT_NONE, server_name="localhost", **options
        )
        where = self.listener.address
        _, client = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: Client(QuicConnection(configuration=configuration)), remote_addr=None, local_addr=("127.0.0.1", 0)
        )
        self.clients.append(client)
        client.connect((where.host, where.port))
        return client

    async def root(self, **options: Any) -> Client:
        return await (await self.stranger(**options)).log_in()

    @property
    def connections(self) -> int:
        return len(self.listener._connections)

    async def until(self, reached: Callable[[], bool]) -> None:
        while not reached():  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    def leave(self) -> None:
        for client in self.clients:
            with contextlib.suppress(Exception):
                client.close()


@contextlib.asynccontextmanager
async def served(
    path: object,
    *,
    application: ASGIApp | None = None,
    http_listener: Listener | None = None,
    stalled_seconds: float = STALLED_SECONDS,
    quic: dict[str, Any] | None = None,
    http: dict[str, Any] | None = None,
    store: dict[str, Any] | None = None,
    throttle: Throttle | None = None,
    **limits: Any,
) -> AsyncIterator[World]:
    async with opened(path, **(store or {})) as made:
        config = Config()
        replace = msgspec.structs.replace
        config = replace(
            config,
            system=replace(config.system, limits=replace(config.system.limits, **limits)),
            quic=replace(config.quic, **(quic or {})),
            http=replace(config.http, limits=replace(config.http.limits, **(http or {}))),
        )
        gateway = await gateway_on(made, config, throttle=throttle)
        budgets = Budgets(config)
        listener = QuicListener(gateway, budgets, application, http_listener, stalled_seconds=stalled_seconds)
        await listener.listen(Address("127.0.0.1", 0), "quic.address", str(path))
        world = World(listener, gateway)
        try:
            yield world
            world.leave()
            # A request in progress releases its memory when it is done, whether or not its client is still there. If
            # that never happens, the time limit of the test ends this.
            while world.connections or budgets.used:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            assert len(gateway.sessions) == 0
            assert not listener._by_id
        finally:
            world.leave()
            await listener.stop(HANGS_S)
            for client in world.clients:
                client.vanish()
            world.ends.close()
            # What a closed transport still has to do.
            await asyncio.sleep(0)
            gateway.users.close()


async def make_topic(root: Client, partitions: int = 1) -> None:
    assert (await root.ask(requests.CreateStream("s")))[0] == 0
    assert (await root.ask(requests.CreateTopic("s", "t", partitions)))[0] == 0


async def until(reached: Callable[[], bool]) -> None:
    while not reached():  # noqa: ASYNC110
        await asyncio.sleep(0.001)
