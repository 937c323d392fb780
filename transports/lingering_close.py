"""Closes a connection so that the client receives everything that was written, even while it is still sending.

If a connection is closed before everything that has arrived is read, the kernel resets it and drops what it has not
sent yet. So the server closes its sending side first, and reads on until the client has closed as well.
"""

from __future__ import annotations

import asyncio

LINGER_SECONDS = 2.0


def close(transport: asyncio.Transport, now: float, *, is_over: bool) -> float:
    """Closes the connection; `is_over`: the client sends nothing more. Returns the deadline for the client to close its
    side, or 0 if nothing is waited for. What arrives until then has to be discarded."""
    # TLS itself reads on until the client has closed.
    if is_over or not transport.can_write_eof():
        transport.close()
        return 0.0
    transport.write_eof()
    transport.resume_reading()
    return now + LINGER_SECONDS


def extend(transport: asyncio.Transport, deadline: float, now: float) -> float:
    """Returns the new deadline: the time starts when the kernel has everything that was written."""
    return now + LINGER_SECONDS if transport.get_write_buffer_size() else deadline
