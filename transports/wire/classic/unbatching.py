"""Turns batches into classic messages: the result of a poll in, buffers to send out.

Each message gets its own offset, times and checksum, so all of it has to be encoded again; only the bodies of long
messages are sent from the batch itself, between new headers. The input consists of batches and slices of them, back to
back over several buffers; the header of a slice may be in a buffer before the one with its frames.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import xxhash

from whippet.app.errors import Code, CommandError
from whippet.storage.batch import FRAME, FRAME_BYTES, HEADER, HEADER_BYTES, Readable
from whippet.storage.lazy_numpy import np
from whippet.transports.wire.classic import userheaders
from whippet.transports.wire.classic.dialect import SHORT
from whippet.transports.wire.classic.message import (
    AFTER_CHECKSUM,
    CHECKSUM,
    FEW,
    LENGTHS,
    Array,
    checksum_of,
    checksums,
    counting,
    frame_type,
    gathered,
    head_type,
    rows,
    uniform_checksums,
    windows,
)

LONG_BODY_BYTES = 64 * 1024
"""From this size on it is cheaper to send a body where it is than to copy it."""
_LENGTHS_AT = 32

Head: TypeAlias = "tuple[int, int, int, int, int, int, int]"


def messages_of(buffers: Iterable[Readable], header_size: int) -> list[Readable]:
    """Returns the messages for a client, with offsets, times and checksums."""
    return _translate(buffers, header_size, placed=True)


def unsent(buffers: Iterable[Readable], header_size: int) -> list[Readable]:
    """Returns the messages as a client sends them: the fields that the server sets are 0."""
    return _translate(buffers, header_size, placed=False)


def _translate(buffers: Iterable[Readable], header_size: int, placed: bool) -> list[Readable]:
    out: list[Readable] = []
    parts: list[Readable] = []
    for head, frames in batches(buffers):
        count = head[6]
        if count > FEW and len(frames) < count * LONG_BODY_BYTES:
            content = _many(head, frames, header_size, placed)
            if content is not None:
                _flush(parts, out)
                out.append(content)
                continue
        _one_by_one(head, frames, header_size, placed, parts, out)
    _flush(parts, out)
    return out


def _flush(parts: list[Readable], out: list[Readable]) -> None:
    if parts:
        out.append(b"".join(parts))
        parts.clear()


def batches(buffers: Iterable[Readable]) -> Iterator[tuple[Head, memoryview]]:
    """Yields every batch as its header and its frames."""
    waiting: Head | None = None
    for buffer in buffers:
        view = memoryview(buffer)
        position, size = 0, len(view)
        while position < size:
            if waiting is None:
                if size - position < HEADER_BYTES:
                    raise _damaged("a batch has no whole header")
                waiting = HEADER.unpack_from(view, position)
                position += HEADER_BYTES
                if position == size:
                    break
            end = position + waiting[4] - HEADER_BYTES
            if not position < end <= size:
                raise _damaged(f"a batch of {waiting[4]} bytes is not whole")
            yield waiting, view[position:end]
            waiting = None
            position = end
    if waiting is not None:
        raise _damaged("a batch has no frames")


def _damaged(sentence: str) -> CommandError:
    return CommandError(Code.CANNOT_READ_MESSAGE, f"{sentence}: what was stored is damaged")


# --------------------------------------------------------------------------------------------------- a few messages


def _one_by_one(
    head: Head, frames: memoryview, header_size: int, placed: bool, parts: list[Readable], out: list[Readable]
) -> None:
    _, base, timestamp, origin, _, _, count = head
    if not placed:
        timestamp = 0
    pack = AFTER_CHECKSUM[header_size].pack
    position, size = 0, len(frames)
    for _ in range(count):
        if size - position < FRAME_BYTES:
            raise _damaged("a message has no whole header")
        _, identity, delta, time, headers, payload, _ = FRAME.unpack_from(frames, position)
        body = position + FRAME_BYTES
        position = body + payload + headers
        if position > size:
            raise _damaged("a message is not whole")
        content: tuple[Readable, ...] = (frames[body:position],)
        if headers and header_size == SHORT:
            block = userheaders.to_short(frames[body + payload : position])
            content = frames[body : body + payload], block
            headers = len(block)
        named = pack(identity, base + delta if placed else 0, timestamp, origin + time, headers, payload)
        if payload < LONG_BODY_BYTES:
            message = b"".join((named, *content))
            parts += (CHECKSUM.pack(checksum_of(message) if placed else 0), message)
            continue
        parts += (_checksum(named, content) if placed else CHECKSUM.pack(0), named)
        _flush(parts, out)
        out += content
    if position != size:
        raise _damaged("bytes follow the last message of a batch")


def _checksum(named: bytes, content: tuple[Readable, ...]) -> bytes:
    digest = xxhash.xxh3_64(named)
    for piece in content:
        digest.update(piece)
    return CHECKSUM.pack(digest.intdigest())


# -------------------------------------------------------------------------------------------------- many messages


def _many(head: Head, frames: memoryview, header_size: int, placed: bool) -> Readable | None:
    """Returns the messages of one batch; None if the user headers of each have to be examined."""
    count = head[6]
    size = FRAME_BYTES + sum(LENGTHS.unpack_from(frames, _LENGTHS_AT))
    if size * count == len(frames):
        heads = np.ndarray((count,), dtype=frame_type(size), buffer=frames)
        headers = heads["headers"]
        if not (headers.astype(np.int64) + heads["payload"] != size - FRAME_BYTES).any():
            if header_size == SHORT and headers.any():
                return None
            return _uniform(head, frames, heads, header_size, placed)
    starts = _starts(frames, count)
    heads = windows(frames, FRAME_BYTES)[starts].view(frame_type(FRAME_BYTES))
    if header_size == SHORT and heads["headers"].any():
        return None
    return _mixed(head, frames, heads, starts, header_size, placed)


def _starts(frames: memoryview, count: int) -> Array:
    lengths_at = LENGTHS.unpack_from
    found = []
    position, last = 0, len(frames) - FRAME_BYTES
    for _ in range(count):
        if position > last:
            raise _damaged("a message has no whole header")
        found.append(position)
        headers, payload = lengths_at(frames, position + _LENGTHS_AT)
        position += FRAME_BYTES + headers + payload
    if position != len(frames):
        raise _damaged("the messages of a batch do not fill it")
    return np.array(found, dtype=np.int64)


def _uniform(head: Head, frames: memoryview, heads: Array, header_size: int, placed: bool) -> Readable:
    count, stride = len(heads), heads.dtype.itemsize
    body = stride - FRAME_BYTES
    size = header_size + body
    out = np.empty(count * size, dtype=np.uint8)
    rows(out, header_size, count, size, body)[:] = rows(frames, FRAME_BYTES, count, stride, body)
    if header_size != SHORT:
        rows(out, SHORT, count, size, header_size - SHORT)[:] = 0
    made = np.ndarray((count,), dtype=head_type(size), buffer=out)
    _fill(made, head, heads, placed)
    if placed:
        made["checksum"] = uniform_checksums(out, 0, count, size)
    else:
        made["checksum"] = 0
    return out.data


def _mixed(head: Head, frames: memoryview, heads: Array, starts: Array, header_size: int, placed: bool) -> Readable:
    """The header of a message is longer than that of a frame. So each frame is copied with some of the bytes before it,
    which the header overwrites."""
    count = len(heads)
    more = header_size - FRAME_BYTES
    bounds = starts.tolist()
    bounds.append(len(frames))
    first = bytes(more) + frames[: bounds[1]]
    out = gathered(first, frames, (starts[1:] - more).tolist(), bounds[2:])
    positions = starts + counting(count) * more
    made = np.zeros(count, dtype=head_type(header_size))
    _fill(made, head, heads, placed)
    windows(out, header_size)[positions] = made.view(f"V{header_size}")
    if placed:
        found = checksums(out, positions, [*positions[1:].tolist(), len(out)])
        windows(out, 8)[positions] = found.view("V8")
    return out


def _fill(made: Array, head: Head, heads: Array, placed: bool) -> None:
    """Fills in the headers of messages except for their checksums."""
    _, base, timestamp, origin, _, _, _ = head
    made["id_low"] = heads["id_low"]
    made["id_high"] = heads["id_high"]
    made["offset"] = heads["delta"].astype(np.uint64) + np.uint64(base) if placed else 0
    made["timestamp"] = timestamp if placed else 0
    made["origin"] = heads["time"].astype(np.uint64) + np.uint64(origin)
    made["headers"] = heads["headers"]
    made["payload"] = heads["payload"]
