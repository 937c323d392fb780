"""Runs the decoding and encoding of large bodies in a thread, so that the event loop serves other clients meanwhile.

A thread costs a request some 50 us, and a small body is decoded in less. What counts is how many items (messages,
lines, members) a body has, because each costs Python about a microsecond, and how many bytes, because those are hashed
and copied. Both limits are above what a batch of a thousand messages needs.
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
    """Calls a function that processes a body of this size, in a thread if it is large."""
    if is_large(size, items):
        return await asyncio.to_thread(function, *args, **kwargs)
    return function(*args, **kwargs)
