"""Keys of the pipeline file: one definition from which a key is read, checked, named in errors and documented.

A table of the file is a frozen dataclass whose fields are created with `key`. Nothing here knows a particular table.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from pyspark_whippet.errors import OptionError
from pyspark_whippet.settings import Secret
from whippet.pipelines.errors import FileError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_DURATION = re.compile(r"\s*(\d{1,12})\s*([a-z]+)\s*", re.ASCII)
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_WORDS = {"millisecond": "ms", "sec": "s", "second": "s", "min": "m", "minute": "m", "hour": "h"}
_WORDS |= {"day": "d", "week": "w"}


class InvalidValue(ValueError):
    """A value of the wrong kind. It has a message where there is more to say than what is needed."""


class Kind(NamedTuple):
    """The values that a key can have."""

    needs: str
    """Completes '... is needed'."""
    parse: Callable[[Any], Any]
    """Converts a value of TOML, or raises InvalidValue or another ValueError."""
    table: type[Any] | None = None
    """The dataclass, for a table or, with `is_list`, a list of tables."""
    is_list: bool = False


class Key(NamedTuple):
    kind: Kind
    meaning: str
    shown_default: str | None


class Table(Protocol):
    """A dataclass of keys. It may also have a list of keys that the connectors have and this table has not
    (UNSUPPORTED)."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


T = TypeVar("T", bound=Table)


def key(kind: Kind, meaning: str, default: Any = MISSING, *, shown: str | None = None) -> Any:
    """Defines a field of a table; without a default it is required. `shown` is the default as the documentation
    shows it."""
    if default is not MISSING and shown is None and default is not None:
        shown = toml_text(default)
    return dataclasses.field(default=default, metadata={"key": Key(kind, meaning, shown)})


def keys(table: type[Table]) -> dict[str, Key]:
    return {field.name: field.metadata["key"] for field in dataclasses.fields(table)}


class Substituted(str):
    """A string with environment variables filled in; it is shown as it was written."""

    shown: str

    def __new__(cls, text: str, shown: str) -> Substituted:
        found = super().__new__(cls, text)
        found.shown = shown
        return found

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]
        """For pickling."""
        return str(self), self.shown


def toml_text(value: Any) -> str:
    """Formats a value as TOML."""
    if isinstance(value, Substituted):
        return f'"{value.shown}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {toml_text(each)}" for name, each in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(toml_text, value)) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value)


# ---------------------------------------------------------------------------------------------------- reading a table


def decode(table: type[T], raw: Any, place: str) -> T:
    """Decodes a table of the file, or raises FileError. `place` says where it is, such as [source]."""
    if not isinstance(raw, dict):
        raise FileError(f"{place}: a table is needed")
    known = keys(table)
    for name in raw:
        if name not in known:
            raise FileError(f"{place}: {_unknown(name, known, getattr(table, 'UNSUPPORTED', {}))}")
    found = {}
    for field in dataclasses.fields(table):
        if field.name in raw:
            found[field.name] = _value(known[field.name].kind, field.name, raw[field.name], place)
        elif field.default is MISSING:
            raise FileError(f"{place}: key '{field.name}' is required: {known[field.name].meaning}")
    try:
        return table(**found)
    except (ValueError, OptionError) as error:
        raise FileError(f"{place}: {error}") from None


def _value(kind: Kind, name: str, raw: Any, place: str) -> Any:
    if kind.table is not None:
        inner = f"{place[:-1]}.{name}]" if place.endswith("]") else f"{place}, {name}"
        if not kind.is_list:
            return decode(kind.table, raw, inner)
        if not isinstance(raw, list):
            raise FileError(f"{inner}: {kind.needs} is needed")
        return tuple(decode(kind.table, each, f"{inner} {number}") for number, each in enumerate(raw, start=1))
    try:
        # Values travel to processes of Spark, and into libraries that look at the exact type.
        return kind.parse(_plain(raw))
    except (ValueError, OptionError) as error:
        shown = "" if kind is SECRET else f" {toml_text(raw)}:"
        raise FileError(f"{place}: key '{name}':{shown} {str(error) or f'{kind.needs} is needed'}") from None


def _plain(value: Any) -> Any:
    """A value of any kind, with plain strings."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, str) else value


def _unknown(name: str, known: Mapping[str, Key], not_here: Mapping[str, str]) -> str:
    if name in not_here:
        return f"key '{name}' is not supported: {not_here[name]}"
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"did you mean '{near[0]}'?" if near else f"the keys are: {', '.join(known)}"
    return f"key '{name}' is unknown; {hint}"


def choose_type(tables: Mapping[str, type[T]], raw: Any, place: str) -> type[T]:
    """Returns the table that `type` names."""
    if not isinstance(raw, dict):
        raise FileError(f"{place}: a table is needed")
    if "type" not in raw:
        raise FileError(f"{place}: key 'type' is required: one of {', '.join(tables)}")
    name = raw["type"]
    if not isinstance(name, str) or name not in tables:
        near = difflib.get_close_matches(str(name), tables, n=1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'?" if near else f"the types are: {', '.join(tables)}"
        raise FileError(f"{place}: there is no type {toml_text(name)}; {hint}")
    return tables[name]


# -------------------------------------------------------------------------------------------------------------- kinds


def _string(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise InvalidValue
    return value


def _path(value: Any) -> str:
    """Makes a path absolute, because the process that opens it may run in another folder."""
    text = _string(value)
    return text if "://" in text else str(Path(text).absolute())


def _strings(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise InvalidValue
    return tuple(_string(each) for each in value)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidValue
    return value


def _name(value: Any) -> str:
    if not NAME.fullmatch(_string(value)):
        raise InvalidValue
    return str(value)


def _duration(value: Any) -> int:
    """Returns milliseconds."""
    match = _DURATION.fullmatch(_string(value).lower())
    if match is None:
        raise InvalidValue
    unit = match[2] if match[2] in _UNITS_MS else _WORDS.get(match[2].removesuffix("s"), match[2].removesuffix("s"))
    if unit not in _UNITS_MS:
        raise InvalidValue
    return int(match[1]) * _UNITS_MS[unit]


def integer(least: int, most: int = 2**63 - 1) -> Kind:
    def parse(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise InvalidValue
        return value

    return Kind(f"an integer of at least {least}" if most == 2**63 - 1 else f"an integer from {least} to {most}", parse)


def one_of(*words: str) -> Kind:
    def parse(value: Any) -> str:
        if value not in words:
            near = difflib.get_close_matches(str(value), words, n=1, cutoff=0.5)
            raise InvalidValue(f"did you mean '{near[0]}'? One of {', '.join(words)} is needed" if near else "")
        return str(value)

    return Kind(f"one of {', '.join(words)}", parse)


def table_of(table: type[Any]) -> Kind:
    return Kind("a table", lambda value: value, table)


def tables_of(table: type[Any]) -> Kind:
    return Kind("a list of tables", lambda value: value, table, is_list=True)


STRING = Kind("a string", _string)
PATH = Kind("a string", _path)
STRINGS = Kind('a list of strings, such as ["a", "b"],', _strings)
BOOLEAN = Kind("true or false", _boolean)
SECRET = Kind("a string", lambda value: Secret(_string(value)))
IDENTIFIER = Kind("a name of letters, digits, '.', '_' and '-'", _name)
DURATION = Kind("a duration such as '500 ms', '10 s', '5 minutes' or '7 days'", _duration)
ANYTHING = Kind("a value", lambda value: value)
