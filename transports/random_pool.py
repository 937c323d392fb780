"""Random bytes for the ids of messages, drawn from the operating system many at a time.

A system call for each id would be a large part of the cost of a small message. Any thread may use this: taking a piece
from a list is one step.
"""

from __future__ import annotations

import os

PIECE_BYTES = 16
DRAWN_BYTES = 4096

_pieces: list[bytes] = []
# The child of a fork must not give out the same bytes as its parent.
os.register_at_fork(after_in_child=_pieces.clear)


def random_bytes(size: int) -> bytes:
    """Does the same as `os.urandom`; ids of one message are cheap."""
    if size != PIECE_BYTES:
        return os.urandom(size)
    while True:
        try:
            return _pieces.pop()
        except IndexError:
            drawn = os.urandom(DRAWN_BYTES)
            _pieces.extend([drawn[i : i + PIECE_BYTES] for i in range(0, DRAWN_BYTES, PIECE_BYTES)])
