"""Numbers of the API: the document allows exactly what the server accepts."""

from __future__ import annotations

import re

import msgspec
import pytest

from whippet.transports.http.forms.field_types import U64_MAX, NumberText, parse_number

PATTERN = re.compile(msgspec.json.schema(NumberText)["pattern"])


@pytest.mark.parametrize("number", [0, 9, 10**19, 18 * 10**18, U64_MAX - 10, U64_MAX - 1, U64_MAX])
def test_the_document_allows_every_number_of_64_bits_as_text(number: int) -> None:
    assert PATTERN.match(str(number))


@pytest.mark.parametrize("number", [U64_MAX + 1, U64_MAX + 10, 19 * 10**18, 78003198547866394193, 10**20])
def test_the_document_allows_no_larger_number_as_text(number: int) -> None:
    assert not PATTERN.match(str(number))


@pytest.mark.parametrize("text", ["", "-1", "1.0", " 1", "1 GiB"])
def test_the_document_allows_nothing_else_as_text(text: str) -> None:
    assert not PATTERN.match(text)


def test_a_number_as_text_is_that_number() -> None:
    assert parse_number(str(U64_MAX)) == parse_number(U64_MAX) == U64_MAX
    assert parse_number(None) is None


@pytest.mark.parametrize("text", ["", "-1", "1.0", " 1", "1\n", "٣", "1 GiB"])
def test_a_text_that_is_not_a_number_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number"):
        parse_number(text)


def test_a_number_of_a_million_digits_is_too_large_and_not_converted() -> None:
    assert (parse_number("9" * 1_000_000) or 0) > U64_MAX
