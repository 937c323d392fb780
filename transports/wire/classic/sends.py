"""The payload of send_messages: the destination, the number of messages, an index, and the messages.

    length u32 of the four parts that follow | stream | topic | partitioning | count u32
    index: count x (offset u32 = 0, END position u32 of the message, timestamp u64 = 0)
    messages, to the end of the payload

The server decodes: it checks in the order that the protocol specifies, detects the size of the message headers, and
builds batches. Our own client encodes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NoReturn

from whippet.app.commands.requests import SendMessages
from whippet.app.errors import Code, CommandError
from whippet.storage.batch import Limits, Readable
from whippet.storage.lazy_numpy import np
from whippet.storage.single_batch import Single
from whippet.transports.wire import destination
from whippet.transports.wire.classic import batching, unbatching, userheaders
from whippet.transports.wire.classic.batching import Made, RandomBytes
from whippet.transports.wire.classic.dialect import LONG, SHORT, Dialect
from whippet.transports.wire.classic.message import (
    FEW,
    HEAD,
    LENGTHS,
    LENGTHS_AT,
    NO_ID,
    Array,
    counting,
    head_type,
    windows,
)

LIMITS = Limits(batch_bytes=2**32 - 1, messages=2**32 - 1, payload_bytes=64_000_000, user_headers_bytes=100_000)
"""The limits of a message that classic clients know. The configured limits of the log apply as well."""

INDEX = struct.Struct("<IIQ")
INDEX_BYTES = 16


@cache
def _index_type() -> np.dtype[Any]:
    return np.dtype([("offset", "<u4"), ("position", "<u4"), ("timestamp", "<u8")])


def decode(payload: memoryview, dialect: Dialect, random_bytes: RandomBytes, limits: Limits = LIMITS) -> SendMessages:
    stream, topic, to, count, position = destination.read(payload)
    messages_at = position + count * INDEX_BYTES
    if messages_at > len(payload):
        raise CommandError(Code.INVALID_COMMAND, f"an index of {count} messages does not fit the payload")
    if not 0 < count <= limits.messages:
        raise CommandError(Code.INVALID_MESSAGES_COUNT, f"{count} messages: 1 to {limits.messages} may be sent at once")
    new_id = partial(batching.new_uuid, random_bytes)
    if count == 1 and (message := single(payload, position, dialect, new_id, limits)) is not None:
        made = batching.alone(message)
        return SendMessages(stream, topic, to, (made.batch,), (made.checked,))
    index, area = payload[position:messages_at], payload[messages_at:]
    found_size = _header_size(index, area, count)
    header_size = found_size or LONG
    if found_size and count > FEW:
        several = _many(index, area, count, header_size, random_bytes, limits)
    else:
        several = batching.plain(_one_by_one(index, area, count, header_size, limits), random_bytes)
    if several is None:
        _refuse(index, area, count, header_size, limits)
    dialect.on_send(header_size)
    batches, checked = zip(*several, strict=True)
    return SendMessages(stream, topic, to, batches, checked)


def single(
    payload: memoryview, index_at: int, dialect: Dialect, new_id: Callable[[], bytes], limits: Limits
) -> Single | None:
    """Reads a single message, without the steps that many messages need. None if anything about it is unusual or
    wrong."""
    start = index_at + INDEX_BYTES
    size = len(payload) - start
    if size < SHORT:
        return None
    index_offset, end, index_timestamp = INDEX.unpack_from(payload, index_at)
    _, identity, _, _, origin, headers_bytes, payload_bytes = HEAD.unpack_from(payload, start)
    header_size = size - headers_bytes - payload_bytes
    if (
        (header_size != LONG and (header_size != SHORT or headers_bytes))
        or end != size
        or index_offset
        or index_timestamp
        or not 0 < payload_bytes <= limits.payload_bytes
        or headers_bytes > limits.user_headers_bytes
    ):
        return None
    dialect.on_send(header_size)
    body = payload[start + header_size :]
    return Single(new_id() if identity == NO_ID else identity, origin, headers_bytes, payload_bytes, body)


def _header_size(index: memoryview, area: memoryview, count: int) -> int | None:
    """The end of the first message shows the size of its header. A single message may also end with the area."""
    if len(area) < SHORT:
        return None
    headers, payload = LENGTHS.unpack_from(area, LENGTHS_AT)
    found: int = INDEX.unpack_from(index)[1] - headers - payload
    if count == 1 and found not in (SHORT, LONG):
        found = len(area) - headers - payload
    return found if found in (SHORT, LONG) else None


def _refuse(index: memoryview, area: memoryview, count: int, header_size: int, limits: Limits) -> NoReturn:
    _one_by_one(index, area, count, header_size, limits)
    raise AssertionError("what is wrong with many messages is wrong with one of them")


def _one_by_one(index: memoryview, area: memoryview, count: int, header_size: int, limits: Limits) -> list[Single]:
    """Yields the messages in their order, or raises for the first error, in the order in which the protocol checks."""
    found, size = list[Single](), len(area)
    start = total = previous = previous_offset = 0
    for i in range(count):
        index_offset, position, index_timestamp = INDEX.unpack_from(index, i * INDEX_BYTES)
        end = position if i < count - 1 else size
        if position > size and count > 1:
            raise CommandError(Code.MISSING_INDEX, f"message {i} would end at byte {position} of {size}")
        if index_offset:
            raise CommandError(Code.NON_ZERO_OFFSET, f"message {i}: the index has an offset")
        if index_timestamp:
            raise CommandError(Code.NON_ZERO_TIMESTAMP, f"message {i}: the index has a timestamp")
        if end - start < header_size:
            raise CommandError(Code.MISSING_INDEX, f"message {i}: {end - start} bytes have no room for its header")
        _, identity, offset, _, origin, headers, payload = HEAD.unpack_from(area, start)
        body = start + header_size
        if body + headers + payload > end:
            raise CommandError(Code.MISSING_INDEX, f"message {i} is cut off")
        if payload > limits.payload_bytes:
            raise CommandError(Code.TOO_BIG_MESSAGE_PAYLOAD, f"message {i}: a payload of {payload} bytes")
        if headers > limits.user_headers_bytes:
            raise CommandError(Code.TOO_BIG_USER_HEADERS, f"message {i}: user headers of {headers} bytes")
        if not payload:
            raise CommandError(Code.EMPTY_MESSAGE_PAYLOAD, f"message {i}: its payload is empty")
        if offset < previous_offset:
            raise CommandError(Code.INVALID_OFFSET, f"message {i}: offset {offset} after {previous_offset}")
        if position < previous:
            raise CommandError(Code.CANNOT_READ_INDEX_POSITION, f"message {i}: position {position} after {previous}")
        if headers and header_size == SHORT:
            block = userheaders.from_short(area[body + payload : body + payload + headers], limits.user_headers_bytes)
            found.append(Single(identity, origin, len(block), payload, area[body : body + payload], block))
        else:
            found.append(Single(identity, origin, headers, payload, area[body : body + payload + headers]))
        total += header_size + headers + payload
        start, previous, previous_offset = end, position, offset
    if total != size:
        raise CommandError(Code.INVALID_MESSAGES_SIZE, f"the messages have {total} bytes, not {size} as announced")
    return found


def _many(
    index: memoryview, area: memoryview, count: int, header_size: int, random_bytes: RandomBytes, limits: Limits
) -> list[Made] | None:
    """Returns the batches of many messages; None if one of them is invalid."""
    size: int = INDEX.unpack_from(index)[1]
    entries = np.frombuffer(index, dtype="<i8").reshape(count, 2)
    if entries[:, 1].any():
        return None
    if size * count == len(area) and np.array_equal(entries[:, 0], (counting(count + 1)[1:] * size) << 32):
        if size < header_size:
            return None
        heads = np.ndarray((count,), dtype=head_type(size), buffer=area)
        if not _good(heads, size - header_size, limits):
            return None
        if header_size == SHORT and heads["headers"].any():
            return batching.plain(_one_by_one(index, area, count, header_size, limits), random_bytes)
        return batching.uniform(area, heads, header_size, random_bytes)
    table = np.frombuffer(index, dtype=_index_type())
    ends = table["position"].astype(np.int64)
    if table["offset"].any() or ends[-1] > len(area) or ends[-1] < ends[-2]:
        return None
    ends[-1] = len(area)
    starts = np.concatenate((_zero(), ends[:-1]))
    sizes = ends - starts
    if (sizes < header_size).any():
        return None
    heads = windows(area, header_size)[starts].view(head_type(header_size))
    if not _good(heads, sizes - header_size, limits):
        return None
    if header_size == SHORT and heads["headers"].any():
        return batching.plain(_one_by_one(index, area, count, header_size, limits), random_bytes)
    return batching.mixed(area, heads, starts, ends, header_size, random_bytes)


@cache
def _zero() -> Array:
    return np.zeros(1, dtype=np.int64)


def _good(heads: Array, bodies: Array | int, limits: Limits) -> bool:
    payloads, headers, offsets = heads["payload"], heads["headers"], heads["offset"]
    longest = headers.max()
    if longest:
        if longest > limits.user_headers_bytes:
            return False
        if (headers.astype(np.int64) + payloads != bodies).any():
            return False
    elif (payloads != bodies).any():
        return False
    if not payloads.min() or payloads.max() > limits.payload_bytes:
        return False
    return not offsets.any() or not (offsets[1:] < offsets[:-1]).any()


# ---------------------------------------------------------------------------------------------------------- encoding


def encode(request: SendMessages, header_size: int) -> bytes:
    return b"".join(encode_parts(request, header_size))


def encode_parts(request: SendMessages, header_size: int) -> list[Readable]:
    """The same in buffers: the messages, which are most of it, are the last one."""
    buffers = unbatching.unsent(request.batches, header_size)
    area = buffers[0] if len(buffers) == 1 else b"".join(buffers)
    positions = _ends(area, header_size)
    index = np.zeros(len(positions), dtype=_index_type())
    index["position"] = positions
    return [b"".join((destination.write(request, len(positions)), index.tobytes())), area]


def _ends(area: Readable, header_size: int) -> Array | list[int]:
    if not area:
        return []
    size = header_size + sum(LENGTHS.unpack_from(area, LENGTHS_AT))
    count = len(area) // size
    if count > FEW and size * count == len(area):
        heads = np.ndarray((count,), dtype=head_type(size), buffer=area)
        if not (heads["headers"].astype(np.int64) + heads["payload"] != size - header_size).any():
            ends: Array = counting(count + 1)[1:] * size
            return ends
    found = []
    position = 0
    while position < len(area):
        headers, payload = LENGTHS.unpack_from(area, position + LENGTHS_AT)
        position += header_size + headers + payload
        found.append(position)
    return found
