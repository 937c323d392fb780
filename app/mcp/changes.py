"""The record of every change that an assistant makes: who, with which tool, with which arguments, and the outcome.

Secrets and payloads do not appear: a field of a tool's parameters that must not be recorded is named in `HIDDEN`.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec

_log = logging.getLogger(__name__)

HIDDEN = frozenset({"password", "current_password", "new_password"})
TEXT_MAX = 255
ENTRIES_MAX = 20


class Change(msgspec.Struct, frozen=True):
    """One call of a tool that changes something, also if it was refused."""

    user: str
    peer: str
    tool: str
    arguments: dict[str, Any]
    outcome: str
    """`done`, or the name of the error."""


def record(change: Change) -> None:
    shown = msgspec.json.encode(change.arguments).decode()
    _log.info("%s, user %r: mcp %s %s: %s", change.peer, change.user, change.tool, shown, change.outcome)


def recordable(arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a call without secrets, and without what is too long for a line."""
    return {name: _shown(name, value) for name, value in list(arguments.items())[:ENTRIES_MAX]}


def _shown(name: str, value: Any) -> Any:
    if name in HIDDEN:
        return "***"
    if name == "messages" and isinstance(value, list):
        return f"{len(value)} messages"
    if isinstance(value, str) and len(value) > TEXT_MAX:
        return f"{value[:TEXT_MAX]}... ({len(value)} characters)"
    if isinstance(value, dict):
        return recordable(value)
    if isinstance(value, list):
        return [_shown("", each) for each in value[:ENTRIES_MAX]]
    return value
