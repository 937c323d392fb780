"""Types of fields: the document allows exactly the numbers that the server accepts, and sizes lose no byte."""

from __future__ import annotations

import re
from decimal import Decimal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippet.transports.http.forms import field_types
from whippet.transports.http.forms.field_types import U64_MAX, NumberText, parse_number

PATTERN = re.compile(msgspec.json.schema(NumberText)["pattern"])


@pytest.mark.parametrize("number", [0, 9, 10**19, 18 * 10**18, U64_MAX - 10, U64_MAX - 1, U64_MAX])
def test_the_document_allows_every_number_of_64_bits_as_a_string(number: int) -> None:
    assert PATTERN.match(str(number))


@pytest.mark.parametrize("number", [U64_MAX + 1, U64_MAX + 10, 19 * 10**18, 78003198547866394193, 10**20])
def test_the_document_allows_no_larger_number_as_a_string(number: int) -> None:
    assert not PATTERN.match(str(number))


@pytest.mark.parametrize("text", ["", "-1", "1.0", " 1", "1 GiB"])
def test_the_document_allows_no_other_string_as_a_number(text: str) -> None:
    assert not PATTERN.match(text)


def test_a_number_as_a_string_is_parsed() -> None:
    assert parse_number(str(U64_MAX)) == parse_number(U64_MAX) == U64_MAX
    assert parse_number(None) is None


@pytest.mark.parametrize("text", ["", "-1", "1.0", " 1", "1\n", "٣", "1 GiB"])
def test_a_string_that_is_not_a_number_is_quoted_in_the_error(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number"):
        parse_number(text)


def test_a_number_of_a_million_digits_is_too_large_and_not_converted() -> None:
    assert (parse_number("9" * 1_000_000) or 0) > U64_MAX


UNITS = dict(field_types.UNITS) | {"B": 1}
TABLE = {
    0: "0 B",
    64: "64 B",
    999: "999 B",
    1000: "1 KB",
    1024: "1 KiB",
    1025: "1.025 KB",
    69092: "69.092 KB",
    1234567890: "1234567.89 KB",
    3211776: "3136.5 KiB",
    150949888: "147412 KiB",
    1000000000: "1 GB",
    1073741824: "1 GiB",
    2**64 - 1: "18446744073709551.615 KB",
}


@pytest.mark.parametrize("size", TABLE)
def test_sizes_are_written_as_in_the_table_of_the_reference(size: int) -> None:
    assert field_types.size_text(size) == TABLE[size]


@given(st.integers(0, 2**64 - 1))
def test_no_byte_is_lost_in_the_text_of_a_size(size: int) -> None:
    number, unit = field_types.size_text(size).split(" ")
    assert Decimal(number) * UNITS[unit] == size
    assert len(number.partition(".")[2]) <= 3
    assert not number.endswith(".")
