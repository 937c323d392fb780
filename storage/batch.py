"""The batch, the unit of storage and transfer: FORMAT.md, section 2, as pure functions over bytes.

`check` refuses a batch that does not follow the format exactly, `stamp` gives it its place in a partition, `cut` takes
some of its messages, `build` makes one from plain messages. No function here uses a file, a clock or a thread.

`check` has three implementations, because every append checks a batch, and numpy (about 10 us a batch) and a Python
loop (about 0.3 us a message) are each faster in some range: a loop for a few messages, numpy if all frames have one
length, and a walk over the frames followed by one pass of hashing for everything else. They only tell whether the batch
is good. What is wrong, and in which message, is found afterwards by `refuse`, where speed does not matter.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn, TypeAlias, cast

import msgspec
import xxhash

from whippet.storage.errors import BatchFault, InvalidBatch
from whippet.storage.lazy_numpy import np
from whippet.storage.options import StoreOptions

HEADER_BYTES = 256
FRAME_BYTES = 48
RESERVED_AT = 52
NO_BYTES_RESERVED = bytes(HEADER_BYTES - RESERVED_AT)
TIME_SPAN_MAX_US = 2**32 - 1

HEADER = struct.Struct("<QQQQQQI")
"""partition, base offset, base timestamp, origin timestamp, length, checksum, count"""
FRAME = struct.Struct("<Q16sIIIIQ")
"""checksum, id, offset delta, timestamp delta, length of the user headers, of the payload, reserved"""

_PLACE = struct.Struct("<QQQ")
_U64 = struct.Struct("<Q")
_LENGTH_AND_COUNT = struct.Struct("<QQI")
_FRAME_NUMBERS = struct.Struct("<IIIIQ")
_FRAME_LENGTHS = struct.Struct("<II")

# Up to this many messages, a plain loop is faster than numpy.
_FEW = 12

# Frames up to this length are copied to be hashed.
_COPIED = 512

_hash = xxhash.xxh3_64_intdigest

Writable = bytearray | memoryview
Readable = bytes | bytearray | memoryview

Frames: TypeAlias = "int | array[int]"
"""Where the frames of a batch are: their common length, or the positions at which they start, and the end."""


class Limits(msgspec.Struct, frozen=True):
    """How large one batch may be."""

    batch_bytes: int
    messages: int
    payload_bytes: int
    user_headers_bytes: int

    @classmethod
    def of(cls, options: StoreOptions) -> Limits:
        return cls(
            options.batch_bytes_max,
            options.batch_messages_max,
            options.payload_bytes_max,
            options.user_headers_bytes_max,
        )


_U32_MAX = 2**32 - 1
UNLIMITED = Limits(_U32_MAX, _U32_MAX, _U32_MAX, _U32_MAX)
"""Limits for batches on the disk, which were checked against the configured limits when they were appended. An index
has 32 bits for the length of a batch, and a batch has 32 bits for each of the other numbers."""


class Header(NamedTuple):
    """The batch header by name, in the order of the bytes."""

    partition_id: int
    base_offset: int
    base_timestamp: int
    origin_timestamp: int
    length: int
    checksum: int
    message_count: int


class Checked(NamedTuple):
    """What `check` found out about a good batch. `checksums` are those of the frames, back to back."""

    message_count: int
    frames: Frames
    checksums: bytes


class Message(msgspec.Struct, frozen=True):
    """A plain message, as `build` takes it."""

    payload: bytes
    id: int = 0
    user_headers: bytes = b""
    origin_timestamp: int | None = None


class StoredMessage(msgspec.Struct, frozen=True):
    """A message with its offset and times, as `messages` returns it."""

    offset: int
    timestamp: int
    origin_timestamp: int
    id: int
    payload: bytes
    user_headers: bytes


def header(batch: Readable) -> Header:
    return Header._make(HEADER.unpack_from(batch))


def first_offset(batch: Readable) -> int:
    """The offset of the first message. It is not the base offset if the batch was cut from a larger one."""
    delta: int = _FRAME_NUMBERS.unpack_from(batch, HEADER_BYTES + 24)[0]
    return header(batch).base_offset + delta


# ------------------------------------------------------------------------------------------------------------- checking


def check(batch: Readable, limits: Limits = UNLIMITED) -> Checked:
    """Returns where the frames are, or raises InvalidBatch. The caller's bytes are not changed."""
    size = len(batch)
    if size < HEADER_BYTES + FRAME_BYTES + 1 or size > limits.batch_bytes:
        refuse(batch, limits)
    length, checksum, count = _LENGTH_AND_COUNT.unpack_from(batch, 32)
    if length != size or not 0 < count <= limits.messages or batch[RESERVED_AT:HEADER_BYTES] != NO_BYTES_RESERVED:
        refuse(batch, limits)
    view = memoryview(batch)
    found: tuple[Frames, bytes] | None
    if count == 1:
        found = _check_single(view, size, limits)
    elif count <= _FEW:
        found = _check_few(view, count, limits)
    else:
        first = FRAME_BYTES + sum(_FRAME_LENGTHS.unpack_from(batch, HEADER_BYTES + 32))
        found = _check_uniform(view, count, first, limits) if first * count == size - HEADER_BYTES else None
        found = found or _check_mixed(view, count, limits)
    if found is None or _hash(b"".join((batch[:40], batch[48:52], found[1]))) != checksum:
        refuse(batch, limits)
    return Checked(count, *found)


