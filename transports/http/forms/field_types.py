"""Types of fields: numbers with their ranges, sizes, and strings with the limits that the OpenAPI document shows.

Numbers out of range are refused when they are decoded. The limits of strings are not checked here: the command refuses
a name that is too long, with an error of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from whippet.app.access import personal_tokens, users
from whippet.app.config import formats
from whippet.app.model import topic_options
from whippet.app.model.options import ValueKind
from whippet.transports.http.forms.parameters import NAME_BYTES, schema_of_text

# ------------------------------------------------------------------------------------------------------------ numbers

U8 = Annotated[int, msgspec.Meta(ge=0, le=2**8 - 1)]
U32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
U64_MAX = 2**64 - 1
U64 = Annotated[int, msgspec.Meta(ge=0, extra_json_schema={"maximum": U64_MAX})]
"""`check_u64` checks its upper limit: msgspec supports limits of 63 bits."""


def _pattern_up_to(limit: int) -> str:
    """Returns a regular expression for the numbers up to a limit, as strict as the server is.

    It has an alternative for each digit of the limit: the digits before it, a smaller digit in its place, any after it.
    """
    digits = str(limit)
    smaller = [
        f"{digits[:place]}[0-{int(digit) - 1}][0-9]{{{len(digits) - place - 1}}}"
        for place, digit in enumerate(digits)
        if digit != "0"
    ]
    return f"^([0-9]{{1,{len(digits) - 1}}}|{'|'.join(smaller)}|{digits})$"


NumberText = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": _pattern_up_to(U64_MAX)})]
"""A number as a string, for clients that cannot represent every number of 64 bits. `parse_number` checks it: this
pattern would make a long error message."""


def parse_number(given: int | str | None) -> int | None:
    """Raises a ValueError for a string that is not a number."""
    if isinstance(given, str) and not (given.isascii() and given.isdigit()):
        raise ValueError(f"{given[:40]!r} is not a number")
    return None if given is None else int(given[:40]) if isinstance(given, str) else given


def parse_expiry(given: int | str | None, field: str) -> int | None:
    """Returns microseconds. Raises a ValueError for a text that is no time, and for a time that is too long."""
    if not isinstance(given, str) or (given.isascii() and given.isdigit()):
        number = parse_number(given)
        if number is not None and number > U64_MAX:
            raise ValueError(f"field `{field}`: {number} is more than {U64_MAX}")
        return number
    try:
        microseconds = None if given == "never" else formats.parse_expiry(given)
    except formats.Invalid:
        needed = "a duration such as `1 h`, `never`, or a number of microseconds"
        raise ValueError(f"field `{field}`: {given[:40]!r} is no time; {needed} is needed") from None
    return U64_MAX if microseconds is None else microseconds


def check_u64(*numbers: int | None) -> None:
    """Called by `__post_init__`, where a ValueError makes the value invalid."""
    for number in numbers:
        if number is not None and number > U64_MAX:
            raise ValueError(f"{number} is more than {U64_MAX}")


def f32(number: float) -> float:
    """Returns the shortest number that is the same f32, which is what Rust writes. Iggy's Web UI reads a number of more
    than 15 characters as an integer."""
    return float(str(np.float32(number)))


# ----------------------------------------------------------------------------------------------------- sizes in bytes

UNITS = tuple(
    (f"{letter}{infix}B", factor**power)
    for power, letter in ((6, "E"), (5, "P"), (4, "T"), (3, "G"), (2, "M"), (1, "K"))
    for infix, factor in (("i", 1024), ("", 1000))
)
"""Units from the largest to the smallest."""


def size_text(size: int) -> str:
    """Returns the exact size in the first unit with at most three decimals: 1024 is "1 KiB", 1025 is "1.025 KB"."""
    for name, unit in UNITS:
        if size >= unit and size * 1000 % unit == 0:
            whole, thousandths = divmod(size * 1000 // unit, 1000)
            decimals = f"{thousandths:03}".rstrip("0")
            return f"{whole}.{decimals} {name}" if decimals else f"{whole} {name}"
    return f"{size} B"


# -------------------------------------------------------------------------------------------------------------- texts

_BASE64 = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_DURATION = "[1-9][0-9]{0,3} ?(s|m|h|d|days)"
_VALUES: dict[str, Sequence[str]] = {
    "compression_algorithm": ("none", "gzip", "zstd"),
    "consumer_offset_durability": topic_options.DURABILITIES,
    "durability": topic_options.DURABILITIES,
    "partition_resize_policy": (topic_options.MUTABLE, topic_options.FIXED),
    "replication_factor": ("1",),
}
_NUMBERS = {
    "archive_retention": f"^([1-9][0-9]{{0,17}}|{_DURATION}|never_expire)$",
    "local_retention_size": "^([1-9][0-9]{0,3} ?(GiB|TiB)|unlimited)$",
    "local_retention_time": f"^([1-9][0-9]{{0,17}}|{_DURATION}|never_expire)$",
    "max_topic_size": "^([1-9][0-9]{0,3} ?(GiB|TiB)|unlimited)$",
    "message_deduplication_expiry": f"^([1-9][0-9]{{0,17}}|{_DURATION}|never_expire)$",
    "message_deduplication_max_entries": "^([1-9][0-9]{0,8}|unlimited)$",
    "message_expiry": f"^([1-9][0-9]{{0,17}}|{_DURATION}|never_expire)$",
    "messages_required_to_save": "^[1-9][0-9]{0,6}$",
    "segment_size": "^([1-9][0-9]{0,2} ?MiB|1 ?GiB)$",
    "size_of_messages_required_to_save": "^([1-9][0-9]{0,8}|[1-9][0-9]{0,2} ?MiB)$",
}
"""The documented formats. A few others are accepted as well, such as `1h 30m` and `134217728`, numbers and booleans."""


def _of_length(lengths: range) -> Meta:
    return Meta(extra_json_schema=schema_of_text(lengths))


def base64_of(shortest: int = 0, longest: int | None = None) -> Meta:
    """Describes bytes in base64, by their number."""
    bounds = {"minLength": -(-shortest // 3) * 4}
    if longest is not None:
        bounds["maxLength"] = longest // 3 * 4
    return Meta(extra_json_schema={"pattern": _BASE64, **bounds})


def _with_keys(keys: Iterable[str]) -> Meta:
    values = {key: _schema_of_option(key) for key in sorted(keys)}
    return Meta(
        extra_json_schema={
            "propertyNames": {"enum": list(values)},
            "properties": values,
            # Two names of one option, which must not contradict each other.
            "not": {"required": ["durability", "enforce_fsync"]},
        }
    )


def _schema_of_option(key: str) -> dict[str, object]:
    option = topic_options.TOPIC_OPTIONS[key]
    described: dict[str, object] = {"type": "string", "description": option.description, "minLength": 1}
    values = _VALUES.get(key, ("true", "false") if option.kind is ValueKind.BOOL else ())
    return described | ({"enum": list(values)} if values else {"pattern": _NUMBERS[key]})


Name = Annotated[str, _of_length(NAME_BYTES)]
Username = Annotated[str, _of_length(users.NAME_BYTES)]
Password = Annotated[str, _of_length(users.PASSWORD_BYTES)]
TokenName = Annotated[str, _of_length(personal_tokens.NAME_BYTES)]
Key = Annotated[str, _of_length(range(1, 256))]
"""A key of messages that must go to the same partition."""

NoOptions = Annotated[dict[str, str], Meta(description="No options exist yet", extra_json_schema={"maxProperties": 0})]
TopicOptions = Annotated[dict[str, str | int | bool], _with_keys(topic_options.TOPIC_OPTIONS)]
ChangedTopicOptions = Annotated[
    dict[str, str | int | bool], _with_keys(key for key, each in topic_options.TOPIC_OPTIONS.items() if each.can_change)
]
Period = Annotated[str, Meta(extra_json_schema={"pattern": f"^({_DURATION}|[1-9][0-9]{{0,3}} ?ms)?$"})]
"""Such as `20s`, within the limits of the server. Absent and empty mean the same."""
ExpiryText = Annotated[
    str,
    Meta(
        description="A duration such as `1 h` or `30 days`, `never`, or a number of microseconds",
        extra_json_schema={"pattern": f"^({_DURATION}|never|[0-9]{{1,19}})$"},
    ),
]
Expiry = U64 | ExpiryText
"""In us, or as a text with its unit."""
Algorithm = Annotated[str, Meta(description="Case-insensitive", extra_json_schema={"enum": ["none", "gzip", "zstd"]})]
