"""Decodes the parameters of paths and queries.

A path is split before it is decoded, so a name never becomes part of the path: `a%2Fb` is one name.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from whippet.app.commands.requests import Identifier
from whippet.app.errors import Code, CommandError
from whippet.transports.http.errors import Refused
from whippet.transports.http.forms.request_bodies import field_of
from whippet.transports.http.forms.valid_values import explained

_DIGITS = re.compile(r"[0-9]{1,20}", re.ASCII)
U32_MAX = 2**32 - 1
NAME_BYTES = range(1, 256)
QUERY_FIELDS_MAX = 64
NAME_SHOWN_MAX = 64
ALIAS = "x-alias-of"


def schema_of_text(lengths: range) -> dict[str, Any]:
    """Describes strings by their length in UTF-8. JSON Schema counts characters, of up to four bytes each, so the limit
    for strings that are not ASCII is lower than the real one."""
    shortest, longest = lengths[0], lengths[-1]
    return {
        "minLength": shortest,
        "maxLength": longest,
        "pattern": rf"^([\x00-\x7f]*|[\s\S]{{0,{longest // 4}}})$",
        "description": f"{shortest} to {longest} bytes of UTF-8",
    }


def alias_of(of: str) -> msgspec.Meta:
    """Marks a parameter as an alias. The OpenAPI document does not list it, because both together are refused."""
    return msgspec.Meta(extra_json_schema={ALIAS: of})


def identifier(text: str) -> Identifier:
    """Returns a number if the whole text is a u32, a name otherwise."""
    if text.isascii() and text.isdigit() and len(text) <= 20 and (number := int(text)) <= U32_MAX:
        return number
    if len(text.encode()) not in NAME_BYTES:
        raise CommandError(Code.INVALID_IDENTIFIER)
    return text


def _number(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 20 and (number := int(text)) <= U32_MAX:
        return number
    raise ValueError("invalid digit found in string: a number from 0 to 4294967295 is needed")


def _name(text: str) -> str:
    if len(text.encode()) not in NAME_BYTES:
        raise CommandError(Code.INVALID_IDENTIFIER)
    return text


def _fsync(text: str) -> bool:
    """The Rust SDK sends `fsync=true`."""
    meaning = {"true": True, "false": False}.get(text.lower().removeprefix("fsync="))
    if meaning is None:
        raise ValueError("true or false is needed")
    return meaning


_NAME: Mapping[str, Any] = {"type": "string", **schema_of_text(NAME_BYTES)}
PARAMETER_TYPES: Mapping[str, tuple[Callable[[str], Any], Mapping[str, Any]]] = {
    name: (parse, schema)
    for names, parse, schema in (
        (
            "stream topic group user consumer",
            identifier,
            {
                **_NAME,
                "description": f"A number, or a name of {_NAME['description']}",
            },
        ),
        ("partition client", _number, {"type": "integer", "minimum": 0, "maximum": U32_MAX}),
        ("name lease", _name, _NAME),
        ("scope", _name, {"type": "string", "enum": ["topic", "stream", "user"]}),
        ("fsync", _fsync, {"type": "string", "enum": ["true", "false", "fsync=true", "fsync=false"]}),
    )
    for name in names.split()
}
"""Keyed by the name of a path parameter: how to convert its text, and its schema in the OpenAPI document."""


def decode_path(segments: Mapping[str, bytes]) -> dict[str, Any]:
    """Decodes the parameters of a path into their types."""
    found = {}
    for name, raw in segments.items():
        try:
            found[name] = PARAMETER_TYPES[name][0]((unquote_to_bytes(raw) if b"%" in raw else raw).decode())
        except ValueError as error:
            raise _bad_path(name, error) from None
    return found


def convert_path(texts: Mapping[str, str]) -> dict[str, Any]:
    """The same for parameters that are strings already."""
    found = {}
    for name, text in texts.items():
        try:
            found[name] = PARAMETER_TYPES[name][0](text)
        except ValueError as error:
            raise _bad_path(name, error) from None
    return found


def _bad_path(name: str, error: ValueError) -> Refused:
    return Refused(HTTPStatus.BAD_REQUEST, f"Invalid URL: cannot parse `{name}`: {error}", name)


class NoQuery(msgspec.Struct, frozen=True):
    """The query of an operation that has no parameters."""


def decode_query(raw: bytes, into: type[msgspec.Struct]) -> Any:
    """Decodes a query into its struct. Refuses unknown parameters, because they would do nothing."""
    if not raw:
        return _empty(into)
    fields: dict[str, Any] = {}
    known, numbers = into.__struct_encode_fields__, _numbers_of(into)
    try:
        for pair in _pairs(raw):
            quoted, _, value = pair.partition(b"=")
            name, text = _unquoted(quoted), _unquoted(value)
            if name not in known:
                raise _unknown(name, known)
            if name in fields:
                raise _bad_query(f"duplicate field `{name}`", name)
            fields[name] = int(text) if name in numbers and _DIGITS.fullmatch(text) else text
    except ValueError as error:
        raise _bad_query(str(error), None) from None
    return _converted(fields, into)


@lru_cache
def _empty(into: type[msgspec.Struct]) -> Any:
    return _converted({}, into)


def convert_query(texts: Mapping[str, str], into: type[msgspec.Struct]) -> Any:
    """The same for parameters that are split already, and all known."""
    numbers = _numbers_of(into)
    fields = {name: int(text) if name in numbers and _DIGITS.fullmatch(text) else text for name, text in texts.items()}
    return _converted(fields, into)


def _converted(fields: Mapping[str, Any], into: type[msgspec.Struct]) -> Any:
    try:
        return msgspec.convert(fields, into)
    except msgspec.ValidationError as error:
        raise _bad_query(explained(error, into), field_of(error)) from None


def find_parameter(raw: bytes, wanted: str) -> str | None:
    """Returns one parameter of a query that is decoded elsewhere."""
    try:
        for pair in _pairs(raw):
            name, _, value = pair.partition(b"=")
            if _unquoted(name) == wanted:
                return _unquoted(value)
    except ValueError as error:
        raise _bad_query(str(error), wanted) from None
    return None


def refuse_both(name: str, value: object, other_name: str, other_value: object) -> None:
    """Refuses a parameter and its alias in the same query."""
    if value is not msgspec.UNSET and other_value is not msgspec.UNSET:
        raise ValueError(f"`{name}` and `{other_name}` mean the same: set only one of them")


def _pairs(raw: bytes) -> list[bytes]:
    pairs = raw.split(b"&", QUERY_FIELDS_MAX)
    if len(pairs) > QUERY_FIELDS_MAX:
        raise ValueError(f"a query has at most {QUERY_FIELDS_MAX} parameters")
    return [pair for pair in pairs if pair]


def _unknown(name: str, known: Sequence[str]) -> Refused:
    shown = name[:NAME_SHOWN_MAX]
    nearest = difflib.get_close_matches(shown, known, n=1, cutoff=0.5)
    if nearest:
        hint = f"did you mean `{nearest[0]}`?"
    elif known:
        hint = f"the parameters of this operation are {', '.join(f'`{each}`' for each in known)}"
    else:
        hint = "this operation has no parameters"
    return _bad_query(f"unknown parameter `{shown}`; {hint}", shown)


@lru_cache
def _numbers_of(query: type[msgspec.Struct]) -> frozenset[str]:
    info = msgspec.inspect.type_info(query)
    assert isinstance(info, msgspec.inspect.StructType)
    return frozenset(
        field.encode_name for field in info.fields if isinstance(_bare(field.type), msgspec.inspect.IntType)
    )


def _bare(kind: msgspec.inspect.Type) -> msgspec.inspect.Type:
    """Returns the type without its metadata."""
    while isinstance(kind, msgspec.inspect.Metadata):
        kind = kind.type
    return kind


def _bad_query(why: str, field: str | None) -> Refused:
    return Refused(HTTPStatus.BAD_REQUEST, f"Failed to deserialize query string: {why}", field)


def _unquoted(part: bytes) -> str:
    if b"%" in part or b"+" in part:
        part = unquote_to_bytes(part.replace(b"+", b" "))
    return part.decode()
