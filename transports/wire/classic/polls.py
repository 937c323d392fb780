"""The payload of a response to poll_messages: partition u32, its last offset u64, number of messages u32, messages.

The server encodes; our own client decodes, and gets batches as it would from a 0.9 connection.
"""

from __future__ import annotations

import struct
from itertools import pairwise

from whippet.app.commands.responses import Polled
from whippet.app.errors import Code, CommandError
from whippet.storage.batch import FRAME_BYTES, Readable
from whippet.storage.lazy_numpy import np
from whippet.storage.single_batch import Single
from whippet.transports.wire.classic import batching, unbatching, userheaders
from whippet.transports.wire.classic.batching import Made, Place
from whippet.transports.wire.classic.dialect import LONG, SHORT
from whippet.transports.wire.classic.message import (
    FEW,
    HEAD,
    LENGTHS,
    LENGTHS_AT,
    Array,
    head_type,
    windows,
)
from whippet.transports.wire.primitives import U32_MAX

PREFIX = struct.Struct("<IQI")
"""Always present: clients rely on at least these bytes."""


def encode(polled: Polled, header_size: int) -> list[Readable]:
    prefix = PREFIX.pack(polled.partition_id, polled.current_offset, polled.messages_count)
    return [prefix, *unbatching.messages_of(polled.batches, header_size)]


def room(response_bytes_max: int) -> int:
    """Returns how many bytes of batches certainly fit a response: a frame with one byte of payload grows the most."""
    smallest = FRAME_BYTES + 1
    grown = LONG + 1
    return max(response_bytes_max - PREFIX.size, 0) * smallest // grown


def decode(payload: memoryview, header_size: int) -> Polled:
    if len(payload) < PREFIX.size:
        raise CommandError(Code.INVALID_FORMAT, f"{len(payload)} bytes are not a response to a poll")
    partition_id, current_offset, count = PREFIX.unpack_from(payload)
    area = payload[PREFIX.size :]
    if count * (header_size + 1) > len(area) or (area and not count):
        raise CommandError(Code.INVALID_MESSAGES_COUNT, f"{count} messages do not fit {len(area)} bytes")
    batches: list[Readable] = []
    if count:
        heads, starts, ends = _heads(area, count, header_size)
        for first, last in pairwise(_run_bounds(heads)):
            place = Place(partition_id, int(heads["offset"][first]), int(heads["timestamp"][first]))
            made = _run(area, heads[first:last], starts[first:last], ends[first:last], header_size, place)
            batches += [batch for batch, _ in made]
    return Polled(partition_id, current_offset, count, tuple(batches))


def _heads(area: memoryview, count: int, header_size: int) -> tuple[Array, Array, Array]:
    """Returns the headers of the messages, and where they start and end."""
    size = header_size + sum(LENGTHS.unpack_from(area, LENGTHS_AT))
    if size * count == len(area):
        heads = np.ndarray((count,), dtype=head_type(size), buffer=area)
        if not (heads["headers"].astype(np.int64) + heads["payload"] != size - header_size).any():
            starts = np.arange(0, len(area), size, dtype=np.int64)
            return heads, starts, starts + size
    found = [0]
    position = 0
    for _ in range(count):
        if len(area) - position < header_size:
            raise _cut_off()
        headers, payload = LENGTHS.unpack_from(area, position + LENGTHS_AT)
        position += header_size + headers + payload
        found.append(position)
    if position != len(area):
        raise _cut_off()
    bounds = np.array(found, dtype=np.int64)
    return windows(area, header_size)[bounds[:-1]].view(head_type(header_size)), bounds[:-1], bounds[1:]


def _cut_off() -> CommandError:
    return CommandError(Code.INVALID_MESSAGE_PAYLOAD_LENGTH, "the messages do not fill the response")


def _run_bounds(heads: Array) -> list[int]:
    """Returns where batches begin, and the end: messages of one batch have the same time and consecutive offsets."""
    times, offsets = heads["timestamp"], heads["offset"]
    breaks = (times[1:] != times[:-1]) | (offsets[1:] - offsets[:-1] != 1)
    return [0, *(np.flatnonzero(breaks) + 1).tolist(), len(heads)]


def _run(area: memoryview, heads: Array, starts: Array, ends: Array, header_size: int, place: Place) -> list[Made]:
    if not heads["payload"].all():
        raise CommandError(Code.EMPTY_MESSAGE_PAYLOAD)
    count = len(heads)
    if count > FEW and not (header_size == SHORT and heads["headers"].any()):
        first, last = int(starts[0]), int(ends[-1])
        if heads.dtype.itemsize * count == last - first:
            return batching.uniform(area[first:last], heads, header_size, None, place)
        return batching.mixed(area, heads, starts, ends, header_size, None, place)
    return batching.plain([_plain(area, start, header_size) for start in starts.tolist()], None, place)


def _plain(area: memoryview, start: int, header_size: int) -> Single:
    _, identity, _, _, origin, headers, payload = HEAD.unpack_from(area, start)
    body = start + header_size
    if headers and header_size == SHORT:
        block = userheaders.from_short(area[body + payload : body + payload + headers], U32_MAX)
        return Single(identity, origin, len(block), payload, area[body : body + payload], block)
    return Single(identity, origin, headers, payload, area[body : body + payload + headers])
