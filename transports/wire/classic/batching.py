"""Turns classic messages into batches: checked messages in, batches that `whippet.storage.batch.check` accepts out.

What is learned about a batch on the way is passed on with it, so that the log need not determine it again.

Usually the result is one batch. The frames of a batch hold their origin times as deltas of 32 bits, some 71 minutes;
messages further apart are put into several batches in the same order, so that every origin time is kept exactly.
Messages without an id get a random UUID.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from whippet.app.errors import Code, CommandError
from whippet.storage.batch import (
    FRAME,
    FRAME_BYTES,
    HEADER,
    HEADER_BYTES,
    TIME_SPAN_MAX_US,
    Checked,
    Frames,
    Readable,
    Writable,
    stamp,
)
from whippet.storage.lazy_numpy import np
from whippet.storage.single_batch import Single, batch_of
from whippet.transports.wire.classic.message import (
    CHECKSUM,
    NO_ID,
    Array,
    checksum_of,
    checksums,
    counting,
    frame_type,
    gathered,
    rows,
    uniform_checksums,
    windows,
)

BATCHES_MAX = 1024
"""The most batches of one request."""
WINDOW_MESSAGES = 64
"""How many times are compared at once; each further step takes twice as many."""
RandomBytes = Callable[[int], bytes]
"""Creates ids for messages without one."""


class Place(NamedTuple):
    """The position of a batch in its partition, which a producer does not know yet."""

    partition_id: int = 0
    base_offset: int = 0
    base_timestamp: int = 0


UNPLACED = Place()


class Made(NamedTuple):
    """A batch, and the result that `whippet.storage.batch.check` would return for it."""

    batch: Writable
    checked: Checked


def plain(messages: Sequence[Single], random_bytes: RandomBytes | None, place: Place = UNPLACED) -> list[Made]:
    if len(messages) == 1:
        (message,) = messages
        if message.id == NO_ID and random_bytes:
            message = msgspec.structs.replace(message, id=new_uuid(random_bytes))
        return [alone(message, place)]
    return [
        _one_by_one(messages[first:last], lowest, random_bytes, place)
        for first, last, lowest in _runs_of_few([message.origin for message in messages])
    ]


def uniform(
    area: memoryview, heads: Array, header_size: int, random_bytes: RandomBytes | None, place: Place = UNPLACED
) -> list[Made]:
    """Encodes messages of the same size; `heads` are their headers within the area."""
    size = heads.dtype.itemsize
    return [
        _uniform(area[first * size : last * size], heads[first:last], header_size, lowest, random_bytes, place)
        for first, last, lowest in _runs_of(heads["origin"])
    ]


def mixed(
    area: memoryview,
    heads: Array,
    starts: Array,
    ends: Array,
    header_size: int,
    random_bytes: RandomBytes | None,
    place: Place = UNPLACED,
) -> list[Made]:
    """Encodes messages of any sizes; `heads` are copies of their headers."""
    return [
        _mixed(area, heads[first:last], starts[first:last], ends[first:last], header_size, lowest, random_bytes, place)
        for first, last, lowest in _runs_of(heads["origin"])
    ]


# ------------------------------------------------------------------------------------------------------- time


def _runs_of(origins: Array) -> list[tuple[int, int, int]]:
    lowest = int(origins.min())
    if int(origins.max()) - lowest <= TIME_SPAN_MAX_US:
        return [(0, len(origins), lowest)]
    return list(_runs(origins))


def _runs_of_few(origins: list[int]) -> list[tuple[int, int, int]]:
    """Avoids numpy if all messages fit one batch, as they nearly always do."""
    lowest = min(origins)
    if max(origins) - lowest <= TIME_SPAN_MAX_US:
        return [(0, len(origins), lowest)]
    return list(_runs(np.array(origins, dtype=np.uint64)))


def _runs(origins: Array) -> Iterator[tuple[int, int, int]]:
    """Yields the first, the end and the lowest time of each run of messages that fits one batch; runs are as long as
    possible."""
    first, count = 0, len(origins)
    for _ in range(BATCHES_MAX):
        last = first
        lowest = highest = origins[first]
        window = WINDOW_MESSAGES
        while last < count:
            part = origins[last : last + window]
            low, high = (
                np.minimum(np.minimum.accumulate(part), lowest),
                np.maximum(np.maximum.accumulate(part), highest),
            )
            too_far = high - low > TIME_SPAN_MAX_US
            if too_far.any():
                fitting = int(too_far.argmax())
                last += fitting
                lowest = low[fitting - 1] if fitting else lowest
                break
            last += len(part)
            lowest, highest = low[-1], high[-1]
            window *= 2
        yield first, last, int(lowest)
        first = last
        if first == count:
            return
    raise CommandError(
        Code.INVALID_MESSAGES_COUNT,
        f"the origin times of the messages would take more than {BATCHES_MAX} batches, each of which spans at most"
        f" {TIME_SPAN_MAX_US} us",
    )


# --------------------------------------------------------------------------------------------------- a few messages


def alone(message: Single, place: Place = UNPLACED) -> Made:
    """Does the same as `_one_by_one` for a single message, without the overhead: single messages are frequent."""
    batch, found = batch_of(message, *place)
    return Made(bytearray(batch), Checked(1, len(batch) - HEADER_BYTES, CHECKSUM.pack(found)))


def _one_by_one(messages: Sequence[Single], lowest: int, random_bytes: RandomBytes | None, place: Place) -> Made:
    parts: list[Readable] = [_NO_HEADER]
    random = random_bytes(16 * len(messages)) if random_bytes else b""
    for i, message in enumerate(messages):
        identity = message.id
        if identity == NO_ID and random:
            identity = _uuid(random[16 * i : 16 * i + 16])
        after = message.origin - lowest
        frame = FRAME.pack(0, identity, i, after, message.headers_length, message.payload_length, 0)
        parts += (frame, message.body, message.headers)
    batch = bytearray().join(parts)
    view = memoryview(batch)
    found = []
    position = HEADER_BYTES
    positions = array("I", (position,))
    for message in messages:
        end = position + FRAME_BYTES + message.headers_length + message.payload_length
        digest = CHECKSUM.pack(checksum_of(view[position + 8 : end]))
        view[position : position + 8] = digest
        found.append(digest)
        positions.append(end)
        position = end
    return finished(batch, lowest, len(messages), positions, b"".join(found), place)


_NO_HEADER = bytes(HEADER_BYTES)


def new_uuid(random_bytes: RandomBytes) -> bytes:
    return _uuid(random_bytes(16))


def _uuid(random: bytes) -> bytes:
    octets = bytearray(random)
    octets[6] = octets[6] & 0x0F | 0x40
    octets[8] = octets[8] & 0x3F | 0x80
    return bytes(octets)


def finished(batch: Writable, origin: int, count: int, frames: Frames, found: bytes, place: Place) -> Made:
    HEADER.pack_into(batch, 0, *place, origin, len(batch), 0, count)
    stamp(batch, *place, found)
    return Made(batch, Checked(count, frames, found))


# -------------------------------------------------------------------------------------------------- many messages


def _uniform(
    area: memoryview, heads: Array, header_size: int, lowest: int, random_bytes: RandomBytes | None, place: Place
) -> Made:
    count, size = len(heads), heads.dtype.itemsize
    body = size - header_size
    frame = FRAME_BYTES + body
    octets = np.empty(HEADER_BYTES + count * frame, dtype=np.uint8)
    octets[:HEADER_BYTES] = 0
    batch = octets.data
    rows(batch, HEADER_BYTES + FRAME_BYTES, count, frame, body)[:] = rows(area, header_size, count, size, body)
    frames = np.ndarray((count,), dtype=frame_type(frame), buffer=batch, offset=HEADER_BYTES)
    frames["reserved"] = 0
    _fill(frames, heads, lowest, random_bytes)
    found = uniform_checksums(batch, HEADER_BYTES, count, frame)
    frames["checksum"] = found
    return finished(batch, lowest, count, frame, found.tobytes(), place)


def _mixed(
    area: memoryview,
    heads: Array,
    starts: Array,
    ends: Array,
    header_size: int,
    lowest: int,
    random_bytes: RandomBytes | None,
    place: Place,
) -> Made:
    """The header of a frame is shorter than that of a message. So each message is copied without its first bytes, which
    leaves exactly the room for the frame header before its body."""
    count = len(heads)
    lost = header_size - FRAME_BYTES
    batch = gathered(_NO_HEADER, area, (starts + lost).tolist(), ends.tolist())
    positions = starts - (counting(count) * lost + (int(starts[0]) - HEADER_BYTES))
    frames = np.zeros(count, dtype=frame_type(FRAME_BYTES))
    _fill(frames, heads, lowest, random_bytes)
    windows(batch, FRAME_BYTES)[positions] = frames.view(f"V{FRAME_BYTES}")
    bounds = [*positions.tolist(), len(batch)]
    found = checksums(batch, positions, bounds[1:])
    windows(batch, 8)[positions] = found.view("V8")
    return finished(batch, lowest, count, array("I", bounds), found.tobytes(), place)


def _fill(frames: Array, heads: Array, lowest: int, random_bytes: RandomBytes | None) -> None:
    """Fills in the headers of frames except for their checksums; reserved bytes are zero already."""
    low, high = heads["id_low"], heads["id_high"]
    nameless = (low | high) == 0
    if random_bytes and nameless.any():
        low, high = with_ids(low, high, nameless, random_bytes)
    frames["id_low"] = low
    frames["id_high"] = high
    frames["delta"] = counting(len(heads))
    frames["time"] = heads["origin"] - np.uint64(lowest)
    frames["headers"] = heads["headers"]
    frames["payload"] = heads["payload"]


_KEPT = (0xFF0F_FFFF_FFFF_FFFF, 0xFFFF_FFFF_FFFF_FF3F)
_VERSION_4 = (0x0040_0000_0000_0000, 0x80)


def random_uuids(count: int, random_bytes: RandomBytes) -> tuple[Array, Array]:
    """Generates UUIDs of version 4, as lower and upper halves."""
    random = np.frombuffer(random_bytes(16 * count), dtype="<u8").reshape(count, 2)
    low, high = (random[:, i] & _KEPT[i] | _VERSION_4[i] for i in range(2))
    return low, high


def with_ids(low: Array, high: Array, nameless: Array, random_bytes: RandomBytes) -> tuple[Array, Array]:
    count = int(np.count_nonzero(nameless))
    new_low, new_high = random_uuids(count, random_bytes)
    if count == len(low):
        return new_low, new_high
    low, high = low.copy(), high.copy()
    low[nameless], high[nameless] = new_low, new_high
    return low, high
