"""The classic form of messages in the simplest possible code, which the fast code is compared with."""

from __future__ import annotations

import struct
from typing import NamedTuple

import xxhash

from whippet.storage import batch as batches
from whippet.storage.batch import Writable


class Classic(NamedTuple):
    id: int
    offset: int
    timestamp: int
    origin: int
    payload: bytes
    user_headers: bytes = b""


def message(one: Classic, header_size: int, checksum: bool = True) -> bytes:
    rest = struct.pack(
        "<16sQQQII",
        one.id.to_bytes(16, "little"),
        one.offset,
        one.timestamp,
        one.origin,
        len(one.user_headers),
        len(one.payload),
    )
    rest += bytes(header_size - 56) + one.payload + one.user_headers
    return struct.pack("<Q", xxhash.xxh3_64_intdigest(rest) if checksum else 0) + rest


def area(messages: list[Classic], header_size: int, checksum: bool = True) -> bytes:
    return b"".join(message(one, header_size, checksum) for one in messages)


TO_PARTITION_10 = bytes.fromhex("01040000000001040000000002040a000000")
"""Stream 0, topic 0, and a partition."""


def send_body(messages: list[Classic], header_size: int, destination: bytes = TO_PARTITION_10) -> bytes:
    index = b""
    end = 0
    for one in messages:
        end += header_size + len(one.payload) + len(one.user_headers)
        index += struct.pack("<IIQ", 0, end, 0)
    head = struct.pack("<I", len(destination) + 4) + destination + struct.pack("<I", len(messages))
    return head + index + area(messages, header_size, checksum=False)


def parse(octets: bytes, header_size: int) -> list[Classic]:
    """Decodes messages; the checksum and the reserved bytes are checked."""
    found = []
    while octets:
        checksum, identity, offset, timestamp, origin, headers, payload = struct.unpack_from("<Q16sQQQII", octets)
        end = header_size + payload + headers
        assert checksum == xxhash.xxh3_64_intdigest(octets[8:end])
        assert not any(octets[56:header_size])
        body = octets[header_size:end]
        assert len(body) == payload + headers
        found.append(
            Classic(int.from_bytes(identity, "little"), offset, timestamp, origin, body[:payload], body[payload:])
        )
        octets = octets[end:]
    return found


def stored(messages: list[Classic], partition_id: int = 0) -> Writable:
    """One batch as the log would keep it, at the position of its first message."""
    batch = batches.build(
        [batches.Message(m.payload, m.id, m.user_headers, m.origin) for m in messages], 0, lambda size: b"\1" * size
    )
    checked = batches.check(batch)
    batches.stamp(batch, partition_id, messages[0].offset, messages[0].timestamp, checked.checksums)
    return batch


def same(one: batches.Checked, other: batches.Checked) -> bool:
    """Whether they agree about a batch, in whatever form they describe its frames."""
    at = [[batches.start_of(known.frames, index) for index in range(known.message_count + 1)] for known in (one, other)]
    return at[0] == at[1] and one.checksums == other.checksums
