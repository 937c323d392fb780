"""The segments of a partition as files in a folder, and their indexes.

The folder belongs to someone else, perhaps to a running server that appends, closes and deletes at any moment. Nothing
is ever changed here. The layout is that of storage/FORMAT.md, sections 3 and 4.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pyspark_whippet import log_index
from pyspark_whippet.batches import FRAME_BYTES, HEADER, HEADER_BYTES, Array
from pyspark_whippet.packed_batches import stored_length

READ_ONLY_ERRORS = (errno.EROFS, errno.EINVAL)
"""Raised by file systems that this machine cannot write to."""
_LOG = re.compile(r"(\d{20})\.log", re.ASCII)


@dataclass(frozen=True)
class Segment:
    """Messages start .. end-1 of a partition, in a file that no longer changes."""

    path: str
    start: int
    end: int
    size: int


def segments_in(folder: str, was_shut_down: Callable[[], bool]) -> list[Segment]:
    """Returns the closed segments: all but the last, because an outsider cannot know how much of that is
    acknowledged. If the server was shut down, all of it is, so the last one is included."""
    last = max(_starts(folder), default=None)
    if last is None:
        return []
    # Files come and go while a folder is listed. The first listing may have missed the file whose name closes another
    # segment, but then the file existed before the second listing began.
    starts = sorted(start for start in _starts(folder) if start <= last)
    found = [Segment(_path(folder, start), start, end, _size(folder, start)) for start, end in pairwise(starts)]
    if last in starts:
        size = _size(folder, last)
        # Checked after the size: a server that has started since may have begun to write.
        if size and was_shut_down():
            whole = Segment(_path(folder, last), last, last, size)
            found.append(Segment(whole.path, last, _end_of(whole), size))
    return [segment for segment in found if segment.size]


def last_start(folder: str) -> int:
    """Returns the first offset of the segment that is being written."""
    return max(_starts(folder), default=0)


def written_end(folder: str) -> int:
    """Returns where the last segment ends now, acknowledged or not."""
    start = last_start(folder)
    return _end_of(Segment(_path(folder, start), start, start, _size(folder, start)))


def _starts(folder: str) -> list[int]:
    try:
        with os.scandir(folder) as items:
            return [int(match[1]) for item in items if (match := _LOG.fullmatch(item.name))]
    except FileNotFoundError:
        return []


def _path(folder: str, start: int) -> str:
    return f"{folder}/{start:020}.log"


def _size(folder: str, start: int) -> int:
    """Returns 0 if the file is gone or empty."""
    try:
        return os.stat(_path(folder, start)).st_size
    except FileNotFoundError:
        return 0


def sync(segment: Segment) -> None:
    """Returns once the file is on the disk, as far as this machine can tell. A topic may promise its messages only
    then, and the server closes a segment a moment before it syncs it."""
    try:
        handle = os.open(segment.path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fdatasync(handle)
    except OSError as error:
        if error.errno not in READ_ONLY_ERRORS:
            raise
    finally:
        os.close(handle)


# ---------------------------------------------------------------------------------------------------------- their index


def index_entries(segment: Segment) -> Array:
    """Returns the batches of a segment from its index, or, if there is no valid index, by walking from header to
    header."""
    found = _index(segment)
    return _walk(segment) if found is None else found


def _index(segment: Segment) -> Array | None:
    try:
        with open(f"{segment.path.removesuffix('.log')}.index", "rb") as file:
            return log_index.decode(file.read(), segment.start, segment.size)
    except FileNotFoundError:
        return None


def _walk(segment: Segment) -> Array:
    """Stops at the first invalid header; the reader finds out what is wrong with it."""
    found = []
    position = 0
    with contextlib.suppress(FileNotFoundError), open(segment.path, "rb") as file:
        while len(head := os.pread(file.fileno(), HEADER_BYTES, position)) == HEADER_BYTES:
            _, base, timestamp, _, length, _, count = HEADER.unpack_from(head)
            stored = stored_length(memoryview(head))
            is_whole = HEADER_BYTES < stored <= segment.size - position
            if not is_whole or not HEADER_BYTES + count * FRAME_BYTES < length < 2**32 or base >= 2**63:
                break
            found.append((base, position, timestamp, length, count, stored))
            position += stored
    return np.array(found, dtype=log_index.ENTRY)


def _end_of(segment: Segment) -> int:
    found = index_entries(segment)
    return int(found["offset"][-1]) + int(found["count"][-1]) if len(found) else segment.start


def offset_at(found: Sequence[Segment], timestamp_us: int) -> int | None:
    """Returns the offset of the first batch appended at this time or later, or None if these segments have none."""
    return log_index.offset_at(found, timestamp_us, _first_timestamp, index_entries)


def _first_timestamp(segment: Segment) -> int:
    try:
        with open(segment.path, "rb") as file:
            head = file.read(HEADER.size)
    except FileNotFoundError:
        return 0
    return int(HEADER.unpack(head)[2]) if len(head) == HEADER.size else 0
