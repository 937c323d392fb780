"""The parameters that tools share, and how their texts become values.

The struct of a tool's parameters is its JSON schema, and the check of its arguments.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from whippet.app.cli.remote import arguments as texts
from whippet.app.cli.remote.failures import UsageFailure
from whippet.app.commands.requests import Identifier
from whippet.app.mcp.work import Refused

U32_MAX = 2**32 - 1
U64_MAX = 2**64 - 1
NAME_BYTES_MAX = 255
INVALID = "invalid_arguments"

Id = Annotated[int | str, msgspec.Meta(description="its name or number; what consists of digits is a number")]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_BYTES_MAX)]
PartitionId = Annotated[int, msgspec.Meta(ge=0, le=U32_MAX, description="the number of a partition, from 0")]
Skip = Annotated[int, msgspec.Meta(ge=0, description="leave out so many entries, which were in earlier responses")]
Expiry = Annotated[str, msgspec.Meta(description="such as 7d or 1h 30m, never, or server_default")]
Size = Annotated[str, msgspec.Meta(description="such as 10GB, unlimited, or server_default")]


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The base of the parameters of all tools."""


class Nothing(Parameters, frozen=True):
    pass


class Listed(Parameters, frozen=True):
    skip: Skip = 0


class OfStream(Parameters, frozen=True):
    stream_id: Id


class ListedOfStream(OfStream, frozen=True):
    skip: Skip = 0


class OfTopic(OfStream, frozen=True):
    topic_id: Id


class ListedOfTopic(OfTopic, frozen=True):
    skip: Skip = 0


class OfGroup(OfTopic, frozen=True):
    group_id: Id


class OfUser(Parameters, frozen=True):
    user_id: Id


def schema(kind: type[Parameters]) -> dict[str, Any]:
    """Returns the JSON schema of a tool's arguments, an object at the top as MCP wants it."""
    (_,), parts = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    top: dict[str, Any] = parts.pop(kind.__name__)
    top.pop("title", None)
    top.pop("description", None)
    return {**top, "$defs": parts} if parts else top


def decode(kind: type[Parameters], arguments: dict[str, Any]) -> Any:
    """Numbers may be written as texts, because assistants do so."""
    try:
        # Through JSON: it refuses texts that are no UTF-8, and numbers that no protocol carries.
        return msgspec.json.decode(msgspec.json.encode(arguments), type=kind, strict=False)
    except (msgspec.MsgspecError, ValueError, OverflowError, TypeError, RecursionError) as error:
        raise Refused(INVALID, f"the arguments are not valid: {error}") from None


def identifier(given: int | str) -> Identifier:
    found = int(given) if isinstance(given, str) and _is_number(given) else given
    if isinstance(found, int):
        if not 0 <= found <= U32_MAX:
            raise Refused(INVALID, f"{found} is no id: ids are numbers from 0 to {U32_MAX}")
        return found
    if not 0 < len(found.encode()) <= NAME_BYTES_MAX:
        raise Refused(INVALID, f"a name has 1 to {NAME_BYTES_MAX} bytes, not {len(found.encode())}")
    return found


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= NAME_BYTES_MAX


def expiry(text: str | None) -> int:
    """Returns microseconds, as the protocol has them; 0 is the server's default."""
    try:
        return texts.expiry([] if text is None else [text])
    except UsageFailure as failure:
        raise Refused(INVALID, str(failure)) from None


def size(text: str | None) -> int:
    try:
        return texts.topic_size(text or "")
    except UsageFailure as failure:
        raise Refused(INVALID, str(failure)) from None
