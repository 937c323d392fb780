"""What is lost, comes twice or comes too late is noticed, whoever reads it."""

from __future__ import annotations

import numpy as np
import pytest

from whippet.bench.run.messages import Contents, Maker, contents, producer_of, run_of, source_of
from whippet.bench.run.settings import Range
from whippet.bench.run.verification import Inspector, Tally, judge
from whippet.storage.batch import check

RUN = 7


def batch(first: int, numbers: range | list[int], *, producer: int = 0, run: int = RUN) -> Contents:
    count = len(numbers)
    sources = np.full(count, source_of(run, producer), np.uint64)
    return Contents(first, count, True, np.array(numbers, np.uint64), sources, np.zeros(count, np.int64), 10 * count)


def test_messages_in_their_order_are_good() -> None:
    inspector = Inspector(RUN)
    assert [inspector.take(0, batch(0, range(5))), inspector.take(0, batch(5, range(5, 9)))] == [5, 4]
    assert judge(9, [inspector.findings]).is_good
    sent = Tally()
    sent.add(np.arange(9, dtype=np.uint64))
    assert inspector.findings.sources["0"] == sent


@pytest.mark.parametrize(
    ("batches", "expected", "problem"),
    [
        ([batch(0, range(5)), batch(7, range(7, 9))], 9, "2 messages did not arrive"),
        ([batch(0, range(5))], 9, "4 messages did not arrive"),
        ([batch(0, range(5)), batch(3, range(3, 9))], 9, "2 messages came twice"),
        ([batch(0, range(5)), batch(5, range(5))], 5, "5 messages came twice"),
        ([batch(0, [0, 1, 1, 2])], 3, "1 messages came twice"),
        ([batch(0, [0, 2, 1])], 3, "1 messages came again, or after a later one"),
    ],
)
def test_what_is_wrong_has_a_name(batches: list[Contents], expected: int, problem: str) -> None:
    inspector = Inspector(RUN)
    for each in batches:
        inspector.take(0, each)
    verdict = judge(expected, [inspector.findings])
    assert not verdict.is_good
    assert problem in "; ".join(verdict.problems)


def test_another_message_in_the_place_of_a_missing_one_changes_the_tally() -> None:
    first, second = Tally(), Tally()
    first.add(np.array([0, 1, 2], np.uint64))
    second.add(np.array([0, 1, 3], np.uint64))
    assert first.messages == second.messages
    assert first != second


def test_a_range_counts_as_its_numbers() -> None:
    one_by_one, together = Tally(), Tally()
    for first, count in ((0, 5), (5, 1), (2**33, 1000)):
        one_by_one.add(np.arange(first, first + count, dtype=np.uint64))
        together.add_range(first, count)
    assert one_by_one == together


def test_tallies_of_several_members_add_up() -> None:
    together, parts = Tally(), [Tally(), Tally()]
    together.add(np.arange(10, dtype=np.uint64))
    parts[0].add(np.array([1, 3, 5, 7, 9], np.uint64))
    parts[1].add(np.array([0, 2, 4, 6, 8], np.uint64))
    parts[0].join(parts[1])
    assert parts[0] == together


def test_messages_of_other_runs_do_not_count() -> None:
    inspector = Inspector(RUN)
    assert inspector.take(0, batch(0, range(5), run=8)) == 0
    assert inspector.take(0, batch(5, range(4))) == 4
    assert inspector.findings.others == 5
    assert judge(4, [inspector.findings]).is_good


def test_without_a_run_everything_counts_and_the_order_of_ours_is_checked() -> None:
    inspector = Inspector(None)
    foreign = batch(0, [9, 3, 5])._replace(sources=np.array([5, 5, 5], np.uint64))
    assert inspector.take(0, foreign) == 3
    assert inspector.take(0, batch(3, range(4), run=8)) == 4
    assert judge(7, [inspector.findings]).is_good
    inspector.take(0, batch(7, range(4), run=8))
    assert not judge(11, [inspector.findings]).is_good


def test_producers_and_partitions_are_told_apart() -> None:
    inspector = Inspector(RUN)
    mixed = batch(0, [0, 0, 1, 1])._replace(sources=np.array([source_of(RUN, n) for n in (0, 1, 0, 1)], np.uint64))
    assert inspector.take(3, mixed) == 4
    assert inspector.take(4, batch(0, [2, 3], producer=1)) == 2
    assert judge(6, [inspector.findings]).is_good
    assert {name: tally.messages for name, tally in inspector.findings.sources.items()} == {"0": 2, "1": 4}


@pytest.mark.parametrize(("size", "count"), [("1", "1"), ("100", "50"), ("1..300", "2..40"), ("5000", "3")])
def test_made_messages_are_recognised(size: str, count: str) -> None:
    maker = Maker(RUN, 3, Range.parse(size, "-m"), Range.parse(count, "-P"))
    inspector, total = Inspector(RUN), 0
    for _ in range(9):
        made = maker.make(1_700_000_000_000_000)
        assert check(made.batch).message_count == made.messages
        found = contents(made.batch)
        assert (found.messages, found.size) == (made.messages, made.size)
        assert {run_of(int(source)) for source in found.sources} == {RUN}
        assert {producer_of(int(source)) for source in found.sources} == {3}
        assert set(found.origins_us.tolist()) == {1_700_000_000_000_000}
        # What the server adds.
        inspector.take(0, found._replace(first_offset=total))
        total += found.messages
    assert judge(total, [inspector.findings]).is_good
    assert inspector.last_number(0, source_of(RUN, 3)) == total - 1 == maker.next_number - 1
