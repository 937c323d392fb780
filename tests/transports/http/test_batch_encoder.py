"""JSON bodies of messages: members that occur twice are refused, however the body is written, and a single message is
encoded like one of several."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippet.app.errors import CommandError
from whippet.storage.batch import Limits, messages
from whippet.transports.http.errors import Refused
from whippet.transports.http.forms.batch_encoder import (
    MessageBody,
    NewMessages,
    decode,
    encode_message,
    encode_messages,
)

LIMITS = Limits(batch_bytes=10_000, messages=10, payload_bytes=1000, user_headers_bytes=200)
DECODER = msgspec.json.Decoder(NewMessages)
MESSAGES = '[{"payload":"eA=="}]'
KEY = st.sampled_from(["kind", "value", "a", "[", "]", '\\"', "\\u006bind", "x]y[", ""])
TEXT = st.sampled_from(["balanced", "", "AAAAAA==", "[", "]", '\\"', "messages_key"])
VALUE = st.one_of(
    TEXT.map(lambda text: f'"{text}"'), st.sampled_from(["1", "null", "[]", "[1]", "{}", '{"a":1,"a":2}'])
)


@st.composite
def objects(draw: Any) -> str:
    members = draw(st.lists(st.tuples(KEY, VALUE), max_size=4))
    if draw(st.booleans()):
        members += [("kind", '"balanced"'), ("value", '""')]
    return "{" + ",".join(f'"{key}":{value}' for key, value in draw(st.permutations(members))) + "}"


@st.composite
def bodies(draw: Any) -> bytes:
    members = [("partitioning", draw(objects())), ("messages", draw(st.sampled_from([MESSAGES, "[]"])))]
    if draw(st.booleans()):
        members.append(draw(st.sampled_from(members)))
    if draw(st.booleans()):
        members.append(
            ("context", draw(st.sampled_from(["null", '{"incarnation":1,"owner_generation":0,"metadata_op":2}'])))
        )
    return ("{" + ", ".join(f'"{key}": {value}' for key, value in draw(st.permutations(members))) + "}").encode()


def has_a_duplicate(body: bytes) -> bool:
    found = []

    def pairs(given: list[tuple[str, Any]]) -> None:
        names = [name for name, _ in given]
        found.append(len(names) != len(set(names)))

    json.loads(body, object_pairs_hook=pairs)
    return any(found)


@given(bodies())
def test_a_body_is_accepted_if_it_has_the_type_and_no_member_twice(body: bytes) -> None:
    try:
        expected = DECODER.decode(body)
    except msgspec.ValidationError:
        expected = None
    if expected is None or has_a_duplicate(body):
        with pytest.raises(Refused):
            decode(DECODER, body)
    else:
        assert decode(DECODER, body) == expected


ID = st.one_of(st.integers(-1, 2**128), st.sampled_from([None, "0", "17", "x", "6ba7b810-9dad-11d1-80b4-00c04fd430c8"]))
HEADERS: st.SearchStrategy[Any] = st.sampled_from([None, [], {}, "", "AAAA", "!"])


@given(st.binary(max_size=1001), ID, HEADERS)
def test_a_single_message_is_encoded_like_one_of_several(payload: bytes, identity: Any, headers: Any) -> None:
    message = MessageBody(payload, identity, headers)

    def encoded(encode: Any, given: Any) -> Any:
        try:
            made = encode(given, 1_000_000, LIMITS)
        except (Refused, CommandError) as refused:
            return type(refused), str(refused)
        (found,) = messages(made.batch)
        named = msgspec.structs.replace(found, id=0) if identity in (0, "0", None) else found
        return named, made.checked.message_count, made.checked.frames, len(made.batch)

    assert encoded(encode_message, message) == encoded(encode_messages, [message])
