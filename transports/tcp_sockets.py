"""What `tcp.socket` says about sockets, told to the operating system.

Buffers and probes are set on the listening socket, from which every accepted one has them. SO_LINGER is not used: with
it closing a socket would block the event loop for as long as a client likes.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

from whippet.app.config.listeners import TcpSocket

_log = logging.getLogger(__name__)

USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", None)
"""How long what was sent may be unacknowledged before the system gives a connection up; Linux alone has it."""


def prepare_listener(listener: socket.socket, wanted: TcpSocket) -> None:
    if not wanted.override_defaults:
        return
    for key, option, size in (
        ("recv_buffer_size", socket.SO_RCVBUF, wanted.recv_buffer_size),
        ("send_buffer_size", socket.SO_SNDBUF, wanted.send_buffer_size),
    ):
        listener.setsockopt(socket.SOL_SOCKET, option, size)
        # Linux says twice what was asked for, because it counts what it needs itself.
        given = listener.getsockopt(socket.SOL_SOCKET, option)
        if given < size:
            _log.warning("tcp.socket.%s = %d: the operating system gives %d bytes", key, size, given)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, wanted.keepalive)


def prepare_accepted(transport: asyncio.BaseTransport, wanted: TcpSocket) -> None:
    """The event loop has told it already to send small packets at once."""
    if wanted.override_defaults:
        accepted: Any = transport.get_extra_info("socket")
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, wanted.nodelay)


def limit_farewell(transport: asyncio.Transport, wanted: TcpSocket) -> asyncio.TimerHandle | None:
    """Before a transport is closed: what it was given to send is dropped unless it is taken in time."""
    if not wanted.override_defaults or not wanted.linger:
        return None
    if USER_TIMEOUT is not None:
        # For what the system has to send after the transport has let go of the socket.
        accepted: Any = transport.get_extra_info("socket")
        accepted.setsockopt(socket.IPPROTO_TCP, USER_TIMEOUT, min(int(wanted.linger * 1000), 2**31 - 1))
    return asyncio.get_running_loop().call_later(wanted.linger, transport.abort)
