"""Room for bodies: never more than there is, first come first served, and given back by whoever gives up."""

from __future__ import annotations

import asyncio

from whippet.transports.http.budget import Budget


async def test_who_does_not_fit_waits_in_the_order_of_coming() -> None:
    budget = Budget(10)
    order = []

    async def work(name: str, size: int) -> None:
        await budget.take(size)
        order.append(name)
        assert budget.used <= 10
        await asyncio.sleep(0)
        budget.give_back(size)

    await asyncio.gather(work("a", 6), work("b", 6), work("c", 1), work("d", 4))
    assert order == ["a", "b", "c", "d"], "a small one does not overtake a large one for ever"
    assert budget.used == 0


async def test_what_is_larger_than_the_whole_room_gets_it_alone() -> None:
    budget = Budget(10)
    await budget.take(50)
    waiting = asyncio.create_task(budget.take(1))
    await asyncio.sleep(0)
    assert not waiting.done()
    budget.give_back(50)
    await waiting
    assert budget.used == 1


async def test_who_gives_up_leaves_no_gap() -> None:
    budget = Budget(10)
    await budget.take(10)
    first, second = asyncio.create_task(budget.take(10)), asyncio.create_task(budget.take(3))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    budget.give_back(10)
    second_waits = asyncio.create_task(budget.take(8))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    if not second.cancelled():
        budget.give_back(3)
    await second_waits
    budget.give_back(8)
    assert budget.used == 0
