"""Paths and conditions over the JSON of a message: `$.customer.id`, and `$.amount > 100`.

A condition is a path, an operator and a value: JSON, or else text. Operators are == != < <= > >= and `contains`. A path
alone holds if there is something that is neither null, false, 0 nor empty. A message that is no JSON, or has nothing at
the path, does not match.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

import msgspec

_STEP = r"(?:\.[\w-]+|\[\d+\])"
_PATH = re.compile(rf"\$({_STEP}*)")
_CONDITION = re.compile(rf"\s*\$({_STEP}*)\s*(?:(==|!=|<=|>=|<|>|contains\b)\s*(.+?))?\s*")
_MISSING = object()

Condition = Callable[[bytes], bool]


def path_of(text: str) -> Callable[[bytes], Any] | None:
    """Returns a function from payloads to what is at the path, None if that is nothing; None if the text is no path."""
    match = _PATH.fullmatch(text)
    if match is None:
        return None
    steps = _steps(match[1])

    def found(payload: bytes) -> Any:
        value = _walk(payload, steps)
        return None if value is _MISSING else value

    return found


def parse(text: str) -> Condition:
    """Returns a function from payloads to whether the condition holds; raises a ValueError for a text that is none."""
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no filter; examples are '$.amount > 100' and '$.customer.country == \"de\"'")
    steps, name = _steps(match[1]), match[2]
    if name is None:
        return lambda payload: bool(_found(payload, steps))
    wanted = _literal(match[3])
    compare: Callable[[Any, Any], Any] = OPERATORS[name]

    def holds(payload: bytes) -> bool:
        value = _walk(payload, steps)
        if value is _MISSING:
            return False
        try:
            return bool(compare(value, wanted))
        except TypeError:
            # A text is neither above nor below a number.
            return False

    return holds


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "contains": operator.contains,
}


def _steps(text: str) -> list[str | int]:
    return [step[1:] if step[0] == "." else int(step[1:-1]) for step in re.findall(_STEP, text)]


def _literal(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text.strip("'")


def _found(payload: bytes, steps: list[str | int]) -> Any:
    value = _walk(payload, steps)
    return None if value is _MISSING else value


def _walk(payload: bytes, steps: list[str | int]) -> Any:
    try:
        value = msgspec.json.decode(payload)
        for step in steps:
            value = value[step]
    except (msgspec.MsgspecError, KeyError, IndexError, TypeError, ValueError, RecursionError):
        return _MISSING
    return value
