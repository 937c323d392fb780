"""Frames of the 0.9 protocol: a header of 256 bytes before every request and every reply, and its fields.

A header holds the length of the whole frame. A reply repeats fields of the request. An eviction replaces a reply and
has no body: it ends the session, or refuses to start one.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import NamedTuple

from whippet.app.errors import Code, CommandError
from whippet.storage.batch import Readable

HEADER_BYTES = 256
NOBODY = bytes(16)
"""No client uses this id."""

REQUEST, REPLY, EVICTION = 5, 8, 13
"""The kinds of headers between clients and servers."""

_REQUEST = struct.Struct("<48xI8xB67x16s16sQQB7xQ4xI56x")
_REPLY = struct.Struct("<48xI8xB67x16s16x16sQQQQB7xI36x")
_EVICTION = struct.Struct("<48xI8xB67x16sII103xB")
_FRAMING = struct.Struct("<48xI8xB")
assert _REQUEST.size == _REPLY.size == _EVICTION.size == HEADER_BYTES

_NO_REFUSAL = bytes(4)
_REFUSAL = struct.Struct("<III")


class Reason(enum.IntEnum):
    """Why a session has ended, or was not started."""

    NO_SESSION = 1
    SESSION_TOO_LOW = 7
    INVALID_CREDENTIALS = 9
    INVALID_TOKEN = 10
    STALE_CLIENT = 13
    INCOMPATIBLE_PROTOCOL = 14
    MALFORMED_LOGIN = 15


class Request(NamedTuple):
    size: int
    kind: int
    client: bytes
    checksum: bytes
    timestamp: int
    number: int
    operation: int
    session: int
    code: int


class Reply(NamedTuple):
    """The fields that a client needs of the header of a reply or an eviction."""

    size: int
    kind: int
    operation: int
    status: int
    reason: int


def measure(data: Readable) -> int:
    """Returns the length of the frame that begins here; 0 if there are too few bytes to tell. Raises if this is no
    header: then the next one cannot be found."""
    if len(data) < HEADER_BYTES:
        return 0
    size: int
    size, kind = _FRAMING.unpack_from(data)
    if kind != REQUEST:
        raise CommandError(Code.INVALID_COMMAND, f"a header of kind {kind} is not that of a request")
    if size < HEADER_BYTES:
        raise CommandError(Code.INVALID_COMMAND, f"a frame of {size} bytes has no room for its header")
    return size


def request_of(frame: Readable) -> Request:
    return Request._make(_REQUEST.unpack_from(frame))


def request_head(
    client: bytes, number: int, operation: int, session: int, code: int, body_size: int, checksum: int = 0
) -> bytes:
    """Used by our own client. Only commands without an operation of their own need `code`."""
    summed = checksum.to_bytes(16, "little")
    return _REQUEST.pack(HEADER_BYTES + body_size, REQUEST, client, summed, 0, number, operation, session, code)


def reply(asked: Request, operation_number: int, body: Sequence[Readable] = (), status: int = 0) -> list[Readable]:
    """Returns a whole reply as buffers, in the order in which they are sent; an error has no body."""
    header = _REPLY.pack(
        HEADER_BYTES + sum(map(len, body)),
        REPLY,
        asked.checksum,
        asked.client,
        operation_number,
        operation_number,
        asked.timestamp,
        asked.number,
        asked.operation,
        status,
    )
    return [header, *body]


def results(body: Sequence[Readable]) -> list[Readable]:
    """Returns the body of a success for an operation with a section of results: nothing was refused."""
    return [_NO_REFUSAL, *body]


def refusal(code: Code) -> list[Readable]:
    return [_REFUSAL.pack(1, 0, code)]


def eviction(client: bytes, reason: Reason, newest: int = 0, oldest: int = 0) -> list[Readable]:
    """If the reason is the version, `newest` and `oldest` are the supported versions of the protocol."""
    return [_EVICTION.pack(HEADER_BYTES, EVICTION, client, newest, oldest, reason)]


def reply_of(header: Readable) -> Reply:
    size, kind, _, _, _, _, _, _, operation, status = _REPLY.unpack_from(header)
    return Reply(size, kind, operation, status, header[HEADER_BYTES - 1])


def refused(results_section: memoryview) -> tuple[int | None, memoryview]:
    """Returns the number of the first refusal in a section of results, if there is one, and what follows the
    section."""
    if len(results_section) < 4:
        raise CommandError(Code.INVALID_FORMAT, "a reply has no section of results")
    (count,) = struct.unpack_from("<I", results_section)
    if not count:
        return None, results_section[4:]
    if len(results_section) < _REFUSAL.size:
        raise CommandError(Code.INVALID_FORMAT, "the section of results is cut off")
    return _REFUSAL.unpack_from(results_section)[2], results_section[4 + 8 * count :]
