"""Whether a client takes what it is sent. A client that takes nearly nothing of it for too long is not worth keeping.

This is asked at intervals, of transports on which something may be on its way at any moment. That there is something
on its way says nothing, so what counts is how much has arrived in the end.
"""

from __future__ import annotations

STALLED_SECONDS = 60.0
"""How long a client may take nearly nothing of what it was sent."""
TAKEN_BYTES_MIN = 1 << 20
"""What has to be taken in the time that there is, or all that was due, if that is less: a slow reader of a large answer
has not stalled."""
HURRY_SECONDS, HURRY_BYTES_MIN = 5.0, 64 << 10
"""The same while others wait for the memory that the client's responses take."""


class StallDetector:
    __slots__ = ("_due", "_since", "_taken")

    def __init__(self) -> None:
        self._since = 0.0
        self._taken = self._due = 0

    def reset(self) -> None:
        """The client has taken something, however slowly: what waits now is not what has waited before."""
        self._since = 0.0

    def has_stalled(
        self,
        now: float,
        untaken: int,
        seconds_max: float,
        *,
        taken: int | None = None,
        enough: int = TAKEN_BYTES_MIN,
        is_contended: bool = False,
    ) -> bool:
        """`untaken` is on its way now. `taken` has arrived in all; None where nobody counts that, and `untaken` says it
        as long as nothing new is sent. `hurry`: others wait."""
        if is_contended:
            seconds_max, enough = min(seconds_max, HURRY_SECONDS), min(enough, HURRY_BYTES_MIN)
        if not untaken:
            self._since = 0.0
            return False
        arrived = -untaken if taken is None else taken
        if not self._since or arrived - self._taken >= min(self._due, enough):
            self._since, self._taken, self._due = now, arrived, untaken
        return now - self._since > seconds_max
