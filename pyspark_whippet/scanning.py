"""Reading a range of messages out of one segment: what a task does where `from` is files or all.

Large pieces of the file are read, every checksum in them is compared, and columns are made of all batches of a piece at
once. The file may be gone or damaged by the time a task comes to it: what it lacks is asked of the gateway if that is
wanted, else it is loss, and named.
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
from pyspark_whippet.hashes import xxh3
from pyspark_whippet.reading import Slice, gaps, lost, pages, within
from pyspark_whippet.segments import Segment, entries
from pyspark_whippet.session import session_of
from pyspark_whippet.settings import Settings

_log = logging.getLogger(__name__)
PIECE_BYTES = 4 * 1024 * 1024


@dataclass
class FileSlice(Slice):
    """A task's share: these messages are in that file."""

    segment: Segment
    asks: bool
    """The gateway, for what is not there any more."""


def scanned(settings: Settings, share: FileSlice) -> Iterator[Messages]:
    """All messages of the share, in pages."""
    at = share.start
    for found in _found(settings, share):
        page = within(found, at, share.end)
        if not len(page):
            continue
        for start, end in gaps(at, page):
            yield from _missing(settings, share, start, end)
        at = int(page.offsets[-1]) + 1
        yield page
    if at < share.end:
        yield from _missing(settings, share, at, share.end)


def _missing(settings: Settings, share: FileSlice, start: int, end: int) -> Iterator[Messages]:
    if share.asks:
        yield from pages(session_of(settings.access), settings, Slice(share.topic, share.partition, start, end))
    else:
        lost(settings, share, start, end, f"it is not in {share.segment.path}")


def _found(settings: Settings, share: FileSlice) -> Iterator[Messages]:
    """What is whole; what is not is told, and is an error if it must not be missing."""
    position, until = _place(share)
    while position < until:
        try:
            for found, end in _pieces(share, position, until):
                yield found
                position = end
        except BadBatch as bad:
            place = f"{share.segment.path} at position {bad.position}"
            if not share.asks and settings.fail_on_data_loss:
                raise DataLossError(
                    f"{place} is damaged: {bad.reason}; set failOnDataLoss=false to skip what cannot be read"
                ) from None
            _log.warning("%s is damaged: %s", place, bad.reason)
            position = _next_after(share.segment, bad.position)
        except Changed as changed:
            if not share.asks and settings.fail_on_data_loss:
                raise DataLossError(f"{changed}; set failOnDataLoss=false to go on without it") from None
            _log.warning("%s", changed)
            return
        else:
            return


class Changed(Exception):
    """A file that is not what it was when it was planned to be read."""


def _pieces(share: FileSlice, position: int, until: int) -> Iterator[tuple[Messages, int]]:
    """Messages from a position on, and the position after them."""
    if xxh3 is None:
        raise OptionError("option 'from': files are checked as they are read, which needs the package xxhash in tasks")
    segment = share.segment
    try:
        handle = os.open(segment.path, os.O_RDONLY)
    except FileNotFoundError:
        raise Changed(f"{segment.path} has been deleted since the job was planned") from None
    try:
        size = os.fstat(handle).st_size
        if size != segment.size:
            raise Changed(f"{segment.path} has {size} bytes, and had {segment.size} when the job was planned")
        os.posix_fadvise(handle, position, until - position, os.POSIX_FADV_SEQUENTIAL)
        room = bytearray(PIECE_BYTES)
        while position < until:
            view = _read(handle, room, position, until)
            if len(view) < (needed := _first_batch(view, position, until)):
                room = bytearray(needed)
                continue
            if HEADER.unpack_from(view)[0] != share.partition:
                raise BadBatch(position, f"a batch of another partition than {share.partition}")
            whole = batches.whole(view)
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


def _first_batch(view: memoryview, position: int, until: int) -> int:
    """How long it is; BadBatch if it cannot be that."""
    if len(view) <= HEADER_BYTES:
        raise BadBatch(position, "the file ends in the middle of a batch")
    length: int = HEADER.unpack_from(view)[4]
    if not HEADER_BYTES < length <= until - position:
        raise BadBatch(position, "there is no batch that the file has room for")
    return length


# ---------------------------------------------------------------------------------------------- where to read in a file


def _place(share: FileSlice) -> tuple[int, int]:
    """From the batch with the first message to the one after the last."""
    segment = share.segment
    if (share.start, share.end) == (segment.start, segment.end):
        return 0, segment.size
    found = entries(segment)
    starts = found["position"].astype(np.int64)
    # Where the index ends before the file does, what is there is looked at, and is perhaps found to be damaged.
    end = int(starts[-1]) + int(found["length"][-1]) if len(found) else 0
    first = int(np.searchsorted(found["offset"].astype(np.int64) + found["count"], share.start, side="right"))
    last = int(np.searchsorted(found["offset"], share.end))
    start = int(starts[first]) if first < len(found) else end
    return start, int(starts[last]) if last < len(found) else segment.size


def _next_after(segment: Segment, position: int) -> int:
    """Where the next batch begins that is known of."""
    found = entries(segment)["position"]
    place = int(np.searchsorted(found, position, side="right"))
    return int(found[place]) if place < len(found) else segment.size
