"""A histogram of durations with three significant digits and a bounded size, after Gil Tene's HdrHistogram.

Buckets have the same bounds as those of HdrHistogram with a lowest value of 1, so `encode` writes what its tools for
other languages read (V2, compressed, base64), and histograms of several processes are added up without any loss. Values
are recorded many at a time, with numpy.
"""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from array import array
from typing import Any, NamedTuple

import numpy as np

DIGITS = 3
HALF_BITS = 10
"""2,048 buckets of one unit each come first; every power of two above them has half as many."""
HALF = 1 << HALF_BITS
HIGHEST = (1 << 42) - 1
"""An hour and more in nanoseconds. Values above it count as this one."""
WAITING_MAX = 4096
"""How many values are kept until they are put into buckets together."""

_COOKIE = 0x1C849303 | 0x10
_COMPRESSED_COOKIE = 0x1C849304 | 0x10
_HEAD = struct.Struct(">iiiiqqd")
_ENVELOPE = struct.Struct(">ii")

Counts = np.ndarray[Any, np.dtype[np.int64]]


class Invalid(ValueError):
    """The text is no histogram of this kind."""


class Bucket(NamedTuple):
    highest: int
    """The largest value that belongs into it."""
    values: int
    """How many values are in it."""


class Histogram:
    """Durations in nanoseconds. `total` and `highest` are exact."""

    def __init__(self) -> None:
        self._counts: Counts = np.zeros(0, np.int64)
        self._waiting = array("q")
        self.total = 0
        self.highest = 0

    def record(self, value: int) -> None:
        self._waiting.append(value)
        if len(self._waiting) >= WAITING_MAX:
            self._put_away()

    def record_all(self, values: Counts) -> None:
        self._put_away()
        self._add(values)

    def _put_away(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, array("q")
            self._add(np.frombuffer(waiting, np.int64))

    def _add(self, values: Counts) -> None:
        if not len(values):
            return
        # Clocks of several machines differ: a message may seem to arrive before it was sent.
        values = np.clip(values, 0, HIGHEST)
        self.total += int(values.sum())
        self.highest = max(self.highest, int(values.max()))
        self._add_counts(np.bincount(_indices(values)))

    def _add_counts(self, counts: Counts) -> None:
        if len(counts) > len(self._counts):
            grown = np.zeros(len(counts), np.int64)
            grown[: len(self._counts)] = self._counts
            self._counts = grown
        self._counts[: len(counts)] += counts

    def add(self, other: Histogram) -> None:
        self._put_away()
        other._put_away()
        self._add_counts(other._counts)
        self.total += other.total
        self.highest = max(self.highest, other.highest)

    # -------------------------------------------------------------------------------------------------------- reading

    @property
    def count(self) -> int:
        self._put_away()
        return int(self._counts.sum())

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def percentile(self, percent: float) -> int:
        """Returns the value that `percent` of all values do not exceed; at most 0.1 % above the exact one."""
        count = self.count
        if not count:
            return 0
        rank = max(1, min(count, int(np.ceil(percent / 100 * count - 1e-9))))
        index = int(np.searchsorted(np.cumsum(self._counts), rank))
        return min(_highest_of(index), self.highest)

    def buckets(self) -> list[Bucket]:
        """Those that are not empty, the smallest values first."""
        self._put_away()
        return [Bucket(_highest_of(int(index)), int(self._counts[index])) for index in np.flatnonzero(self._counts)]

    # ------------------------------------------------------------------------------------------------------- encoding

    def encode(self) -> str:
        self._put_away()
        payload = bytearray()
        empty = 0
        for count in self._counts.tolist():
            if not count:
                empty += 1
                continue
            if empty:
                _write_signed(payload, -empty)
                empty = 0
            _write_signed(payload, count)
        head = _HEAD.pack(_COOKIE, len(payload), 0, DIGITS, 1, HIGHEST, 1.0)
        packed = zlib.compress(head + payload)
        return base64.b64encode(_ENVELOPE.pack(_COMPRESSED_COOKIE, len(packed)) + packed).decode()

    @classmethod
    def decode(cls, text: str, total: int | None = None, highest: int | None = None) -> Histogram:
        """`total` and `highest` are not part of the format: without them they are estimated from the buckets."""
        found = cls()
        try:
            octets = base64.b64decode(text, validate=True)
            cookie, length = _ENVELOPE.unpack_from(octets)
            content = zlib.decompress(octets[_ENVELOPE.size : _ENVELOPE.size + length])
            inner, size, _, digits, lowest, _, _ = _HEAD.unpack_from(content)
        except (binascii.Error, struct.error, zlib.error) as error:
            raise Invalid(f"no histogram: {error}") from None
        if (cookie, inner, digits, lowest) != (_COMPRESSED_COOKIE, _COOKIE, DIGITS, 1):
            raise Invalid("no histogram of values from 1 with three digits")
        counts = _read_counts(content[_HEAD.size : _HEAD.size + size])
        found._add_counts(np.array(counts, np.int64))
        last = int(np.flatnonzero(found._counts)[-1]) if found.count else 0
        found.highest = _highest_of(last) if highest is None else highest
        found.total = sum(highest * values for highest, values in found.buckets()) if total is None else total
        return found


def _indices(values: Counts) -> Counts:
    """Returns the bucket of each value."""
    _, exponents = np.frexp(values.astype(np.float64))
    shifts = np.maximum(exponents.astype(np.int64) - (HALF_BITS + 1), 0)
    return (shifts << HALF_BITS) + (values >> shifts)


def _highest_of(index: int) -> int:
    shift = max((index >> HALF_BITS) - 1, 0)
    return ((index - (shift << HALF_BITS) + 1) << shift) - 1


def _write_signed(out: bytearray, value: int) -> None:
    """ZigZag, then seven bits a byte; the ninth byte, if there is one, has eight."""
    rest = (value << 1) ^ (value >> 63)
    for _ in range(8):
        if rest < 0x80:
            out.append(rest)
            return
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest & 0xFF)


def _read_counts(octets: bytes) -> list[int]:
    counts: list[int] = []
    value = shift = 0
    for octet in octets:
        if shift == 56:
            value |= octet << shift
        else:
            value |= (octet & 0x7F) << shift
            if octet & 0x80:
                shift += 7
                continue
        signed = (value >> 1) ^ -(value & 1)
        if signed < 0:
            counts += [0] * -signed
        else:
            counts.append(signed)
        if len(counts) > _COUNTS_MAX:
            raise Invalid("more buckets than a histogram of this kind has")
        value = shift = 0
    return counts


_COUNTS_MAX = int(_indices(np.array([HIGHEST], np.int64))[0]) + 1
