"""Whether everything that was sent was read, once and in its order.

Within a partition, offsets rise by one and the messages of a producer keep their order: a consumer sees at once if not.
Over all partitions, producers and consumers keep a count and a sum over the numbers of each producer's messages; the
two have to be equal. So a run of any length needs a few numbers for each producer.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from whippet.bench.run.messages import Contents, Numbers, producer_of, run_of

_MASK = 2**64 - 1


class Tally(msgspec.Struct):
    """What is known of messages, whatever their order."""

    messages: int = 0
    total: int = 0
    squares: int = 0
    """Sums over the numbers of the messages: another message in the place of a missing one changes both."""

    def add(self, numbers: Numbers) -> None:
        self.messages += len(numbers)
        self.total += int(numbers.sum(dtype=np.uint64))
        self.squares = (self.squares + int((numbers * numbers).sum(dtype=np.uint64))) & _MASK

    def add_range(self, first: int, count: int) -> None:
        """Adds `count` consecutive numbers."""
        self.messages += count
        self.total += _sum_below(first + count) - _sum_below(first)
        self.squares = (self.squares + _squares_below(first + count) - _squares_below(first)) & _MASK

    def join(self, other: Tally) -> None:
        self.messages += other.messages
        self.total += other.total
        self.squares = (self.squares + other.squares) & _MASK


def _sum_below(end: int) -> int:
    return end * (end - 1) // 2


def _squares_below(end: int) -> int:
    return (end - 1) * end * (2 * end - 1) // 6


class Findings(msgspec.Struct):
    """What one consumer found."""

    read: int = 0
    """Messages with another one's offset are not counted again."""
    gaps: int = 0
    """Offsets that were skipped."""
    repeated: int = 0
    """Messages with an offset that was there before."""
    late: int = 0
    """Messages whose producer had sent a later one, or the same one, that came before."""
    others: int = 0
    """Messages that are not from this run."""
    sources: dict[str, Tally] = {}
    """What was read of this run, by producer."""

    def join(self, other: Findings) -> None:
        self.read += other.read
        self.gaps += other.gaps
        self.repeated += other.repeated
        self.late += other.late
        self.others += other.others
        for source, tally in other.sources.items():
            self.sources.setdefault(source, Tally()).join(tally)


class Inspector:
    """Looks at everything that one consumer reads. `run` is None if the messages of all runs are expected."""

    def __init__(self, run: int | None) -> None:
        self._run = run
        self._next_offsets: dict[int, int] = {}
        self._last_numbers: dict[tuple[int, int], int] = {}
        self.findings = Findings(sources={})

    def take(self, partition: int, found: Contents) -> int:
        """Returns how many messages are new and of this run."""
        expected = self._next_offsets.get(partition)
        end = found.first_offset + found.messages
        fresh = found.messages
        if expected is not None and found.first_offset < expected:
            fresh = max(end - expected, 0)
            self.findings.repeated += found.messages - fresh
        elif expected is not None:
            self.findings.gaps += found.first_offset - expected
        if not found.is_contiguous:
            self.findings.late += 1
        self._next_offsets[partition] = max(expected or 0, end)
        self.findings.read += fresh
        if not fresh:
            return 0
        numbers, sources = found.numbers[-fresh:], found.sources[-fresh:]
        if (sources == sources[0]).all():
            return self._take_source(partition, int(sources[0]), numbers)
        return sum(
            self._take_source(partition, int(source), numbers[sources == source]) for source in np.unique(sources)
        )

    def last_number(self, partition: int, source: int) -> int:
        return self._last_numbers.get((partition, source), -1)

    def _take_source(self, partition: int, source: int, numbers: Numbers) -> int:
        run = run_of(source)
        if self._run is None:
            # Whatever is there is read: of other programs' messages only the offsets can be checked.
            if run is not None:
                self._check_order(partition, source, numbers)
            return len(numbers)
        if run != self._run:
            self.findings.others += len(numbers)
            return 0
        self._check_order(partition, source, numbers)
        self.findings.sources.setdefault(str(producer_of(source)), Tally()).add(numbers)
        return len(numbers)

    def _check_order(self, partition: int, source: int, numbers: Numbers) -> None:
        last = self.last_number(partition, source)
        latest = np.maximum.accumulate(np.concatenate(([last], numbers.astype(np.int64))))
        self.findings.late += int((numbers.astype(np.int64) <= latest[:-1]).sum())
        self._last_numbers[partition, source] = int(latest[-1])


class Verdict(msgspec.Struct, frozen=True):
    """What a run lost, or has twice. `expected` is how often messages should have been read, over all consumers."""

    expected: int
    read: int
    lost: int
    repeated: int
    late: int
    problems: list[str]

    @property
    def is_good(self) -> bool:
        return not self.problems


def judge(expected: int, findings: Sequence[Findings], problems: Sequence[str] = ()) -> Verdict:
    """`problems` are those that only the tallies show."""
    joined = Findings(sources={})
    for each in findings:
        joined.join(each)
    read = joined.read - joined.others
    lost = max(joined.gaps, expected - read, 0)
    # Messages that were stored twice have offsets of their own.
    surplus = max(read - expected, 0)
    repeated, late = joined.repeated + surplus, max(joined.late - surplus, 0)
    named = list(problems)
    if lost:
        named.append(f"{lost:,} messages did not arrive")
    if repeated:
        named.append(f"{repeated:,} messages came twice")
    if late:
        named.append(f"{late:,} messages came again, or after a later one of their producer")
    return Verdict(expected, read, lost, repeated, late, named)
