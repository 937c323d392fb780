"""The memory tail and the budgets: the newest batches of every partition, and never more than allowed."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from tests.storage.support.world import offsets, settled, sized, texts
from whippet.storage import batch as batches
from whippet.storage.batch import HEADER_BYTES
from whippet.storage.entry import Entry
from whippet.storage.tail import OBJECT_BYTES, Tail, TailBudget, UnflushedBudget


def entry(base: int, count: int, time: int = 0, payload_bytes: int = 10) -> Entry:
    whole = sized(count, payload_bytes)
    checked = batches.check(whole)
    batches.stamp(whole, 0, base, time, checked.checksums)
    return Entry(whole, base, base + count, time, checked.frames)


def filled(*counts: int, first: int = 0) -> Tail:
    """A tail of batches with these numbers of messages, ten time units apart."""
    tail = Tail()
    for i, count in enumerate(counts):
        tail.push(entry(first, count, 10 * i))
        first += count
    return tail


FRAME = 58


@pytest.mark.parametrize(
    ("offset", "count", "end", "expected"),
    [
        (100, 100, 999, range(100, 110)),
        (100, 3, 999, range(100, 103)),  # a whole batch
        (101, 1, 999, [101]),  # from the middle of one
        (102, 4, 999, range(102, 106)),  # the end of one, all of the next, the beginning of another
        (109, 5, 999, [109]),
        (110, 5, 999, []),
        (100, 0, 999, []),
        (100, 99, 103, range(100, 103)),  # later messages are not readable yet
        (103, 99, 103, []),
    ],
)
def test_a_read_slices_the_batches_at_both_ends(offset: int, count: int, end: int, expected: list[int]) -> None:
    fetched = filled(3, 2, 5, first=100).read(offset, count, 10**6, end)
    assert offsets(fetched) == list(expected)


def test_whole_batches_are_read_without_a_copy() -> None:
    tail = Tail()
    entries = [entry(0, 2), entry(2, 3)]
    for each in entries:
        tail.push(each)
    read = tail.read(0, 5, 10**6, 5).buffers
    assert all(buffer is each.batch for buffer, each in zip(read, entries, strict=True))
    (first,) = tail.read(0, 5, len(entries[0].batch), 5).buffers
    assert first is entries[0].batch


@pytest.mark.parametrize(
    ("room", "expected"),
    [
        (0, 0),
        (1, 1),  # one message, however large
        (HEADER_BYTES + FRAME - 1, 1),
        (HEADER_BYTES + 2 * FRAME - 1, 1),
        (HEADER_BYTES + 2 * FRAME, 2),
        (HEADER_BYTES + 3 * FRAME, 3),
        (2 * HEADER_BYTES + 4 * FRAME - 1, 3),  # a second header has to fit, too
        (2 * HEADER_BYTES + 4 * FRAME, 4),
        (2 * HEADER_BYTES + 5 * FRAME, 5),
    ],
)
def test_a_read_fills_its_room_exactly(room: int, expected: int) -> None:
    fetched = filled(3, 2).read(0, 100, room, 100)
    assert offsets(fetched) == list(range(expected))
    assert sum(map(len, fetched.buffers)) <= room or expected == 1


@pytest.mark.parametrize(
    ("time", "offset"),
    [(0, None), (1, 3), (10, 3), (11, 5), (20, 5), (21, 10)],
)
def test_a_time_is_found_only_where_no_older_message_can_have_it(time: int, offset: int | None) -> None:
    assert filled(3, 2, 5).offset_at(time) == offset


@pytest.mark.parametrize(
    ("times", "found"),
    [
        ([100, 50], {49: None, 50: None, 51: 2, 100: 2, 101: 2}),
        ([100, 50, 50, 60], {50: None, 51: 3, 60: 3, 61: 4, 100: 4, 101: 4}),
        ([0, 100, 50, 60], {0: None, 1: 1, 50: 1, 51: 3, 60: 3, 61: 4, 100: 4}),
        ([0, 10, 20, 15], {1: 1, 10: 1, 11: 2, 15: 2, 16: 4}),
        ([5, 5, 5], {5: None, 6: 3}),
    ],
)
def test_where_times_have_fallen_only_what_came_after_the_last_older_message_is_found(
    times: list[int], found: dict[int, int | None]
) -> None:
    tail = Tail()
    for offset, time in enumerate(times):
        tail.push(entry(offset, 1, time))
    assert {time: tail.offset_at(time) for time in found} == found


def test_a_time_that_fell_before_the_oldest_batch_makes_no_difference() -> None:
    tail = Tail()
    for offset, time in enumerate([100, 0, 10, 20]):
        tail.push(entry(offset, 1, time))
    tail.drop_first()
    assert [tail.offset_at(time) for time in (0, 1, 10, 11, 20, 21)] == [None, 2, 2, 3, 3, 4]
    tail.drop_first()
    assert [tail.offset_at(time) for time in (10, 11, 20, 21)] == [None, 3, 3, 4]


def test_an_empty_tail_finds_nothing() -> None:
    tail = Tail()
    assert (len(tail), tail.first_offset, tail.offset_at(5), tail.drop_first()) == (0, None, None, 0)
    assert tail.read(0, 5, 100, 5).messages == 0


def test_a_tail_continues_after_its_oldest_batches_are_dropped() -> None:
    """Often enough for the lists to be shortened several times."""
    tail = filled(*[1] * 500)
    for dropped in range(1, 500):
        assert tail.drop_first() == len(entry(0, 1).batch) + OBJECT_BYTES
        assert (len(tail), tail.first_offset) == (500 - dropped, dropped)
        assert offsets(tail.read(dropped, 2, 10**6, 500)) == [dropped, dropped + 1][: 500 - dropped]
        assert tail.offset_at(10 * dropped + 1) == dropped + 1
        if dropped % 7 == 0:
            tail.push(entry(500, 1, 5000))
            tail.drop_from(500)
    assert tail.drop_first() > 0
    assert (len(tail), tail.first_offset) == (0, None)


def test_dropped_batches_do_not_accumulate() -> None:
    tail = filled(*[1] * 200)
    batch = entry(0, 1)
    for offset in range(200, 5000):
        tail.push(msgspec.structs.replace(batch, base_offset=offset, next_offset=offset + 1))
        tail.drop_first()
        assert len(tail) == 200
        assert len(tail._entries) <= 3 * 200


def test_dropping_batches_that_could_not_be_written_leaves_earlier_ones() -> None:
    tail = filled(3, 2, 5)
    tail.drop_from(5)
    assert offsets(tail.read(0, 99, 10**6, 99)) == [0, 1, 2, 3, 4]
    tail.drop_first()
    tail.drop_from(0)
    assert (len(tail), tail.first_offset) == (0, None)
    tail.push(entry(3, 1))
    assert tail.first_offset == 3
    assert len(tail) == 1


# -------------------------------------------------------------------------------------------------------------- budgets


def test_tails_that_exceed_the_budget_drop_the_oldest_batches_of_all() -> None:
    size = len(entry(0, 1).batch)
    budget = TailBudget(4 * (size + OBJECT_BYTES))
    one, two = Tail(), Tail()
    for i in range(3):
        for tail in (one, two):
            tail.push(entry(i, 1))
            budget.admit(tail, size)
    assert (one.first_offset, two.first_offset) == (1, 1)
    assert budget.used == 4 * (size + OBJECT_BYTES)
    for i in range(3, 7):
        two.push(entry(i, 1))
        budget.admit(two, size)
    assert (one.first_offset, two.first_offset) == (None, 3)
    assert budget.used == 4 * (size + OBJECT_BYTES)


def test_batches_not_yet_written_stay_even_if_the_budget_is_used_up() -> None:
    """They are the only copy."""
    size = len(entry(0, 1).batch)
    budget = TailBudget(0)
    tail = filled(1, 1, 1)
    budget.admit(tail, size)
    assert tail.first_offset == 1
    assert budget.used == 0


def test_a_released_tail_no_longer_counts() -> None:
    size = len(entry(0, 1).batch)
    budget = TailBudget(10**6)
    one, two = filled(1, 1, 1), filled(1, 1)
    for tail in (one, two, one, two, one):
        budget.admit(tail, size)
    budget.release(one)
    assert budget.used == 2 * (size + OBJECT_BYTES)
    budget.release(two)
    budget.release(two)
    assert budget.used == 0


def test_releasing_a_tail_drops_only_its_written_batches() -> None:
    size = len(entry(0, 1).batch)
    budget = TailBudget(10**6)
    tail, other = filled(1, 1, 1), filled(1, 1, 1)
    for each in (tail, other, tail):
        budget.admit(each, size)
    budget.release(tail)
    assert (tail.first_offset, len(tail), budget.used) == (2, 1, size + OBJECT_BYTES)
    assert len(other) == 3


async def test_every_waiter_for_a_full_budget_wakes_once_it_has_room() -> None:
    budget = UnflushedBudget(100)
    budget.used = 150
    asked = []
    budget.buffering[lambda: asked.append(1)] = None
    waiting = [asyncio.create_task(budget.room()) for _ in range(3)]
    await settled()
    assert len(asked) == 3
    waiting[1].cancel()
    budget.release(50)
    await settled()
    assert budget.full
    assert not waiting[0].done()
    budget.release(1)
    await asyncio.gather(waiting[0], waiting[2])
    assert (budget.used, budget.full) == (99, False)


def test_a_batch_made_of_texts_is_good() -> None:
    """These tests append what a client would send."""
    assert batches.check(texts("a", "b")).message_count == 2
