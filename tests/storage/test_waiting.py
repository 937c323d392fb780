"""Waiting for a partition: each is woken by what it waits for, by nothing else, and only once."""

from __future__ import annotations

import asyncio

import pytest

from tests.storage.support.partitions import MEMORY, SYNCED, WRITTEN
from tests.storage.support.world import settled
from whippet.storage.errors import StorageError
from whippet.storage.options import Durability
from whippet.storage.waiting import Exclusion, Readers, Waiting

Future = asyncio.Future[None]


def done(*futures: Future) -> list[bool]:
    return [future.done() for future in futures]


async def test_an_offset_that_is_reached_wakes_those_that_wait_for_it_or_an_earlier_one() -> None:
    waiting = Waiting()
    futures = [waiting.until(offset) for offset in (1, 2, 2, 4)]
    waiting.reached(0)
    assert done(*futures) == [False] * 4
    waiting.reached(2)
    assert done(*futures) == [True, True, True, False]
    waiting.reached(9)
    assert done(*futures) == [True] * 4
    waiting.reached(9)
    assert not any(future.exception() for future in futures)


async def test_a_failure_is_the_result_of_those_that_wait_for_later_offsets() -> None:
    waiting = Waiting()
    futures = [waiting.until(offset) for offset in (1, 2, 3, 4)]
    futures[1].cancel()
    futures[3].cancel()
    waiting.refuse(2, StorageError("it failed"))
    assert futures[0].exception() is None
    assert str(futures[2].exception()) == "it failed"
    later = waiting.until(3)
    assert not later.done()
    waiting.reached(3)
    assert later.done()


async def test_those_that_no_longer_wait_do_not_stop_the_others() -> None:
    waiting, readers = Waiting(), Readers()
    futures = [waiting.until(offset) for offset in (1, 2)] + [readers.begin(offset, None) for offset in (0, 1)]
    futures[0].cancel()
    futures[2].cancel()
    waiting.reached(2)
    readers.advance(lambda _: 2)
    assert done(futures[1], futures[3]) == [True, True]
    assert len(readers.waiting) == 0


def offsets(memory: int, written: int, synced: int, readable: int) -> dict[Durability | None, int]:
    return {MEMORY: memory, WRITTEN: written, SYNCED: synced, None: readable}


async def test_readers_are_woken_when_their_message_has_the_durability_they_wait_for() -> None:
    readers = Readers()
    waiting = {(offset, level): readers.begin(offset, level) for offset in (1, 2) for level in (*Durability, None)}
    readers.advance(offsets(1, 1, 1, 1).__getitem__)
    assert len(readers.waiting) == 8
    readers.advance(offsets(3, 2, 1, 2).__getitem__)
    assert {key for key, future in waiting.items() if future.done()} == {
        (1, MEMORY),
        (2, MEMORY),
        (1, WRITTEN),
        (1, None),
    }
    assert len(readers.waiting) == 4
    readers.advance(offsets(3, 3, 3, 3).__getitem__)
    assert len(readers.waiting) == 0
    assert all(future.done() for future in waiting.values())


async def test_a_reader_that_gives_up_is_forgotten_and_no_other() -> None:
    readers = Readers()
    first, second = readers.begin(5, None), readers.begin(5, None)
    task = asyncio.create_task(readers.until(5, None))
    await settled()
    assert len(readers.waiting) == 3
    task.cancel()
    await settled()
    readers.end(first)
    assert len(readers.waiting) == 1
    readers.advance(lambda _: 6)
    assert done(first, second) == [False, True]


async def test_a_reader_returns_when_its_message_is_readable() -> None:
    readers = Readers()
    task = asyncio.create_task(readers.until(5, None))
    await settled()
    assert not task.done()
    readers.advance(lambda _: 6)
    await task


@pytest.mark.parametrize("failure", [None, OSError("it failed")])
async def test_after_a_purge_or_a_failure_no_reader_waits(failure: Exception | None) -> None:
    readers = Readers()
    futures = [readers.begin(offset, None) for offset in (1, 2, 3)]
    futures[1].cancel()
    if failure is None:
        readers.wake_all()
    else:
        readers.refuse(failure)
    assert len(readers.waiting) == 0
    assert done(*futures) == [True] * 3
    assert [futures[i].exception() for i in (0, 2)] == [failure] * 2


async def test_what_needs_a_partition_exclusively_holds_up_all_others_until_it_leaves() -> None:
    exclusion = Exclusion()
    held = [exclusion.is_held]
    await exclusion.over()
    exclusion.enter()
    held.append(exclusion.is_held)
    waiting = [asyncio.create_task(exclusion.over()) for _ in range(3)]
    await settled()
    assert not any(task.done() for task in waiting)
    waiting[1].cancel()
    await settled()
    exclusion.leave()
    held.append(exclusion.is_held)
    assert held == [False, True, False]
    # One that comes first may take it again before the others are woken.
    exclusion.enter()
    await settled()
    assert [task.done() for task in waiting] == [False, True, False]
    exclusion.leave()
    await asyncio.gather(waiting[0], waiting[2])
