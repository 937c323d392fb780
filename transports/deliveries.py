"""How much a client has received over its TCP connection, as the operating system knows from its acknowledgements.

Nothing else shows reliably that a slow client reads: once the operating system's buffer has been full, it takes more
only when a third of it is free, which can be a megabyte and a half.
"""

from __future__ import annotations

import asyncio
import socket
import sys

BYTES_ACKED_AT = 120
"""The position of the count, a u64, in Linux's `struct tcp_info`."""


def delivered_bytes(transport: asyncio.Transport) -> int:
    """Returns how many bytes were delivered since the connection began; 0 if it has just been aborted."""
    link = transport.get_extra_info("socket")
    if link.fileno() < 0:
        return 0
    info: bytes = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BYTES_ACKED_AT + 8)
    return int.from_bytes(info[BYTES_ACKED_AT:], sys.byteorder)
