"""Frames: the eight bytes before every request and every response, and the limits of what follows them.

A request has a length and a code, and the length includes the code. A response has a status and a length, and the
length does not include the header. A response with a status other than 0 never has anything after its header: clients
would take it for the start of the next response.
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
"""The bytes that the length of a request includes besides the payload."""
PAYLOAD_BYTES_MAX = 10 * 1024 * 1024
"""The limit for every request but send_messages, whose limit is configured."""
SEND_MESSAGES = 101
GET_CONSUMER_OFFSET = 120
OK = 0

HEADER = struct.Struct("<II")
_U32 = struct.Struct("<I")

EMPTY_SUCCESS = HEADER.pack(OK, 0)


def measure(data: Readable) -> int:
    """Returns the length of the frame that begins here; 0 if there are too few bytes to tell."""
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
    """Returns a whole response as buffers, in the order in which they are sent."""
    if not payload:
        return [EMPTY_SUCCESS]
    length = sum(map(len, payload))
    assert length != 1, "clients do not read a payload of one byte"
    return [HEADER.pack(OK, length), *payload]


def failure(code: Code) -> bytes:
    return HEADER.pack(code, 0)
