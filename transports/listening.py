"""Opens the sockets that servers listen on, so that all transports report the same errors."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

from whippet.app.config.formats import Address

BACKLOG_CONNECTIONS = 2048
"""How many connections the operating system keeps waiting while the event loop is busy; it may apply a lower limit."""


class ListenError(Exception):
    """An address cannot be listened on. The text is one line that names the address, the setting and the reason."""


def effective(listener: socket.socket) -> Address:
    """Returns the address that clients can use, with the real port if 0 was configured."""
    host, port = listener.getsockname()[:2]
    return Address(host, port)


async def listen(address: Address, setting: str, *, ipv6: bool = False) -> socket.socket:
    """Opens a listening TCP socket. If a name has several addresses, only one is used: IPv4 first, or an IPv6 address
    alone if `ipv6` is set."""
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
    """Returns the family of the address, and the argument for `bind`."""
    found = await asyncio.get_running_loop().getaddrinfo(
        address.host, address.port, family=wanted, type=kind, flags=socket.AI_PASSIVE
    )
    family, _, _, _, target = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return family, target


def _open(family: int, target: tuple[Any, ...]) -> socket.socket:
    with contextlib.ExitStack() as on_failure:
        listener = on_failure.enter_context(socket.socket(family, socket.SOCK_STREAM))
        # A restart must not wait until the connections of the previous process time out.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind(target)
        # Listening starts here, not in the server: two sockets that may reuse an address collide only now.
        listener.listen(BACKLOG_CONNECTIONS)
        on_failure.pop_all()
        return listener
