"""Detects a client that has read almost nothing of what it was sent for too long; such a client is not worth keeping.

It is called at intervals, for transports that may have bytes in flight at any moment. Bytes in flight prove nothing, so
what counts is how many have been delivered in the end.
"""

from __future__ import annotations

STALLED_SECONDS = 60.0
"""How long a client may read almost nothing of what it is sent."""
DELIVERED_BYTES_MIN = 1 << 20
"""The bytes that must be delivered in that time, or all pending ones if they are fewer: a slow reader of a large
response has not stalled."""
CONTENDED_SECONDS, CONTENDED_BYTES_MIN = 5.0, 64 << 10
"""The same while other clients wait for the memory that the responses hold."""


class StallDetector:
    __slots__ = ("_delivered", "_due", "_since")

    def __init__(self) -> None:
        self._since = 0.0
        self._delivered = self._due = 0

    def reset(self) -> None:
        """The client has read so much that the operating system takes more for it."""
        self._since = 0.0

    def has_stalled(
        self,
        now: float,
        pending: int,
        seconds_max: float,
        *,
        delivered: int,
        enough: int = DELIVERED_BYTES_MIN,
        is_contended: bool = False,
    ) -> bool:
        """`pending` bytes wait to be sent, and `delivered` have reached the client in total. `is_contended`: other
        clients wait for memory."""
        if is_contended:
            seconds_max, enough = min(seconds_max, CONTENDED_SECONDS), min(enough, CONTENDED_BYTES_MIN)
        if not pending:
            self._since = 0.0
            return False
        if not self._since or delivered - self._delivered >= min(self._due, enough):
            self._since, self._delivered, self._due = now, delivered, pending
        return now - self._since > seconds_max
