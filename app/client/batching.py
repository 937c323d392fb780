"""Encodes many payloads as a batch with numpy, without an object for each.

The result is that of `storage.batch.build`. Each message gets a random id unless it is given one, so that it is unique.
A few payloads are encoded in a plain loop, because numpy costs some 30 us.
"""

from __future__ import annotations

import itertools
import os
import struct
import time
import uuid
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, cast

import xxhash

from whippet.app.errors import Code, CommandError
from whippet.storage import batch as batches
from whippet.storage.batch import FRAME, FRAME_BYTES, HEADER, HEADER_BYTES, Message, Readable, Writable
from whippet.storage.lazy_numpy import np

FEW = 8
_HEADER = bytes(HEADER_BYTES)
_GAP = bytes(FRAME_BYTES)
_PLACE = struct.Struct("<Q")
_FIELDS: dict[str, Any] = {
    "names": ["checksum", "id", "delta", "payload"],
    "formats": ["<u8", "V16", "<u4", "<u4"],
    "offsets": [0, 8, 24, 36],
    "itemsize": FRAME_BYTES,
}
_hash = xxhash.xxh3_64_intdigest


def pack(payloads: Sequence[bytes], origin_us: int | None = None, ids: bytes | None = None) -> bytearray:
    """A batch in which all messages have the same origin time, by default now, and no user headers. `ids` has 16 bytes
    for each message."""
    origin = _now_us() if origin_us is None else origin_us
    count = len(payloads)
    if not count:
        raise CommandError(Code.INVALID_MESSAGES_COUNT)
    batch = bytearray(_GAP).join((_HEADER, *payloads))
    checksums = (_fill_few if count <= FEW else _fill_many)(batch, payloads, ids)
    HEADER.pack_into(batch, 0, 0, 0, 0, origin, len(batch), 0, count)
    _PLACE.pack_into(batch, 40, _hash(b"".join((batch[:40], batch[48:52], checksums))))
    return batch


@cache
def _frame() -> np.dtype[Any]:
    return np.dtype(_FIELDS)  # type: ignore[call-overload,no-any-return]


def _now_us() -> int:
    return time.time_ns() // 1000


def _fill_few(batch: bytearray, payloads: Sequence[bytes], ids: bytes | None) -> bytes:
    view = memoryview(batch)
    found = []
    position = HEADER_BYTES
    for i, payload in enumerate(payloads):
        end = position + FRAME_BYTES + len(payload)
        identity = uuid.uuid4().bytes if ids is None else ids[16 * i : 16 * i + 16]
        FRAME.pack_into(batch, position, 0, identity, i, 0, 0, len(payload), 0)
        found.append(_hash(view[position + 8 : end]))
        _PLACE.pack_into(batch, position, found[-1])
        position = end
    return struct.pack(f"<{len(found)}Q", *found)


def _fill_many(batch: bytearray, payloads: Sequence[bytes], ids: bytes | None) -> bytes:
    count = len(payloads)
    sizes = np.fromiter(map(len, payloads), dtype=np.int64, count=count)
    ends = np.cumsum(sizes + FRAME_BYTES) + HEADER_BYTES
    starts = ends - sizes - FRAME_BYTES
    heads = np.zeros(count, dtype=_frame())
    heads["id"] = _ids(count) if ids is None else np.frombuffer(ids, "V16")
    heads["delta"] = np.arange(count)
    heads["payload"] = sizes
    anywhere: Any = np.ndarray((len(batch) - FRAME_BYTES + 1,), dtype=f"V{FRAME_BYTES}", buffer=batch, strides=(1,))
    anywhere[starts] = heads.view(f"V{FRAME_BYTES}")
    view = memoryview(batch)
    parts: Iterable[Readable]
    if (sizes == sizes[0]).all():
        parts = batches.uniform_parts(view, count, FRAME_BYTES + len(payloads[0]))
    else:
        parts = map(view.__getitem__, map(slice, (starts + 8).tolist(), ends.tolist()))
    found = np.fromiter(map(_hash, parts), dtype="<u8", count=count)
    sums: Any = np.ndarray((len(batch) - 7,), dtype="V8", buffer=batch, strides=(1,))
    sums[starts] = found.view("V8")
    return found.tobytes()


def _ids(count: int) -> Any:
    """UUIDs of version 4, as `uuid.uuid4` creates them one by one."""
    octets = np.frombuffer(bytearray(os.urandom(16 * count)), dtype=np.uint8).reshape(count, 16)
    octets[:, 6] = octets[:, 6] & 0x0F | 0x40
    octets[:, 8] = octets[:, 8] & 0x3F | 0x80
    return octets.view("V16").reshape(count)


def as_batch(messages: Sequence[bytes | Message] | Writable) -> Writable:
    """Encodes messages as a batch; a finished batch is returned as it is."""
    if isinstance(messages, bytearray | memoryview):
        return messages
    if not any(map(isinstance, messages, itertools.repeat(Message))):
        return pack(cast(Sequence[bytes], messages))
    plain = [message if isinstance(message, Message) else Message(message) for message in messages]
    return batches.build(plain, _now_us(), os.urandom)
