"""Sockets to listen on, opened before the server that will use them, so that every transport refuses in the same words.

Each listener asks for its socket here and tells the address that it really got. Serves nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

from whippet.app.config.formats import Address

BACKLOG_CONNECTIONS = 2048
"""Connections the operating system keeps waiting for us while the loop is busy; it may cap this lower."""


class ListenError(Exception):
    """An address cannot be listened on. Its text is one line that names the address, the setting and the reason."""


def effective(listener: socket.socket) -> Address:
    """The address that a client can use, with the port that was picked when 0 was asked for."""
    host, port = listener.getsockname()[:2]
    return Address(host, port)


async def listen(address: Address, setting: str, *, ipv6: bool = False) -> socket.socket:
    """A listening TCP socket. A name that stands for several addresses is listened on at one only, IPv4 first; with
    `ipv6` at an IPv6 address alone."""
    try:
        family, target = await resolve(address, socket.SOCK_STREAM, socket.AF_INET6 if ipv6 else socket.AF_UNSPEC)
        return _open(family, target)
    except OSError as error:
        raise ListenError(f"cannot listen on {address} ({setting}): {error.strerror or error}") from error
    except UnicodeError as error:
        raise ListenError(f"cannot listen on {address} ({setting}): not a host name") from error


async def resolve(
    address: Address, kind: socket.SocketKind, wanted: socket.AddressFamily = socket.AF_UNSPEC
) -> tuple[int, tuple[Any, ...]]:
    """The family of the address to listen on, and what `bind` wants of it."""
    found = await asyncio.get_running_loop().getaddrinfo(
        address.host, address.port, family=wanted, type=kind, flags=socket.AI_PASSIVE
    )
    family, _, _, _, target = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return family, target


def _open(family: int, target: tuple[Any, ...]) -> socket.socket:
    with contextlib.ExitStack() as on_failure:
        listener = on_failure.enter_context(socket.socket(family, socket.SOCK_STREAM))
        # A restart must not wait for the connections of the process before it to time out.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind(target)
        # Listening begins here, not in the server: two sockets that may reuse an address collide only now.
        listener.listen(BACKLOG_CONNECTIONS)
        on_failure.pop_all()
        return listener
