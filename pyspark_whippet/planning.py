"""Divides ranges of messages among tasks where they are stored in segments, or in pieces of segments."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from pyspark_whippet import offsets
from pyspark_whippet.offsets import Range
from pyspark_whippet.settings import Settings

SPLIT_BYTES = 128 * 1024 * 1024
"""How much of a segment one task reads, similar to Spark's own for other files."""


class Stored(Protocol):
    """Messages start .. end-1, stored together."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def size(self) -> int: ...


Part = TypeVar("Part", bound=Stored)


def divide(
    ranges: Sequence[Range], parts: Mapping[tuple[str, int], Sequence[Part]], settings: Settings
) -> Iterator[tuple[Range, Part | None]]:
    """Yields ranges that cover all of these, each with the part that has it; None where no part has the messages."""
    cut = [each for whole in ranges for each in _cut_at(whole, parts[whole.topic, whole.partition])]
    for each in offsets.divide(cut, settings.min_partitions, settings.max_records_per_partition):
        yield each, _part_with(parts[each.topic, each.partition], each.start)


def _cut_at(whole: Range, parts: Sequence[Part]) -> Iterator[Range]:
    """Cuts a range where parts start and end, and splits those that are large."""
    at = whole.start
    for part in parts:
        start, end = max(at, part.start), min(whole.end, part.end)
        if start >= end:
            continue
        if at < start:
            yield whole._replace(start=at, end=start)
        size = part.size * (end - start) // (part.end - part.start)
        yield from offsets.cut(whole._replace(start=start, end=end), max(1, round(size / SPLIT_BYTES)))
        at = end
    if at < whole.end:
        yield whole._replace(start=at)


def _part_with(parts: Sequence[Part], offset: int) -> Part | None:
    place = bisect_right(parts, offset, key=lambda part: part.start) - 1
    return parts[place] if place >= 0 and offset < parts[place].end else None
