"""An error about a value that is not of an enumeration lists the values that are."""

from __future__ import annotations

import enum
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from whippet.transports.http.forms import batch_encoder, valid_values
from whippet.transports.http.handlers.messages import PollQuery


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


class Shoe(msgspec.Struct):
    size: Size
    sides: list[Literal["left", "right"]] = []
    number: Annotated[Literal[1, 2], Meta(description="which")] = 1


class Shop(msgspec.Struct):
    shoes: dict[str, Shoe]
    kind: Literal["a", "b"] | None = None
    others: tuple[Shoe, ...] = ()
    count: int = 0


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"shoes": {"x": {"size": "m"}}}, "it is one of s, l - at `$.shoes[...].size`"),
        ({"shoes": {"x": {"size": "s", "sides": ["up"]}}}, "one of left, right - at `$.shoes[...].sides[0]`"),
        ({"shoes": {"x": {"size": "s", "number": 3}}}, "Invalid enum value 3; it is one of 1, 2 - at"),
        ({"shoes": {}, "kind": "c"}, "Invalid enum value 'c'; it is one of a, b - at `$.kind`"),
        ({"shoes": {}, "others": [{"size": "` - at `$.kind"}]}, "it is one of s, l - at `$.others[0].size`"),
        ({"shoes": {}, "count": "x"}, "Expected `int`, got `str` - at `$.count`"),
        ([], "Expected `object`, got `array`"),
    ],
)
def test_the_values_are_listed_where_there_are_any(given: Any, expected: str) -> None:
    with pytest.raises(msgspec.ValidationError) as failed:
        msgspec.json.decode(msgspec.json.encode(given), type=Shop)
    sentence = valid_values.explained(failed.value, Shop)
    assert expected in sentence
    assert str(failed.value).partition(" - at ")[0] in sentence


def test_a_value_that_is_no_member_of_anything_is_explained_too() -> None:
    with pytest.raises(msgspec.ValidationError) as failed:
        msgspec.convert("m", Size)
    assert valid_values.explained(failed.value, Size) == "Invalid enum value 'm'; it is one of s, l"


def test_requests_are_explained() -> None:
    with pytest.raises(msgspec.ValidationError) as failed:
        msgspec.convert({"kind": "middle"}, PollQuery)
    assert "one of f, first, l, last, n, next, o, offset, t, timestamp - at `$.kind`" in valid_values.explained(
        failed.value, PollQuery
    )
    body = b'{"partitioning": {"kind": "any", "value": ""}, "messages": []}'
    with pytest.raises(msgspec.ValidationError) as failed:
        msgspec.json.decode(body, type=batch_encoder.NewMessages)
    assert "one of balanced, messages_key, partition_id - at `$.partitioning.kind`" in valid_values.explained(
        failed.value, batch_encoder.NewMessages
    )
