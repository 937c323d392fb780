"""The index of one segment: an entry for each batch, in the order of the log (FORMAT.md, section 4).

An index is a hint. It is built while a segment is written or scanned, kept in a file beside a closed segment, and
dropped whenever it does not match the log. It finds the batch that holds an offset, and the first one at a time, but
does not prove that a batch is intact.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right

import xxhash

MAGIC = b"WHPINDX1"
HEADER = struct.Struct("<8sQQQQ")
"""magic, start offset of the segment, bytes of the log that are described, number of entries, checksum"""
ENTRY_BYTES = 32

_WORDS = 4
_CHECKED = HEADER.size - 8


class Index:
    """Entries of four words: base offset, position, base timestamp, length + (message count << 32)."""

    __slots__ = ("words",)

    def __init__(self, words: array[int] | None = None) -> None:
        self.words = array("Q") if words is None else words

    def __len__(self) -> int:
        return len(self.words) // _WORDS

    def add(self, base_offset: int, position: int, base_timestamp: int, length: int, count: int) -> None:
        self.words.extend((base_offset, position, base_timestamp, length | count << 32))

    def base_offset(self, i: int) -> int:
        return self.words[_WORDS * i]

    def position(self, i: int) -> int:
        return self.words[_WORDS * i + 1]

    def timestamp(self, i: int) -> int:
        return self.words[_WORDS * i + 2]

    def length(self, i: int) -> int:
        return self.words[_WORDS * i + 3] & 0xFFFFFFFF

    def count(self, i: int) -> int:
        return self.words[_WORDS * i + 3] >> 32

    def end_position(self, i: int) -> int:
        return self.position(i) + self.length(i)

    def next_offset(self, i: int) -> int:
        """The offset after the last message of a batch."""
        return self.base_offset(i) + self.count(i)

    def holding(self, offset: int) -> int:
        """Returns the first batch that ends after an offset: its own, or the next after a gap; len() if none does."""
        i = bisect_right(range(len(self)), offset, key=self.base_offset)
        return i - 1 if i and offset < self.next_offset(i - 1) else i

    def at_time(self, timestamp: int) -> int:
        """The first batch with this base timestamp or a later one; len() if none."""
        return bisect_left(range(len(self)), timestamp, key=self.timestamp)

    def before(self, position: int) -> int:
        """How many batches begin before a position."""
        return bisect_left(range(len(self)), position, key=self.position)

    def keep(self, count: int) -> None:
        """Drops all but the first `count` entries."""
        del self.words[_WORDS * count :]

    def memory_bytes(self) -> int:
        return 8 * len(self.words)


def encode(index: Index, start_offset: int, log_bytes: int) -> bytes:
    """The content of an index file. It includes the size of the log it describes, so that readers notice changes."""
    entries = _little(index.words).tobytes()
    head = HEADER.pack(MAGIC, start_offset, log_bytes, len(index), 0)[:_CHECKED]
    return b"".join((head, xxhash.xxh3_64_intdigest(head + entries).to_bytes(8, "little"), entries))


def entries_in(file_bytes: int) -> int | None:
    """How many entries an index file of this size has; None if the size is invalid."""
    count, rest = divmod(file_bytes - HEADER.size, ENTRY_BYTES)
    return count if count >= 0 and not rest else None


def decode(content: bytes, start_offset: int) -> tuple[Index, int] | None:
    """The index and the number of log bytes it describes; None if this is not a complete index of this segment."""
    if len(content) < HEADER.size:
        return None
    magic, start, log_bytes, count, checksum = HEADER.unpack_from(content)
    entries = content[HEADER.size :]
    if magic != MAGIC or start != start_offset or len(entries) != ENTRY_BYTES * count:
        return None
    if xxhash.xxh3_64_intdigest(content[:_CHECKED] + entries) != checksum:
        return None
    words = array("Q")
    words.frombytes(entries)
    return Index(_little(words)), log_bytes


def _little(words: array[int]) -> array[int]:
    """Numbers in files are little-endian on any machine."""
    if sys.byteorder == "little":
        return words
    turned = words[:]
    turned.byteswap()
    return turned
