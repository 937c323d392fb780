"""Acts that change files and memory together are carried out to the end, even when nobody waits for them any more.

A caller may be cancelled at any time: its client has gone, its deadline is over. What the shard was told to do it does
all the same, so the part that tells the event loop's side about it must not be left out.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def to_the_end(
    act: Callable[Arguments, Coroutine[Any, Any, Answer]],
) -> Callable[Arguments, Coroutine[Any, Any, Answer]]:
    """Runs an asynchronous method as a task of its own: cancelling the caller ends the waiting, not the act."""

    @functools.wraps(act)
    async def carried_out(*arguments: Arguments.args, **named: Arguments.kwargs) -> Answer:
        return await asyncio.shield(asyncio.ensure_future(act(*arguments, **named)))

    return carried_out
