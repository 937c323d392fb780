"""Texts of the API with their bounds, as types: for the OpenAPI document, which tells them to clients.

Nothing is checked by them: a name that is too long is refused by the command that it is for, with a number of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

from msgspec import Meta

from whippet.app.access import tokens, users
from whippet.app.model import topic_options
from whippet.app.model.options import ValueKind
from whippet.transports.http.parameters import NAME_BYTES, schema_of_text

_BASE64 = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_DURATION = "[1-9][0-9]{0,3} ?(s|m|h|d|days)"
_WORDS: dict[str, Sequence[str]] = {
    "compression_algorithm": ("none", "gzip"),
    "consumer_offset_durability": topic_options.PROMISES,
    "durability": topic_options.PROMISES,
}
_NUMBERS = {
    "max_topic_size": "^([1-9][0-9]{0,3} ?(GiB|TiB)|unlimited)$",
    "message_deduplication_expiry": f"^([1-9][0-9]{{0,17}}|{_DURATION}|never_expire)$",
    "message_deduplication_max_entries": "^([1-9][0-9]{0,8}|unlimited)$",
    "message_expiry": f"^([1-9][0-9]{{0,17}}|{_DURATION}|never_expire)$",
    "messages_required_to_save": "^[1-9][0-9]{0,6}$",
    "segment_size": "^([1-9][0-9]{0,2} ?MiB|1 ?GiB)$",
    "size_of_messages_required_to_save": "^([1-9][0-9]{0,8}|[1-9][0-9]{0,2} ?MiB)$",
}
"""The forms that a client needs. A few others are read as well, such as `1h 30m` and `134217728`, and numbers and
truths as such."""


def _of_length(lengths: range) -> Meta:
    return Meta(extra_json_schema=schema_of_text(lengths))


def base64_of(shortest: int = 0, longest: int | None = None) -> Meta:
    """Describes octets in base64, by how many there are."""
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
            # Two names of one option, which may not contradict each other.
            "not": {"required": ["durability", "enforce_fsync"]},
        }
    )


def _schema_of_option(key: str) -> dict[str, object]:
    option = topic_options.CATALOGUE[key]
    described: dict[str, object] = {"type": "string", "description": option.description, "minLength": 1}
    words = _WORDS.get(key, ("true", "false") if option.kind is ValueKind.BOOL else ())
    return described | ({"enum": list(words)} if words else {"pattern": _NUMBERS[key]})


Name = Annotated[str, _of_length(NAME_BYTES)]
Username = Annotated[str, _of_length(users.NAME_BYTES)]
Password = Annotated[str, _of_length(users.PASSWORD_BYTES)]
TokenName = Annotated[str, _of_length(tokens.NAME_BYTES)]
Key = Annotated[str, _of_length(range(1, 256))]
"""Of messages that belong together."""

NoOptions = Annotated[dict[str, str], Meta(description="There are none yet", extra_json_schema={"maxProperties": 0})]
TopicOptions = Annotated[dict[str, str | int | bool], _with_keys(topic_options.CATALOGUE)]
ChangedTopicOptions = Annotated[
    dict[str, str | int | bool], _with_keys(key for key, each in topic_options.CATALOGUE.items() if each.may_change)
]
Period = Annotated[str, Meta(extra_json_schema={"pattern": f"^({_DURATION}|[1-9][0-9]{{0,3}} ?ms)?$"})]
"""Such as `20s`; the server bounds it. Absent and empty are the same."""
Algorithm = Annotated[str, Meta(description="In capital letters, too", extra_json_schema={"enum": ["none", "gzip"]})]
