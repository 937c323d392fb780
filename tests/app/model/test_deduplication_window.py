"""The window of ids: bounded by number and by age; pending ids are waited for, and failed ones may be repeated."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from whippet.app.model.deduplication_window import Bounds, DeduplicationWindow, PendingWrite
from whippet.app.model.recent_ids import Ids

NOTHING, A, B, C = range(4)


def ids_of(numbers: Sequence[int]) -> Ids:
    return np.frombuffer(b"".join(number.to_bytes(16, "little") for number in numbers), np.uint64).reshape(-1, 2)


def take(window: DeduplicationWindow, numbers: Sequence[int], now: int = 0) -> PendingWrite:
    taken = window.begin_write(ids_of(numbers), now)
    assert isinstance(taken, PendingWrite)
    return taken


def send(window: DeduplicationWindow, numbers: Sequence[int], now: int = 0) -> list[int]:
    taken = take(window, numbers, now)
    window.end_write(taken, now)
    return list(map(int, taken.new))


async def test_an_id_is_new_once_within_and_across_batches() -> None:
    window = DeduplicationWindow(Bounds(10, 0))
    assert send(window, [A, B, A, A]) == [0, 1]
    assert send(window, [B, C, A]) == [1]
    assert send(window, [A, B, C]) == []


@pytest.mark.parametrize("count", [5, 12, 13, 500])
async def test_of_many_duplicates_within_a_batch_the_first_ones_are_new(count: int) -> None:
    window = DeduplicationWindow(Bounds(0, 0))
    numbers = [random.Random(count).randrange(count // 2 + 1) for _ in range(count)]
    first = {number: place for place, number in reversed(list(enumerate(numbers))) if number != NOTHING}
    nameless = [place for place, number in enumerate(numbers) if number == NOTHING]
    assert send(window, numbers) == sorted([*first.values(), *nameless])
    assert send(window, numbers) == nameless


async def test_a_message_without_an_id_is_always_new() -> None:
    window = DeduplicationWindow(Bounds(10, 0))
    assert send(window, [NOTHING, A, NOTHING]) == [0, 1, 2]
    taken = take(window, [NOTHING, A, B])
    assert taken.new.tolist() == [0, 2]
    assert send(window, [NOTHING, A]) == [0]
    assert send(window, [NOTHING]) == [0]
    window.end_write(taken, 0)
    assert len(window) == 2


async def test_the_oldest_ids_are_dropped_first() -> None:
    window = DeduplicationWindow(Bounds(2, 0))
    send(window, [A])
    send(window, [B, C])
    assert len(window) == 2
    assert send(window, [A, C]) == [0]


async def test_an_id_is_forgotten_at_its_age_and_not_before() -> None:
    window = DeduplicationWindow(Bounds(0, 100))
    send(window, [A], now=50)
    assert send(window, [A], now=149) == []
    assert send(window, [A], now=150) == [0]


async def test_the_age_of_an_id_counts_from_the_end_of_its_write() -> None:
    window = DeduplicationWindow(Bounds(0, 100))
    slow = take(window, [A], now=0)
    send(window, [B], now=10)
    window.end_write(slow, 90)
    assert send(window, [A, B], now=185) == []
    assert send(window, [A, B], now=190) == [0, 1]


async def test_of_many_ids_none_is_forgotten_early_and_none_is_kept_for_long() -> None:
    window = DeduplicationWindow(Bounds(0, 10_000))
    for now in range(30_000):
        send(window, [now + 1], now)
    assert send(window, [20_001], now=29_999) == []
    assert 10_000 <= len(window) <= 10_020


async def test_a_pending_id_is_undecided_until_its_write_has_ended() -> None:
    window = DeduplicationWindow(Bounds(1, 0))
    taken = take(window, [A])
    assert taken.new.tolist() == [0]
    assert send(window, [B]) == [0]
    assert window.begin_write(ids_of([C, A]), 0) is taken.done
    window.end_write(taken, None)
    assert taken.done.done()
    assert send(window, [A]) == [0]


async def test_changed_bounds_apply_at_once() -> None:
    window = DeduplicationWindow(Bounds(0, 0))
    send(window, range(1, 101))
    window.bounds = Bounds(10, 0)
    send(window, [A])
    assert len(window) == 10
    assert send(window, [90, 91]) == [0]


async def test_ids_from_the_log_are_known() -> None:
    window = DeduplicationWindow(Bounds(3, 100))
    window.fill(ids_of([NOTHING, A, B]), 20)
    window.fill(ids_of([B, C, NOTHING, 7]), 40)
    assert send(window, [B, C, 7, A], now=50) == [3]
    assert send(window, [C], now=139) == []
