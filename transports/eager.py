"""A coroutine that is carried out without being a task: at once as far as it can be, and on when what it waits for is
there. A task costs a small request a good part of what it takes to answer it, and most requests wait for nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


def begin(coroutine: Coroutine[Any, Any, None], at_the_end: Callable[[T], None], subject: T) -> bool:
    """True: it is done already; a failure so far is raised. Else `at_the_end` is called with the subject when it is,
    also if it has failed, which the loop is told. It must not ask for the task that it is, as `asyncio.timeout` does;
    nobody can cancel it."""
    try:
        waits_for = coroutine.send(None)
    except StopIteration:
        return True
    _Begun(coroutine, partial(at_the_end, subject)).wait(waits_for)
    return False


class _Begun:
    __slots__ = ("_at_the_end", "_coroutine")

    def __init__(self, coroutine: Coroutine[Any, Any, None], at_the_end: Callable[[], None]) -> None:
        self._coroutine = coroutine
        self._at_the_end = at_the_end

    def wait(self, waits_for: asyncio.Future[Any] | None) -> None:
        if waits_for is None:
            # It only lets others go first.
            asyncio.get_running_loop().call_soon(self._go_on, None)
        else:
            # By which a future knows that it was awaited and not just handed over.
            waits_for._asyncio_future_blocking = False
            waits_for.add_done_callback(self._go_on)

    def _go_on(self, _: object) -> None:
        """What a future has come to, the coroutine asks it itself."""
        try:
            waits_for = self._coroutine.send(None)
        except StopIteration:
            self._at_the_end()
        except BaseException:
            self._at_the_end()
            raise
        else:
            self.wait(waits_for)
