"""How a growing segment is divided into pieces."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.support.world import opened, sized, with_topic
from whippet.storage.archive.views import Extent, SegmentGone, upload_from, view_of


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


async def test_a_view_ends_where_the_log_is_synced_also_if_segments_were_closed_since(tmp_path: Path) -> None:
    """Else the archive would have more than the log, and begin a new history."""
    async with opened(tmp_path, segment_bytes=1024) as store:
        (partition,) = await with_topic(store)
        for _ in range(12):
            await partition.append(sized(1, 100))
        closed = (await partition.with_log(lambda log: list(log.segments)))[:-1]
        assert len(closed) >= 2
        for synced in range(13):
            view = await partition.with_log(partial(view_of, synced=synced, archived={}))
            assert view.next_offset == synced
            assert [segment.next_offset for segment in view.segments[:-1]] == [
                segment.next_offset for segment in closed if segment.next_offset <= synced
            ]
            assert not view.segments[-1].is_closed
            assert view.segments[-1].log_bytes == sum(
                len(sized(1, 100)) for _ in range(view.segments[-1].start, synced)
            )
        closed[0].index = None
        with pytest.raises(SegmentGone):
            await partition.with_log(partial(view_of, synced=1, archived={}))
