"""The timestamps of one partition's messages, corrected where the clock was wrong.

Timestamps never decrease, so that a log can be searched by time. The exception: if the newest message is more than a
day ahead of the clock, the clock must have been wrong when that message arrived. Without the exception all later
messages would be stamped too far ahead, and kept for that much longer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from whippet.storage.layout import PartitionId
from whippet.storage.retention import believable
from whippet.storage.segment import Segment

_log = logging.getLogger(__name__)

AHEAD_MAX_US = 24 * 3600 * 1_000_000
"""How far the newest message may be ahead of the clock; later messages get its time. Clocks are off by seconds, or by
hours after a mistaken time zone. Beyond that, the clock is taken to have been wrong when the message came."""


class Timestamps:
    """`newest` is the time of the newest message. An append sets it directly, unless the clock is earlier."""

    __slots__ = ("_clock", "_created_at", "_doubted_at", "_place", "newest")

    def __init__(self, place: PartitionId, newest: int, clock: Callable[[], int], created_at: int) -> None:
        self.newest = newest
        self._place = place
        self._clock = clock
        self._created_at = created_at
        self._doubted_at = 0
        """When retention first met implausible times that no later message corrects; 0 if never."""

    def not_before_newest(self, now: int) -> int:
        """The time of a message that is appended when the clock says `now`, which is before the newest message."""
        ahead_us = self.newest - now
        if ahead_us > AHEAD_MAX_US and now >= self._created_at:
            _log.warning(
                "%s: the newest message is %.1f days ahead of the clock, which must have been wrong when it came; new "
                "messages get the current time",
                self._place,
                ahead_us / AHEAD_MAX_US,
            )
            self.newest = now
        return self.newest

    def correct(self, segments: list[Segment], following: int) -> list[Segment]:
        """Corrects the last times of segments, in order."""
        times = self.corrected([segment.last_timestamp or 0 for segment in segments], following)
        for segment, time in zip(segments, times, strict=True):
            segment.last_timestamp = time
        return segments

    def corrected(self, times: Sequence[int], following: int) -> list[int]:
        """Given the last times of segments in order, returns the times by which their messages must have arrived.
        `following` is the time of the first message after them, 0 if there is none."""
        now = self._clock()
        believed = believable(times, following, self._created_at, now + AHEAD_MAX_US)
        self._doubted_at = min(now, self._doubted_at or now) if None in believed else 0
        return [self._doubted_at if time is None else time for time in believed]