def _check_single(view: memoryview, size: int, limits: Limits) -> tuple[Frames, bytes] | None:
    checksum, _, delta, _, headers, payload, reserved = FRAME.unpack_from(view, HEADER_BYTES)
    if (
        headers + payload != size - HEADER_BYTES - FRAME_BYTES
        or delta
        or reserved
        or not 0 < payload <= limits.payload_bytes
        or headers > limits.user_headers_bytes
        or _hash(view[HEADER_BYTES + 8 :]) != checksum
    ):
        return None
    return size - HEADER_BYTES, _U64.pack(checksum)


def _check_few(view: memoryview, count: int, limits: Limits) -> tuple[Frames, bytes] | None:
    size = len(view)
    position = HEADER_BYTES
    positions = array("I", (position,))
    checksums = []
    for i in range(count):
        if position + FRAME_BYTES > size:
            return None
        delta, _, headers, payload, reserved = _FRAME_NUMBERS.unpack_from(view, position + 24)
        end = position + FRAME_BYTES + headers + payload
        if (
            delta != i
            or reserved
            or not 0 < payload <= limits.payload_bytes
            or headers > limits.user_headers_bytes
            or end > size
        ):
            return None
        stored = view[position : position + 8]
        if _hash(view[position + 8 : end]) != _U64.unpack(stored)[0]:
            return None
        checksums.append(stored)
        positions.append(end)
        position = end
    return (positions, b"".join(checksums)) if position == size else None


def _check_uniform(view: memoryview, count: int, frame: int, limits: Limits) -> tuple[Frames, bytes] | None:
    heads = _frame_heads(view, count, frame)
    if (heads["headers"].astype(np.uint64) + heads["payload"] != frame - FRAME_BYTES).any():
        return None
    if not _heads_are_good(heads, count, limits):
        return None
    found = np.fromiter(map(_hash, uniform_parts(view, count, frame)), dtype="<u8", count=count)
    return (frame, found.tobytes()) if np.array_equal(found, heads["checksum"]) else None


def _check_mixed(view: memoryview, count: int, limits: Limits) -> tuple[Frames, bytes] | None:
    """Reads the lengths in one minimal walk, and does everything else without running bytecode for each message."""
    lengths_at = _FRAME_LENGTHS.unpack_from
    bounds = [HEADER_BYTES]
    position = HEADER_BYTES
    try:
        for _ in range(count):
            headers, payload = lengths_at(view, position + 32)
            position += FRAME_BYTES + headers + payload
            bounds.append(position)
    except struct.error:
        # The walk ran past the end of the batch.
        return None
    if position != len(view):
        return None
    positions = array("I", bounds)
    heads = _heads_anywhere(view, positions)
    if not _heads_are_good(heads, count, limits):
        return None
    found = struct.pack(f"<{count}Q", *[_hash(view[start + 8 : end]) for start, end in pairwise(bounds)])
    return (positions, found) if found == heads["checksum"].tobytes() else None


def _heads_are_good(heads: np.ndarray[Any, Any], count: int, limits: Limits) -> bool:
    payloads = heads["payload"]
    return bool(
        np.array_equal(heads["delta"], _counting(count))
        and not heads["reserved"].any()
        and payloads.all()
        and payloads.max() <= limits.payload_bytes
        and heads["headers"].max() <= limits.user_headers_bytes
    )


