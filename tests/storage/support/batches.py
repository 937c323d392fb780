"""Batches of every shape, for tests of the batch format."""

from __future__ import annotations

import struct

import pytest
from hypothesis import settings

from tests.storage.support.world import random_bytes, sized, texts
from tests.support.clocks import NOON
from whippet.storage import batch as batches
from whippet.storage.batch import FRAME_BYTES, HEADER_BYTES, Limits, Message, build, check, header, start_of
from whippet.storage.errors import BatchFault, InvalidBatch

NO_LIMITS = Limits(2**63, 2**32, 2**32, 2**32)

fuzz = settings(deadline=None, max_examples=60)


def mixed(count: int) -> bytearray:
    """Messages of which no two neighbours have the same size, some with user headers."""
    return build([Message(b"p" * (1 + i % 5), i + 1, b"h" * (i % 3)) for i in range(count)], NOON, random_bytes)


WAYS: dict[str, bytearray] = {
    "one message": texts("alone"),
    "one message with user headers": build([Message(b"alone", 1, b"header")], NOON, random_bytes),
    "few of one size": sized(3, 7),
    "few of mixed sizes": mixed(4),
    "the most that are few": mixed(12),
    "the fewest that are many, of one size": sized(13, 5),
    "the fewest that are many, of mixed sizes": mixed(13),
    "many with the total of one size": build(
        # The first has the mean size, so that the total alone looks uniform.
        [Message(b"p" * size) for size in (5, 4, 6, *([5] * 12))],
        NOON,
        random_bytes,
    ),
    "one size, but payload and user headers share it differently": build(
        [Message(b"p" * (1 + i % 7), i + 1, b"h" * (7 - i % 7)) for i in range(20)], NOON, random_bytes
    ),
}

every_way = pytest.mark.parametrize("whole", WAYS.values(), ids=WAYS.keys())


def starts(whole: bytes | bytearray) -> list[int]:
    """Where the frames begin, according to the format page, and the end."""
    found = [HEADER_BYTES]
    for _ in range(header(whole).message_count):
        user_headers, payload = struct.unpack_from("<II", whole, found[-1] + 32)
        found.append(found[-1] + FRAME_BYTES + user_headers + payload)
    return found


def fault_of(whole: batches.Readable, limits: Limits = NO_LIMITS) -> tuple[BatchFault, int | None]:
    with pytest.raises(InvalidBatch) as refused:
        check(whole, limits)
    return refused.value.fault, refused.value.message


def positions(whole: batches.Readable, frames: batches.Frames) -> list[int]:
    return [start_of(frames, i) for i in range(header(whole).message_count + 1)]


def limits(**changed: int) -> Limits:
    return Limits(
        **{"batch_bytes": 2**40, "messages": 2**32, "payload_bytes": 2**32, "user_headers_bytes": 2**32} | changed
    )
