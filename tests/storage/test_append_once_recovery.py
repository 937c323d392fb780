"""Numbered sends after purges, failed writes, damage and power failures."""

from __future__ import annotations

import asyncio
import errno
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.storage.support import scenario
from tests.storage.support.disk import SimulatedDisk
from tests.storage.support.numbered_sends import by, contents, files_of, place
from tests.storage.support.promises import read_everything
from tests.storage.support.world import SlowDisk, opened, partition_in, reached, settled, sized, texts, with_topic
from whippet.storage import producer_file
from whippet.storage.appended import Appended
from whippet.storage.errors import PartitionFailed, WriteFailed
from whippet.storage.files import Files
from whippet.storage.layout import PRODUCERS_FILE
from whippet.storage.options import Durability
from whippet.storage.partition import Partition
from whippet.storage.producers import Record
from whippet.storage.store import Store

# ------------------------------------------------------------------------------------------------- deletion and failure


async def test_a_purge_forgets_numbered_sends(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        (partition,) = await with_topic(store)
        await partition.append_once(texts("a"), by(5, epoch=3))
        await partition.purge()
        assert not files_of(tmp_path)
        assert place(await partition.append_once(texts("b"), by(1)))[::3] == (0, False)
        await partition.append_once(texts("c"), by(5))
    async with opened(tmp_path) as store:
        (partition,) = await with_topic(store)
        assert place(await partition.append_once(texts("x"), by(5)))[::3] == (1, True)
        assert await contents(partition) == [b"b", b"c"]


async def test_a_send_in_progress_during_a_purge_is_stored_once_after_it(tmp_path: Path) -> None:
    disk = SlowDisk()
    async with partition_in(tmp_path, files=disk) as partition:
        disk.stop()
        before = asyncio.create_task(partition.append_once(texts("before"), by(1)))
        await reached(disk.reached)
        purging = asyncio.create_task(partition.purge())
        await settled()
        sends = [asyncio.create_task(partition.append_once(texts("after"), by(2))) for _ in range(3)]
        sends.append(asyncio.create_task(partition.append_once(texts("before"), by(1))))
        await settled()
        disk.go()
        await asyncio.gather(before, purging)
        answers = await asyncio.gather(*sends, return_exceptions=True)
        assert await contents(partition) in ([b"after"], [b"before", b"after"])
        assert sum(isinstance(answer, Appended) and not answer.repeated for answer in answers[:3]) == 1


async def test_sends_in_deleted_segments_are_still_remembered(tmp_path: Path) -> None:
    async with opened(tmp_path, segment_bytes=1000) as store:
        (partition,) = await with_topic(store)
        for sequence in range(5):
            await partition.append_once(sized(1, 900), by(sequence))
        assert await store.delete_segments(partition.place, 3) == 3
        assert (await partition.append_once(texts("x"), by(0))).base_offset == 0
    async with opened(tmp_path, segment_bytes=1000) as store:
        (partition,) = await with_topic(store)
        assert (await partition.append_once(texts("x"), by(1))).base_offset == 1
        assert partition.appended == 5


async def test_a_removed_partition_forgets_numbered_sends(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await with_topic(store, 2)
        partition = store.partition(0, 0, 1)
        assert partition is not None
        await partition.append_once(texts("a"), by(1))
        await store.remove_partitions(0, 0, 1)
        await store.create_partitions(0, 0, 1)
        partition = store.partition(0, 0, 1)
        assert partition is not None
        assert not (await partition.append_once(texts("b"), by(1))).repeated


class Refusing(Files):
    """A disk that refuses some operations on some files."""

    def __init__(self) -> None:
        self.refused: dict[str, str] = {}
        """By refused operation, the end of the file name."""
        self._paths: dict[int, str] = {}

    def _check(self, act: str, path: str) -> None:
        if path.endswith(self.refused.get(act, "nothing")):
            raise OSError(errno.ENOSPC, "No space left on device")

    def open_for_writing(self, path: str) -> int:
        handle = super().open_for_writing(path)
        self._paths[handle] = path
        return handle

    def write(self, handle: int, buffers: Any, position: int) -> int:
        self._check("write", self._paths[handle])
        return super().write(handle, buffers, position)

    def truncate(self, handle: int, size: int) -> None:
        self._check("truncate", self._paths[handle])
        super().truncate(handle, size)

    def sync(self, handle: int) -> None:
        self._check("sync", self._paths[handle])
        super().sync(handle)


@pytest.mark.parametrize("where", [".log", PRODUCERS_FILE])
async def test_repeating_a_failed_send_tries_it_again(tmp_path: Path, where: str) -> None:
    disk = Refusing()
    async with partition_in(tmp_path, files=disk) as partition:
        await partition.append_once(texts("a"), by(1))
        disk.refused = {"write": where}
        failures = await asyncio.gather(
            *(partition.append_once(texts("b"), by(2)) for _ in range(3)), return_exceptions=True
        )
        assert [type(failure) for failure in failures] == [WriteFailed] * 3
        disk.refused = {}
        assert place(await partition.append_once(texts("b"), by(2)))[::3] == (1, False)
        assert await contents(partition) == [b"a", b"b"]


async def test_if_the_first_of_several_copies_of_a_send_fails_the_next_is_tried(tmp_path: Path) -> None:
    disk = Refusing()
    async with partition_in(tmp_path, files=disk) as partition:
        disk.refused = {"write": ".log"}
        first = asyncio.create_task(partition.append_once(texts("a"), by(1)))
        second = asyncio.create_task(partition.append_once(texts("a"), by(1)))
        first.add_done_callback(lambda _: disk.refused.clear())
        with pytest.raises(WriteFailed):
            await first
        assert place(await second)[::3] == (0, False)
        assert await contents(partition) == [b"a"]


async def test_a_higher_epoch_that_could_not_be_written_leaves_the_previous_one(tmp_path: Path) -> None:
    disk = Refusing()
    async with partition_in(tmp_path, files=disk) as partition:
        await partition.append_once(texts("a"), by(1))
        disk.refused = {"write": ".log"}
        with pytest.raises(WriteFailed):
            await partition.append_once(texts("b"), by(1, epoch=2))
        disk.refused = {}
        assert (await partition.append_once(texts("a"), by(1))).repeated
        assert (await partition.append_once(texts("c"), by(2))).base_offset == 1


async def test_many_sends_that_fail_together_leave_all_earlier_results_known(tmp_path: Path) -> None:
    disk = Refusing()
    async with partition_in(tmp_path, files=disk, producer_answers_max=3) as partition:
        for sequence in range(1, 4):
            await partition.append_once(texts("a"), by(sequence))
        disk.refused = {"write": ".log"}
        failures = await asyncio.gather(
            *(partition.append_once(texts("b"), by(sequence)) for sequence in range(4, 9)), return_exceptions=True
        )
        assert all(isinstance(failure, WriteFailed) for failure in failures)
        disk.refused = {}
        for sequence in range(1, 4):
            assert (await partition.append_once(texts("a"), by(sequence))).repeated
        assert not (await partition.append_once(texts("b"), by(4))).repeated


@pytest.mark.parametrize("truncating", ["works", "fails"])
async def test_a_batch_at_the_offset_of_a_failed_one_is_not_mistaken_for_it(tmp_path: Path, truncating: str) -> None:
    """Neither now nor after a kill. Nothing is appended as long as the record of the failed one is in the file."""

    before, after = tmp_path / "before", tmp_path / "after"
    disk = Refusing()
    async with partition_in(before, files=disk) as partition:
        await partition.append_once(texts("a"), by(1))
        disk.refused = {"write": ".log"} | ({"truncate": PRODUCERS_FILE} if truncating == "fails" else {})
        with pytest.raises(WriteFailed):
            await partition.append_once(texts("b"), by(2))
        if truncating == "fails":
            disk.refused = {"truncate": PRODUCERS_FILE}
            with pytest.raises(WriteFailed):
                await partition.append(texts("c"))
        disk.refused = {}
        await partition.append(texts("c"))
        shutil.copytree(before, after)
        assert not (await partition.append_once(texts("b"), by(2))).repeated
    async with partition_in(after) as partition:
        assert place(await partition.append_once(texts("b"), by(2)))[::3] == (2, False)
        assert await contents(partition) == [b"a", b"c", b"b"]


async def test_a_record_does_not_count_if_another_batch_is_at_its_offset(tmp_path: Path) -> None:
    """A power failure may leave this: the disk has the batch that took the place, and the record of the other one."""

    async with partition_in(tmp_path) as partition:
        await partition.append(texts("a"))
        await partition.append_once(texts("b"), by(1))
        (file,) = files_of(tmp_path)
        found = producer_file.scan(file.read_bytes()).written[0]
        await partition.append(texts("c"))
        forged = Record(by(1, identity=b"q"), 2, 1, found.record.timestamp, 12345)
        file.write_bytes(file.read_bytes() + producer_file.encode(forged, 0))
        folder = tmp_path.with_name("copy")
        shutil.copytree(tmp_path, folder)
    async with partition_in(folder) as partition:
        assert (await partition.append_once(texts("b"), by(1))).repeated
        assert not (await partition.append_once(texts("d"), by(1, identity=b"q"))).repeated


async def test_a_reopened_partition_remembers_the_sends_in_its_files(tmp_path: Path) -> None:
    disk = Refusing()
    async with opened(tmp_path, files=disk, durability=Durability.SYNCED) as store:
        (partition,) = await with_topic(store)
        await partition.append_once(texts("a"), by(1))
        disk.refused = {"sync": ".log"}
        with pytest.raises(PartitionFailed):
            await partition.append_once(texts("b"), by(2))
        disk.refused = {}
        for act in (partition.append_once(texts("b"), by(2)), partition.result_of(by(2))):
            with pytest.raises(PartitionFailed):
                await act
        reopening = asyncio.create_task(store.reopen(partition))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        again = asyncio.create_task(partition.append_once(texts("b"), by(2)))
        asked = asyncio.create_task(partition.result_of(by(2)))
        await reopening
        assert place(await again)[::3] == (1, True)
        assert await asked == await again
        assert place(await partition.append_once(texts("b"), by(2)))[::3] == (1, True)
        assert await contents(partition) == [b"a", b"b"]


async def test_a_send_whose_batch_is_lost_after_reopening_is_stored_again(tmp_path: Path) -> None:
    disk = Refusing()
    async with opened(tmp_path, files=disk, durability=Durability.SYNCED) as store:
        (partition,) = await with_topic(store)
        await partition.append_once(texts("a"), by(1))
        disk.refused = {"sync": ".log"}
        with pytest.raises(PartitionFailed):
            await partition.append_once(texts("b"), by(2))
        disk.refused = {}
        (log,) = files_of(tmp_path, "*.log")
        log.write_bytes(log.read_bytes()[:-5])
        await store.reopen(partition)
        assert place(await partition.append_once(texts("b"), by(2)))[::3] == (1, False)
        assert await contents(partition) == [b"a", b"b"]


async def test_sends_acknowledged_from_memory_are_written_with_their_records_once_the_disk_has_room(
    tmp_path: Path,
) -> None:
    disk = Refusing()
    options = {"durability": Durability.MEMORY, "write_retry_s": 0.01}
    async with partition_in(tmp_path, files=disk, **options) as partition:
        disk.refused = {"write": PRODUCERS_FILE}
        first = await partition.append_once(texts("a"), by(1))
        with pytest.raises(WriteFailed):
            await partition.flush()
        disk.refused = {}
        await partition.until(0, Durability.WRITTEN)
        assert (await partition.append_once(texts("a"), by(1))).repeated
    async with partition_in(tmp_path, durability=Durability.MEMORY) as partition:
        assert place(await partition.append_once(texts("a"), by(1))) == (*place(first)[:3], True)
        assert await contents(partition) == [b"a"]


# ------------------------------------------------------------------------------------------------------------- the file


async def test_a_torn_tail_of_the_file_is_cut_without_a_report(tmp_path: Path) -> None:
    async with partition_in(tmp_path) as partition:
        await partition.append_once(texts("a"), by(1))
    (file,) = files_of(tmp_path)
    whole = file.read_bytes()
    for torn in (whole[:50], whole[:-1] + b"\xff" + whole[:60]):
        file.write_bytes(whole + torn)
        async with opened(tmp_path) as store:
            (partition,) = await with_topic(store)
            assert not store.damage
            assert (await partition.append_once(texts("a"), by(1))).repeated
        assert file.read_bytes() == whole


async def test_damage_before_other_records_is_reported_and_the_others_are_known(tmp_path: Path) -> None:
    async with partition_in(tmp_path) as partition:
        for sequence in range(3):
            await partition.append_once(texts("a"), by(sequence))
    (file,) = files_of(tmp_path)
    content = bytearray(file.read_bytes())
    content[producer_file.RECORD.size + 20] ^= 1
    file.write_bytes(content)
    async with opened(tmp_path) as store:
        (partition,) = await with_topic(store)
        assert [str(damage) for damage in store.damage] == [f"{file}: the record at position 128 is damaged"]
        assert (await partition.append_once(texts("a"), by(0))).repeated
        assert (await partition.append_once(texts("a"), by(2))).repeated
        assert partition.appended == 3


async def test_a_producers_file_that_cannot_be_read_is_set_aside(tmp_path: Path) -> None:
    class Unreadable(Files):
        def open_for_reading(self, path: str) -> int:
            if path.endswith(PRODUCERS_FILE):
                raise OSError(errno.EIO, "Input/output error")
            return super().open_for_reading(path)

    async with partition_in(tmp_path) as partition:
        await partition.append_once(texts("a"), by(1))
    async with opened(tmp_path, files=Unreadable()) as store:
        (partition,) = await with_topic(store)
        (damage,) = store.damage
        assert damage.kept_in is not None
        assert [str(file) for file in files_of(tmp_path)] == [damage.kept_in]
        assert not (await partition.append_once(texts("a"), by(1))).repeated


# ------------------------------------------------------------------------------------------------------- power failures


async def _with_partition(disk: SimulatedDisk, level: Durability) -> tuple[Store, Partition]:
    store = await scenario.open_store(disk, level)
    (partition,) = await with_topic(store)
    return store, partition


@pytest.mark.parametrize("level", [Durability.MEMORY, Durability.WRITTEN], ids=["memory", "written"])
def test_after_a_flush_a_power_failure_forgets_no_earlier_send(level: Durability) -> None:
    async def life(disk: SimulatedDisk) -> None:
        _, partition = await _with_partition(disk, level)
        for sequence in range(4):
            await partition.append_once(texts(f"{sequence}" * 400), by(sequence))
        await partition.flush(sync=True)

    async def after(disk: SimulatedDisk) -> None:
        store, partition = await _with_partition(disk, level)
        for sequence in range(4):
            assert (await partition.append_once(texts("x"), by(sequence))).repeated
        assert len(await read_everything(partition)) == 4
        await store.close()

    disk = SimulatedDisk()
    scenario.run(life(disk))
    for seed in range(20):
        scenario.run(after(disk.power_cut(random.Random(seed))))


async def _knows_the_first_after_a_cut(disk: SimulatedDisk) -> None:
    for seed in range(20):
        store, partition = await _with_partition(disk.power_cut(random.Random(seed)), Durability.WRITTEN)
        assert (await partition.append_once(texts("x"), by(1))).repeated
        await store.close()


@pytest.mark.parametrize("when", ["before its batch", "with the log"])
def test_a_record_whose_sync_failed_survives_a_power_failure_after_a_good_sync(when: str) -> None:
    """The system considers clean what it could not write. Only what is written again is safe after the next sync."""

    async def life(disk: SimulatedDisk) -> None:
        store, partition = await _with_partition(disk, Durability.WRITTEN)
        await partition.append_once(texts("a"), by(1))
        failures = [errno.EIO]

        def refuse(act: str, path: str) -> int | None:
            return failures.pop() if failures and act == "sync" and path.endswith(PRODUCERS_FILE) else None

        disk.refuse = refuse
        if when == "with the log":
            with pytest.raises(PartitionFailed):
                await partition.flush(sync=True)
        else:
            with pytest.raises(WriteFailed):
                await partition.append_once(texts("b"), by(2), Durability.SYNCED)
        await store.save()
        await partition.append(texts("c"), Durability.SYNCED)
        await _knows_the_first_after_a_cut(disk)

    scenario.run(life(SimulatedDisk()))


def test_a_wrong_record_does_not_count_even_if_the_batches_that_disprove_it_are_deleted() -> None:
    level = Durability.WRITTEN

    async def life(disk: SimulatedDisk) -> None:
        _, partition = await _with_partition(disk, level)
        await partition.append_once(texts("a"), by(1))
        disk.refuse = lambda act, path: errno.ENOSPC if act == "write" and path.endswith(".log") else None
        with pytest.raises(WriteFailed):
            await partition.append_once(texts("b"), by(2))
        disk.refuse = lambda act, path: None
        for _ in range(4):
            await partition.append(sized(1, 1600))
        await partition.trim(partition.appended)
        assert partition.first_offset > 1

    async def after(disk: SimulatedDisk) -> None:
        store, partition = await _with_partition(disk, level)
        assert not (await partition.append_once(texts("b"), by(2))).repeated
        await store.close()

    disk = SimulatedDisk()
    scenario.run(life(disk))
    for seed in range(60):
        scenario.run(after(disk.power_cut(random.Random(seed))))
