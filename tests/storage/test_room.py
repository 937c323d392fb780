"""Who has room for what, and why not: topics, the disk, and messages that wait for the archive."""

from __future__ import annotations

import pytest

from whippet.storage.errors import ArchiveBehind, DiskFull
from whippet.storage.layout import PartitionId
from whippet.storage.room import Allowance, Room

HERE = PartitionId(0, 0, 0)


def take(room: Room, size: int) -> None:
    """Does what an append does."""
    if room.check is not None:
        room.check(HERE, size)


def test_there_is_room_again_as_soon_as_a_reason_is_over() -> None:
    room = Room()
    assert (room.check, room.disk_full, room.archive_behind) == (None, None, None)
    room.archive_behind = "too much waits"
    assert room.archive_behind == "too much waits"
    with pytest.raises(ArchiveBehind, match="too much waits"):
        take(room, 1)
    room.require_disk()
    # The disk is the stronger reason.
    room.disk_full = "the disk is full"
    for _ in range(2):
        with pytest.raises(DiskFull, match="the disk is full"):
            take(room, 1)
    with pytest.raises(DiskFull):
        room.require_disk()
    room.disk_full = None
    with pytest.raises(ArchiveBehind):
        take(room, 1)
    room.archive_behind = None
    assert room.check is None


def test_an_error_is_a_new_one_each_time() -> None:
    """One that is raised again and again would keep every frame that it has passed."""
    room = Room()
    room.disk_full = "the disk is full"
    errors = []
    for _ in range(2):
        with pytest.raises(DiskFull) as refused:
            take(room, 1)
        errors.append(refused.value)
    assert errors[0] is not errors[1]


def test_what_is_accepted_is_counted_up_to_the_allowance() -> None:
    asked: list[int] = []

    def on_spent(accepted: int) -> str:
        asked.append(accepted)
        return "enough"

    room = Room()
    room.allow(Allowance(10, on_spent))
    take(room, 4)
    with pytest.raises(DiskFull, match="enough"):
        take(room, 7)
    take(room, 6)
    with pytest.raises(DiskFull):
        take(room, 1)
    assert asked == [4, 10]
    room.allow(None)
    assert room.check is None


def test_what_is_written_beside_messages_is_counted_with_them() -> None:
    room = Room()
    assert room.take_beside(1 << 40)
    room.allow(Allowance(10, lambda _: "enough"))
    assert room.take_beside(4)
    assert not room.take_beside(7)
    take(room, 5)
    with pytest.raises(DiskFull):
        take(room, 2)
    assert room.take_beside(1)
    assert not room.take_beside(1)
    room.allow(Allowance(10, lambda _: "enough"))
    room.disk_full = "the disk is full"
    assert not room.take_beside(1)
    room.disk_full = None
    assert room.take_beside(10)


def test_a_topic_is_asked_before_anything_is_counted() -> None:
    def of_topic(place: PartitionId, more_bytes: int) -> None:
        if more_bytes > 5:
            raise ValueError(f"{place} has no room for {more_bytes}")

    room = Room(of_topic)
    with pytest.raises(ValueError, match="has no room for 6"):
        take(room, 6)
    room.allow(Allowance(10, lambda _: "enough"))
    with pytest.raises(ValueError, match="has no room for 6"):
        take(room, 6)
    take(room, 5)
    take(room, 5)
    with pytest.raises(DiskFull):
        take(room, 1)
    room.allow(None)
    with pytest.raises(ValueError, match="has no room for 6"):
        take(room, 6)