def refuse(batch: Readable, limits: Limits = UNLIMITED) -> NoReturn:
    """Raises the first fault, reading the batch from its start."""
    size = len(batch)
    if size > limits.batch_bytes:
        raise exceeded(BatchFault.BATCH_LIMIT, "a batch", size, limits.batch_bytes, "system.limits.batch_bytes")
    if size < HEADER_BYTES:
        raise InvalidBatch(BatchFault.LENGTH, f"{size} bytes are not a batch: its header alone has {HEADER_BYTES}")
    named = header(batch)
    if named.length != size:
        raise InvalidBatch(BatchFault.LENGTH, f"the batch header states {named.length} bytes, but the batch has {size}")
    if batch[RESERVED_AT:HEADER_BYTES] != NO_BYTES_RESERVED:
        raise InvalidBatch(BatchFault.RESERVED, "reserved bytes of the batch header are not zero")
    if not named.message_count:
        raise InvalidBatch(BatchFault.COUNT, "the batch has no messages")
    if named.message_count > limits.messages:
        raise exceeded(
            BatchFault.COUNT,
            "a number of messages",
            named.message_count,
            limits.messages,
            "system.limits.batch_messages",
        )
    position = HEADER_BYTES
    for i in range(named.message_count):
        if position == size:
            raise InvalidBatch(
                BatchFault.COUNT, f"the batch header states {named.message_count} messages, but ends before this one", i
            )
        position = _refuse_frame(memoryview(batch), position, i, limits)
    if position != size:
        raise InvalidBatch(
            BatchFault.COUNT,
            f"the batch header states {named.message_count} messages, but {size - position} bytes follow them",
        )
    raise InvalidBatch(BatchFault.BATCH_CHECKSUM, "the checksum of the batch does not match")


def _refuse_frame(view: memoryview, position: int, index: int, limits: Limits) -> int:
    """Raises the first fault of one frame, or returns where it ends."""
    left = len(view) - position
    if left < FRAME_BYTES:
        raise InvalidBatch(BatchFault.LENGTH, f"{left} bytes are left, its header alone has {FRAME_BYTES}", index)
    checksum, _, delta, _, headers, payload, reserved = FRAME.unpack_from(view, position)
    end: int = position + FRAME_BYTES + headers + payload
    if reserved:
        raise InvalidBatch(BatchFault.RESERVED, "its reserved bytes are not zero", index)
    if delta != index:
        raise InvalidBatch(BatchFault.DELTA, f"its offset delta is {delta}", index)
    if not payload:
        raise InvalidBatch(BatchFault.EMPTY_PAYLOAD, "its payload is empty", index)
    if payload > limits.payload_bytes:
        raise exceeded(
            BatchFault.PAYLOAD_LIMIT, "a payload", payload, limits.payload_bytes, "system.limits.payload_bytes", index
        )
    if headers > limits.user_headers_bytes:
        fault, limit = BatchFault.USER_HEADERS_LIMIT, limits.user_headers_bytes
        raise exceeded(fault, "user headers", headers, limit, "system.limits.user_headers_bytes", index)
    if end > len(view):
        raise InvalidBatch(BatchFault.LENGTH, f"it would end {end - len(view)} bytes after the batch", index)
    if _hash(view[position + 8 : end]) != checksum:
        raise InvalidBatch(BatchFault.FRAME_CHECKSUM, "its checksum does not match", index)
    return end


def exceeded(
    fault: BatchFault, what: str, found: int, limit: int, setting: str, message: int | None = None
) -> InvalidBatch:
    return InvalidBatch(fault, f"{what} of {found} is over the limit {setting} = {limit}", message)


# ------------------------------------------------------------------------------------------------------------- stamping


def stamp(batch: Writable, partition_id: int, base_offset: int, base_timestamp: int, checksums: bytes) -> None:
    """Writes its place into a checked batch. 32 of the caller's bytes change; the frames do not."""
    _PLACE.pack_into(batch, 0, partition_id, base_offset, base_timestamp)
    _U64.pack_into(batch, 40, _hash(b"".join((batch[:40], batch[48:52], checksums))))


# -------------------------------------------------------------------------------------------------------------- slicing


def frame_positions(batch: Readable) -> Frames:
    """Where the frames of a good batch are, if its `Checked` is not available."""
    count: int = _LENGTH_AND_COUNT.unpack_from(batch, 32)[2]
    size = len(batch)
    lengths_at = _FRAME_LENGTHS.unpack_from
    first: int = FRAME_BYTES + sum(lengths_at(batch, HEADER_BYTES + 32))
    if first * count == size - HEADER_BYTES and (count < 2 or _all_have_length(batch, count, first)):
        return first
    positions = array("I", (HEADER_BYTES,))
    position = HEADER_BYTES
    for _ in range(count):
        headers, payload = lengths_at(batch, position + 32)
        position += FRAME_BYTES + headers + payload
        positions.append(position)
    return positions


def _all_have_length(batch: Readable, count: int, frame: int) -> bool:
    heads = _frame_heads(memoryview(batch), count, frame)
    return not (heads["headers"].astype(np.uint64) + heads["payload"] != frame - FRAME_BYTES).any()


