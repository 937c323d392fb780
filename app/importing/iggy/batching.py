"""Puts single messages into batches of Whippet: what they share in one header must be the same for all of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from whippet.storage import batch as batches

BATCH_MESSAGES_MAX = 1000
BATCH_BYTES_MAX = 1 << 20
"""A single message may be larger."""


class Message(NamedTuple):
    """One message of the source. `timestamp` is when it was appended."""

    offset: int
    timestamp: int
    origin_timestamp: int
    id: int
    payload: bytes
    user_headers: bytes


class Batch(NamedTuple):
    """A complete batch for the log of a partition."""

    content: bytearray
    base_offset: int
    messages: int
    timestamp: int


def batched(messages: Iterable[Message], partition_id: int) -> Iterator[Batch]:
    """A batch has consecutive offsets, one time of appending, and origin times close enough for their deltas."""
    run: list[Message] = []
    size = low = high = 0
    for message in messages:
        origin = message.origin_timestamp
        length = len(message.payload) + len(message.user_headers)
        if run and (
            message.offset != run[-1].offset + 1
            or message.timestamp != run[0].timestamp
            or max(high, origin) - min(low, origin) > batches.TIME_SPAN_MAX_US
            or len(run) == BATCH_MESSAGES_MAX
            or size + length > BATCH_BYTES_MAX
        ):
            yield _batch(run, partition_id)
            run, size = [], 0
        if not run:
            low = high = origin
        low, high = min(low, origin), max(high, origin)
        run.append(message)
        size += length
    if run:
        yield _batch(run, partition_id)


def _batch(run: list[Message], partition_id: int) -> Batch:
    plain = [
        batches.Message(message.payload, message.id, message.user_headers, message.origin_timestamp) for message in run
    ]
    content = batches.build(plain, 0, os.urandom)
    first = run[0]
    batches.stamp(content, partition_id, first.offset, first.timestamp, batches.check(content).checksums)
    return Batch(content, first.offset, len(run), first.timestamp)
