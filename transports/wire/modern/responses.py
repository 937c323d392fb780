"""Responses to 0.9 clients as bytes, where they differ from the classic ones.

The server encodes, our own client decodes. The section of results at the beginning of most of them is in `frames`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from whippet.app.commands import responses
from whippet.app.errors import Code, CommandError
from whippet.storage.batch import Readable
from whippet.transports.wire.classic import responses as classic
from whippet.transports.wire.classic.frames import SEND_MESSAGES
from whippet.transports.wire.modern import polls, sends, tlv
from whippet.transports.wire.modern.requests import CLIENT_BYTES
from whippet.transports.wire.permissions import PERMISSIONS_OF_USER
from whippet.transports.wire.primitives import (
    NAME,
    STATUS,
    STR32,
    U8,
    U32,
    U64,
    Part,
    Reader,
    counted,
    followed,
    repeated,
    structure,
    u32,
)

POLLS = frozenset({100, 104})
NO_OPTIONS = followed(tlv.SIZED, ())
"""Follows what could have options and has none."""

_SHOWN_COMPRESSIONS = {1: 1, classic.GZIP: classic.GZIP, classic.ZSTD: classic.GZIP}
COMPRESSION = Part(U8.read, lambda algorithm: U8.write(_SHOWN_COMPRESSIONS.get(algorithm, 1)))
"""As in classic responses. A document may have another number, which is none."""

STREAM = NO_OPTIONS(classic.STREAM)
TOPIC = structure(
    partial(responses.TopicInfo, replication_factor=1),
    id=U32,
    created_at=U64,
    partitions_count=U32,
    message_expiry=U64,
    compression_algorithm=COMPRESSION,
    max_topic_size=U64,
    size_bytes=U64,
    messages_count=U64,
    name=NAME,
    explicit=tlv.SIZED,
    derived=tlv.SIZED,
)
STREAM_DETAILS = classic.times(STREAM, "topics_count", TOPIC, responses.StreamDetails, "topics")
TOPIC_DETAILS = classic.times(TOPIC, "partitions_count", classic.PARTITION, responses.TopicDetails, "partitions")

USER = NO_OPTIONS(structure(responses.UserInfo, id=U32, created_at=U64, status=STATUS, username=NAME))
USER_DETAILS = structure(responses.UserDetails, info=USER, permissions=PERMISSIONS_OF_USER)

OCTETS = Part(lambda reader: bytes(reader.sized()), lambda octets: u32(len(octets)) + octets)
OPTION = structure(responses.OptionDescription, key=NAME, kind=U8, default=OCTETS, description=STR32)
CLIENT = Part(lambda reader: bytes(reader.take(CLIENT_BYTES)), lambda client: client)
ROUTING = structure(responses.Routing, client=CLIENT, number=U64, watermark=U64, node=classic.NODE)

LAYOUTS: dict[int, Part] = classic.LAYOUTS | {
    10: classic.STATS,
    13: counted(U32, OPTION),
    31: USER_DETAILS,
    32: repeated(USER),
    33: USER_DETAILS,
    103: ROUTING,
    123: ROUTING,
    200: STREAM_DETAILS,
    201: repeated(STREAM),
    202: STREAM_DETAILS,
    300: TOPIC_DETAILS,
    301: counted(U32, TOPIC),
    302: TOPIC_DETAILS,
    606: structure(responses.GroupAssignment, generation=U64, partitions=counted(U32, U32)),
}
LISTS = frozenset({22, 32, 41, 201, 301, 601})
"""An empty result is an empty list."""


def encode(code: int, answer: Any) -> list[Readable]:
    """Returns the body of a reply as buffers; none for an empty one."""
    if answer is None:
        return []
    if code in POLLS:
        return polls.encode(answer)
    if code == SEND_MESSAGES:
        return sends.encode_response(answer)
    layout = LAYOUTS.get(code)
    if layout is None:
        return []
    body = layout.write(answer)
    return [body] if body else []


def decode(code: int, body: memoryview) -> Any:
    """Returns what our own client makes of the body of a success."""
    if code in POLLS:
        return polls.decode(body)
    if code == SEND_MESSAGES:
        return sends.decode_response(body)
    layout = LAYOUTS.get(code)
    if layout is None:
        return None
    if not body:
        return () if code in LISTS else None
    reader = Reader(body)
    answer = layout.read(reader)
    if not reader.at_end:
        raise CommandError(Code.INVALID_FORMAT, f"{len(body) - reader.position} bytes follow the response to {code}")
    return answer
