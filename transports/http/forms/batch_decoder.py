"""Decodes batches, or slices of them, into the messages of a JSON response.

Payloads stay where they are until they are encoded. A long response is decoded batch by batch, and yields to the event
loop in between.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any

import msgspec
import numpy as np

from whippet.storage.batch import FRAME, FRAME_BYTES, Readable
from whippet.transports import offload
from whippet.transports.http.forms import user_headers
from whippet.transports.wire.classic.message import frame_type
from whippet.transports.wire.classic.unbatching import Head, batches

LENGTHS = struct.Struct("<II")
LENGTHS_AT = 32
"""Where the lengths of the user headers and the payload are in a frame."""
FEW_MESSAGES = 48
"""Batches of up to this many messages are decoded one by one, without numpy."""
YIELD_MESSAGES = 4096
"""Messages to decode before yielding to the event loop."""


class MessageHeader(msgspec.Struct, frozen=True, gc=False):
    checksum: int
    id: int
    offset: int
    timestamp: int
    """When the message was appended, in us since 1970."""
    origin_timestamp: int
    user_headers_length: int
    payload_length: int
    reserved: int = 0


class PolledMessage(msgspec.Struct, frozen=True, gc=False):
    header: MessageHeader
    payload: bytes
    user_headers: user_headers.Outgoing


class PolledMessage06(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The format of clients of 0.6."""

    header: MessageHeader
    payload: bytes
    user_headers: dict[str, user_headers.HeaderPart] | None = None


class PolledMessages(msgspec.Struct, frozen=True):
    partition_id: int
    current_offset: int
    count: int
    messages: list[PolledMessage]
    """PolledMessage06 for a client of 0.6, which the type cannot express."""


async def decode_messages(buffers: Iterable[Readable], *, for_0_6: bool) -> list[PolledMessage | PolledMessage06]:
    found: list[PolledMessage | PolledMessage06] = []
    next_yield = YIELD_MESSAGES
    for head, frames in batches(buffers):
        if offload.is_large(len(frames), head[6]):
            found += await asyncio.to_thread(lambda *given: list(_messages(*given)), head, frames, for_0_6)
        else:
            found += _messages(head, frames, for_0_6)
        if len(found) >= next_yield:
            next_yield = len(found) + YIELD_MESSAGES
            await asyncio.sleep(0)
    return found


def iterate_messages(buffers: Iterable[Readable]) -> Iterator[PolledMessage]:
    """The same without yielding, for few messages."""
    for head, frames in batches(buffers):
        made: Any = _messages(head, frames, False)
        yield from made


def payload_views(buffers: Iterable[Readable]) -> list[memoryview]:
    found: list[memoryview] = []
    for head, frames in batches(buffers):
        count = head[6]
        stride = _uniform_stride(frames, count) if count > FEW_MESSAGES else None
        if stride is not None:
            length = stride - FRAME_BYTES
            found += [frames[start : start + length] for start in range(FRAME_BYTES, len(frames), stride)]
            continue
        position = 0
        for _ in range(count):
            headers, payload = LENGTHS.unpack_from(frames, position + LENGTHS_AT)
            body = position + FRAME_BYTES
            position = body + payload + headers
            found.append(frames[body : body + payload])
    return found


def _messages(head: Head, frames: memoryview, for_0_6: bool) -> Iterable[PolledMessage | PolledMessage06]:
    if head[6] > FEW_MESSAGES:
        made = _uniform(head, frames, for_0_6)
        if made is not None:
            return made
    return _one_by_one(head, frames, for_0_6)


def _one_by_one(head: Head, frames: memoryview, for_0_6: bool) -> Iterable[PolledMessage | PolledMessage06]:
    _, base, timestamp, origin, _, _, count = head
    position = 0
    for _ in range(count):
        checksum, identity, delta, time, headers, payload, _ = FRAME.unpack_from(frames, position)
        body = position + FRAME_BYTES
        position = body + payload + headers
        decoded = MessageHeader(
            checksum, int.from_bytes(identity, "little"), base + delta, timestamp, origin + time, headers, payload
        )
        content: Any = frames[body : body + payload]
        block = frames[body + payload : position]
        if for_0_6:
            yield PolledMessage06(decoded, content, user_headers.decode_for_0_6(block) if headers else None)
        else:
            yield PolledMessage(decoded, content, user_headers.decode(block) if headers else [])


def _uniform(head: Head, frames: memoryview, for_0_6: bool) -> Iterable[PolledMessage | PolledMessage06] | None:
    """Decodes messages of one size without user headers column by column; returns None for others."""
    _, base, timestamp, origin, _, _, count = head
    stride = _uniform_stride(frames, count)
    if stride is None:
        return None
    heads = np.ndarray((count,), dtype=frame_type(stride), buffer=frames)
    length = stride - FRAME_BYTES
    ids = [high << 64 | low for low, high in zip(heads["id_low"].tolist(), heads["id_high"].tolist(), strict=True)]
    decoded = map(
        MessageHeader,
        heads["checksum"].tolist(),
        ids,
        (heads["delta"].astype(np.uint64) + np.uint64(base)).tolist(),
        repeat(timestamp),
        (heads["time"].astype(np.uint64) + np.uint64(origin)).tolist(),
        repeat(0),
        repeat(length),
    )
    contents: Any = [frames[start : start + length] for start in range(FRAME_BYTES, len(frames), stride)]
    if for_0_6:
        return map(PolledMessage06, decoded, contents)
    return map(PolledMessage, decoded, contents, repeat([]))


def _uniform_stride(frames: memoryview, count: int) -> int | None:
    """Returns the distance between messages of one size without user headers; None for others."""
    stride, rest = divmod(len(frames), count)
    if rest or stride <= FRAME_BYTES:
        return None
    heads = np.ndarray((count,), dtype=frame_type(stride), buffer=frames)
    if heads["headers"].any() or (heads["payload"] != stride - FRAME_BYTES).any():
        return None
    return stride
