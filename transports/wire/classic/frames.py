"""Frames: the eight bytes before every request and every response, and the limits on what follows them.

A request says length and code, and its length counts the code; a response says status and length, and its length does
not count the header. A response with a status other than 0 never has anything after its header: clients would take it
for the start of the next response.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from app.errors import Code, CommandError
from storage.batch import Readable

HEADER_BYTES = 8
LENGTH_BYTES = 4
CODE_BYTES = 4
"""What the length of a request counts besides the payload."""
PAYLOAD_BYTES_MAX = 10 * 1024 * 1024
"""Of every request but send_messages, whose limit is the operator's."""
SEND_MESSAGES = 101
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


class RequestHeader(NamedTuple):
    code: int
    payload_bytes: int


class ResponseHeader(NamedTuple):
    status: int
    payload_bytes: int


def request_header(octets: Readable, send_bytes_max: int) -> RequestHeader:
    """What the eight bytes announce, or why the payload that follows must not be read into memory."""
    length, code = HEADER.unpack_from(octets)
    if length < CODE_BYTES:
        raise CommandError(Code.INVALID_COMMAND, f"a frame of length {length} has no room for its command code")
    limit = send_bytes_max if code == SEND_MESSAGES else PAYLOAD_BYTES_MAX
    if length - CODE_BYTES > limit:
        raise CommandError(
            Code.INVALID_COMMAND, f"a payload of {length - CODE_BYTES} bytes is over the limit of {limit}"
        )
    return RequestHeader(code, length - CODE_BYTES)


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
