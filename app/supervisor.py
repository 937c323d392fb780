"""Tells systemd how the server is: starting, ready, stopping, and, at intervals, that its event loop still turns.

The protocol is that of sd_notify: datagrams to the socket that `NOTIFY_SOCKET` names. Without it, which is the case for
everybody else, nothing is sent. A unit with `WatchdogSec` restarts a server whose loop stands still.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping

from whippet.app.readiness import Stage

_log = logging.getLogger(__name__)

BEATS = 2
"""In the time after which systemd gives up."""


class Supervisor:
    """For the event loop: a datagram to a local socket does not wait, it is refused if nobody reads."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        name = environ.get("NOTIFY_SOCKET", "")
        # An @ stands for a name that is no file.
        self._address = f"\0{name[1:]}" if name.startswith("@") else name
        self._socket: socket.socket | None = None
        if self._address.startswith(("/", "\0")):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
        self._beat_s = _beat_s(environ)
        self._beating: asyncio.Task[None] | None = None

    def enter(self, stage: Stage) -> None:
        if stage is Stage.READY:
            self._is_ready()
        elif stage is Stage.STOPPING:
            # The beats go on: a stop may take longer than the watchdog waits.
            self._tell("STOPPING=1\nSTATUS=stopping: requests in progress are finished, and everything is synced")

    def _is_ready(self) -> None:
        self._tell("READY=1\nSTATUS=ready")
        if self._socket is not None and self._beat_s is not None:
            self._beating = asyncio.get_running_loop().create_task(self._beat(self._beat_s), name="watchdog")

    def close(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def _beat(self, seconds: float) -> None:
        while True:
            self._tell("WATCHDOG=1")
            await asyncio.sleep(seconds)

    def _tell(self, state: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto(state.encode(errors="replace"), self._address)
        except OSError as error:
            _log.warning("systemd was not told %r: %s", state.partition("\n")[0], error.strerror or error)


def _beat_s(environ: Mapping[str, str]) -> float | None:
    """Returns None without a watchdog, or if it is about another process."""
    given, process = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not given.isdecimal() or int(given) == 0 or (process and process != str(os.getpid())):
        return None
    return int(given) / 1_000_000 / BEATS
