"""Reads a range of messages from one segment file: what a task does with from=files and from=all.

The file is read in large pieces, every checksum is compared, and the columns of all batches in a piece are built at
once. The file may be gone or damaged by the time the task reads it. What is missing is then fetched from the gateway,
or, without that fallback, reported as data loss.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pyspark_whippet import batches
from pyspark_whippet.batches import HEADER, HEADER_BYTES, BadBatch, Messages
from pyspark_whippet.errors import DataLossError, OptionError
from pyspark_whippet.gateway_reader import Split, gaps, messages_between, read_pages, report_loss
from pyspark_whippet.hashes import xxh3
from pyspark_whippet.segments import Segment, index_entries
from pyspark_whippet.session import session_of
from pyspark_whippet.settings import Settings

_log = logging.getLogger(__name__)
PIECE_BYTES = 4 * 1024 * 1024


@dataclass
class FileSplit(Split):
    """Messages that one task reads from this file."""

    segment: Segment
    has_fallback: bool
    """Whether the task may fetch missing messages from the gateway."""


def read_segment(settings: Settings, split: FileSplit) -> Iterator[Messages]:
    """Yields all messages of the split, in pages."""
    at = split.start
    for found in _readable(settings, split):
        page = messages_between(found, at, split.end)
        if not len(page):
            continue
        for start, end in gaps(at, page):
            yield from _missing(settings, split, start, end)
        at = int(page.offsets[-1]) + 1
        yield page
    if at < split.end:
        yield from _missing(settings, split, at, split.end)


def _missing(settings: Settings, split: FileSplit, start: int, end: int) -> Iterator[Messages]:
    if split.has_fallback:
        yield from read_pages(session_of(settings.access), settings, Split(split.topic, split.partition, start, end))
    else:
        report_loss(settings, split, start, end, f"it is not in {split.segment.path}")


def _readable(settings: Settings, split: FileSplit) -> Iterator[Messages]:
    """Yields the messages of undamaged batches. Damage is logged, or raised if nothing may be lost."""
    position, until = _byte_range(split)
    while position < until:
        try:
            for found, end in _read_pieces(split, position, until):
                yield found
                position = end
        except BadBatch as bad:
            place = f"{split.segment.path} at position {bad.position}"
            if not split.has_fallback and settings.fail_on_data_loss:
                raise DataLossError(
                    f"{place} is damaged: {bad.reason}; set failOnDataLoss=false to skip what cannot be read"
                ) from None
            _log.warning("%s is damaged: %s", place, bad.reason)
            position = _next_after(split.segment, bad.position)
        except FileChanged as changed:
            if not split.has_fallback and settings.fail_on_data_loss:
                raise DataLossError(f"{changed}; set failOnDataLoss=false to continue without it") from None
            _log.warning("%s", changed)
            return
        else:
            return


class FileChanged(Exception):
    """A file that has changed since the job was planned."""


def _read_pieces(split: FileSplit, position: int, until: int) -> Iterator[tuple[Messages, int]]:
    """Yields messages from a position on, each time with the position after them."""
    if xxh3 is None:
        raise OptionError("option 'from': tasks need the package xxhash to check the files that they read")
    segment = split.segment
    try:
        handle = os.open(segment.path, os.O_RDONLY)
    except FileNotFoundError:
        raise FileChanged(f"{segment.path} has been deleted since the job was planned") from None
    try:
        size = os.fstat(handle).st_size
        if size != segment.size:
            raise FileChanged(f"{segment.path} has {size} bytes; it had {segment.size} when the job was planned")
        os.posix_fadvise(handle, position, until - position, os.POSIX_FADV_SEQUENTIAL)
        room = bytearray(PIECE_BYTES)
        while position < until:
            view = _read(handle, room, position, until)
            if len(view) < (needed := _first_batch_bytes(view, position, until)):
                room = bytearray(needed)
                continue
            if HEADER.unpack_from(view)[0] != split.partition:
                raise BadBatch(position, f"a batch belongs to another partition than {split.partition}")
            whole = batches.complete_bytes(view)
            try:
                yield batches.decode(view[:whole], xxh3), position + whole
            except BadBatch as bad:
                if bad.position:
                    yield batches.decode(view[: bad.position], xxh3), position + bad.position
                raise BadBatch(position + bad.position, bad.reason) from None
            position += whole
    finally:
        os.close(handle)


def _read(handle: int, room: bytearray, position: int, end: int) -> memoryview:
    wanted = min(len(room), end - position)
    filled = 0
    with memoryview(room) as whole:
        while filled < wanted:
            try:
                more = os.preadv(handle, [whole[filled:wanted]], position + filled)
            except OSError as error:
                raise BadBatch(position, f"it cannot be read: {error.strerror}") from None
            if not more:
                raise BadBatch(position, "the file ends in the middle of a batch")
            filled += more
    return memoryview(room)[:wanted]


def _first_batch_bytes(view: memoryview, position: int, until: int) -> int:
    """Returns its length, or raises BadBatch if the length is invalid."""
    if len(view) <= HEADER_BYTES:
        raise BadBatch(position, "the file ends in the middle of a batch")
    length: int = HEADER.unpack_from(view)[4]
    if not HEADER_BYTES < length <= until - position:
        raise BadBatch(position, "the length of a batch is invalid")
    return length


# ---------------------------------------------------------------------------------------------- where to read in a file


def _byte_range(split: FileSplit) -> tuple[int, int]:
    """Returns the positions of the batch with the first message, and of the one after the last."""
    segment = split.segment
    if (split.start, split.end) == (segment.start, segment.end):
        return 0, segment.size
    found = index_entries(segment)
    starts = found["position"].astype(np.int64)
    # Where the index ends before the file does, the rest is read as well: it may turn out to be damaged.
    end = int(starts[-1]) + int(found["length"][-1]) if len(found) else 0
    first = int(np.searchsorted(found["offset"].astype(np.int64) + found["count"], split.start, side="right"))
    last = int(np.searchsorted(found["offset"], split.end))
    start = int(starts[first]) if first < len(found) else end
    return start, int(starts[last]) if last < len(found) else segment.size


def _next_after(segment: Segment, position: int) -> int:
    """Returns the start of the next batch in the index."""
    found = index_entries(segment)["position"]
    place = int(np.searchsorted(found, position, side="right"))
    return int(found[place]) if place < len(found) else segment.size
