"""Says what is wrong with a value that is not of its type, and which values there are if they are few."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import inspect

_NOT_ONE_OF = re.compile(r"(Invalid enum value .*?)((?: - at `\$[^` ]*`)?)", re.DOTALL)
_NUMBER = re.compile(r"\[\d+\]")
_STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<key>[^\]]*)\]")


def explained(error: msgspec.ValidationError, of: Any) -> str:
    """Returns the sentence of an error that was found when decoding into a type."""
    text = str(error)
    found = _NOT_ONE_OF.fullmatch(text)
    if found is None:
        return text
    sentence, where = found.groups()
    # Clients choose the numbers in lists; the rest of a path is as the type has it.
    values = _values(of, _NUMBER.sub("[...]", where).removeprefix(" - at `$").removesuffix("`"))
    return f"{sentence}; it is one of {', '.join(values)}{where}" if values else text


@lru_cache
def _values(of: Any, path: str) -> tuple[str, ...]:
    kinds = list(_plain(inspect.type_info(of)))
    for step in _STEP.finditer(path):
        kinds = [after for kind in kinds for after in _after(kind, step["name"])]
    found = dict.fromkeys(value for kind in kinds for value in _values_of(kind))
    return tuple(map(str, found))


def _plain(kind: inspect.Type) -> Iterator[inspect.Type]:
    """Yields the types that are possible, without their metadata."""
    match kind:
        case inspect.Metadata(type=inner):
            yield from _plain(inner)
        case inspect.UnionType(types=types):
            for each in types:
                yield from _plain(each)
        case _:
            yield kind


def _after(kind: inspect.Type, name: str | None) -> Iterator[inspect.Type]:
    match kind:
        case inspect.StructType(fields=fields) if name is not None:
            for field in fields:
                if field.encode_name == name:
                    yield from _plain(field.type)
        case inspect.ListType(item_type=inner) | inspect.VarTupleType(item_type=inner) if name is None:
            yield from _plain(inner)
        case inspect.DictType(value_type=inner) if name is None:
            yield from _plain(inner)


def _values_of(kind: inspect.Type) -> tuple[Any, ...]:
    match kind:
        case inspect.LiteralType(values=values):
            return values
        case inspect.EnumType(cls=cls):
            return tuple(member.value for member in cls if isinstance(member, enum.Enum))
        case _:
            return ()
