"""Retention: which segments may be deleted, as tables. Times are in seconds and sizes are small, for readability."""

from __future__ import annotations

import pytest

from whippet.storage.retention import Closed, expired, is_read, oldest, oldest_of_all, oversize
from whippet.storage.segment import Segment


def closed(*segments: tuple[int, int, int], barrier: int | None = None) -> Closed:
    """Consecutive segments from offset 0 on, each as (messages, time of the last one, bytes)."""
    made = []
    start = 0
    for messages, time, size in segments:
        segment = Segment(start, size, start + messages)
        segment.last_timestamp = time
        made.append(segment)
        start += messages
    return Closed(made, barrier, purges=0)


TEN_TWENTY_THIRTY = ((10, 100, 50), (10, 200, 50), (10, 300, 50))
"""Three closed segments that end at the offsets 10, 20 and 30."""


@pytest.mark.parametrize(
    ("barrier", "read"),
    [
        (None, True),  # no offset is stored
        (0, False),
        (8, False),
        (9, True),  # the last message of the segment
        (10, True),
    ],
)
def test_a_segment_counts_as_read_from_its_last_message_on(barrier: int | None, read: bool) -> None:
    assert is_read(Segment(0, 50, 10), barrier) is read


@pytest.mark.parametrize(
    ("now", "barrier", "before"),
    [
        (149, None, 0),
        (150, None, 10),  # exactly as old as the expiry
        (249, None, 10),
        (250, None, 20),
        (10_000, None, 30),
        (10_000, 8, 0),  # the barrier is in the first segment
        (10_000, 9, 10),
        (10_000, 19, 20),
        (10_000, 500, 30),
        (150, 500, 10),
    ],
)
def test_expiry_ends_at_the_first_segment_that_stays(now: int, barrier: int | None, before: int) -> None:
    assert expired(closed(*TEN_TWENTY_THIRTY, barrier=barrier), now, 50) == before


def test_an_old_segment_after_a_young_one_stays() -> None:
    assert expired(closed((10, 500, 1), (10, 100, 1)), 200, 50) == 0


def test_everything_is_kept_if_no_segment_is_closed() -> None:
    assert expired(closed(), 10**9, 0) == 0
    assert oldest(closed(), 5) == 0
    assert oversize([closed(), closed()], 1000, 1) == [0, 0]
    assert oversize([], 1000, 1) == []


@pytest.mark.parametrize(
    ("count", "barrier", "before"),
    [(0, None, 0), (1, None, 10), (2, None, 20), (3, None, 30), (99, None, 30), (3, 15, 10), (1, 3, 0), (3, 29, 30)],
)
def test_segments_are_deleted_from_the_oldest_up_to_the_barrier(count: int, barrier: int | None, before: int) -> None:
    assert oldest(closed(*TEN_TWENTY_THIRTY, barrier=barrier), count) == before


@pytest.mark.parametrize(
    ("size", "limit", "before"),
    [
        (150, 150, 0),  # exactly at the limit
        (151, 151, 0),
        (150, 149, 10),  # 100 is less than 90 % of 149
        (150, 112, 10),  # 100 is less than 100.8
        (150, 111, 20),  # 100 is more than 99.9
        (150, 56, 20),  # 50 is less than 50.4
        (150, 55, 30),  # 50 is more than 49.5
        (190, 100, 30),  # 90 is not below 90
        (150, 1, 30),  # never the active segment, whatever the limit
        (1000, 1, 30),
    ],
)
def test_a_topic_that_exceeds_its_size_is_trimmed_to_90_percent(size: int, limit: int, before: int) -> None:
    assert oversize([closed(*TEN_TWENTY_THIRTY)], size, limit) == [before]


def test_the_oldest_segments_of_all_partitions_are_trimmed_first() -> None:
    early = closed((10, 100, 50), (10, 400, 50))
    late = closed((5, 200, 50), (5, 300, 50))
    assert [oversize([early, late], 200, limit) for limit in (199, 150, 100, 1)] == [
        [10, 0],
        [10, 5],
        [10, 10],
        [20, 10],
    ]


def test_a_partition_keeps_its_share_however_old_it_is() -> None:
    early = closed(*((10, number, 100) for number in range(1, 8)))
    late = closed(*((10, 100 + number, 100) for number in range(1, 8)))
    oldest_of_all = closed((10, 0, 100))
    assert oversize([early, late, oldest_of_all], 1500, 1000) == [40, 30, 0]


def test_the_share_of_a_partition_is_its_part_of_what_may_be_left() -> None:
    early = closed((10, 200, 50))  # more than half of 90 bytes
    late = closed((10, 300, 40), (10, 400, 40))
    assert oversize([early, late], 130, 100) == [10, 0]
    assert oversize([late, early], 130, 100) == [0, 10]


def test_a_segment_without_a_time_counts_as_the_oldest() -> None:
    found = closed((10, 1, 60))
    found.segments[0].last_timestamp = None
    assert expired(found, 100, 50) == 10
    assert oversize([closed((10, 200, 60)), found], 120, 112) == [0, 10]


def test_segments_of_other_partitions_are_trimmed_if_one_is_blocked() -> None:
    blocked = closed((10, 100, 50), (10, 110, 50), barrier=3)
    free = closed((5, 200, 50), (5, 300, 50))
    assert oversize([blocked, free], 200, 100) == [0, 10]


def test_a_blocked_first_segment_protects_all_later_ones() -> None:
    assert oversize([closed((10, 100, 50), (10, 50, 50), barrier=3)], 100, 1) == [0]


def test_segments_with_the_same_time_are_trimmed_in_the_order_of_partitions() -> None:
    assert oversize([closed((10, 100, 50)), closed((10, 100, 50))], 100, 60) == [10, 0]


@pytest.mark.parametrize(
    ("size", "before"),
    [
        (0, [0, 0, 0]),
        (1, [10, 0, 0]),
        (50, [10, 0, 0]),
        (51, [10, 5, 0]),
        (60, [10, 5, 0]),
        (61, [20, 5, 0]),
        (111, [20, 9, 0]),
        (10_000, [30, 9, 0]),
    ],
)
def test_of_all_partitions_the_oldest_segments_go_until_it_is_enough(size: int, before: list[int]) -> None:
    others = closed((5, 150, 10), (4, 250, 10)), closed()
    assert oldest_of_all([closed(*TEN_TWENTY_THIRTY), *others], size) == before


def test_a_segment_never_goes_before_an_older_one_of_its_partition() -> None:
    # Its clock was ahead for a while.
    assert oldest_of_all([closed((10, 900, 50), (10, 100, 50)), closed((10, 500, 50))], 60) == [10, 10]
