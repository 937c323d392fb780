"""Frames: the eight bytes before every request and every response, and the limits on what follows them.

A request says length and code, and its length counts the code; a response says status and length, and its length does
not count the header. A response with a status other than 0 never has anything after its header: clients would take it
for the start of the next response.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from whippet.app.errors import Code
from whippet.storage.batch import Readable

HEADER_BYTES = 8
LENGTH_BYTES = 4
CODE_BYTES = 4
"""What the length of a request counts besides the payload."""
PAYLOAD_BYTES_MAX = 10 * 1024 * 1024
"""Of every request but send_messages, whose limit is the operator's."""
SEND_MESSAGES = 101
GET_CONSUMER_OFFSET = 120
OK = 0

HEADER = struct.Struct("<II")
_U32 = struct.Struct("<I")

EMPTY_SUCCESS = HEADER.pack(OK, 0)


def measure(data: Readable) -> int:
    """How many bytes the frame has that begins here; 0 when there are too few to tell."""
    if len(data) < LENGTH_BYTES:
        return 0
    (length,) = _U32.unpack_from(data)
    if length < CODE_BYTES:
        return LENGTH_BYTES
    return LENGTH_BYTES + int(length) if len(data) >= HEADER_BYTES else 0


def code_of(frame: Readable) -> int:
    return int(_U32.unpack_from(frame, LENGTH_BYTES)[0])


class ResponseHeader(NamedTuple):
    status: int
    payload_bytes: int


def response_header(octets: Readable) -> ResponseHeader:
    return ResponseHeader._make(HEADER.unpack_from(octets))


def request(code: int, payload: Readable) -> bytes:
    return b"".join((HEADER.pack(CODE_BYTES + len(payload), code), payload))


def success(payload: Sequence[Readable]) -> list[Readable]:
    """A whole response as buffers, in the order in which they are sent."""
    if not payload:
        return [EMPTY_SUCCESS]
    length = sum(map(len, payload))
    assert length != 1, "clients do not read a payload of one byte"
    return [HEADER.pack(OK, length), *payload]


def failure(code: Code) -> bytes:
    return HEADER.pack(code, 0)
