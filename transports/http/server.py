"""uvicorn inside the gateway's own event loop: a listening socket, an application, a start and a stop.

The composition root starts one and stops it. Signals, log configuration and the end of the process are not uvicorn's
business here: whoever composes the process decides them for all transports together.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from app.config.formats import Address
from transports import listening

IDLE_SECONDS_MAX = 75
"""How long a kept-alive connection may rest between requests; longer than the pools of common clients keep one."""


class HttpServer:
    """One listener that is serving. Made by `start`, ended by `stop`; both on the event loop."""

    def __init__(self, listener: socket.socket, application: ASGIApp, stop_seconds_max: float) -> None:
        """`stop_seconds_max` is how long requests in hand may take to finish once the listener stops."""
        self.address = listening.effective(listener)
        self._server = _Uvicorn(
            uvicorn.Config(
                application,
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=listening.BACKLOG_CONNECTIONS,
                timeout_keep_alive=IDLE_SECONDS_MAX,
                timeout_graceful_shutdown=max(1, round(stop_seconds_max)),
            )
        )
        self.serving = asyncio.create_task(self._server.serve(sockets=[listener]), name="http")
        """Ends with `stop`. When it ends before, the listener has failed."""

    async def stop(self) -> None:
        """Stops accepting, closes idle connections, returns when the requests in hand are answered."""
        self._server.should_exit = True
        await self.serving


async def start(application: ASGIApp, address: Address, stop_seconds_max: float) -> HttpServer:
    return HttpServer(await listening.listen(address, "http.address"), application, stop_seconds_max)


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
