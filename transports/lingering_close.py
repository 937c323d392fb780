"""The end of a connection that is ours to end: what was written arrives, also while the client is still talking.

The kernel resets a connection that is closed before everything that has arrived was read, and then forgets what it has
not sent yet. So a side says that it has said everything, and reads on until the other side has closed as well.
"""

from __future__ import annotations

import asyncio

LINGER_SECONDS = 2.0


def close(transport: asyncio.Transport, now: float, *, is_over: bool) -> float:
    """`is_over`: the client has nothing more to say. Returns until when it may take to hear what was written; 0: it is
    not waited for. What arrives meanwhile is to be thrown away."""
    # TLS reads on by itself until the other side has closed.
    if is_over or not transport.can_write_eof():
        transport.close()
        return 0.0
    transport.write_eof()
    transport.resume_reading()
    return now + LINGER_SECONDS


def until(transport: asyncio.Transport, given: float, now: float) -> float:
    """The time to hear what was written begins when the kernel has all of it."""
    return now + LINGER_SECONDS if transport.get_write_buffer_size() else given
