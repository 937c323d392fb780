"""Applies `tcp.socket` to sockets.

Buffers and keepalive are set on the listening socket, from which accepted sockets inherit them. SO_LINGER is not used:
with it, closing a socket would block the event loop for as long as a client likes.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

from whippet.app.config.listeners import TcpSocket

_log = logging.getLogger(__name__)

USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", None)
"""How long sent data may stay unacknowledged before the system drops the connection; only Linux has it."""


def prepare_listener(listener: socket.socket, wanted: TcpSocket) -> None:
    if not wanted.override_defaults:
        return
    for key, option, size in (
        ("recv_buffer_size", socket.SO_RCVBUF, wanted.recv_buffer_size),
        ("send_buffer_size", socket.SO_SNDBUF, wanted.send_buffer_size),
    ):
        listener.setsockopt(socket.SOL_SOCKET, option, size)
        # Linux reports twice the requested size, because it counts its own overhead.
        given = listener.getsockopt(socket.SOL_SOCKET, option)
        if given < size:
            _log.warning("tcp.socket.%s = %d: the operating system grants %d bytes", key, size, given)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, wanted.keepalive)


def prepare_accepted(transport: asyncio.BaseTransport, wanted: TcpSocket) -> None:
    """By default the event loop has already set TCP_NODELAY."""
    if wanted.override_defaults:
        accepted: Any = transport.get_extra_info("socket")
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, wanted.nodelay)


def limit_farewell(transport: asyncio.Transport, wanted: TcpSocket) -> asyncio.TimerHandle | None:
    """Called before a transport is closed: unsent data is dropped unless the client takes it in time."""
    if not wanted.override_defaults or not wanted.linger:
        return None
    if USER_TIMEOUT is not None:
        # Limits what the system has to send after the transport has closed the socket.
        accepted: Any = transport.get_extra_info("socket")
        accepted.setsockopt(socket.IPPROTO_TCP, USER_TIMEOUT, min(int(wanted.linger * 1000), 2**31 - 1))
    return asyncio.get_running_loop().call_later(wanted.linger, transport.abort)
