"""Deleting what is elsewhere before messages are refused, and what waits to be written."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.storage.support.disk_space import BATCH, ENOUGH, FULL, Case, said
from tests.storage.support.scarce_disk import MIB, PLENTY, RESERVE, ScarceDisk
from tests.storage.support.world import SlowDisk, offsets, opened, reached, settled, sized, with_topic
from whippet.storage import disk_space
from whippet.storage.errors import ArchiveUnavailable, DiskFull


async def test_what_is_elsewhere_is_deleted_before_messages_are_refused() -> None:
    case = Case(has=PLENTY)
    case.helper.goes.clear()
    assert not await case.look(FULL)
    assert not await case.look()
    await settled()
    # As much again as the reserve, so that this is not needed again at once.
    assert case.helper.asked == [RESERVE + 1]
    case.helper.goes.set()
    await case.relieved()
    assert not await case.look()
    assert case.disk.free == 2 * RESERVE
    assert case.space.deleted_bytes == RESERVE + 1


async def test_of_a_large_reserve_only_a_little_more_is_deleted_than_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(disk_space, "RELIEF_BYTES", RESERVE // 20)
    case = Case(has=PLENTY)
    assert not await case.look(FULL)
    await case.relieved()
    assert case.helper.asked == [ENOUGH - FULL]


async def test_what_waits_to_be_written_is_made_room_for() -> None:
    case = Case(has=PLENTY, unflushed=50)
    assert not await case.look(RESERVE + 49)
    await case.relieved()
    assert case.helper.asked == [RESERVE + 1]


async def test_messages_are_refused_at_half_of_the_reserve_although_something_is_being_deleted() -> None:
    case = Case(has=PLENTY)
    case.helper.goes.clear()
    assert not await case.look(RESERVE // 2)
    assert await case.look(RESERVE // 2 - 1)
    assert await case.look(RESERVE - 1)
    case.helper.goes.set()
    await case.relieved()
    assert not await case.look()


async def test_messages_are_refused_when_there_is_nothing_more_to_delete() -> None:
    case = Case(has=5)
    assert not await case.look(RESERVE - 6)
    await case.relieved()
    assert await case.look()
    assert len(case.helper.asked) == 1
    # There is no point in asking again before there may be more.
    assert await case.look()
    assert len(case.helper.asked) == 1
    case.helper.has, case.helper.progress = PLENTY, 1
    assert await case.look()
    await case.relieved()
    assert not await case.look()
    assert len(case.helper.asked) == 2


async def test_what_could_not_be_deleted_is_tried_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_space, "RELIEF_PAUSE_S", 0.0)
    case = Case(has=0)
    assert not await case.look(FULL)
    await case.relieved()
    case.helper.has = PLENTY
    # Nothing is known to have changed.
    assert not await case.look()
    await case.relieved()
    assert not await case.look()
    assert len(case.helper.asked) == 2


async def test_an_error_counts_what_is_not_written_yet() -> None:
    case = Case(has=0, unflushed=30 * MIB)
    case.space._relief = None
    assert await case.look(RESERVE)
    assert str(case.room.disk_full).startswith(f"the disk is full: {RESERVE - 30 * MIB} bytes are free, ")
    assert f"only {RESERVE - 30 * MIB} bytes are free" in str(case.space.summary())
    assert await case.look(MIB)
    assert str(case.room.disk_full).startswith("the disk is full: 0 bytes are free, ")


async def test_after_the_disk_had_space_again_there_may_be_more_to_delete() -> None:
    case = Case(has=0)
    await case.look(FULL)
    await case.relieved()
    assert await case.look()
    assert not await case.look(PLENTY)
    assert not await case.look(FULL)
    assert len(case.helper.asked) == 1
    await case.relieved()
    assert len(case.helper.asked) == 2


async def test_space_that_deleted_files_will_free_in_a_moment_is_not_freed_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(disk_space, "SETTLE_S", 1e6)
    case = Case(has=PLENTY)
    assert not await case.look(FULL)
    await case.relieved()
    # Somebody has the deleted files open.
    assert not await case.look(FULL)
    assert len(case.helper.asked) == 1
    assert await case.look(RESERVE // 2 - 1)
    assert len(case.helper.asked) == 1
    assert not await case.look(2 * RESERVE)
    assert not await case.look(FULL)
    await case.relieved()
    assert len(case.helper.asked) == 2


async def test_a_relief_that_fails_is_logged_and_messages_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    for error, text in (
        (ArchiveUnavailable("it is away"), "disk: archived segments cannot be deleted: it is away"),
        (RuntimeError("a defect"), "the deletion of archived segments met a defect"),
    ):
        case = Case(has=PLENTY)
        case.helper.error = error
        assert not await case.look(FULL)
        await case.relieved()
        assert await case.look()
        assert text in [line for _, line in said(caplog)]


async def test_a_relief_that_ends_is_not_used_any_more() -> None:
    case = Case(has=PLENTY)
    case.helper.goes.clear()
    assert not await case.look(FULL)
    await settled()
    await case.space.use(None)
    assert case.space._relieving is None
    assert await case.look()
    assert case.helper.asked == [RESERVE + 1]


async def test_buffered_messages_of_a_slow_disk_are_counted_until_they_are_written(tmp_path: Path) -> None:
    class Both(SlowDisk, ScarceDisk):
        def __init__(self) -> None:
            SlowDisk.__init__(self)
            ScarceDisk.__init__(self, free=RESERVE + BATCH)

    disk = Both()
    async with opened(tmp_path, files=disk, disk_reserve=RESERVE) as store:
        (partition,) = await with_topic(store)
        disk.stop()
        sent = [asyncio.ensure_future(partition.append(sized(1, 100))) for _ in range(2)]
        await reached(disk.reached)
        await store.disk.check()
        with pytest.raises(DiskFull):
            await partition.append(sized(1, 100))
        disk.go()
        await asyncio.gather(*sent)
        assert offsets(await partition.read(0, 9)) == [0, 1]
