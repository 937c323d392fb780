"""Decides which closed segments may be deleted: pure functions, for the cleaner and for explicit deletions.

Only whole closed segments are deleted, oldest first. The first one that must stay protects all later ones. A segment
stays until all readers that retention respects (`retention.respects_consumers`) have stored the offset of its last
message or a later one in its partition: the consumer barrier.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from whippet.storage.offsets import Kind
from whippet.storage.segment import Segment

TRIM_TO = 0.9
"""A topic that exceeds its size limit is reduced to less than this fraction of it, so that the cleaner is not needed
again at once."""


RESPECTED: Mapping[str, frozenset[Kind]] = {
    "none": frozenset(),
    "groups": frozenset({Kind.GROUP}),
    "all": frozenset({Kind.GROUP, Kind.CONSUMER}),
}
"""The readers that each value of the option stands for. External groups never hold up retention."""


class Slowest(NamedTuple):
    """The reader that has stored the lowest offset in a partition."""

    kind: Kind
    identity: int
    offset: int


class HeldBack(NamedTuple):
    """What the cleaner would have deleted from a partition, had this reader read it."""

    reader: Slowest
    segments: int
    bytes: int


class Closed(msgspec.Struct, frozen=True):
    """The closed segments of one partition, oldest first, and its barrier: the lowest stored offset, if any."""

    segments: Sequence[Segment]
    barrier: int | None
    """The lowest offset that a respected reader has stored; None if there is none."""
    purges: int
    """How often the log had been purged. A decision is void after the next purge."""


def believable(times: Sequence[int], following: int, earliest: int, latest: int) -> list[int | None]:
    """Returns by when the messages of segments must have arrived, given the segments' times in order: the time itself
    if it does not contradict the others, otherwise the next one that does not, or None. `following` is the time of the
    first message after them.

    A clock that was ahead has left times after `latest`, one that was behind has left times before `earliest` or before
    older ones. Such messages may be as recent as the next ones, and are never considered older.
    """
    believed: list[int | None] = []
    for time in (*times, following):
        believed.append(time if earliest <= time <= latest else None)
        earliest = max(earliest, believed[-1] or 0)
    for i in reversed(range(len(times))):
        if believed[i] is None:
            believed[i] = believed[i + 1]
    return believed[:-1]


def is_read(segment: Segment, barrier: int | None) -> bool:
    return barrier is None or barrier >= segment.next_offset - 1


def expired(closed: Closed, now: int, expiry_us: int) -> int:
    """The offset before which everything has expired and was read; 0 if nothing may be deleted."""
    before = 0
    for segment in closed.segments:
        if not is_read(segment, closed.barrier) or (segment.last_timestamp or 0) + expiry_us > now:
            break
        before = segment.next_offset
    return before


def oldest(closed: Closed, count: int) -> int:
    """The offset at which the `count` oldest segments end, or fewer if the barrier protects some of them."""
    before = 0
    for segment in closed.segments[:count]:
        if not is_read(segment, closed.barrier):
            break
        before = segment.next_offset
    return before


def oldest_of_all(partitions: Sequence[Closed], size: int) -> list[int]:
    """Returns for each partition the offset before which to delete, so that at least `size` bytes are deleted: the
    oldest segments of all partitions."""
    before = [0] * len(partitions)
    heads = [(closed.segments[0].last_timestamp or 0, i, 0) for i, closed in enumerate(partitions) if closed.segments]
    heapq.heapify(heads)
    while heads and size > 0:
        _, i, number = heapq.heappop(heads)
        segments = partitions[i].segments
        before[i] = segments[number].next_offset
        size -= segments[number].log_bytes
        if number + 1 < len(segments):
            heapq.heappush(heads, (segments[number + 1].last_timestamp or 0, i, number + 1))
    return before


def oversize(partitions: Sequence[Closed], size_bytes: int, max_bytes: int) -> list[int]:
    """Returns for each partition the offset before which to delete, so that the topic falls below its limit.

    The segment whose newest message is the oldest goes first, but partitions with more than their share of the limit
    come before all others: a partition with few messages keeps them, however old they are.
    """
    before = [0] * len(partitions)
    if size_bytes <= max_bytes:
        return before
    queues = [list(closed.segments) for closed in partitions]
    sizes = [sum(segment.log_bytes for segment in queue) for queue in queues]
    share = max_bytes * TRIM_TO / max(len(partitions), 1)
    while size_bytes >= max_bytes * TRIM_TO:
        heads = [
            (sizes[i] <= share, queue[0].last_timestamp or 0, i)
            for i, queue in enumerate(queues)
            if queue and is_read(queue[0], partitions[i].barrier)
        ]
        if not heads:
            break
        *_, i = min(heads)
        segment = queues[i].pop(0)
        before[i] = segment.next_offset
        size_bytes -= segment.log_bytes
        sizes[i] -= segment.log_bytes
    return before


def without_barrier(closed: Closed) -> Closed:
    return msgspec.structs.replace(closed, barrier=None)


def held_back(closed: Closed, reader: Slowest | None, before: int, wanted: int) -> HeldBack | None:
    """What stays although everything before `wanted` should go, because only what is before `before` may."""
    kept = [segment for segment in closed.segments if before < segment.next_offset <= wanted]
    if reader is None or not kept:
        return None
    return HeldBack(reader, len(kept), sum(segment.log_bytes for segment in kept))
