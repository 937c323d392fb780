"""Reads a range of messages from one segment file: what a task does with from=files and from=all.

The file may be gone or damaged by the time the task reads it. What is missing is then fetched from the gateway, or,
without that fallback, reported as data loss.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

from pyspark_whippet import stored_log
from pyspark_whippet.batches import Array, BadBatch, Messages
from pyspark_whippet.gateway_reader import Split, read_pages, report_loss
from pyspark_whippet.packed_batches import Opener
from pyspark_whippet.segments import Segment, index_entries
from pyspark_whippet.session import session_of
from pyspark_whippet.settings import Settings
from pyspark_whippet.stored_log import LogChanged, Read


@dataclass
class FileSplit(Split):
    """Messages that one task reads from this file."""

    segment: Segment
    has_fallback: bool
    """Whether the task may fetch missing messages from the gateway."""
    context: bytes | None
    """What encrypted batches are bound to, if it is known."""


def read_segment(settings: Settings, split: FileSplit) -> Iterator[Messages]:
    """Yields all messages of the split, in pages."""

    def missing(start: int, end: int, why: str) -> Iterator[Messages]:
        if split.has_fallback:
            part = Split(split.topic, split.partition, start, end, epoch=split.epoch)
            yield from read_pages(session_of(settings.access), settings, part)
        else:
            report_loss(settings, split, start, end, why)

    opener = Opener(settings.keys, split.context)
    log = _SegmentFile(split.segment)
    return stored_log.read(settings, split, log, opener, missing, has_fallback=split.has_fallback)


class _SegmentFile:
    """A segment as a StoredLog."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self.name = segment.path
        self.start, self.end = segment.start, segment.end
        self.position, self.until = 0, segment.size

    def entries(self) -> Array:
        return index_entries(self._segment)

    @contextlib.contextmanager
    def reading(self, position: int) -> Iterator[Read]:
        segment = self._segment
        try:
            handle = os.open(segment.path, os.O_RDONLY)
        except FileNotFoundError:
            raise LogChanged(f"{segment.path} has been deleted since the job was planned") from None
        room = bytearray()

        def read(position: int, length: int) -> memoryview:
            nonlocal room
            if len(room) < length:
                room = bytearray(length)
            return _read(handle, room, position, length)

        try:
            size = os.fstat(handle).st_size
            if size != segment.size:
                raise LogChanged(f"{segment.path} has {size} bytes; it had {segment.size} when the job was planned")
            os.posix_fadvise(handle, position, segment.size - position, os.POSIX_FADV_SEQUENTIAL)
            yield read
        finally:
            os.close(handle)


def _read(handle: int, room: bytearray, position: int, wanted: int) -> memoryview:
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
