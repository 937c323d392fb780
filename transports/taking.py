"""Whether a client takes what it is sent. Who takes nearly nothing of it for too long is not worth keeping.

Asked at intervals, of transports on which something may be on its way at any moment: that there is something says
nothing, so what counts is how much has arrived in the end.
"""

from __future__ import annotations

TAKEN_BYTES_MIN = 1 << 20
"""What has to be taken in the time that there is, or all that was due, if that is less: a slow reader of a large answer
is none that has stalled."""


class Taking:
    __slots__ = ("_due", "_since", "_taken")

    def __init__(self) -> None:
        self._since = 0.0
        self._taken = self._due = 0

    def has_stalled(
        self, now: float, untaken: int, taken: int, seconds_max: float, enough: int = TAKEN_BYTES_MIN
    ) -> bool:
        """`untaken` is on its way now, `taken` has arrived in all."""
        if not untaken:
            self._since = 0.0
            return False
        if not self._since or taken - self._taken >= min(self._due, enough):
            self._since, self._taken, self._due = now, taken, untaken
        return now - self._since > seconds_max
