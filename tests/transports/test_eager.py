"""Coroutines that run without a task: done at once if they never wait, or else when what they wait for is done."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from whippet.transports import eager


async def soon() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_coroutine_that_never_waits_is_done_at_once() -> None:
    said, ended = list[str](), list[int]()

    async def say() -> None:
        said.append("said")

    assert eager.start(say(), ended.append, 1) is True
    assert (said, ended) == (["said"], []), "the callback is not called for a result that was returned"


async def test_a_coroutine_resumes_when_its_future_is_done() -> None:
    first: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    second: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    found, ended = list[int](), list[str]()

    async def add() -> None:
        one = await first
        await asyncio.sleep(0)
        found.append(one + await second)

    assert eager.start(add(), ended.append, "sum") is False
    second.set_result(2)
    await soon()
    assert (found, ended) == ([], [])
    first.set_result(1)
    await soon()
    await soon()
    assert (found, ended) == ([3], ["sum"])


async def test_several_coroutines_and_tasks_may_wait_for_one_future() -> None:
    gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    through = list[int]()

    async def wait(number: int) -> None:
        await gate
        through.append(number)

    for number in range(3):
        assert eager.start(wait(number), lambda _: None, None) is False
    tasks = [asyncio.create_task(wait(number)) for number in range(3, 6)]
    await soon()
    gate.set_result(None)
    await asyncio.gather(*tasks)
    assert sorted(through) == list(range(6))


@pytest.mark.parametrize("way", ["failed", "cancelled"])
async def test_a_coroutine_receives_the_exception_of_its_future(way: str) -> None:
    coming: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    heard, ended = list[type[BaseException]](), list[int]()

    async def wait() -> None:
        try:
            await coming
        except (OSError, asyncio.CancelledError) as error:
            heard.append(type(error))

    eager.start(wait(), ended.append, 1)
    if way == "failed":
        coming.set_exception(OSError("gone"))
    else:
        coming.cancel()
    await soon()
    assert heard == [OSError if way == "failed" else asyncio.CancelledError]
    assert ended == [1]


async def test_an_exception_ends_the_coroutine_and_reaches_the_event_loop() -> None:
    told, ended = list[Any](), list[int]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("a defect")

    eager.start(fail(), ended.append, 1)
    await soon()
    assert ended == [1]
    assert [str(each) for each in told] == ["a defect"]


async def test_a_coroutine_may_wait_for_locks_and_threads() -> None:
    lock, order, ended = asyncio.Lock(), list[str](), asyncio.Event()

    async def work() -> None:
        async with lock:
            order.append(await asyncio.to_thread(lambda: "worked"))

    async with lock:
        assert eager.start(work(), lambda _: ended.set(), None) is False
        order.append("first")
    async with asyncio.timeout(10):
        await ended.wait()
    assert order == ["first", "worked"]
    assert not lock.locked()


async def test_what_is_left_of_a_coroutine_that_waits_goes_on_in_a_task() -> None:
    first: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    tasks = list[asyncio.Task[Any] | None]()
    found = list[int]()

    async def add() -> None:
        tasks.append(asyncio.current_task())
        one = await first
        tasks.append(asyncio.current_task())
        await asyncio.sleep(0)
        found.append(one + 1)

    rests = list[Any]()
    asyncio.get_running_loop().call_soon(lambda: rests.append(eager.begin(add())))
    await soon()
    task = asyncio.create_task(rests[0])
    await soon()
    first.set_result(1)
    await task
    assert found == [2]
    assert tasks == [None, task]


async def test_nothing_is_left_of_a_coroutine_that_never_waits() -> None:
    async def wait_for_nothing() -> None:
        pass

    assert eager.begin(wait_for_nothing()) is None


async def test_what_is_left_can_be_cancelled_and_may_go_on_after_that() -> None:
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    seen = list[str]()

    async def wait() -> None:
        try:
            await never
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            seen.append("cancelled")
            raise
        finally:
            seen.append("over")

    rest = eager.begin(wait())
    assert rest is not None
    task = asyncio.create_task(rest)
    await soon()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled", "over"]
    assert never.cancelled()


async def test_a_coroutine_can_wait_for_a_task_of_its_own() -> None:
    tasks = list[asyncio.Task[Any] | None]()

    async def need() -> None:
        await eager.in_task()
        tasks.append(asyncio.current_task())

    began = list[Any]()
    asyncio.get_running_loop().call_soon(lambda: began.append(eager.begin(need())))
    await soon()
    task = asyncio.create_task(began[0])
    await task
    await need()
    assert tasks == [task, asyncio.current_task()]
