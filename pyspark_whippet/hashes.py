"""The hashes of the protocol: XXH32, which maps keys to partitions, and XXH3, the checksum of batches.

XXH32 has an implementation here, for executors without xxhash. Without the package no batch can be built, so `xxh3` is
None, and messages are sent as JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    import xxhash
except ImportError:
    xxhash = None  # type: ignore[assignment]

xxh3: Callable[[Any], int] | None = None if xxhash is None else xxhash.xxh3_64_intdigest

_U32 = 0xFFFFFFFF
_P1, _P2, _P3, _P4, _P5 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1


def xxh32(octets: bytes) -> int:
    return plain_xxh32(octets) if xxhash is None else xxhash.xxh32_intdigest(octets)


def plain_xxh32(octets: bytes) -> int:
    """Returns XXH32 with seed 0."""
    size = len(octets)
    lanes_end = size - size % 16
    if lanes_end:
        lanes = [(_P1 + _P2) & _U32, _P2, 0, -_P1 & _U32]
        for position in range(0, lanes_end, 4):
            lane = position // 4 % 4
            word = int.from_bytes(octets[position : position + 4], "little")
            lanes[lane] = _rotate((lanes[lane] + word * _P2) & _U32, 13) * _P1 & _U32
        found = sum(_rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & _U32
    else:
        found = _P5
    found = (found + size) & _U32
    words_end = size - size % 4
    for position in range(lanes_end, words_end, 4):
        word = int.from_bytes(octets[position : position + 4], "little")
        found = _rotate((found + word * _P3) & _U32, 17) * _P4 & _U32
    for octet in octets[words_end:]:
        found = _rotate((found + octet * _P5) & _U32, 11) * _P1 & _U32
    found = (found ^ found >> 15) * _P2 & _U32
    found = (found ^ found >> 13) * _P3 & _U32
    return found ^ found >> 16


def _rotate(number: int, bits: int) -> int:
    return (number << bits | number >> 32 - bits) & _U32
