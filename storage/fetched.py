"""The result of a read, as a value."""

from __future__ import annotations

from typing import NamedTuple

from whippet.storage import batch as batches


class Fetched(NamedTuple):
    """The result of a read: whole batches, and at either end perhaps a slice of one, as they are sent to clients."""

    buffers: list[batches.Readable]
    """Batches back to back: a buffer may have several, and a batch may be in two, its header and its frames."""
    messages: int
    next_offset: int
    """Where to continue reading: after the last message, and after anything damaged that was skipped."""
