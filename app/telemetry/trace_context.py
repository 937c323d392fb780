"""W3C trace context: the header `traceparent` of HTTP requests and of messages (www.w3.org/TR/trace-context).

A producer that is traced puts it into the headers of its messages, or sends it as a header of its request, from which
it gets into the messages. So a consumer finds it in either case.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from whippet.storage.batch import Message, Readable, Writable, build, messages

NAME = b"traceparent"
STRING = 2
"""The kind of a text in the block of user headers."""
_FORM = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?", re.ASCII
)
_PART = struct.Struct("<BI")
CONTEXT_BYTES = len(NAME) + 2 * _PART.size
"""What the context takes in the headers of a message, besides its text."""
TEXT_BYTES_MAX = 255


class TraceContext(NamedTuple):
    trace_id: bytes
    span_id: bytes
    is_sampled: bool
    text: bytes
    """As it was given."""


def parse(given: bytes | None) -> TraceContext | None:
    """Returns None for what is missing or malformed, which the specification wants to be ignored."""
    found = None if given is None else _FORM.fullmatch(given)
    if found is None or given is None or len(given) > TEXT_BYTES_MAX or (given[:2] == b"00" and len(given) != 55):
        return None
    return TraceContext(
        bytes.fromhex(found[1].decode()), bytes.fromhex(found[2].decode()), bool(int(found[3], 16) & 1), given
    )


def of_batches(batches: Sequence[Readable]) -> TraceContext | None:
    """The context in the headers of the first message, if it has one."""
    if not batches:
        return None
    first = next(messages(batches[0]), None)
    return None if first is None or not first.user_headers else parse(_value(first.user_headers))


def carried(batches: Sequence[Readable], context: TraceContext, headers_max: int) -> tuple[Writable, ...]:
    """The same messages with the context in the headers of those that have none of their own, and room for it. The
    batches must be valid."""
    return tuple(
        build([_with_context(message, context, headers_max) for message in _messages(batch)], 0, os.urandom)
        for batch in batches
    )


def _messages(batch: Readable) -> Iterator[Message]:
    for each in messages(batch):
        yield Message(bytes(each.payload), each.id, bytes(each.user_headers), each.origin_timestamp)


def _with_context(message: Message, context: TraceContext, headers_max: int) -> Message:
    added = _PART.pack(STRING, len(NAME)) + NAME + _PART.pack(STRING, len(context.text)) + context.text
    block = message.user_headers
    position = 0
    if len(block) + len(added) > headers_max:
        return message
    for kind, key, _, start in _entries(block):
        if start < 0 or (kind, key) == (STRING, NAME):
            # It is encrypted by the client, or has a context.
            return message
        if (kind, key) < (STRING, NAME):
            position = _end(block, start)
    return Message(message.payload, message.id, block[:position] + added + block[position:], message.origin_timestamp)


def _value(block: Readable) -> bytes | None:
    return next(
        (value for kind, key, value, start in _entries(block) if start >= 0 and (kind, key) == (STRING, NAME)), None
    )


def _entries(block: Readable) -> Iterator[tuple[int, bytes, bytes, int]]:
    """Yields kind, key, value and position. The position is -1 where the block cannot be understood; then it ends."""
    position = 0
    while position < len(block):
        start, parts = position, []
        for _ in range(2):
            if len(block) - position < _PART.size:
                yield 0, b"", b"", -1
                return
            kind, length = _PART.unpack_from(block, position)
            position += _PART.size
            if length > len(block) - position:
                yield 0, b"", b"", -1
                return
            parts.append((kind, bytes(block[position : position + length])))
            position += length
        yield parts[0][0], parts[0][1], parts[1][1], start


def _end(block: Readable, start: int) -> int:
    """The end of the entry that starts here."""
    for _ in range(2):
        start += _PART.size + _PART.unpack_from(block, start)[1]
    return start
