"""Runs uvicorn in the gateway's event loop: a listening socket and an application.

The composition root starts and stops it, and handles signals, logging and the end of the process for all transports.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from whippet.app.config.formats import Address
from whippet.app.config.listeners import HttpLimits
from whippet.transports import listening
from whippet.transports.http.serving.listener import Listener
from whippet.transports.http.serving.protocol import Protocol
from whippet.transports.tls_handshakes import TlsHandshakes

_log = logging.getLogger(__name__)

ANNOUNCED_SECONDS = 86_400
"""How long a browser may remember that HTTP/3 is available."""
SWEEPS = 8
"""How often the deadlines are checked within the shortest one."""
SWEEP_SECONDS_MAX = 1.0
FINISHED_SECONDS = 0.005
"""How often a server that stops looks whether all requests are finished."""


class HttpServer:
    """A running HTTP listener. Created by `start`, ended by `stop`; both on the event loop."""

    def __init__(
        self,
        bound: socket.socket,
        application: ASGIApp,
        limits: HttpLimits,
        stop_seconds_max: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`stop_seconds_max` is how long requests in progress may take once the listener stops."""
        self.address = listening.effective(bound)
        self.listener = Listener(limits, self.address)
        self._server = _Uvicorn(
            uvicorn.Config(
                application,
                http=self._protocol,  # type: ignore[arg-type]
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=listening.BACKLOG_CONNECTIONS,
                timeout_graceful_shutdown=max(1, round(stop_seconds_max)),
            ),
            tls,
            self.listener,
        )
        self.serving = asyncio.create_task(self._server.serve(sockets=[bound]), name="http")
        """Ends with `stop`. If it ends earlier, the listener has failed."""
        self._sweeping = asyncio.create_task(self._sweep(), name="http deadlines")

    def announce_http3(self, port: int) -> None:
        """Announces HTTP/3 and its port in every response from now on."""
        self._server.add_header("alt-svc", f'h3=":{port}"; ma={ANNOUNCED_SECONDS}')

    def _protocol(self, **given: Any) -> Protocol:
        return Protocol(self.listener, **given)

    async def _sweep(self) -> None:
        limits = self.listener.limits
        times = (limits.first_byte_time, limits.headers_time, limits.body_time, limits.idle_time, limits.answer_time)
        seconds = min(SWEEP_SECONDS_MAX, min(times) / SWEEPS)
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(seconds)
            self.listener.sweep(loop.time())

    async def stop(self) -> None:
        """Stops accepting, closes idle connections, and returns when the requests in progress are finished."""
        self._server.stop()
        try:
            await self.serving
        finally:
            self._sweeping.cancel()


async def start(
    application: ASGIApp,
    address: Address,
    limits: HttpLimits,
    stop_seconds_max: float,
    tls: ssl.SSLContext | None = None,
    setting: str = "http.address",
) -> HttpServer:
    """`setting` is the key of the address, for the error if it cannot be listened on."""
    return HttpServer(await listening.listen(address, setting), application, limits, stop_seconds_max, tls)


class _Uvicorn(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, tls: ssl.SSLContext | None, listener: Listener) -> None:
        super().__init__(config)
        self._tls = tls
        self._listener = listener
        self._handshakes: TlsHandshakes | None = None
        self._stopping = asyncio.Event()

    def add_header(self, name: str, value: str) -> None:
        self.config.headers.append((name, value))
        if self.config.loaded:
            added = name.encode(), value.encode()
            self.config.encoded_headers = [*self.config.encoded_headers, added]
            self.server_state.default_headers = [*self.server_state.default_headers, added]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """With TLS, connections whose handshake is not finished count as well."""
        if self._tls is None or sockets is None:
            await super().startup(sockets)
            return
        loop, listener = asyncio.get_running_loop(), self._listener

        def connection() -> asyncio.BaseProtocol:
            return Protocol(listener, config=self.config, server_state=self.server_state, app_state={}, _loop=loop)

        def has_room() -> bool:
            return listener.has_room(0 if self._handshakes is None else len(self._handshakes))

        seconds_max = listener.limits.first_byte_time
        self._handshakes = TlsHandshakes(sockets[0], self._tls, connection, has_room, seconds_max)
        self.servers = []
        self.started = True

    def stop(self) -> None:
        self.should_exit = True
        self._stopping.set()

    async def main_loop(self) -> None:
        """Updates the date once a second. uvicorn's own looks ten times a second whether it is to stop."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._stopping.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Does the same as uvicorn's, which always takes a tenth of a second or more."""
        if self._handshakes is not None:
            self._handshakes.stop()
        for server in self.servers:
            server.close()
        for bound in sockets or []:
            bound.close()
        state, is_finished = self.server_state, False
        told = set[Any]()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while not is_finished:
                    # A connection may have been accepted, but not begun, when the server was closed.
                    for connection in state.connections - told:
                        connection.shutdown()
                        told.add(connection)
                    await asyncio.sleep(FINISHED_SECONDS)
                    is_finished = not (state.connections or state.tasks)
                for server in self.servers:
                    await server.wait_closed()
        except TimeoutError:
            _log.error("%d requests over HTTP are cancelled, because they took too long to finish", len(state.tasks))
            for task in state.tasks:
                task.cancel("the server stops")

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
