"""Accepts TLS clients: connections count from their first byte, and their handshakes have a deadline.

The event loop's own server reports a connection only after its handshake. Until then it would not be counted, so silent
clients could open any number of connections; and a TLS shutdown that is not answered would delay a stop.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

_log = logging.getLogger(__name__)

FAREWELL_SECONDS = 2.0
"""How long a client may take to answer the TLS shutdown; everything was sent to it before."""
RETRY_SECONDS = 0.1
"""Pause after a failed accept: without file descriptors the next one would fail as well."""


class TlsHandshakes:
    """A listening socket and the handshakes in progress. Created on a running event loop; ended by `stop`."""

    def __init__(
        self,
        listener: socket.socket,
        tls: ssl.SSLContext,
        connection: Callable[[], asyncio.BaseProtocol],
        has_room: Callable[[], bool],
        seconds_max: float,
    ) -> None:
        self._listener = listener
        self._tls = tls
        self._connection = connection
        self._has_room = has_room
        self._seconds_max = seconds_max
        self._going_on: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.create_task(self._accept(), name="tls accept")

    def __len__(self) -> int:
        return len(self._going_on)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                link, _ = await loop.sock_accept(self._listener)
            except OSError as error:
                _log.debug("cannot accept a connection: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if not self._has_room():
                link.close()
                continue
            task = asyncio.create_task(self._shake_hands(link), name="tls handshake")
            self._going_on.add(task)
            task.add_done_callback(self._going_on.discard)

    async def _shake_hands(self, link: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._connection,
                link,
                ssl=self._tls,
                ssl_handshake_timeout=self._seconds_max,
                ssl_shutdown_timeout=FAREWELL_SECONDS,
            )
        except (OSError, ssl.SSLError) as error:
            _log.debug("a TLS handshake failed: %s", error)

    def stop(self) -> None:
        self._accepting.cancel()
        self._listener.close()
        for task in list(self._going_on):
            task.cancel()
