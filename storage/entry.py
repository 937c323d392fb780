"""A batch that has got its place in a log."""

from __future__ import annotations

import msgspec

from whippet.storage.batch import Frames, Readable


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A stamped batch on its way to the disk."""

    batch: Readable
    base_offset: int
    next_offset: int
    timestamp: int
    frames: Frames
