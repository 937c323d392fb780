"""Arithmetic on offsets."""

from __future__ import annotations

import json

from pyspark_whippet.offsets import Range, canonical, divide, lags, limited, ranges


def test_equal_offsets_have_equal_text_in_any_order() -> None:
    one = {"s/b": {"10": 1, "9": 2}, "s/a": {"0": 3}}
    other = {"s/a": {"0": 3}, "s/b": {"9": 2, "10": 1}}
    assert json.dumps(canonical(one)) == json.dumps(canonical(other))
    assert list(canonical(one)["s/b"]) == ["9", "10"]


def test_a_new_partition_starts_at_0_and_an_idle_one_has_no_range() -> None:
    start, end = {"s/t": {"0": 5, "1": 7}}, {"s/t": {"0": 9, "1": 7, "2": 3}, "s/new": {"0": 1}}
    assert ranges(start, end) == [Range("s/t", 0, 5, 9), Range("s/t", 2, 0, 3), Range("s/new", 0, 0, 1)]
    assert lags(start, end) == [4, 0, 3, 1]


def test_a_limit_is_shared_in_proportion_and_no_partition_starves() -> None:
    start = {"s/t": {"0": 0, "1": 0, "2": 10}}
    end = {"s/t": {"0": 9000, "1": 1000, "2": 11}}
    assert limited(start, end, 100) == {"s/t": {"0": 89, "1": 9, "2": 11}}
    assert limited(start, end, 20_000) == end
    assert limited(start, end, 1) == {"s/t": {"0": 1, "1": 1, "2": 11}}


def test_a_limit_holds_next_to_a_topic_that_was_created_again() -> None:
    start, end = {"s/new": {"0": 1_000}, "s/t": {"0": 0, "1": 0}}, {"s/new": {"0": 2}, "s/t": {"0": 900, "1": 100}}
    assert limited(start, end, 100) == {"s/new": {"0": 2}, "s/t": {"0": 90, "1": 10}}


def test_pieces_cover_their_range_without_gap_or_overlap() -> None:
    whole = [Range("s/t", 0, 0, 1000), Range("s/t", 1, 50, 60), Range("s/t", 2, 0, 1)]
    for at_least, most in ((None, 300), (7, None), (2, None), (50, 90), (10_000, None)):
        pieces = divide(whole, at_least, most)
        for each in whole:
            mine = sorted((piece.start, piece.end) for piece in pieces if piece.partition == each.partition)
            assert [mine[0][0], *(end for _, end in mine)] == [*(start for start, _ in mine), each.end]
        assert len(pieces) >= min(at_least or 1, 1011)
        assert most is None or max(piece.end - piece.start for piece in pieces) <= most
