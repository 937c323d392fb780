"""The reserve of a disk: when messages are refused for its sake, what works meanwhile, and how that ends."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from tests.storage.support.disk_space import BATCH, ENOUGH, FULL, Case, said, until
from tests.storage.support.scarce_disk import MIB, PLENTY, RESERVE, TOTAL, ScarceDisk
from tests.storage.support.world import offsets, opened, reached, sized, with_topic
from tests.support.running import HANGS_S
from whippet.storage import disk_space
from whippet.storage.batch import Message, build
from whippet.storage.disk_space import DiskSpace, pause, reserve_of
from whippet.storage.documents import GroupDocument, StreamDocument, TopicDocument
from whippet.storage.errors import DiskFull, TopicFull
from whippet.storage.files import Files, Space
from whippet.storage.offsets import Kind
from whippet.storage.options import Durability
from whippet.storage.producers import Producer
from whippet.storage.room import Room
from whippet.storage.store import Store


async def is_full(store: Store) -> bool:
    """Looks at the disk."""
    await store.disk.check()
    return store.disk.is_full


# -------------------------------------------------------------------------------------------------------- when to look


def test_the_real_disk_has_a_size_and_less_free_space(tmp_path: Path) -> None:
    found = Files().space(str(tmp_path))
    assert 0 < found.free < found.total
    assert Files().share_a_disk(str(tmp_path), str(tmp_path.parent))
    assert not Files().share_a_disk(str(tmp_path), "/proc")


def test_without_a_choice_the_reserve_is_small_and_a_fraction_of_a_small_disk() -> None:
    assert [reserve_of(None, total * MIB) for total in (0, 100, 1000, 2560, 10_000_000)] == [
        0, 5 * MIB, 50 * MIB, 128 * MIB, 128 * MIB
    ]  # fmt: skip
    assert [reserve_of(chosen, MIB) for chosen in (0, 7, 1 << 40)] == [0, 7, 1 << 40]


def test_the_disk_is_looked_at_more_often_the_less_there_is_above_the_reserve() -> None:
    above = [100_000 * MIB, 10_240 * MIB, 1024 * MIB, 512 * MIB, 100 * MIB, 0, -RESERVE]
    assert [pause(RESERVE + each, RESERVE) for each in above] == [5.0, 5.0, 0.5, 0.25, 0.05, 0.05, 0.05]


async def test_without_a_reserve_nobody_looks(tmp_path: Path) -> None:
    disk = ScarceDisk(free=0)
    async with opened(tmp_path, files=disk, disk_reserve=0) as store:
        (partition,) = await with_topic(store)
        await partition.append(sized(1, 100))
    assert (disk.looks, store.disk.space, store.disk.is_watched) == (0, None, False)


async def test_a_thread_of_its_own_looks_and_ends_with_the_store(tmp_path: Path) -> None:
    disk = ScarceDisk()
    async with opened(tmp_path, files=disk, disk_reserve=RESERVE) as store:
        assert store.disk.space == Space(PLENTY, TOTAL)
    assert disk.threads == {"disk-space_0"}
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("disk-space")]


async def test_a_check_that_is_asked_for_comes_once_and_the_next_one_in_time(tmp_path: Path) -> None:
    disk = ScarceDisk()
    async with opened(tmp_path, files=disk, disk_reserve=RESERVE) as store:
        task = store.disk._task
        assert task is not None
        await store.disk.use(None)
        async with asyncio.timeout(HANGS_S):
            await until(lambda: disk.looks == 2)
        for _ in range(5):
            # Another look would come in between.
            await asyncio.get_running_loop().run_in_executor(store.disk._thread, bool)
        assert disk.looks == 2
    assert task.done()


async def test_the_pause_follows_from_what_is_known() -> None:
    case = Case(has=0)
    assert (case.space._pause(), case.space.is_scarce, case.space.reserve) == (1.0, False, RESERVE)
    shown = []
    for free in (PLENTY, RESERVE + 1024 * MIB, ENOUGH, ENOUGH - 1, FULL):
        await case.look(free)
        shown.append((case.space._pause(), case.space.is_scarce))
    assert shown == [(5.0, False), (0.5, False), (0.05, False), (0.05, True), (0.05, True)]
    await case.relieved()
    assert await case.look()
    assert case.space._pause() == 1.0
    automatic = DiskSpace("here", None, ScarceDisk(), Room(), lambda: 0)
    assert (automatic.reserve, automatic.is_watched) == (0, True)
    await automatic.check()
    assert automatic.reserve == 128 * MIB


async def test_a_disk_that_does_not_respond_keeps_nobody_waiting(tmp_path: Path) -> None:
    disk = ScarceDisk()
    async with opened(tmp_path, files=disk, disk_reserve=RESERVE) as store:
        (partition,) = await with_topic(store)
        disk.answers.clear()
        disk.asked.clear()
        await store.disk.use(None)
        await reached(disk.asked)
        for _ in range(3):
            await partition.append(sized(1, 100))
        assert offsets(await partition.read(0, 10)) == [0, 1, 2]
        disk.answers.set()


async def test_what_is_known_stays_valid_while_the_space_cannot_be_determined(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = ScarceDisk(free=FULL)
    async with opened(tmp_path, files=disk, disk_reserve=RESERVE) as store:
        caplog.clear()
        disk.fails, disk.free = True, PLENTY
        assert [await is_full(store) for _ in range(3)] == [True] * 3
        text = f"disk: the free space of {tmp_path} cannot be determined: Input/output error"
        assert said(caplog) == [(logging.WARNING, text)]
        disk.fails = False
        assert not await is_full(store)
        disk.fails = True
        assert not await is_full(store)
        assert said(caplog)[-1] == (logging.WARNING, text)


async def test_a_file_system_that_reports_no_size_is_not_taken_for_a_full_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = ScarceDisk(free=0, total=0)
    async with opened(tmp_path, files=disk, disk_reserve=None) as store:
        (partition,) = await with_topic(store)
        await partition.append(sized(1, 100))
        assert store.disk.space is None
    text = f"disk: the free space of {tmp_path} cannot be determined: its file system does not report its size"
    assert said(caplog) == [(logging.WARNING, text)]


# ---------------------------------------------------------------------------------------------------------- refusing


async def test_below_the_reserve_messages_are_refused_until_a_little_more_is_free(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = ScarceDisk()
    caplog.set_level(logging.INFO)
    async with opened(tmp_path, files=disk, disk_reserve=RESERVE) as store:
        (partition,) = await with_topic(store)
        caplog.clear()
        disk.free = RESERVE
        await store.disk.check()
        await partition.append(sized(1, 100))
        disk.free = FULL
        for _ in range(2):
            await store.disk.check()
            with pytest.raises(DiskFull) as refused:
                await partition.append(sized(1, 100))
        assert str(refused.value) == (
            f"the disk is full: {FULL} bytes are free, and system.disk.reserve keeps {RESERVE} bytes for everything "
            "but messages; they are accepted again when there is more space"
        )
        assert store.disk.summary() == (
            f"disk: messages are refused, because only {FULL} bytes are free (system.disk.reserve = {RESERVE})"
        )
        disk.free = ENOUGH - 1
        await store.disk.check()
        with pytest.raises(DiskFull, match=f"{ENOUGH - 1} bytes are free"):
            await partition.append(sized(1, 100))
        disk.free = ENOUGH
        for _ in range(2):
            await store.disk.check()
        await partition.append(sized(1, 100))
        assert partition.appended == 2
        assert store.disk.summary() is None
        assert said(caplog) == [
            (
                logging.ERROR,
                f"disk: messages are refused, because the file system of {tmp_path} has only {FULL} bytes free, and "
                f"system.disk.reserve is {RESERVE} bytes",
            ),
            (logging.INFO, f"disk: messages are accepted again, because {ENOUGH} bytes are free"),
        ]


async def test_the_store_notices_both_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_space, "FULL_PAUSE_S", 0.001)
    monkeypatch.setattr(disk_space, "PAUSE_MAX_S", 0.001)
    disk = ScarceDisk()
    async with opened(tmp_path, files=disk, disk_reserve=RESERVE) as store:
        (partition,) = await with_topic(store)
        async with asyncio.timeout(HANGS_S):
            disk.free = FULL
            with pytest.raises(DiskFull):
                while True:
                    await partition.append(sized(1, 100))
            disk.free = PLENTY
            await until(lambda: not store.disk.is_full)
        await partition.append(sized(1, 100))


async def test_a_check_that_meets_a_defect_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = ScarceDisk()
    async with opened(tmp_path, files=disk, disk_reserve=RESERVE) as store:
        check, repeated = store.disk.check, asyncio.Event()

        async def defective() -> None:
            async def repeat() -> None:
                repeated.set()
                await check()

            monkeypatch.setattr(store.disk, "check", repeat)
            raise RuntimeError("a defect")

        monkeypatch.setattr(store.disk, "check", defective)
        await store.disk.use(None)
        async with asyncio.timeout(HANGS_S):
            await until(lambda: bool(said(caplog)))
            await store.disk.use(None)
            await repeated.wait()
        assert said(caplog) == [
            (logging.ERROR, "the check of the disk's space met a defect; it will run again"),
        ]


async def test_a_reserve_larger_than_the_disk_is_reported_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = ScarceDisk(free=10 * MIB, total=RESERVE)
    async with opened(tmp_path, files=disk, disk_reserve=RESERVE) as store:
        await store.disk.check()
        assert store.disk.is_full
    assert said(caplog) == [
        (
            logging.ERROR,
            f"system.disk.reserve ({RESERVE} bytes) is not less than what the file system of {tmp_path} has "
            f"({RESERVE} bytes), so all messages are refused",
        ),
        (
            logging.ERROR,
            f"disk: messages are refused, because the file system of {tmp_path} has only {10 * MIB} bytes free, and "
            f"system.disk.reserve is {RESERVE} bytes",
        ),
    ]


async def test_reads_commits_deletions_purges_and_groups_work_while_the_disk_is_full(tmp_path: Path) -> None:
    disk = ScarceDisk()
    async with opened(tmp_path, files=disk, disk_reserve=RESERVE, segment_bytes=1024) as store:
        await store.create_stream(StreamDocument(id=1, name="other", created_at=1))
        (partition,) = await with_topic(store)
        for _ in range(8):
            await partition.append(sized(1, 100))
        disk.free = 0
        await store.disk.check()
        assert offsets(await partition.read(0, 99)) == list(range(8))
        await partition.store_offset(Kind.CONSUMER, 1, 5)
        await partition.delete_offset(Kind.CONSUMER, 1)
        await store.write_group(0, 0, GroupDocument(id=1, name="g", created_at=1))
        await store.write_user(1, b"{}")
        await store.update_topic(0, TopicDocument(id=0, name="u", created_at=1, partitions_count=1))
        await partition.flush(sync=True)
        assert await store.delete_segments(partition.place, 1) == 1
        await partition.purge()
        await store.remove_stream(1)
        await store.remove_group(0, 0, 1)
        assert (partition.appended, partition.segments_count) == (0, 1)
        with pytest.raises(DiskFull):
            await partition.append(sized(1, 100))


async def test_places_for_messages_are_not_created_while_the_disk_is_full(tmp_path: Path) -> None:
    disk = ScarceDisk()
    async with opened(tmp_path, files=disk, disk_reserve=RESERVE) as store:
        await with_topic(store)
        disk.free = FULL
        await store.disk.check()
        for refused in (
            store.create_stream(StreamDocument(id=1, name="other", created_at=1)),
            store.create_topic(0, TopicDocument(id=1, name="other", created_at=1, partitions_count=1)),
            store.create_partitions(0, 0, 1),
        ):
            with pytest.raises(DiskFull, match=r"system\.disk\.reserve"):
                await refused
        assert (list(store.streams), list(store.streams[0].topics), store.partitions_count) == ([0], [0], 1)
        disk.free = PLENTY
        await store.disk.check()
        await store.create_partitions(0, 0, 1)
        assert store.partitions_count == 2


async def test_a_repeated_send_gets_its_result_although_the_disk_is_full(tmp_path: Path) -> None:
    disk = ScarceDisk()
    async with opened(tmp_path, files=disk, disk_reserve=RESERVE) as store:
        (partition,) = await with_topic(store)
        stored = await partition.append_once(sized(1, 100), Producer(b"p", 0, 1))
        disk.free = FULL
        await store.disk.check()
        again = await partition.append_once(sized(1, 100), Producer(b"p", 0, 1))
        assert (again.base_offset, again.repeated) == (stored.base_offset, True)
        with pytest.raises(DiskFull):
            await partition.append_once(sized(1, 100), Producer(b"p", 0, 2))
        disk.free = PLENTY
        await store.disk.check()
        assert (await partition.append_once(sized(1, 100), Producer(b"p", 0, 2))).base_offset == 1


async def test_what_is_accepted_and_not_yet_written_counts_as_used(tmp_path: Path) -> None:
    disk = ScarceDisk(free=RESERVE + 10 * BATCH)
    async with opened(
        tmp_path,
        files=disk,
        disk_reserve=RESERVE,
        durability=Durability.MEMORY,
        messages_required_to_save=1000,
    ) as store:
        (partition,) = await with_topic(store)
        for _ in range(11):
            await partition.append(sized(1, 100))
        assert partition.unflushed_bytes == 11 * BATCH
        await store.disk.check()
        with pytest.raises(DiskFull):
            await partition.append(sized(1, 100))
        # What was accepted is written into the reserve.
        await partition.flush()
        assert offsets(await partition.read(0, 99)) == list(range(11))


@pytest.mark.parametrize("durability", Durability)
async def test_between_two_looks_no_more_is_accepted_than_half_of_the_reserve_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: Durability
) -> None:
    monkeypatch.setattr(disk_space, "PAUSE_MIN_S", HANGS_S)
    disk = ScarceDisk(free=ENOUGH)
    async with opened(tmp_path, files=disk, disk_reserve=RESERVE, durability=durability) as store:
        (partition,) = await with_topic(store)
        large = build([Message(bytes((ENOUGH - RESERVE // 2) // 3))], 1, bytes)
        for _ in range(2):
            await partition.append(bytearray(large))
        disk.looks = 0
        with pytest.raises(DiskFull) as refused:
            await partition.append(bytearray(large))
        assert str(refused.value).startswith(f"the disk is full: {ENOUGH - 2 * len(large)} bytes are free, and ")
        await partition.append(sized(1, 100))
        async with asyncio.timeout(HANGS_S):
            await until(lambda: disk.looks > 0)
        assert partition.appended == 3


async def test_far_from_the_reserve_an_append_asks_nobody(tmp_path: Path) -> None:
    disk = ScarceDisk()
    async with opened(tmp_path, files=disk, disk_reserve=RESERVE) as store:
        asked = [store.room.check is not None]
        for disk.free in (RESERVE + disk_space.NEAR_BYTES, RESERVE + disk_space.NEAR_BYTES - 1, PLENTY):
            await store.disk.check()
            asked.append(store.room.check is not None)
        assert asked == [False, False, True, False]


async def test_a_full_topic_is_refused_near_the_reserve_and_far_from_it(tmp_path: Path) -> None:
    disk = ScarceDisk()
    async with opened(tmp_path, files=disk, disk_reserve=RESERVE, delete_oldest_segments=False) as store:
        await store.create_stream(StreamDocument(id=0, name="s", created_at=1))
        await store.create_topic(
            0, TopicDocument(id=0, name="t", created_at=1, partitions_count=1, max_topic_size=2 * BATCH)
        )
        (partition,) = store.partitions_of(0, 0)
        for free in (PLENTY, ENOUGH):
            disk.free = free
            await store.disk.check()
            await partition.append(sized(1, 100))
            with pytest.raises(TopicFull):
                await partition.append(sized(2, 100))
        disk.free = FULL
        await store.disk.check()
        with pytest.raises(DiskFull):
            await partition.append(sized(1, 100))


async def test_after_a_stop_on_a_full_disk_the_next_start_refuses_from_the_first_message_on(tmp_path: Path) -> None:
    disk = ScarceDisk()
    async with opened(tmp_path, files=disk, disk_reserve=RESERVE) as store:
        (partition,) = await with_topic(store)
        await partition.append(sized(1, 100))
        disk.free = 0
    async with opened(tmp_path, files=disk, disk_reserve=RESERVE) as store:
        (partition,) = await with_topic(store)
        with pytest.raises(DiskFull):
            await partition.append(sized(1, 100))
        assert offsets(await partition.read(0, 9)) == [0]
