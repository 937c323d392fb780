"""Runs a coroutine without creating a task: at once until it first waits, then whenever what it waits for is done.

A task is a large part of the cost of a small request, and most requests never wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
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
