"""Protects operations that change files and memory together from the cancellation of their caller.

A caller may be cancelled at any time: its client has gone, or its deadline has passed. The shard executes a posted item
in any case, so the part that records the result on the event loop must run as well.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def shielded(
    operation: Callable[Arguments, Coroutine[Any, Any, Result]],
) -> Callable[Arguments, Coroutine[Any, Any, Result]]:
    """Runs an asynchronous function as a task of its own. Cancelling the caller ends the waiting, not the operation."""

    @functools.wraps(operation)
    async def run_as_task(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        return await asyncio.shield(asyncio.ensure_future(operation(*arguments, **named)))

    return run_as_task
