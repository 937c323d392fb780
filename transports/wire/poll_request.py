"""The body of a poll, whose first part is the same in all polls of a consumer.

consumer | stream | topic | partition || strategy u8, value u64 | count u32 | auto-commit u8

Decoding the first four parts takes longer than all the rest, so their values are remembered by their bytes. They are
the same in all wire protocols.
"""

from __future__ import annotations

import struct

from whippet.app.commands.requests import Consumer, Identifier, PollMessages, Strategy
from whippet.transports.wire.primitives import (
    CONSUMER,
    FLAG,
    IDENTIFIER,
    PARTITION,
    STRATEGIES,
    STRATEGY,
    U32,
    VALUED_STRATEGIES,
    Part,
    Reader,
    structure,
)

LAYOUT = {
    "consumer": CONSUMER,
    "stream": IDENTIFIER,
    "topic": IDENTIFIER,
    "partition_id": PARTITION,
    "strategy": STRATEGY,
    "count": U32,
    "auto_commit": FLAG,
}
_END = struct.Struct("<BQIB")
KNOWN_MAX = 1024
_KNOWN_BYTES_MAX = 256
_known: dict[bytes, tuple[Consumer, Identifier, Identifier, int | None]] = {}
_PLAIN = structure(PollMessages, **LAYOUT)


def read(reader: Reader) -> PollMessages:
    beginning_bytes = reader.left - _END.size
    if not 0 < beginning_bytes <= _KNOWN_BYTES_MAX:
        return _read_plain(reader)
    body = reader.rest()
    octets = bytes(body[:beginning_bytes])
    known = _known.get(octets)
    number, value, count, auto_commit = _END.unpack_from(body, beginning_bytes)
    kind = STRATEGIES.get(number)
    if known is None or kind is None:
        again = Reader(body)
        request = _read_plain(again)
        if again.at_end:
            # Otherwise unknown bytes follow the poll, and its end is somewhere else.
            _remember(octets, request)
        return request
    strategy = Strategy(kind, value if kind in VALUED_STRATEGIES else 0)
    return PollMessages(*known, strategy, count, auto_commit != 0)


def known_count() -> int:
    return len(_known)


def _read_plain(reader: Reader) -> PollMessages:
    request: PollMessages = _PLAIN.read(reader)
    return request


def _remember(octets: bytes, request: PollMessages) -> None:
    if len(_known) >= KNOWN_MAX:
        _known.clear()
    _known[octets] = request.consumer, request.stream, request.topic, request.partition_id


POLL = Part(read, _PLAIN.write)
