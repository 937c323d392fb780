"""Where large bodies are decoded and encoded: in a thread, so that the event loop goes on serving everybody else.

A thread costs a request some 50 us, and a small body is decoded in less. What tells the two apart is how many items
(messages, lines, members) a body has, because each costs Python about a microsecond, and how many bytes it has, because
those are hashed and copied. Both bounds are above what a batch of a thousand messages needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
Result = TypeVar("Result")

ITEMS_AT_ONCE = 2048
BYTES_AT_ONCE = 2 << 20


def is_large(size: int, items: int) -> bool:
    return size > BYTES_AT_ONCE or items > ITEMS_AT_ONCE


async def call(size: int, items: int, function: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
    """Calls a function that looks at so many bytes and items, beside the event loop if those are many."""
    if is_large(size, items):
        return await asyncio.to_thread(function, *args, **kwargs)
    return function(*args, **kwargs)
