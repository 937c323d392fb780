"""Collects what a command changes, for its entry in the audit log; the code that makes a change notes it.

Commands about users run side by side, so only the place that replaces a document knows what was there before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, TypeVar

import msgspec

State = dict[str, Any]
Result = TypeVar("Result")


class Changed(msgspec.Struct, frozen=True):
    """One thing that was created, changed or deleted. Of a changed one, only what differs is in the states."""

    kind: str
    name: str
    before: State | None
    """None if it was created."""
    after: State | None
    """None if it was deleted."""


_noted: ContextVar[list[Changed] | None] = ContextVar("noted changes", default=None)


async def noting(changes: list[Changed], run: Callable[[], Awaitable[Result]]) -> Result:
    """Adds the changes that `run` makes to the list. To be called as a task of its own: transports drive coroutines
    themselves, so others have no context that is only theirs."""
    _noted.set(changes)
    return await run()


def note(kind: str, name: str, before: State | None, after: State | None) -> None:
    """Does nothing if no command is being recorded, or if nothing differs."""
    changes = _noted.get()
    if changes is None or before == after:
        return
    if before is not None and after is not None:
        differing = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
        before, after = ({key: state.get(key) for key in sorted(differing)} for state in (before, after))
    changes.append(Changed(kind, name, before, after))
