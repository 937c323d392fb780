"""New segments, and the text of damage reports."""

from __future__ import annotations

from whippet.storage.segment import Damage, Segment


def test_a_new_segment_is_empty_whole_and_ready_to_grow() -> None:
    segment = Segment.empty(42)
    assert (segment.start_offset, segment.next_offset, segment.messages, segment.log_bytes) == (42, 42, 0, 0)
    assert segment.whole
    assert segment.index is not None
    assert len(segment.index) == 0


def test_a_segment_from_the_disk_is_not_trusted_yet() -> None:
    segment = Segment(42, 1000, 50)
    assert (segment.messages, segment.whole, segment.index, segment.last_timestamp) == (8, False, None, None)
    assert (segment.batches, segment.checked, segment.end_checked) == (0, None, False)
    assert (segment.saved_bytes, segment.left_out) == (0, False)


def test_damage_is_reported_in_one_line_with_place_reason_and_loss() -> None:
    lost = Damage("x.log", 100, 20, 5, 8, "a reason", "x.damaged")
    assert str(lost) == (
        "x.log: 20 bytes at position 100: a reason; 3 messages from offset 5; the bytes are kept in x.damaged"
    )
    assert str(Damage("x.log", 100, 20, 5, 5, "a reason")) == (
        "x.log: 20 bytes at position 100: a reason; no whole message at offset 5"
    )
