"""Ctrl-C while a command waits for a person or a pipe."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from whippet.app.cli.remote.waiting import interruptible


def test_an_interruption_just_before_the_waiting_ends_it() -> None:
    waited = False

    async def command() -> None:
        nonlocal waited
        os.kill(os.getpid(), signal.SIGINT)
        with interruptible():
            waited = True

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(command())
    assert not waited


def test_without_a_loop_or_an_interruption_nothing_is_raised() -> None:
    with interruptible():
        pass

    async def command() -> None:
        with interruptible():
            pass

    asyncio.run(command())
