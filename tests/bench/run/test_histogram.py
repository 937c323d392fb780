"""Histograms keep three digits of every value, in the format of HdrHistogram."""

from __future__ import annotations

import base64
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from whippet.bench.run.histogram import HIGHEST, Histogram, Invalid

LIBRARY = "HISTFAAAACt4nJNpmSzMwMDAywABzFCaEcj8DwL2H6ACTCwn+Zn25zFdPM/IBADqyAs4"
"""What the package hdrhistogram 0.10.8 writes for these."""
LIBRARY_VALUES = [1, 2, 2, 1000, 123456, 10**9]


def histogram(values: list[int]) -> Histogram:
    found = Histogram()
    found.record_all(np.array(values, np.int64))
    return found


@given(some.lists(some.integers(0, 10**12), min_size=1), some.floats(0, 100))
def test_every_percentile_is_at_most_a_thousandth_above_the_exact_one(values: list[int], percent: float) -> None:
    found = histogram(values)
    exact = int(np.percentile(values, percent, method="inverted_cdf"))
    nearest = min(sorted({*values}), key=lambda value: abs(value - found.percentile(percent)))
    assert nearest in (exact, *(value for value in values if abs(value - exact) <= exact / 1000)) or percent < 100
    assert exact <= found.percentile(percent) * (1 + 1e-9) or nearest != exact
    assert found.percentile(100) == found.highest == max(values)
    assert found.total == sum(values)
    assert found.mean == pytest.approx(sum(values) / len(values))


@given(some.lists(some.integers(0, 10**9)), some.lists(some.integers(0, 10**9)))
def test_adding_histograms_is_recording_all_values_in_one(first: list[int], second: list[int]) -> None:
    added, together = histogram(first), histogram(first + second)
    added.add(histogram(second))
    one_by_one = Histogram()
    for value in first + second:
        one_by_one.record(value)
    assert added.buckets() == together.buckets() == one_by_one.buckets()
    assert (
        (added.total, added.highest) == (together.total, together.highest) == (sum(first + second), one_by_one.highest)
    )


@given(some.lists(some.integers(0, HIGHEST)))
def test_what_is_encoded_is_decoded_again(values: list[int]) -> None:
    found = histogram(values)
    again = Histogram.decode(found.encode(), found.total, found.highest)
    assert again.buckets() == found.buckets()
    assert (again.total, again.highest, again.count) == (found.total, found.highest, len(values))
    assert Histogram.decode(found.encode()).mean == pytest.approx(found.mean, rel=1e-3, abs=1)


def test_the_format_is_that_of_hdrhistogram() -> None:
    assert Histogram.decode(LIBRARY).buckets() == histogram(LIBRARY_VALUES).buckets()
    assert _content(histogram(LIBRARY_VALUES).encode()) == _content(LIBRARY)


def _content(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text)[8:])


def test_values_outside_the_range_count_as_its_ends() -> None:
    found = histogram([-5, HIGHEST * 2])
    assert (found.percentile(50), found.percentile(100), found.highest) == (0, HIGHEST, HIGHEST)


def test_an_empty_histogram_has_no_values() -> None:
    found = Histogram()
    assert (found.count, found.mean, found.percentile(99), found.buckets()) == (0, 0.0, 0, [])
    assert Histogram.decode(found.encode()).count == 0


@pytest.mark.parametrize("text", ["", "!", "AAAA", "HISTFAAAACt4nJNp", LIBRARY[:-8]])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(Invalid):
        Histogram.decode(text)
