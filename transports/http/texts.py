"""Texts of the API with their bounds, as types: for the OpenAPI document, which tells them to clients.

Nothing is checked by them: a name that is too long is refused by the command that it is for, with a number of its own.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from whippet.app.access import tokens, users
from whippet.app.model import topic_options
from whippet.transports.http.parameters import NAME_BYTES


def _of_length(lengths: range) -> Meta:
    shortest, longest = lengths[0], lengths[-1]
    # The document counts characters, of which each is up to four bytes.
    schema = {"minLength": -(-shortest // 4), "maxLength": longest}
    return Meta(description=f"{shortest} to {longest} bytes of UTF-8", extra_json_schema=schema)


def _with_keys(keys: list[str]) -> Meta:
    return Meta(extra_json_schema={"propertyNames": {"enum": sorted(keys)}})


Name = Annotated[str, _of_length(NAME_BYTES)]
Username = Annotated[str, _of_length(users.NAME_BYTES)]
Password = Annotated[str, _of_length(users.PASSWORD_BYTES)]
TokenName = Annotated[str, _of_length(tokens.NAME_BYTES)]
Key = Annotated[str, _of_length(range(1, 256))]
"""Of messages that belong together."""

NoOptions = Annotated[dict[str, str], Meta(description="There are none yet", extra_json_schema={"maxProperties": 0})]
TopicOptions = Annotated[dict[str, str], _with_keys(list(topic_options.CATALOGUE))]
ChangedTopicOptions = Annotated[
    dict[str, str], _with_keys([key for key, each in topic_options.CATALOGUE.items() if each.may_change])
]
Algorithm = Annotated[str, Meta(description="In capital letters, too", extra_json_schema={"enum": ["none", "gzip"]})]