def start_of(frames: Frames, index: int) -> int:
    """The position of a frame in its batch. The index after the last frame gives the end of the batch."""
    return HEADER_BYTES + index * frames if isinstance(frames, int) else frames[index]


def ids(batch: Readable, frames: Frames) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """The ids of all messages, each as two numbers, the low half first."""
    count: int = _LENGTH_AND_COUNT.unpack_from(batch, 32)[2]
    if isinstance(frames, int):
        places = np.ndarray((count, 2), "<u8", memoryview(batch), HEADER_BYTES + 8, (frames, 8))
        return places.astype(np.uint64)
    halves = np.ndarray((len(batch) - 15,), "V16", memoryview(batch), 0, (1,))
    found: np.ndarray[Any, np.dtype[np.uint64]]
    found = halves[np.frombuffer(frames, np.uint32)[:-1] + 8].view(np.uint64).reshape(count, 2)
    return found


def fitting(frames: Frames, first: int, last: int, room: int) -> int:
    """How many of the frames first .. last-1 fit into `room` bytes."""
    start = start_of(frames, first)
    if start_of(frames, last) - start <= room:
        return last - first
    low, high = first, last
    while low < high:
        middle = (low + high + 1) // 2
        if start_of(frames, middle) - start <= room:
            low = middle
        else:
            high = middle - 1
    return low - first


def cut_to_fit(
    batch: Readable, frames: Frames, first: int, count: int, room: int, at_least_one: bool
) -> tuple[int, list[Readable]]:
    """Returns how many of the `count` messages from `first` on fit into `room` bytes as a batch of their own, and that
    batch."""
    space = room - HEADER_BYTES
    fits = fitting(frames, first, first + count, space) if space > 0 else 0
    if not fits and at_least_one:
        fits = 1
    return fits, cut(batch, frames, first, first + fits) if fits else []


def cut(batch: Readable, frames: Frames, first: int, last: int) -> list[Readable]:
    """The messages first .. last-1 as a batch of their own: a new header, and a view of the unchanged frames.

    Base offset and timestamps are those of the whole batch, so the deltas of the frames keep their meaning.
    """
    start, end = start_of(frames, first), start_of(frames, last)
    view = memoryview(batch)
    head = bytearray(batch[:HEADER_BYTES])
    struct.pack_into("<Q", head, 32, HEADER_BYTES + end - start)
    struct.pack_into("<I", head, 48, last - first)
    if isinstance(frames, int) and last - first > _FEW:
        heads = _frame_heads(view[start - HEADER_BYTES :], last - first, frames)
        checksums = heads["checksum"].tobytes()
    else:
        starts = (start_of(frames, i) for i in range(first, last))
        checksums = b"".join([view[at : at + 8] for at in starts])
    _U64.pack_into(head, 40, _hash(b"".join((head[:40], head[48:52], checksums))))
    return [head, view[start:end]]


# ------------------------------------------------------------------------------------------------------- plain messages


def build(messages: Sequence[Message], now_us: int, random_bytes: Callable[[int], bytes]) -> bytearray:
    """Builds a batch as a producer sends it, with zeros for its place. Messages without an id get a random UUID."""
    if not messages:
        raise InvalidBatch(BatchFault.COUNT, "the batch has no messages")
    origins = [now_us if m.origin_timestamp is None else m.origin_timestamp for m in messages]
    origin = min(origins)
    if (span := max(origins) - origin) > TIME_SPAN_MAX_US:
        sentence = f"origin timestamps {span} us apart do not fit one batch, which spans at most {TIME_SPAN_MAX_US} us"
        raise InvalidBatch(BatchFault.TIME_SPAN, sentence)
    parts: list[bytes] = [bytes(HEADER_BYTES)]
    random = random_bytes(16 * len(messages))
    for i, message in enumerate(messages):
        identity = message.id.to_bytes(16, "little") if message.id else _uuid(random[16 * i : 16 * i + 16])
        headers, payload = message.user_headers, message.payload
        delta = origins[i] - origin
        parts += (FRAME.pack(0, identity, i, delta, len(headers), len(payload), 0), payload, headers)
    batch = bytearray().join(parts)
    HEADER.pack_into(batch, 0, 0, 0, 0, origin, len(batch), 0, len(messages))
    seal(batch, len(messages))
    return batch


