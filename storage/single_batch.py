"""The batch of a single message at its place in the log, made in one step: such messages are frequent."""

from __future__ import annotations

import struct
from typing import NamedTuple

import xxhash

from whippet.storage.batch import FRAME, FRAME_BYTES, HEADER, HEADER_BYTES, Readable

_hash = xxhash.xxh3_64_intdigest

BESIDES_BYTES = HEADER_BYTES + FRAME_BYTES
"""The bytes of the batch besides the payload and the user headers."""

_AFTER_CHECKSUM = struct.Struct(f"<{FRAME.format.removeprefix('<Q')}")
_HASHED = struct.Struct("<QQQQQIQ")
"""The header without its checksum, and the checksum of the frame."""
_HEADER = struct.Struct(f"{HEADER.format}{HEADER_BYTES - HEADER.size}xQ")
"""The header, and the checksum of the frame."""


class Single(NamedTuple):
    """A message that is not a batch yet. `body` is its payload and, unless they are in `headers`, its user headers."""

    id: bytes
    origin: int
    headers_length: int
    payload_length: int
    body: Readable
    headers: Readable = b""

    @property
    def size(self) -> int:
        """The size of its batch."""
        return BESIDES_BYTES + self.headers_length + self.payload_length


def batch_of(
    message: Single, partition_id: int = 0, base_offset: int = 0, base_timestamp: int = 0
) -> tuple[bytes, int]:
    """Returns the batch, and the checksum of its frame."""
    identity, origin, headers_length, payload_length, body, headers = message
    frame = b"".join((_AFTER_CHECKSUM.pack(identity, 0, 0, headers_length, payload_length, 0), body, headers))
    size = message.size
    found = _hash(frame)
    checksum = _hash(_HASHED.pack(partition_id, base_offset, base_timestamp, origin, size, 1, found))
    header = _HEADER.pack(partition_id, base_offset, base_timestamp, origin, size, checksum, 1, found)
    return header + frame, found
