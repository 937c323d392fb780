"""Options of topics, streams and users: texts in JSON, values of a kind behind it. And what options there are."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec

from whippet.app.commands import answers
from whippet.app.commands import requests as ask
from whippet.app.errors import Code, CommandError
from whippet.app.model.options import Option, OptionScope, ValueKind
from whippet.transports.http.operation import Call
from whippet.transports.http.userheaders import NAMES, Kind

SCOPES = {scope.name.lower(): scope for scope in OptionScope}
_FLOATS = {ValueKind.FLOAT32: "<f", ValueKind.FLOAT64: "<d"}
_SIGNED = frozenset((ValueKind.INT8, ValueKind.INT16, ValueKind.INT32, ValueKind.INT64, ValueKind.INT128))


class OptionValue(msgspec.Struct, frozen=True):
    value: str
    """Never empty."""
    explicit: bool
    """Whether somebody has chosen it."""


class OptionBody(msgspec.Struct, frozen=True):
    key: str
    kind: Kind
    default_value: list[int]
    """The bytes of the value, numbers little-endian."""
    description: str


async def describe(call: Call) -> list[OptionBody]:
    scope = SCOPES.get(call.parameters["scope"])
    if scope is None:
        raise CommandError(Code.INVALID_COMMAND, f"options are there for {', '.join(SCOPES)}")
    found: Sequence[answers.OptionDescription] = await call.ask(ask.DescribeOptions(scope))
    return [OptionBody(each.key, NAMES[each.kind], list(each.default), each.description) for each in found]


def of_texts(texts: dict[str, str] | None) -> tuple[Option, ...]:
    return tuple(Option(key, ValueKind.STRING, value.encode()) for key, value in (texts or {}).items())


def texts_of(explicit: Sequence[Option], derived: Sequence[Option]) -> dict[str, OptionValue]:
    """By key, in the order of the keys."""
    found = {option.key: OptionValue(text_of(option), True) for option in explicit}
    found |= {option.key: OptionValue(text_of(option), False) for option in derived if option.key not in found}
    return dict(sorted(found.items()))


def text_of(option: Option) -> str:
    kind, value = option.kind, option.value
    if kind in (ValueKind.STRING, ValueKind.RAW):
        return value.decode(errors="replace")
    if kind is ValueKind.BOOL:
        return "true" if any(value) else "false"
    if kind in _FLOATS:
        return str(struct.unpack(_FLOATS[kind], value)[0])
    return str(int.from_bytes(value, "little", signed=kind in _SIGNED))
