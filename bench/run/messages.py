"""The messages of a run: made for producers, and recognised by consumers.

The id of a message says which run and which producer it is from, and which message of that producer it is. So nothing
has to be in the payload, and every size is possible. The origin timestamp is when it was due to be sent.
"""

from __future__ import annotations

import os
import random
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
POOLED = 4

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
        self._made: list[list[bytes]] = []
        self._turn = 0
        self.next_number = 0

    def payloads(self) -> list[bytes]:
        """The payloads of the next batch. If all batches are alike, a few take turns: making them costs the load more
        than sending them."""
        if not self._is_uniform:
            return self._new_payloads()
        if len(self._made) < POOLED:
            self._made.append(self._new_payloads())
            return self._made[-1]
        self._turn = (self._turn + 1) % POOLED
        return self._made[self._turn]

    def _new_payloads(self) -> list[bytes]:
        """Parts of the same random bytes."""
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
    named, frames = batches.header(batch), batches.frame_positions(batch)
    count, view = named.message_count, memoryview(batch)
    if isinstance(frames, int):
        heads: Any = np.ndarray((count,), _frame(frames), view, HEADER_BYTES)
    else:
        anywhere: Any = np.ndarray((len(batch) - FRAME_BYTES + 1,), f"V{FRAME_BYTES}", view, 0, (1,))
        heads = anywhere[np.frombuffer(frames, np.uint32)[:-1]].view(_frame(FRAME_BYTES))
    deltas = heads["delta"]
    return Contents(
        named.base_offset + int(deltas[0]),
        count,
        bool(int(deltas[-1]) - int(deltas[0]) == count - 1),
        heads["number"],
        heads["source"],
        heads["time"].astype(np.int64) + named.origin_timestamp,
        len(batch) - HEADER_BYTES - count * FRAME_BYTES,
    )


def _frame(size: int) -> np.dtype[Any]:
    return np.dtype({**_FIELDS, "itemsize": size})  # type: ignore[call-overload,no-any-return]
