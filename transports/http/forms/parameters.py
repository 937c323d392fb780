"""What may stand in a path and behind the question mark.

A path is taken apart before it is decoded, so what is in a name never becomes a part of the path: `a%2Fb` is one name.
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

_DIGITS = re.compile(r"[0-9]{1,20}", re.ASCII)
U32_MAX = 2**32 - 1
NAME_BYTES = range(1, 256)
QUERY_FIELDS_MAX = 64
NAME_SHOWN_MAX = 64
SPELLING = "x-another-spelling-of"


def schema_of_text(lengths: range) -> dict[str, Any]:
    """Describes texts by their length in UTF-8. A JSON Schema counts characters, of which each has up to four bytes, so
    texts that are not ASCII are described as shorter than they may be."""
    shortest, longest = lengths[0], lengths[-1]
    return {
        "minLength": shortest,
        "maxLength": longest,
        "pattern": rf"^([\x00-\x7f]*|[\s\S]{{0,{longest // 4}}})$",
        "description": f"{shortest} to {longest} bytes of UTF-8",
    }


def another_spelling(of: str) -> msgspec.Meta:
    """Marks a parameter that means the same as another one. The OpenAPI document does not list it: both together are
    refused."""
    return msgspec.Meta(extra_json_schema={SPELLING: of})


def identifier(text: str) -> Identifier:
    """A number, if the whole of it is a u32; else a name."""
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
    """The Rust SDK says `fsync=true`."""
    meaning = {"true": True, "false": False}.get(text.lower().removeprefix("fsync="))
    if meaning is None:
        raise ValueError("true or false is needed")
    return meaning


_NAME: Mapping[str, Any] = {"type": "string", **schema_of_text(NAME_BYTES)}
KINDS: Mapping[str, tuple[Callable[[str], Any], Mapping[str, Any]]] = {
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
"""By the name of a parameter: what its text means, and how the OpenAPI document says that."""


def decode_path(segments: Mapping[str, bytes]) -> dict[str, Any]:
    """The parameters of a path, each as its kind has it."""
    found = {}
    for name, raw in segments.items():
        try:
            found[name] = KINDS[name][0]((unquote_to_bytes(raw) if b"%" in raw else raw).decode())
        except ValueError as error:
            raise _bad_path(name, error) from None
    return found


def path_of(texts: Mapping[str, str]) -> dict[str, Any]:
    """The same, where they are texts already."""
    found = {}
    for name, text in texts.items():
        try:
            found[name] = KINDS[name][0](text)
        except ValueError as error:
            raise _bad_path(name, error) from None
    return found


def _bad_path(name: str, error: ValueError) -> Refused:
    return Refused(HTTPStatus.BAD_REQUEST, f"Invalid URL: cannot parse `{name}`: {error}", name)


class NoQuery(msgspec.Struct, frozen=True):
    """The query of an operation that has no parameters."""


def decode_query(raw: bytes, into: type[msgspec.Struct]) -> Any:
    """Decodes a query into its struct, and refuses parameters that the struct does not have: they would do nothing."""
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


def query_of(texts: Mapping[str, str], into: type[msgspec.Struct]) -> Any:
    """The same, where the parameters are taken apart already, and all known."""
    numbers = _numbers_of(into)
    fields = {name: int(text) if name in numbers and _DIGITS.fullmatch(text) else text for name, text in texts.items()}
    return _converted(fields, into)


def _converted(fields: Mapping[str, Any], into: type[msgspec.Struct]) -> Any:
    try:
        return msgspec.convert(fields, into)
    except msgspec.ValidationError as error:
        raise _bad_query(str(error), field_of(error)) from None


def value_of(raw: bytes, wanted: str) -> str | None:
    """Finds one parameter in a query that is decoded elsewhere."""
    try:
        for pair in _pairs(raw):
            name, _, value = pair.partition(b"=")
            if _unquoted(name) == wanted:
                return _unquoted(value)
    except ValueError as error:
        raise _bad_query(str(error), wanted) from None
    return None


def one_spelling(name: str, value: object, other_name: str, other_value: object) -> None:
    """Refuses two spellings of one parameter in the same query."""
    if value is not msgspec.UNSET and other_value is not msgspec.UNSET:
        raise ValueError(f"`{name}` and `{other_name}` mean the same: give one of them")


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
        hint = f"the parameters here are {', '.join(f'`{each}`' for each in known)}"
    else:
        hint = "no parameter is known here"
    return _bad_query(f"unknown parameter `{shown}`; {hint}", shown)


@lru_cache
def _numbers_of(query: type[msgspec.Struct]) -> frozenset[str]:
    info = msgspec.inspect.type_info(query)
    assert isinstance(info, msgspec.inspect.StructType)
    return frozenset(
        field.encode_name for field in info.fields if isinstance(_bare(field.type), msgspec.inspect.IntType)
    )


def _bare(kind: msgspec.inspect.Type) -> msgspec.inspect.Type:
    """Without what is said of it for the OpenAPI document."""
    while isinstance(kind, msgspec.inspect.Metadata):
        kind = kind.type
    return kind


def _bad_query(why: str, field: str | None) -> Refused:
    return Refused(HTTPStatus.BAD_REQUEST, f"Failed to deserialize query string: {why}", field)


def _unquoted(part: bytes) -> str:
    if b"%" in part or b"+" in part:
        part = unquote_to_bytes(part.replace(b"+", b" "))
    return part.decode()