def seal(batch: bytearray, count: int) -> None:
    """Computes and sets every checksum of a batch whose other bytes are final."""
    frames = frame_positions(batch)
    view = memoryview(batch)
    if isinstance(frames, int) and count > _FEW:
        found = np.fromiter(map(_hash, uniform_parts(view, count, frames)), "<u8", count)
        _frame_heads(view, count, frames)["checksum"] = found
        checksums = found.tobytes()
    else:
        bounds = [start_of(frames, i) for i in range(count + 1)]
        hashes = [_hash(view[start + 8 : end]) for start, end in pairwise(bounds)]
        checksums = struct.pack(f"<{count}Q", *hashes)
        for i, start in enumerate(bounds[:-1]):
            batch[start : start + 8] = checksums[8 * i : 8 * i + 8]
    _U64.pack_into(batch, 40, _hash(b"".join((batch[:40], batch[48:52], checksums))))


def _uuid(random: bytes) -> bytes:
    """A UUID of version 4, like the ids that SDKs generate."""
    octets = bytearray(random)
    octets[6] = octets[6] & 0x0F | 0x40
    octets[8] = octets[8] & 0x3F | 0x80
    return bytes(octets)


def messages(batch: Readable) -> Iterator[StoredMessage]:
    """The messages of a good batch one by one. For tools and tests, not for the hot path."""
    named = header(batch)
    view = memoryview(batch)
    position = HEADER_BYTES
    for _ in range(named.message_count):
        _, identity, delta, origin, headers, payload, _ = FRAME.unpack_from(view, position)
        body = position + FRAME_BYTES
        yield StoredMessage(
            offset=named.base_offset + delta,
            timestamp=named.base_timestamp,
            origin_timestamp=named.origin_timestamp + origin,
            id=int.from_bytes(identity, "little"),
            payload=bytes(view[body : body + payload]),
            user_headers=bytes(view[body + payload : body + payload + headers]),
        )
        position = body + payload + headers


# ------------------------------------------------------------------------------------------- numpy's view of the frames

_FRAME_FIELDS: dict[str, Any] = {
    "names": ["checksum", "delta", "headers", "payload", "reserved"],
    "formats": ["<u8", "<u4", "<u4", "<u4", "<u8"],
    "offsets": [0, 24, 32, 36, 40],
}
_FRAME_OCTETS = f"V{FRAME_BYTES}"


def _frame_heads(view: memoryview, count: int, frame: int) -> np.ndarray[Any, Any]:
    """The headers of `count` frames of one length as records, without a copy."""
    return np.ndarray((count,), dtype=_frame_type(frame), buffer=view, offset=HEADER_BYTES)


def _heads_anywhere(view: memoryview, positions: array[int]) -> np.ndarray[Any, Any]:
    """The headers of the frames at these positions (the last position is the end) as records, copied."""
    everywhere = np.ndarray((len(view) - FRAME_BYTES + 1,), dtype=_FRAME_OCTETS, buffer=view, strides=(1,))
    return everywhere[np.frombuffer(positions, dtype=np.uint32)[:-1]].view(_frame_type(FRAME_BYTES))


@lru_cache(maxsize=256)
def _frame_type(frame: int) -> np.dtype[Any]:
    return np.dtype({**_FRAME_FIELDS, "itemsize": frame})  # type: ignore[call-overload,no-any-return]


_COUNTED = 1024


@cache
def _count() -> np.ndarray[Any, Any]:
    return np.arange(_COUNTED, dtype=np.uint32)


def _counting(count: int) -> np.ndarray[Any, Any]:
    return _count()[:count] if count <= _COUNTED else np.arange(count, dtype=np.uint32)


def uniform_parts(view: memoryview, count: int, frame: int) -> Iterable[Readable]:
    """The part of each frame that is hashed. Copies of small ones are faster to make than views (40 ns, not 70)."""
    if frame <= _COPIED and count <= 4096:
        return cast("Iterable[bytes]", _cached_copies(count, frame).unpack_from(view, HEADER_BYTES))
    return map(view.__getitem__, _uniform_slices(count, frame))


@lru_cache(maxsize=64)
def _cached_copies(count: int, frame: int) -> struct.Struct:
    return struct.Struct("<" + f"8x{frame - 8}s" * count)


def _uniform_slices(count: int, frame: int) -> Sequence[slice]:
    """The part of each frame that is hashed. Most batches have one of few shapes, so these are cached, except huge
    ones."""
    return _cached_slices(count, frame) if count <= 4096 else _slices(count, frame)


@lru_cache(maxsize=64)
def _cached_slices(count: int, frame: int) -> Sequence[slice]:
    return _slices(count, frame)


def _slices(count: int, frame: int) -> Sequence[slice]:
    starts = range(HEADER_BYTES, HEADER_BYTES + count * frame, frame)
    return [slice(start + 8, start + frame) for start in starts]
