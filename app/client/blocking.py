"""Runs the asynchronous client for programs without an event loop: a loop in a thread of its own, and calls that wait.

`sync.py` has the classes that users see; their methods are made here, from those of the asynchronous classes.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any


class LoopThread:
    """An event loop in a daemon thread, from `start` to `stop`. Calls may come from any other thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="whippet client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Calls a function on the loop, and returns what it returns, or what that is awaited for."""
        if not self.is_running or threading.current_thread() is self._thread:
            raise RuntimeError("the client is closed, or is called from its own thread")

        async def called() -> Any:
            found = function(*arguments, **options)
            return await found if inspect.isawaitable(found) else found

        future = asyncio.run_coroutine_threadsafe(called(), self._loop)
        try:
            return future.result()
        except BaseException:
            # Ctrl-C ends the waiting; for any other exception it is done anyway.
            future.cancel()
            raise

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """Idempotent."""
        if self.is_running:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()


def waiting(method: Callable[..., Any], attribute: str) -> Callable[..., Any]:
    """Returns a method that calls one of the asynchronous object in `attribute`, and waits for its result."""

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        return self._thread.call(method, getattr(self, attribute), *arguments, **options)

    return call


def public_methods(of: type) -> dict[str, Callable[..., Any]]:
    return {name: method for name, method in inspect.getmembers(of, inspect.isfunction) if not name.startswith("_")}
