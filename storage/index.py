"""The index of one segment: an entry for each batch, in the order of the log (FORMAT.md, section 4).

An index is a hint. It is built while a segment is written or scanned, kept in a file beside a closed segment, and
dropped whenever it does not match the log. It finds the batch that holds an offset, and the first one at a time, but
does not prove that a batch is intact. Its file has version 1 if all batches are stored as they are, and version 2 if
any of them is packed (packing.py).
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable

import xxhash

from whippet.storage.entry import Entry

MAGIC = b"WHPINDX1"
HEADER = struct.Struct("<8sQQQQ")
"""magic, start offset of the segment, bytes of the log that are described, number of entries, checksum"""
ENTRY_BYTES = 32

MAGIC_2 = b"WHPINDX2"
HEADER_2 = struct.Struct("<8sQQQQIQ")
"""magic, start offset of the segment, bytes of the log that are described, the same with all batches as they were
before they were packed, number of entries, checksum of the fields before it, checksum"""
ENTRY_2_BYTES = 40

_WORDS = 4
_CHECKED = HEADER.size - 8
_HEAD_2 = HEADER_2.size - 12
_CHECKED_2 = HEADER_2.size - 8


class Index:
    """Entries of four words: base offset, position, base timestamp, length + (message count << 32). The length is that
    of the plain batch, as readers get it. If any batch is packed, a second list has the lengths in the log."""

    __slots__ = ("stored", "words")

    def __init__(self, words: array[int] | None = None, stored: array[int] | None = None) -> None:
        self.words = array("Q") if words is None else words
        self.stored = stored

    def __len__(self) -> int:
        return len(self.words) // _WORDS

    def add(
        self, base_offset: int, position: int, base_timestamp: int, length: int, count: int, stored: int | None = None
    ) -> None:
        """Adds a batch of `length` bytes. `stored` is its length in the log if that is another one."""
        if stored is not None or self.stored is not None:
            self._add_stored(length, length if stored is None else stored)
        self.words.extend((base_offset, position, base_timestamp, length | count << 32))

    def add_as_they_are(self, entries: Iterable[Entry], position: int) -> int:
        """Adds batches from a position on, none of them stored in another length. Returns the position after them."""
        words = self.words
        for entry in entries:
            base, length = entry.base_offset, len(entry.batch)
            words.extend((base, position, entry.timestamp, length | (entry.next_offset - base) << 32))
            position += length
        return position

    def _add_stored(self, length: int, stored: int) -> None:
        if self.stored is None and stored != length:
            self.stored = self._all_stored()
        if self.stored is not None:
            self.stored.append(stored)

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

    def stored_length(self, i: int) -> int:
        """The length of a batch in the log."""
        return self.length(i) if self.stored is None else self.stored[i]

    def is_packed(self, i: int) -> bool:
        """Whether a batch is packed: then it never has the same length as the plain one."""
        return self.stored is not None and self.stored[i] != self.length(i)

    def end_position(self, i: int) -> int:
        word = _WORDS * i
        if self.stored is None:
            return self.words[word + 1] + (self.words[word + 3] & 0xFFFFFFFF)
        return self.words[word + 1] + self.stored[i]

    @property
    def saved_bytes(self) -> int:
        """How much longer the log would be if all batches were plain."""
        if self.stored is None:
            return 0
        return sum(self.length(i) for i in range(len(self))) - sum(self.stored)

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

    def part(self, first: int, end: int) -> Index:
        """The entries first .. end-1 as an index of their own."""
        stored = None if self.stored is None else self.stored[first:end]
        return Index(self.words[_WORDS * first : _WORDS * end], stored)

    def extend(self, other: Index) -> None:
        """Adds all entries of another index, whose batches follow."""
        if self.stored is not None or other.stored is not None:
            self.stored = self._all_stored()
            self.stored.extend(other._all_stored())
        self.words.extend(other.words)

    def _all_stored(self) -> array[int]:
        """The lengths in the log of all batches."""
        return array("Q", map(self.length, range(len(self)))) if self.stored is None else self.stored

    def describes_as(self, other: Index) -> bool:
        """Whether another index has the same entries."""
        return self.words == other.words and self._all_stored() == other._all_stored()

    def keep(self, count: int) -> None:
        """Drops all but the first `count` entries."""
        del self.words[_WORDS * count :]
        if self.stored is not None:
            del self.stored[count:]

    def drop(self, i: int) -> None:
        """Drops one entry: its batch cannot be read."""
        del self.words[_WORDS * i : _WORDS * (i + 1)]
        if self.stored is not None:
            del self.stored[i]

    def memory_bytes(self) -> int:
        return 8 * (len(self.words) + len(self.stored or ()))


def encode(index: Index, start_offset: int, log_bytes: int) -> bytes:
    """The content of an index file. It includes the size of the log it describes, so that readers notice changes."""
    if index.stored is not None:
        return _encode_2(index, index.stored, start_offset, log_bytes)
    entries = _little(index.words).tobytes()
    head = HEADER.pack(MAGIC, start_offset, log_bytes, len(index), 0)[:_CHECKED]
    return b"".join((head, xxhash.xxh3_64_intdigest(head + entries).to_bytes(8, "little"), entries))


def _encode_2(index: Index, stored: array[int], start_offset: int, log_bytes: int) -> bytes:
    words = array("Q", bytes(ENTRY_2_BYTES * len(index)))
    for word in range(_WORDS):
        words[word :: _WORDS + 1] = index.words[word::_WORDS]
    words[_WORDS :: _WORDS + 1] = stored
    entries = _little(words).tobytes()
    plain_bytes = log_bytes + index.saved_bytes
    head = HEADER_2.pack(MAGIC_2, start_offset, log_bytes, plain_bytes, len(index), 0, 0)[:_HEAD_2]
    head += _short(head)
    return b"".join((head, xxhash.xxh3_64_intdigest(head + entries).to_bytes(8, "little"), entries))


def _short(head: bytes) -> bytes:
    return xxhash.xxh3_64_intdigest(head).to_bytes(8, "little")[:4]


def entries_in(file_bytes: int) -> int | None:
    """How many entries an index file of this size has; None if the size is invalid."""
    if has_version_2(file_bytes):
        count, rest = divmod(file_bytes - HEADER_2.size, ENTRY_2_BYTES)
    else:
        count, rest = divmod(file_bytes - HEADER.size, ENTRY_BYTES)
    return count if count >= 0 and not rest else None


def has_version_2(file_bytes: int) -> bool:
    """Whether an index file of this size has version 2: all sizes of version 1 are multiples of 8, and none of version
    2 is."""
    return file_bytes % 8 != 0


def plain_bytes_in(head: bytes, start_offset: int, log_bytes: int) -> int | None:
    """What the batches of a segment would have as plain ones, by the first bytes of an index file of version 2; None if
    it is not the index of this segment."""
    if len(head) < HEADER_2.size:
        return None
    magic, start, described, plain_bytes, _, _, _ = HEADER_2.unpack_from(head)
    if (magic, start, described) != (MAGIC_2, start_offset, log_bytes) or head[_HEAD_2:_CHECKED_2] != _short(
        head[:_HEAD_2]
    ):
        return None
    return int(plain_bytes)


def decode(content: bytes, start_offset: int) -> tuple[Index, int] | None:
    """The index and the number of log bytes it describes; None if this is not a complete index of this segment."""
    if content.startswith(MAGIC_2):
        return _decode_2(content, start_offset)
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


def _decode_2(content: bytes, start_offset: int) -> tuple[Index, int] | None:
    if len(content) < HEADER_2.size:
        return None
    _, start, log_bytes, _, count, _, checksum = HEADER_2.unpack_from(content)
    entries = content[HEADER_2.size :]
    if start != start_offset or len(entries) != ENTRY_2_BYTES * count:
        return None
    if xxhash.xxh3_64_intdigest(content[:_CHECKED_2] + entries) != checksum:
        return None
    all_words = array("Q")
    all_words.frombytes(entries)
    all_words = _little(all_words)
    words = array("Q", bytes(ENTRY_BYTES * count))
    for word in range(_WORDS):
        words[word::_WORDS] = all_words[word :: _WORDS + 1]
    return Index(words, all_words[_WORDS :: _WORDS + 1]), log_bytes


def _little(words: array[int]) -> array[int]:
    """Numbers in files are little-endian on any machine."""
    if sys.byteorder == "little":
        return words
    turned = words[:]
    turned.byteswap()
    return turned
