"""How a growing segment is divided into pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from whippet.storage.archive.views import Extent, upload_from


def grown(sizes: list[int]) -> tuple[list[Extent], int]:
    """The pieces of a segment that grew by these sizes, and how many bytes were uploaded."""
    extents: list[Extent] = []
    end = uploaded = 0
    for size in sizes:
        end += size
        position = upload_from(extents, end)
        extents = [*(extent for extent in extents if extent.end <= position), Extent(position, end)]
        uploaded += end - position
    return extents, uploaded


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=300))
def test_pieces_cover_the_segment_without_gaps_and_shrink_towards_its_end(sizes: list[int]) -> None:
    extents, _ = grown(sizes)
    assert [extent.position for extent in extents] == [0, *(extent.end for extent in extents[:-1])]
    assert extents[-1].end == sum(sizes)
    lengths = [extent.end - extent.position for extent in extents]
    assert lengths == sorted(lengths, reverse=True)


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=300))
def test_there_are_few_pieces_and_each_byte_is_uploaded_few_times(sizes: list[int]) -> None:
    extents, uploaded = grown(sizes)
    digits = sum(sizes).bit_length()
    assert len(extents) <= digits
    assert uploaded <= sum(sizes) * (digits + 1)


def test_a_segment_that_was_not_archived_is_uploaded_from_its_beginning() -> None:
    assert upload_from([], 100) == 0
