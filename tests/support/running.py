"""Runs coroutines of tests on the server's event loop, with a time limit.

tests/conftest.py runs every `async def` test this way. A test that needs several event loops, one after the other,
calls `run` itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

Answer = TypeVar("Answer")

HANGS_S = 100
"""A test that takes longer waits for something that will not happen."""


def run(main: Coroutine[Any, Any, Answer]) -> Answer:
    async def bounded() -> Answer:
        async with asyncio.timeout(HANGS_S):
            return await main

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(bounded())
