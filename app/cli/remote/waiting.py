"""Waiting for a person or a pipe, on the event loop's own thread: nothing else is going on then."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Makes Ctrl-C raise KeyboardInterrupt at once, also if it came just before. The handler of asyncio cancels a task,
    and a task that waits for input does not notice that before the input arrives."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with contextlib.suppress(RuntimeError):  # nothing runs, so nothing was cancelled
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise KeyboardInterrupt
        yield
    finally:
        signal.signal(signal.SIGINT, before)
