"""Random bytes and ids for messages, drawn from the operating system many at a time.

A system call for each id would be a large part of the cost of a small message. Any thread may use this: taking a piece
from a list is one step.
"""

from __future__ import annotations

import os

PIECE_BYTES = 16
DRAWN_BYTES = 4096
_VERSION_AT, _VARIANT_AT = 6, 8
_VERSION = bytes(octet & 0x0F | 0x40 for octet in range(256))
_VARIANT = bytes(octet & 0x3F | 0x80 for octet in range(256))

_pieces: list[bytes] = []
_uuids: list[bytes] = []
# The child of a fork must not give out the same bytes as its parent.
os.register_at_fork(after_in_child=_pieces.clear)
os.register_at_fork(after_in_child=_uuids.clear)


def random_bytes(size: int) -> bytes:
    """Does the same as `os.urandom`; ids of one message are cheap."""
    if size != PIECE_BYTES:
        return os.urandom(size)
    while True:
        try:
            return _pieces.pop()
        except IndexError:
            _pieces.extend(_pieces_of(os.urandom(DRAWN_BYTES)))


def random_uuid() -> bytes:
    """Returns a UUID of version 4."""
    while True:
        try:
            return _uuids.pop()
        except IndexError:
            drawn = bytearray(os.urandom(DRAWN_BYTES))
            for at, made in ((_VERSION_AT, _VERSION), (_VARIANT_AT, _VARIANT)):
                drawn[at::PIECE_BYTES] = drawn[at::PIECE_BYTES].translate(made)
            _uuids.extend(_pieces_of(bytes(drawn)))


def _pieces_of(drawn: bytes) -> list[bytes]:
    return [drawn[at : at + PIECE_BYTES] for at in range(0, DRAWN_BYTES, PIECE_BYTES)]
