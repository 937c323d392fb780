"""Frames of the 0.12 protocol: those of 0.9, with what a request knows of a partition and what a reply promises.

A client has many requests in flight on one connection and finds the request of a reply by its number. `is_committed` in
a reply says that a write was executed, or finally refused, under that very number: only then does a client that has
sent the write twice trust the reply.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from whippet.storage.batch import Readable
from whippet.transports.wire.modern.frames import HEADER_BYTES, REPLY

_REQUEST = struct.Struct("<48xI8xB67x16s16sQQB7xQ4xIQQQ32x")
_REPLY = struct.Struct("<48xI8xB67x16s16x16sQQQQB7xIB3xQ24x")
assert _REQUEST.size == _REPLY.size == HEADER_BYTES


class Request(NamedTuple):
    size: int
    kind: int
    client: bytes
    stamp: bytes
    """Random for each request, and the same when it is repeated."""
    timestamp: int
    number: int
    operation: int
    session: int
    code: int
    incarnation: int
    """The incarnation of the request's partition, as the client knows it."""
    owner_generation: int
    minimum_metadata_op: int


def request_of(frame: Readable) -> Request:
    return Request._make(_REQUEST.unpack_from(frame))


def reply(
    asked: Request, operation_number: int, body: Sequence[Readable] = (), status: int = 0, *, is_committed: bool = False
) -> list[Readable]:
    """Returns a whole reply as buffers, in the order in which they are sent; one with a status has no body."""
    header = _REPLY.pack(
        HEADER_BYTES + sum(map(len, body)),
        REPLY,
        asked.stamp,
        asked.client,
        operation_number,
        operation_number,
        asked.timestamp,
        asked.number,
        asked.operation,
        status,
        is_committed,
        asked.incarnation,
    )
    return [header, *body]
