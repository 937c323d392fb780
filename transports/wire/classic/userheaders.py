"""The two layouts of the user headers inside a message. They are stored in that of 0.7; in that of 0.6 keys have no
kind.

    0.7, 0.8:   key kind u8, key length u32, key, value kind u8, value length u32, value, and again
    0.6:                     key length u32, key, value kind u8, value length u32, value, and again

The server does not interpret them, so a block that does not match its layout exactly is passed on unchanged.
"""

from __future__ import annotations

import struct

from whippet.storage.batch import Readable

STRING = 2
_LENGTH = struct.Struct("<I")
_KIND_AND_LENGTH = struct.Struct("<BI")
_KIND_OF_KEY = bytes((STRING,))
_KINDS = range(1, 16)


def from_short(block: Readable, room: int) -> Readable:
    """Returns a block of a 0.6 client as it is stored, if the result has at most `room` bytes."""
    parts: list[Readable] = []
    position = 0
    size = len(block)
    while position < size:
        end = _entry_end(block, position)
        if end is None:
            return block
        parts += (_KIND_OF_KEY, block[position:end])
        position = end
    return b"".join(parts) if size + len(parts) // 2 <= room else block


def to_short(block: Readable) -> Readable:
    """Returns a stored block as a 0.6 client reads it. Such a client only knows keys that are strings."""
    parts = []
    position = 0
    while position < len(block):
        end = _entry_end(block, position + 1) if block[position] == STRING else None
        if end is None:
            return block
        parts.append(block[position + 1 : end])
        position = end
    return b"".join(parts)


def _entry_end(block: Readable, position: int) -> int | None:
    """Returns where the entry ends whose key length is at a position, if there is one."""
    size = len(block)
    if size - position < 4:
        return None
    (key,) = _LENGTH.unpack_from(block, position)
    position += 4 + key
    if not 0 < key <= 255 or size - position < 5:
        return None
    kind, value = _KIND_AND_LENGTH.unpack_from(block, position)
    position += 5 + value
    return position if 0 < value <= 255 and kind in _KINDS and position <= size else None
