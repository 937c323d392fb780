"""Sizes as texts: the table of the reference, and that no byte is lost on the way."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippet.transports.http.forms import field_types

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
def test_the_table_of_the_reference(size: int) -> None:
    assert field_types.size_text(size) == TABLE[size]


@given(st.integers(0, 2**64 - 1))
def test_a_text_says_exactly_its_size(size: int) -> None:
    number, unit = field_types.size_text(size).split(" ")
    assert Decimal(number) * UNITS[unit] == size
    assert len(number.partition(".")[2]) <= 3
    assert not number.endswith(".")
