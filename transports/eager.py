"""Runs a coroutine without creating a task: at once until it first waits, then whenever what it waits for is done.

A task is a large part of the cost of a small request, and most requests never wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from types import coroutine as awaitable_generator
from typing import Any, TypeVar

Subject = TypeVar("Subject")


def start(coroutine: Coroutine[Any, Any, None], on_done: Callable[[Subject], None], subject: Subject) -> bool:
    """Runs the coroutine until it first waits. Returns True if it is done by then; an exception is raised. Otherwise
    calls `on_done(subject)` when it is done, also if it fails; the exception then goes to the event loop. The coroutine
    must not use the current task, as `asyncio.timeout` does, and cannot be cancelled."""
    try:
        future = coroutine.send(None)
    except StopIteration:
        return True
    _SuspendedCoroutine(coroutine, partial(on_done, subject)).wait(future)
    return False


class _SuspendedCoroutine:
    __slots__ = ("_coroutine", "_on_done")

    def __init__(self, coroutine: Coroutine[Any, Any, None], on_done: Callable[[], None]) -> None:
        self._coroutine = coroutine
        self._on_done = on_done

    def wait(self, future: asyncio.Future[Any] | None) -> None:
        if future is None:
            # It only yields to other callbacks.
            asyncio.get_running_loop().call_soon(self._resume, None)
        else:
            # Marks the future as awaited.
            future._asyncio_future_blocking = False
            future.add_done_callback(self._resume)

    def _resume(self, _: object) -> None:
        """The coroutine itself fetches the result of the future."""
        try:
            future = self._coroutine.send(None)
        except StopIteration:
            self._on_done()
        except BaseException:
            self._on_done()
            raise
        else:
            self.wait(future)


def begin(coroutine: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None] | None:
    """Runs the coroutine until it first waits. Returns None if it is done by then, otherwise what is left of it, for a
    task. Until then there is no current task: what needs one, as `asyncio.timeout` does, awaits `in_task` first."""
    try:
        awaited = coroutine.send(None)
    except StopIteration:
        return None
    return _rest(coroutine, awaited)


async def _rest(coroutine: Coroutine[Any, Any, None], awaited: Any) -> None:
    await _steps(coroutine, awaited)


@awaitable_generator
def _steps(coroutine: Coroutine[Any, Any, None], awaited: Any) -> Generator[Any, Any, None]:
    """Does what `yield from` does, for a coroutine that has run already up to its first `yield`."""
    while True:
        try:
            sent = yield awaited
        except GeneratorExit:
            coroutine.close()
            raise
        except BaseException as error:  # noqa: BLE001 -- the coroutine decides
            step = partial(coroutine.throw, error)
        else:
            step = partial(coroutine.send, sent)
        try:
            awaited = step()
        except StopIteration:
            return


async def in_task() -> None:
    """Returns when there is a current task."""
    if asyncio.current_task() is None:
        await asyncio.sleep(0)
