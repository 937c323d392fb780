"""The messages of a run: made for producers, and recognised by consumers.

The id of a message says which run and which producer it is from, and which message of that producer it is. So nothing
has to be in the payload, and every size is possible. The origin timestamp is when it was due to be sent.
"""

from __future__ import annotations

import os
import random
import struct
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from whippet.app.client.batching import pack
from whippet.bench.run.settings import Range
from whippet.storage import batch as batches
from whippet.storage.batch import FRAME_BYTES, HEADER_BYTES, Readable

_FIELDS: dict[str, Any] = {
    "names": ["number", "source", "delta", "time", "headers", "payload"],
    "formats": ["<u8", "<u8", "<u4", "<u4", "<u4", "<u4"],
    "offsets": [8, 16, 24, 28, 32, 36],
}
MARK = 0xBE4C
"""The highest bits of an id, which tell our messages from those of other programs."""
RUNS = 1 << 24
PRODUCERS = 1 << 24
POOL_BYTES = 1 << 20
TEMPLATES = 4
_ORIGIN = struct.Struct("<Q")
_ORIGIN_AT = 24
"""Where a batch header has the origin timestamp."""

Numbers = np.ndarray[Any, np.dtype[np.uint64]]


def source_of(run: int, producer: int) -> int:
    """Returns the higher half of an id, which all messages of a producer share."""
    return (MARK << 24 | run) << 24 | producer


def run_of(source: int) -> int | None:
    """Returns the run that a message is from; None if it is from another program."""
    return source >> 24 & RUNS - 1 if source >> 48 == MARK else None


def producer_of(source: int) -> int:
    return source & PRODUCERS - 1


class Made(NamedTuple):
    batch: bytearray
    messages: int
    size: int
    """Of the payloads."""


class Maker:
    """Makes the batches of one producer, with random payloads."""

    def __init__(self, run: int, producer: int, size: Range, count: Range) -> None:
        self._source = source_of(run, producer)
        self._size = size
        self._count = count
        self._random = random.Random(self._source)
        self._pool = os.urandom(POOL_BYTES + size.high)
        self._is_uniform = size.low == size.high and count.low == count.high
        self._templates: list[Made] = []
        self._turn = 0
        self.next_number = 0

    def payloads(self) -> list[bytes]:
        """Payloads of a batch: parts of the same random bytes."""
        source, pool = self._random, self._pool
        start = source.randrange(POOL_BYTES)
        sizes = [self._size.draw(source) for _ in range(self._count.draw(source))]
        found = []
        for size in sizes:
            found.append(pool[start : start + size])
            start = (start + 997) % POOL_BYTES
        return found

    def ids(self, count: int) -> Numbers:
        """The next ids, as pairs of numbers."""
        found = np.empty((count, 2), np.uint64)
        found[:, 0] = np.arange(self.next_number, self.next_number + count, dtype=np.uint64)
        found[:, 1] = self._source
        self.next_number += count
        return found

    def make(self, origin_us: int) -> Made:
        """The batch is valid until the server has acknowledged it: if all are alike, a few take turns, because new ones
        would cost the load more than sending them."""
        if not self._is_uniform:
            return self._new(origin_us)
        if len(self._templates) < TEMPLATES:
            self._templates.append(self._new(origin_us))
            return self._templates[-1]
        self._turn = (self._turn + 1) % TEMPLATES
        made = self._templates[self._turn]
        _heads(made.batch)["number"] = np.arange(self.next_number, self.next_number + made.messages, dtype=np.uint64)
        self.next_number += made.messages
        _ORIGIN.pack_into(made.batch, _ORIGIN_AT, origin_us)
        batches.seal(made.batch, made.messages)
        return made

    def _new(self, origin_us: int) -> Made:
        payloads = self.payloads()
        batch = pack(payloads, origin_us, self.ids(len(payloads)).tobytes())
        return Made(batch, len(payloads), sum(map(len, payloads)))


class Contents(NamedTuple):
    """What a batch has, a number for each message."""

    first_offset: int
    messages: int
    is_contiguous: bool
    numbers: Numbers
    sources: Numbers
    origins_us: np.ndarray[Any, np.dtype[np.int64]]
    size: int
    """Of the payloads."""


def contents(batch: Readable) -> Contents:
    named, heads = batches.header(batch), _heads(batch)
    count, deltas = named.message_count, heads["delta"]
    return Contents(
        named.base_offset + int(deltas[0]),
        count,
        bool(int(deltas[-1]) - int(deltas[0]) == count - 1),
        heads["number"],
        heads["source"],
        heads["time"].astype(np.int64) + named.origin_timestamp,
        len(batch) - HEADER_BYTES - count * FRAME_BYTES,
    )


def _heads(batch: Readable) -> Any:
    """The headers of the frames; those of frames of one length are in the batch, others are copies."""
    frames, view = batches.frame_positions(batch), memoryview(batch)
    if isinstance(frames, int):
        return np.ndarray((batches.header(batch).message_count,), _frame(frames), view, HEADER_BYTES)
    anywhere: Any = np.ndarray((len(batch) - FRAME_BYTES + 1,), f"V{FRAME_BYTES}", view, 0, (1,))
    return anywhere[np.frombuffer(frames, np.uint32)[:-1]].view(_frame(FRAME_BYTES))


@lru_cache(maxsize=64)
def _frame(size: int) -> np.dtype[Any]:
    return np.dtype({**_FIELDS, "itemsize": size})  # type: ignore[call-overload,no-any-return]
