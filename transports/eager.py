"""A coroutine that is carried out without being a task: at once as far as it can be, and on when what it waits for is
there. A task costs a small request a good part of what it takes to answer it, and most requests wait for nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


def start(coroutine: Coroutine[Any, Any, None], on_done: Callable[[T], None], subject: T) -> bool:
    """True: it is done already; a failure so far is raised. Else `at_the_end` is called with the subject when it is,
    also if it has failed, which the loop is told. It must not ask for the task that it is, as `asyncio.timeout` does;
    nobody can cancel it."""
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
            # It only lets others go first.
            asyncio.get_running_loop().call_soon(self._resume, None)
        else:
            # By which a future knows that it was awaited and not just handed over.
            future._asyncio_future_blocking = False
            future.add_done_callback(self._resume)

    def _resume(self, _: object) -> None:
        """What a future has come to, the coroutine asks it itself."""
        try:
            future = self._coroutine.send(None)
        except StopIteration:
            self._on_done()
        except BaseException:
            self._on_done()
            raise
        else:
            self.wait(future)
