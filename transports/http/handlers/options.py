"""Options of topics, streams and users: strings in JSON, typed values in the commands; and their descriptions."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import msgspec

from whippet.app.commands import requests, responses
from whippet.app.errors import Code, CommandError
from whippet.app.model.options import Option, OptionScope, ValueKind
from whippet.transports.http.forms.user_headers import NAMES, Kind
from whippet.transports.http.operation import Call

SCOPES = {scope.name.lower(): scope for scope in OptionScope}
_FLOATS = {ValueKind.FLOAT32: "<f", ValueKind.FLOAT64: "<d"}
_SIGNED = frozenset((ValueKind.INT8, ValueKind.INT16, ValueKind.INT32, ValueKind.INT64, ValueKind.INT128))


class OptionValue(msgspec.Struct, frozen=True):
    value: str
    """Never empty."""
    explicit: bool
    """Whether it was set, and is not a default."""
    kind: Kind
    """For clients since 0.12."""


class OptionBody(msgspec.Struct, frozen=True):
    key: str
    kind: Kind
    default_value: list[int]
    """The bytes of the value; numbers are little-endian."""
    description: str
    updatable: bool
    """Whether it may be changed; others are fixed when the topic, stream or user is created."""
    resettable: bool
    secret: bool
    read_only: bool
    critical: bool


async def describe(call: Call) -> list[OptionBody]:
    scope = SCOPES.get(call.parameters["scope"])
    if scope is None:
        raise CommandError(Code.INVALID_COMMAND, f"options exist for {', '.join(SCOPES)}")
    found: Sequence[responses.OptionDescription] = await call.execute(requests.DescribeOptions(scope))
    return [
        OptionBody(
            each.key,
            NAMES[each.kind],
            list(each.default),
            each.description,
            *(bool(each.flags & flag) for flag in responses.OptionFlags),
        )
        for each in found
    ]


OptionText = str | int | bool
"""A value in JSON. The command, which reads strings, decides what it means."""


def of_texts(values: Mapping[str, OptionText] | None) -> tuple[Option, ...]:
    texts = {
        key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in (values or {}).items()
    }
    return tuple(Option(key, ValueKind.STRING, text.encode()) for key, text in texts.items())


def texts_of(explicit: Sequence[Option], derived: Sequence[Option]) -> dict[str, OptionValue]:
    """Returns the options by key, sorted by key."""
    found = {option.key: OptionValue(text_of(option), True, NAMES[option.kind]) for option in explicit}
    found |= {
        option.key: OptionValue(text_of(option), False, NAMES[option.kind])
        for option in derived
        if option.key not in found
    }
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
