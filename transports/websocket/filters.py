"""Encodes the messages for a topic's subscribers, once for all of them, whatever their filters are.

1. A piece of a topic is read, decoded and encoded as JSON once. If any subscriber filters, an index maps each user
   header's key, and each key with its value, to the messages that have it. So another filter costs a lookup and a copy
   of what it finds, but does not look at any message.
2. A piece has two forms: all messages without an index, and the messages with user headers with one. No filter selects
   a message without user headers.
3. Nothing that a client has chosen is kept here: the index has keys and values of messages, and is dropped with its
   piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import msgspec

from whippet.app.shared_feeds import Encode, Part, Position
from whippet.storage.batch import Readable
from whippet.transports import offload
from whippet.transports.http.forms.batch_decoder import iterate_messages
from whippet.transports.http.forms.events import TailedMessage
from whippet.transports.http.forms.user_headers import PART_BYTES_MAX, HeaderEntry, Outgoing

NUMBER_BITS_MAX = 128
INDEX_ENTRY_BYTES = 300
"""The approximate size of an index entry."""
HEADER_BYTES_MIN = 12
"""The least size of a user header: five bytes for the length and the kind of each part, and the parts."""
_encode = msgspec.json.Encoder().encode

Selector = tuple[bytes, str, bytes | int | None]
"""The key of a user header, the kind of its value, and the value."""
ANY, TEXT, FLAG, NUMBER = "any", "text", "flag", "number"


class Filter(msgspec.Struct, frozen=True):
    header: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    """Selects messages that have a user header with this key."""
    value: str | int | bool | None = None
    """And with this value."""
    key: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    """Selects the partition that messages with this key are sent to, including its other messages."""

    def __post_init__(self) -> None:
        value = self.value
        if value is not None and self.header is None:
            raise ValueError("`value` needs `header`")
        for name, text in (("header", self.header), ("value", value), ("key", self.key)):
            size = len(text.encode()) if isinstance(text, str) else 0
            if size > PART_BYTES_MAX:
                raise ValueError(f"`{name}` has {size} bytes, and no message has one of more than {PART_BYTES_MAX}")
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if is_number and not -(2 ** (NUMBER_BITS_MAX - 1)) <= value < 2**NUMBER_BITS_MAX:
            raise ValueError(f"`value` is a number that needs more than {NUMBER_BITS_MAX} bits, and no message has one")

    @property
    def selector(self) -> Selector | None:
        """What to look up in the index of a piece; None selects all messages."""
        if self.header is None:
            return None
        key, value = self.header.encode(), self.value
        if value is None:
            return key, ANY, None
        if isinstance(value, bool):
            return key, FLAG, bytes((value,))
        return (key, NUMBER, value) if isinstance(value, int) else (key, TEXT, value.encode())


def _selectors(entry: HeaderEntry) -> Iterator[Selector]:
    """Yields all selectors that match a message with this user header. A text matches strings and raw bytes; a number
    matches any kind of integer."""
    key, kind, octets = entry.key.value, entry.value.kind, entry.value.value
    yield key, ANY, None
    if kind in ("string", "raw"):
        yield key, TEXT, octets
    elif kind == "bool":
        yield key, FLAG, octets
    elif kind.startswith(("int", "uint")):
        yield key, NUMBER, int.from_bytes(octets, "little", signed=kind[0] == "i")


class EncodedPiece:
    """The messages of a piece as JSON, one after the other, with their index."""

    __slots__ = ("_index", "_joined", "_joined_bytes", "cuts", "gaps", "octets", "start")

    def __init__(
        self,
        start: Position,
        items: Sequence[bytes],
        ends: Sequence[tuple[int, int]],
        gaps: Sequence[tuple[int, int, int]],
        index: dict[Selector, list[int]],
    ) -> None:
        """`ends` has, for each message, the index of its partition in the feed, and the offset after it."""
        self.start = start
        self.octets = b",".join(items)
        self.gaps = gaps
        """Missing messages: before which message, in which partition, and how many."""
        end = -1
        cuts = []
        for item, (of, next_offset) in zip(items, ends, strict=True):
            end += len(item) + 1
            cuts.append((end, of, next_offset))
        self.cuts: Sequence[tuple[int, int, int]] = cuts
        """For each message: where its JSON ends, the index of its partition in the feed, and the offset after it."""
        self._index = index
        self._joined: dict[Selector, bytes] = {}
        self._joined_bytes = 0

    def __len__(self) -> int:
        return len(self.octets) + INDEX_ENTRY_BYTES * len(self._index)

    def matching(self, selector: Selector | None) -> Sequence[int]:
        """Returns the numbers of the matching messages in this piece."""
        return range(len(self.cuts)) if selector is None else self._index.get(selector, ())

    def joined(self, selector: Selector | None, numbers: Sequence[int]) -> Readable:
        """Returns the JSON of these messages, which are all that match, or the first of them."""
        if selector is None:
            is_whole = len(numbers) == len(self.cuts)
            return self.octets if is_whole else memoryview(self.octets)[: self.cuts[len(numbers) - 1][0]]
        if len(numbers) < len(self._index[selector]):
            return self._join(numbers)
        found = self._joined.get(selector)
        if found is None:
            found = self._join(numbers)
            if self._joined_bytes + len(found) <= len(self.octets):
                # Other subscribers may have the same filter; many different filters must not fill the memory with
                # copies.
                self._joined[selector] = found
                self._joined_bytes += len(found)
        return found

    def _join(self, numbers: Sequence[int]) -> bytes:
        octets, cuts = memoryview(self.octets), self.cuts
        return b",".join([octets[cuts[i - 1][0] + 1 if i else 0 : cuts[i][0]] for i in numbers])


def encoder(numbers: tuple[int, ...], *, is_indexed: bool) -> Encode[EncodedPiece]:
    """Returns the encoder for the partitions with these numbers."""
    make = _indexed if is_indexed else _whole

    async def encode(position: Position, parts: Sequence[Part]) -> EncodedPiece:
        size = sum(part.size for part in parts)
        return await offload.call(size, size // HEADER_BYTES_MIN, make, numbers, position, parts)

    return encode


def _whole(numbers: tuple[int, ...], position: Position, parts: Sequence[Part]) -> EncodedPiece:
    return _made(numbers, position, parts, lambda headers, number: True)


def _indexed(numbers: tuple[int, ...], position: Position, parts: Sequence[Part]) -> EncodedPiece:
    index: dict[Selector, list[int]] = {}

    def note(headers: Outgoing, number: int) -> bool:
        if not headers or isinstance(headers, str):
            return False
        for entry in headers:
            for selector in _selectors(entry):
                found = index.setdefault(selector, [])
                if not found or found[-1] != number:
                    found.append(number)
        return True

    return _made(numbers, position, parts, note, index)


def _made(
    numbers: tuple[int, ...],
    position: Position,
    parts: Sequence[Part],
    is_wanted: Callable[[Outgoing, int], bool],
    index: dict[Selector, list[int]] | None = None,
) -> EncodedPiece:
    """`is_wanted` gets the user headers of each message, and the number that the message will have in the piece."""
    items: list[bytes] = []
    ends: list[tuple[int, int]] = []
    gaps: list[tuple[int, int, int]] = []
    for part in parts:
        number, expected = numbers[part.of], position[part.of]
        for message in iterate_messages(part.buffers):
            offset = message.header.offset
            if offset > expected:
                gaps.append((len(items), part.of, offset - expected))
            expected = offset + 1
            if is_wanted(message.user_headers, len(items)):
                items.append(_encode(TailedMessage(number, message.header, message.payload, message.user_headers)))
                ends.append((part.of, expected))
    return EncodedPiece(position, items, ends, gaps, {} if index is None else index)
