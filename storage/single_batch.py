"""The batch of a single message at its place in the log, made in one step: such messages are frequent."""

from __future__ import annotations

import struct

import msgspec
import xxhash

from whippet.storage.batch import FRAME, FRAME_BYTES, HEADER, HEADER_BYTES, Readable

_hash = xxhash.xxh3_64_intdigest

BESIDES_BYTES = HEADER_BYTES + FRAME_BYTES
"""The bytes of the batch besides the payload and the user headers."""

_BESIDES_FRAME = HEADER_BYTES + 8
"""The bytes of the header and of the checksum of the frame."""
_AFTER_CHECKSUM = struct.Struct(f"<{FRAME.format.removeprefix('<Q')}")
_HASHED = struct.Struct("<QQQQQIQ")
"""The header without its checksum, and the checksum of the frame."""
_HEADER = struct.Struct(f"{HEADER.format}{HEADER_BYTES - HEADER.size}xQ")
"""The header, and the checksum of the frame."""


class Single(msgspec.Struct, frozen=True, gc=False):
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
    head = _AFTER_CHECKSUM.pack(message.id, 0, 0, message.headers_length, message.payload_length, 0)
    frame = b"".join((head, message.body, message.headers))
    size, origin = _BESIDES_FRAME + len(frame), message.origin
    found = _hash(frame)
    checksum = _hash(_HASHED.pack(partition_id, base_offset, base_timestamp, origin, size, 1, found))
    header = _HEADER.pack(partition_id, base_offset, base_timestamp, origin, size, checksum, 1, found)
    return header + frame, found
