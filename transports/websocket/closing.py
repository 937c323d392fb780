"""The end of a connection that is ours to end: what was written arrives, also while the client is still talking."""

from __future__ import annotations

import asyncio

LINGER_SECONDS = 2.0


def close(transport: asyncio.Transport, last: bytes, now: float, *, is_over: bool) -> float:
    """Sends the last bytes. `is_over`: the client has nothing more to say. Until when it may take to hear them; 0: it
    is not waited for. A socket that is closed before it was read empty would take back what is on its way."""
    transport.write(last)
    if is_over or not transport.can_write_eof():
        transport.close()
        return 0.0
    transport.write_eof()
    transport.resume_reading()
    return now + LINGER_SECONDS
