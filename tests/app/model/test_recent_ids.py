"""Recent ids, compared with a dictionary: found by number, the oldest dropped, in some 30 bytes each."""

from __future__ import annotations

import itertools
import random
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whippet.app.model import recent_ids
from whippet.app.model.recent_ids import NOT_FOUND, Ids, RecentIds

A_MILLION = 1_000_000


def ids_of(*numbers: int) -> Ids:
    return np.frombuffer(b"".join(number.to_bytes(16, "little") for number in numbers), np.uint64).reshape(-1, 2)


def at_random(count: int, seed: int) -> Ids:
    return np.random.default_rng(seed).integers(1, 2**63, (count, 2), dtype=np.uint64)


@settings(max_examples=60, deadline=None)
@given(
    window=st.integers(1, 300),
    sizes=st.lists(st.integers(0, 120), min_size=1, max_size=40),
    like=st.sampled_from(["counting", "by 2**32", "high halves", "at random"]),
    seed=st.integers(0, 2**32),
)
def test_it_finds_what_a_dictionary_would(window: int, sizes: list[int], like: str, seed: int) -> None:
    chance = random.Random(seed)
    fresh = {
        "counting": itertools.count(1),
        "by 2**32": itertools.count(1, 2**32),
        "high halves": itertools.count(2**64, 2**64),
        "at random": iter(lambda: chance.getrandbits(128) or 1, 0),
    }[like]
    recent, model = RecentIds(), OrderedDict[int, int]()
    left: list[int] = []
    for size in sizes:
        new = [next(fresh) for _ in range(size)]
        asked = new + chance.sample(list(model), min(len(model), 30)) + left[-30:]
        chance.shuffle(asked)
        assert recent.find(ids_of(*asked)).tolist() == [model.get(one, NOT_FOUND) for one in asked]
        start = recent.add(ids_of(*new))
        model |= zip(new, range(start, recent.end), strict=True)
        if size and chance.random() < 0.2:
            failed = chance.randrange(start, recent.end)
            recent.strike_out(failed, recent.end)
            left += [one for one, number in model.items() if number >= failed]
            model = OrderedDict((one, number) for one, number in model.items() if number < failed)
        recent.forget_before(recent.end - window)
        while model and next(iter(model.values())) < recent.first:
            left.append(model.popitem(last=False)[0])
        assert len(recent) <= window
    assert recent.find(ids_of(*model)).tolist() == list(model.values())


def test_a_million_ids_take_less_than_40_bytes_each_however_long_they_are_used() -> None:
    recent = RecentIds()
    for seed in range(350):
        recent.add(at_random(10_000, seed))
        recent.forget_before(recent.end - A_MILLION)
    assert len(recent) == A_MILLION
    assert recent.size_bytes <= 40 * A_MILLION
    assert recent.find(at_random(10_000, 249)).tolist() == [NOT_FOUND] * 10_000
    assert recent.find(at_random(10_000, 250)).tolist() == list(range(recent.first, recent.first + 10_000))


def test_numbers_continue_beyond_the_span_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_ids, "SPAN_MAX", 5_000)
    recent = RecentIds()
    for seed in range(100):
        recent.add(at_random(100, seed))
        recent.forget_before(recent.end - 1_000)
    assert recent.end == 10_000
    assert recent.find(at_random(100, 95)).tolist() == list(range(9_500, 9_600))
    assert recent.find(at_random(100, 89)).tolist() == [NOT_FOUND] * 100


def test_without_more_memory_the_oldest_ids_are_dropped() -> None:
    recent = RecentIds(lambda more_bytes: False)
    most = recent_ids.RING_LEAST
    recent.add(ids_of(*range(1, most + 1)))
    recent.add(ids_of(1_000, 1_001))
    assert recent.find(ids_of(1, 2, 3, 1_000)).tolist() == [NOT_FOUND, NOT_FOUND, 2, most]
    start = recent.add(ids_of(*range(2_000, 2_000 + 2 * most)))
    assert recent.find(ids_of(1_001, 2_000, 2_000 + most)).tolist() == [NOT_FOUND, NOT_FOUND, start + most]
    assert len(recent) == most
