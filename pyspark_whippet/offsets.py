"""Arithmetic on offsets: pure functions over the dictionaries that checkpoints hold, {"stream/topic": {"0": 23}}.

Spark compares offsets as strings, so everything handed to it comes from `canonical`: topics sorted by name, partitions
by number, and always all of them. An offset is that of the next message to read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from pyspark_whippet.settings import Offsets


class Range(NamedTuple):
    """Messages start .. end-1 of a partition."""

    topic: str
    partition: int
    start: int
    end: int


def canonical(offsets: Offsets) -> Offsets:
    return {
        topic: {str(number): int(partitions[str(number)]) for number in sorted(map(int, partitions))}
        for topic, partitions in sorted(offsets.items())
    }


def ranges(start: Offsets, end: Offsets) -> list[Range]:
    """Returns the ranges between two sets of offsets, including those that run backwards. A new partition starts at
    0."""
    found = []
    for topic, partitions in end.items():
        begun = start.get(topic, {})
        found += [
            Range(topic, int(number), begun.get(number, 0), stop)
            for number, stop in partitions.items()
            if begun.get(number, 0) != stop
        ]
    return found


def divide(whole: Iterable[Range], at_least: int | None, records_max: int | None) -> list[Range]:
    """Divides ranges into at least `at_least` pieces of at most `records_max` messages; the largest get the most
    pieces."""
    pieces = [piece for each in whole for piece in cut(each, _parts_needed(each, records_max))]
    if at_least is None or len(pieces) >= at_least:
        return pieces
    total = sum(each.end - each.start for each in pieces)
    wanted = {each: max(1, (each.end - each.start) * at_least // max(1, total)) for each in pieces}
    for each in sorted(pieces, key=lambda each: (each.start - each.end) / wanted[each]):
        if sum(wanted.values()) >= at_least:
            break
        wanted[each] += 1
    return [piece for each in pieces for piece in cut(each, wanted[each])]


def _parts_needed(each: Range, records_max: int | None) -> int:
    return 1 if records_max is None else -(-(each.end - each.start) // records_max)


def cut(each: Range, parts: int) -> Iterator[Range]:
    """Cuts a range into this many parts, but none smaller than a message."""
    size = each.end - each.start
    parts = max(1, min(parts, size))
    bounds = [each.start + size * i // parts for i in range(parts + 1)]
    for start, end in pairwise(bounds):
        yield each._replace(start=start, end=end)


def limited(start: Offsets, end: Offsets, records_max: int) -> Offsets:
    """Returns an end at most this many messages after the start, but at least one message in each partition that has
    any. Partitions get shares in proportion to their waiting messages."""
    # A topic that was created again ends before it starts; this must not leave more to the others.
    waiting = [each for each in ranges(start, end) if each.start < each.end]
    total = sum(each.end - each.start for each in waiting)
    if total <= records_max:
        return end
    nearer = {topic: dict(partitions) for topic, partitions in end.items()}
    for each in waiting:
        share = max(1, (each.end - each.start) * records_max // total)
        nearer[each.topic][str(each.partition)] = each.start + min(share, each.end - each.start)
    return nearer


def lags(position: Offsets, latest: Offsets) -> list[int]:
    """Returns the lag of each partition, in messages."""
    return [
        max(0, end - position.get(topic, {}).get(number, 0))
        for topic, partitions in latest.items()
        for number, end in partitions.items()
    ]
