"""A clock that was wrong for a while: times recover, and neither retention nor reading by time is misled."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.storage.support.world import opened, partition_in, payloads, sized, texts, with_topic
from tests.support.clocks import NOON, Clock
from whippet.storage.partition import Partition
from whippet.storage.retention import believable
from whippet.storage.store import Store

SECOND = 1_000_000
DAY = 24 * 3600 * SECOND
YEARS = 3650 * DAY


async def times_of(store: Store) -> list[int]:
    (partition,) = await with_topic(store)
    return [segment.last_timestamp or 0 for segment in await partition.closed_segments()]


@pytest.mark.parametrize("restarted", [False, True])
async def test_new_messages_get_the_current_time_after_the_clock_was_ten_years_ahead(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, restarted: bool
) -> None:
    clock = Clock()
    async with opened(tmp_path, clock=clock) as store:
        (partition,) = await with_topic(store)
        await partition.append(texts("before"))
        clock.now += YEARS
        ahead = await partition.append(texts("ahead"))
        clock.now = NOON + SECOND
        if not restarted:
            assert (await partition.append(texts("after"))).timestamp == clock.now
    async with opened(tmp_path, clock=clock) as store:
        (partition,) = await with_topic(store)
        clock.now += SECOND
        assert (await partition.append(texts("later"))).timestamp == clock.now
        await partition.append(texts("last"))
    assert ahead.timestamp == NOON + YEARS
    warned = [record for record in caplog.records if "days ahead of the clock" in record.getMessage()]
    assert [record.levelno for record in warned] == [logging.WARNING]
    assert str(partition.place) in warned[0].getMessage()


@pytest.mark.parametrize(("ahead_us", "waited_for"), [(DAY, True), (DAY + 1, False)])
async def test_times_stand_still_while_the_clock_is_up_to_a_day_behind_the_newest_message(
    tmp_path: Path, ahead_us: int, waited_for: bool
) -> None:
    clock = Clock()
    async with partition_in(tmp_path, clock=clock) as partition:
        clock.now += ahead_us
        newest = (await partition.append(texts("a"))).timestamp
        clock.now = NOON
        assert (await partition.append(texts("b"))).timestamp == (newest if waited_for else NOON)


async def test_a_clock_before_the_creation_of_the_data_folder_is_not_believed(tmp_path: Path) -> None:
    clock = Clock()
    async with partition_in(tmp_path, clock=clock) as partition:
        clock.now += 2 * DAY
        newest = (await partition.append(texts("a"))).timestamp
        clock.now = SECOND  # a machine without a battery, before it has synchronised its clock
        assert (await partition.append(texts("b"))).timestamp == newest


async def test_retention_continues_after_a_clock_that_was_ahead(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path, clock=clock, segment_bytes=1000) as store:
        (partition,) = await with_topic(store)
        for moment in (NOON, NOON + YEARS, NOON + YEARS, NOON + 10 * SECOND, NOON + 20 * SECOND, NOON + 30 * SECOND):
            clock.now = moment
            await partition.append(sized(1, 1000))
        assert await store.retain(0, 0, expiry_us=100 * SECOND, max_bytes=None) == 0
        clock.now = NOON + 111 * SECOND
        assert await store.retain(0, 0, expiry_us=100 * SECOND, max_bytes=None) == 4
        assert partition.first_offset == 4


async def test_retention_of_an_idle_topic_continues_once_the_clock_is_right(
    tmp_path: Path,
) -> None:
    clock = Clock()
    async with opened(tmp_path, clock=clock, segment_bytes=1000) as store:
        (partition,) = await with_topic(store)
        clock.now += YEARS
        for _ in range(3):
            await partition.append(sized(1, 1000))
        clock.now = NOON + 50 * SECOND
        assert await store.retain(0, 0, expiry_us=100 * SECOND, max_bytes=None) == 0
        clock.now = NOON + 149 * SECOND
        assert await store.retain(0, 0, expiry_us=100 * SECOND, max_bytes=None) == 0
        clock.now = NOON + 150 * SECOND
        assert await store.retain(0, 0, expiry_us=100 * SECOND, max_bytes=None) == 3
        assert partition.first_offset == 3


async def test_messages_that_arrived_while_the_clock_was_behind_do_not_expire_early(tmp_path: Path) -> None:
    clock = Clock(NOON - YEARS)
    async with opened(tmp_path, clock=clock, segment_bytes=1000) as store:  # made long ago
        (partition,) = await with_topic(store)
        for moment in (NOON, NOON - 30 * DAY, NOON + 20 * SECOND, NOON + 30 * SECOND):
            clock.now = moment
            await partition.append(sized(1, 1000))
        clock.now = NOON + 119 * SECOND
        assert await store.retain(0, 0, expiry_us=100 * SECOND, max_bytes=None) == 1
        clock.now = NOON + 120 * SECOND
        assert await store.retain(0, 0, expiry_us=100 * SECOND, max_bytes=None) == 2


async def test_segments_of_unknown_age_count_from_when_that_was_noticed(tmp_path: Path) -> None:
    clock = Clock()
    async with partition_in(tmp_path, clock=clock, segment_bytes=2000) as partition:

        async def times() -> set[int | None]:
            return {segment.last_timestamp for segment in await partition.closed_segments()}

        clock.now = NOON + YEARS
        for _ in range(5):
            await partition.append(sized(1, 1000))
        for seconds in (10, 60, 3600):
            clock.now = NOON + seconds * SECOND
            assert await times() == {NOON + 10 * SECOND}
        await partition.append(sized(1, 1000))
        # The messages that come now prove that the others came no later.
        assert await times() == {clock.now}


async def test_messages_of_unknown_age_are_as_old_as_the_first_that_follows_them(tmp_path: Path) -> None:
    clock = Clock()
    async with partition_in(tmp_path, clock=clock) as partition:
        for moment in (YEARS, 20 * SECOND, 30 * SECOND, 40 * SECOND):
            clock.now = NOON + moment
            await partition.append(texts("a"))
        (segment,) = await partition.closed_segments()
        assert segment.last_timestamp == NOON + 20 * SECOND


async def test_a_doubt_counts_from_when_it_was_noticed_although_there_was_none_before(tmp_path: Path) -> None:
    clock = Clock()
    async with partition_in(tmp_path, clock=clock, segment_bytes=1) as partition:

        async def times() -> list[int | None]:
            return [segment.last_timestamp for segment in await partition.closed_segments()]

        await partition.append(texts("a"))
        assert await times() == [NOON]
        clock.now = NOON + YEARS
        await partition.append(texts("b"))
        clock.now = NOON + 10 * SECOND
        for _ in range(2):
            assert await times() == [NOON, NOON + 10 * SECOND]
            clock.now += SECOND


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("segment_bytes", [1 << 20, 1000])
async def test_reading_by_time_finds_messages_after_the_clock_was_right_again(
    tmp_path: Path, in_memory: bool, segment_bytes: int
) -> None:
    clock = Clock()
    moments = [0, 10, *(YEARS // SECOND + n for n in range(3)), 20, 30, 40, 50, 60]
    options = {"segment_bytes": segment_bytes, "tail_bytes_max": 1 << 30}
    async with partition_in(tmp_path, clock=clock, **options) as partition:
        for moment in moments:
            clock.now = NOON + moment * SECOND
            await partition.append(sized(1, 400, str(moment).encode() + b" "))
        if in_memory:
            await expect(partition)
    if not in_memory:
        async with partition_in(tmp_path, clock=clock, **options) as partition:
            await expect(partition)


async def expect(partition: Partition) -> None:
    async def first_from(second: int) -> int:
        return await partition.offset_at(NOON + second * SECOND)

    # As long as no time has fallen, the first message of this time or a later one; after that, those that came later.
    assert [await first_from(second) for second in (-5, 0, 1, 10)] == [0, 0, 1, 1]
    assert [await first_from(second) for second in (20, 11)] == [2, 2]
    assert [await first_from(second) for second in (21, 30, 31, 50, 60, 61)] == [6, 6, 7, 8, 9, 10]
    assert await first_from(YEARS // SECOND) == 10


@pytest.mark.parametrize(
    ("times", "following", "believed"),
    [
        ([], 50, []),
        ([10, 20, 30], 40, [10, 20, 30]),
        ([10, 10, 10], 10, [10, 10, 10]),
        ([10, 999, 998, 30], 40, [10, 30, 30, 30]),
        ([10, 999, 998], 40, [10, 40, 40]),
        ([999, 999], 999, [None, None]),
        ([10, 999], 999, [10, None]),
        ([50, 5, 20, 60], 70, [50, 60, 60, 60]),
        ([1, 2, 30], 40, [30, 30, 30]),  # from before the folder was made
        ([50, 5], 6, [50, None]),
        ([100, 101], 102, [100, None]),
    ],
)
def test_a_time_that_contradicts_others_is_replaced_by_the_next_that_does_not(
    times: list[int], following: int, believed: list[int | None]
) -> None:
    assert believable(times, following, 5 if times[:1] == [50] else 3, 100) == believed


async def test_payloads_of_all_times_are_read_in_the_order_of_their_arrival(tmp_path: Path) -> None:
    clock = Clock()
    async with partition_in(tmp_path, clock=clock) as partition:
        for moment, text in ((0, "a"), (YEARS, "b"), (SECOND, "c")):
            clock.now = NOON + moment
            await partition.append(texts(text))
        assert payloads(await partition.read(0, 9)) == [b"a", b"b", b"c"]
        assert partition.segments_count == 2
    async with partition_in(tmp_path, clock=clock, validate_checksum=True) as partition:
        assert payloads(await partition.read(0, 9)) == [b"a", b"b", b"c"]
