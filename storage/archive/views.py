"""What the archiver sees of a partition: which bytes of which segments are on the disk, and how they continue.

`view_of` runs on the thread of the partition's shard, because only there segments and indexes hold still. It reads no
file and copies little, so the shard is not kept from its work.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from whippet.storage.index import Index
from whippet.storage.log import Log


class SegmentGone(Exception):
    """The segment was deleted, or is shorter than it was, or its index is needed and not in memory: the next round sees
    what there is."""


class Extent(NamedTuple):
    """A part of a log that is in the archive."""

    position: int
    end: int


class SegmentView(NamedTuple):
    """One segment, as far as it is synced."""

    start: int
    log_bytes: int
    next_offset: int
    is_closed: bool
    entries: Index | None
    """Index entries of the batches that are to be uploaded; None if they are to be read from the index file."""


class View(NamedTuple):
    """All segments, oldest first."""

    segments: list[SegmentView]
    next_offset: int
    """After the last message that is synced."""

    @property
    def first_offset(self) -> int:
        return self.segments[0].start


def view_of(log: Log, synced: int, archived: Mapping[int, Sequence[Extent]]) -> View:
    """What of a log is synced up to an offset. `archived` has what the archive has, by the start offset of a segment;
    it decides from where on the index of the last segment is copied."""
    segments = [
        SegmentView(segment.start_offset, segment.log_bytes, segment.next_offset, True, None)
        for segment in log.segments[:-1]
        if segment.next_offset <= synced
    ]
    # Perhaps it was closed after the sync: what of it is synced is in the view all the same, for the archive has some.
    last = log.segments[len(segments)]
    index = last.index
    if index is None:
        raise SegmentGone(f"the index of the segment {last.start_offset} is not in memory")
    count = bisect_right(range(len(index)), synced, key=index.next_offset)
    end = index.end_position(count - 1) if count else 0
    begin = index.before(upload_from(archived.get(last.start_offset, ()), end))
    entries = index.part(begin, count)
    next_offset = index.next_offset(count - 1) if count else last.start_offset
    segments.append(SegmentView(last.start_offset, end, next_offset, False, entries))
    return View(segments, next_offset)


def upload_from(archived: Sequence[Extent], end: int) -> int:
    """The position from which a segment is to be uploaded up to `end`.

    Small pieces are uploaded again, together with what follows, as soon as that is as large as they are. So a segment
    that grows slowly has few pieces (as many as its size has binary digits, at most), and each byte is uploaded few
    times.
    """
    position = archived[-1].end if archived else 0
    for extent in reversed(archived):
        if extent.end - extent.position > end - position:
            break
        position = extent.position
    return position
