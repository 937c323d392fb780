"""Arithmetic on offsets: pure functions over the dictionaries that checkpoints hold:

    {"stream/topic": {"0": 23}, "epochs": {"stream/topic": {"0": 1763}}}

An offset is that of the next message to read, and valid only in the epoch of its partition: a purge, or a topic that
was created again, begins another one. Servers other than Whippet report no epochs, and then there are none. The end of
the first batch also has `since`: where it began, which the checkpoint would not say otherwise.

Spark compares offsets as strings, so everything handed to it comes from `Position.document`: topics sorted by name,
partitions by number, and always all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from pyspark_whippet.settings import Offsets

EPOCHS, SINCE = "epochs", "since"
"""Not the names of topics, which have a slash."""


class Range(NamedTuple):
    """Messages start .. end-1 of a partition."""

    topic: str
    partition: int
    start: int
    end: int
    epoch: int | None = None


@dataclass(frozen=True)
class Position:
    """Where a stream is in each partition."""

    offsets: Offsets
    epochs: Offsets = field(default_factory=dict)
    """None are known of servers that report none, and in checkpoints from before there were any."""
    since: Position | None = None

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Position:
        since = document.get(SINCE)
        return cls(topics_in(document), document.get(EPOCHS, {}), None if since is None else cls.of(since))

    def epoch(self, topic: str, number: str) -> int | None:
        return self.epochs.get(topic, {}).get(number)

    def in_epochs_of(self, later: Position) -> Position:
        """Returns this position without the partitions whose offsets have started over since: it says nothing about
        them."""
        return Position(
            {
                topic: {
                    number: offset
                    for number, offset in partitions.items()
                    if not self.is_other_epoch(later, topic, number)
                }
                for topic, partitions in self.offsets.items()
            },
            self.epochs,
        )

    def is_other_epoch(self, later: Position, topic: str, number: str) -> bool:
        epochs = self.epoch(topic, number), later.epoch(topic, number)
        return None not in epochs and epochs[0] != epochs[1]

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = {**canonical(self.offsets)}
        if any(self.epochs.values()):
            found[EPOCHS] = canonical(self.epochs)
        if self.since is not None:
            found[SINCE] = self.since.document
        return found


def topics_in(document: Mapping[str, Any]) -> Offsets:
    """Returns the offsets of a document that may have more."""
    return {name: value for name, value in document.items() if "/" in name}


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


def waiting(start: Offsets, end: Offsets) -> int:
    """Returns the number of messages between two sets of offsets."""
    return sum(max(0, each.end - each.start) for each in ranges(start, end))


def lags(position: Mapping[str, Any], latest: Mapping[str, Any]) -> list[int]:
    """Returns the lag of each partition, in messages, from the documents of two positions."""
    now = Position.of(latest)
    reached = Position.of(position).in_epochs_of(now).offsets
    return [
        max(0, end - reached.get(topic, {}).get(number, 0))
        for topic, partitions in now.offsets.items()
        for number, end in partitions.items()
    ]
