"""The algebra of offsets: pure functions over the dictionaries that checkpoints keep, {"stream/topic": {"0": 23}}.

Spark compares offsets as texts, so whatever is handed to it is made by `canonical`: topics in their order, partitions
by their numbers, always all of them. An offset is that of the next message to read.
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
    """What lies between them; a partition that is new begins at its beginning. One that runs backwards is in it too."""
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
    """Cut into at most `records_max` messages each, and into `at_least` pieces, the largest ranges into most."""
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
    """Into so many parts, or single messages."""
    size = each.end - each.start
    parts = max(1, min(parts, size))
    bounds = [each.start + size * i // parts for i in range(parts + 1)]
    for start, end in pairwise(bounds):
        yield each._replace(start=start, end=end)


def limited(start: Offsets, end: Offsets, records_max: int) -> Offsets:
    """An end that is at most so many messages after the start, or one in each partition that has any: a partition gets
    in proportion to what waits in it."""
    # One that was made anew ends before it begins; that is no room for others.
    waiting = [each for each in ranges(start, end) if each.start < each.end]
    total = sum(each.end - each.start for each in waiting)
    if total <= records_max:
        return end
    nearer = {topic: dict(partitions) for topic, partitions in end.items()}
    for each in waiting:
        share = max(1, (each.end - each.start) * records_max // total)
        nearer[each.topic][str(each.partition)] = each.start + min(share, each.end - each.start)
    return nearer


def behind(position: Offsets, latest: Offsets) -> list[int]:
    """By how many messages each partition is behind."""
    return [
        max(0, end - position.get(topic, {}).get(number, 0))
        for topic, partitions in latest.items()
        for number, end in partitions.items()
    ]
