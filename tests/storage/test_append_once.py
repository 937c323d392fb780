"""Numbered sends: repeating one stores nothing, and gets the same result."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.storage.support.numbered_sends import by, contents, files_of, place
from tests.storage.support.partitions import BUFFERED, WRITTEN
from tests.storage.support.world import SlowDisk, partition_in, reached, settled, texts
from whippet.storage import producer_file
from whippet.storage.errors import ProducerFenced, SequenceForgotten, SequencePassed
from whippet.storage.options import Durability

LEVELS = list(Durability)

levels = pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name.lower())


# ---------------------------------------------------------------------------------------------------------- repetitions


@levels
async def test_a_repeated_send_gets_the_same_result_and_appends_nothing(tmp_path: Path, level: Durability) -> None:
    async with partition_in(tmp_path, durability=level) as partition:
        first = await partition.append_once(texts("a", "b"), by(7))
        second = await partition.append_once(texts("c"), by(9))
        assert place(first)[:2] == (0, 2)
        assert not first.repeated
        assert [partition.remembers(by(sequence)) for sequence in (7, 8, 9)] == [True, False, True]
        for answer, producer in ((first, by(7)), (second, by(9)), (first, by(7))):
            again = await partition.append_once(texts("another"), producer)
            assert place(again) == (answer.base_offset, answer.messages, answer.timestamp, True)
            assert again.durability is level
        assert await contents(partition) == [b"a", b"b", b"c"]


@levels
@pytest.mark.parametrize("ending", ["closed", "killed"])
async def test_numbered_sends_are_remembered_after_a_restart(tmp_path: Path, level: Durability, ending: str) -> None:
    before, folder = tmp_path / "before", tmp_path / "before"
    async with partition_in(before, durability=level) as partition:
        first = await partition.append_once(texts("a", "b"), by(1))
        await partition.append(texts("plain"))
        second = await partition.append_once(texts("c"), by(2))
        await partition.append_once(texts("d"), by(5, identity=b"q"))
        if ending == "killed":
            await partition.flush()
            folder = tmp_path / "after"
            shutil.copytree(before, folder)
    async with partition_in(folder, durability=level) as partition:
        assert place(await partition.append_once(texts("x"), by(2))) == (*place(second)[:3], True)
        assert place(await partition.append_once(texts("x"), by(1))) == (*place(first)[:3], True)
        assert (await partition.append_once(texts("new"), by(3))).base_offset == 5
        with pytest.raises(ProducerFenced):
            await partition.append_once(texts("x"), by(9, epoch=0))
        assert await contents(partition) == [b"a", b"b", b"plain", b"c", b"d", b"new"]


async def test_sends_without_numbers_create_no_producers_file(tmp_path: Path) -> None:
    async with partition_in(tmp_path) as partition:
        await partition.append(texts("a"))
    assert not files_of(tmp_path)


async def test_concurrent_copies_of_one_send_are_stored_once_with_the_same_result(tmp_path: Path) -> None:
    disk = SlowDisk()
    async with partition_in(tmp_path, files=disk) as partition:
        disk.stop()
        sends = [asyncio.create_task(partition.append_once(texts("a", "b"), by(1))) for _ in range(20)]
        await reached(disk.reached)
        sends += [asyncio.create_task(partition.append_once(texts("a", "b"), by(1))) for _ in range(20)]
        await settled()
        disk.go()
        answers = await asyncio.gather(*sends)
        assert sum(not answer.repeated for answer in answers) == 1
        assert {place(answer)[:3] for answer in answers} == {place(answers[0])[:3]}
        assert await contents(partition) == [b"a", b"b"]


async def test_a_repeated_send_whose_first_caller_was_cancelled_is_stored_once(tmp_path: Path) -> None:
    disk = SlowDisk()
    async with partition_in(tmp_path, files=disk) as partition:
        disk.stop()
        first = asyncio.create_task(partition.append_once(texts("a"), by(1)))
        await reached(disk.reached)
        first.cancel()
        again = asyncio.create_task(partition.append_once(texts("a"), by(1)))
        await settled()
        assert not again.done()
        disk.go()
        assert place(await again)[:2] == (0, 1)
        assert (await again).repeated
        assert await contents(partition) == [b"a"]


async def test_a_repeated_send_at_a_higher_level_waits_until_that_level_is_reached(tmp_path: Path) -> None:
    async with partition_in(tmp_path, durability=Durability.MEMORY, messages_required_to_save=100) as partition:
        await partition.append_once(texts("a"), by(1))
        assert partition.written == 0
        again = await partition.append_once(texts("a"), by(1), Durability.SYNCED)
        assert (again.durability, again.repeated, partition.synced) == (Durability.SYNCED, True, 1)
        asked = await partition.result_of(by(1), Durability.SYNCED)
        assert asked == again
        assert await partition.result_of(by(2)) is None


# ------------------------------------------------------------------------------------------------ order, epochs, bounds


async def test_a_repeated_send_that_is_written_is_synced_if_that_is_requested(tmp_path: Path) -> None:
    async with partition_in(tmp_path) as partition:
        await partition.append_once(texts("a"), by(1))
        assert partition.synced == 0
        again = await partition.append_once(texts("a"), by(1), Durability.SYNCED)
        assert (again.repeated, again.durability, partition.synced) == (True, Durability.SYNCED, 1)


@pytest.mark.parametrize("level", [Durability.MEMORY, WRITTEN])
async def test_a_repeated_send_that_has_reached_its_level_does_not_wait_for_later_ones(
    tmp_path: Path, level: Durability
) -> None:
    disk = SlowDisk()
    async with partition_in(tmp_path, files=disk, **{**BUFFERED, "durability": level}) as partition:
        first = await partition.append_once(texts("a"), by(1))
        disk.stop()
        later = asyncio.create_task(partition.append(texts("b"), WRITTEN))
        await settled()
        again = asyncio.create_task(partition.append_once(texts("a"), by(1)))
        asked = asyncio.create_task(partition.result_of(by(1)))
        await settled()
        assert (again.done(), asked.done()) == (True, True)
        for answer in (again.result(), asked.result()):
            assert answer is not None
            assert (answer.base_offset, answer.repeated, answer.durability) == (first.base_offset, True, level)
        disk.go()
        await later


async def test_sequences_may_have_gaps(tmp_path: Path) -> None:
    async with partition_in(tmp_path) as partition:
        for sequence in (0, 1, 5, 2**64 - 1):
            assert not (await partition.append_once(texts(f"{sequence}"), by(sequence))).repeated
        assert len(await contents(partition)) == 4


async def test_an_older_sequence_that_is_forgotten_is_refused_and_appends_nothing(
    tmp_path: Path,
) -> None:
    async with partition_in(tmp_path, producer_answers_max=3) as partition:
        for sequence in (1, 2, 10, 20, 30):
            await partition.append_once(texts(f"{sequence}"), by(sequence))
        with pytest.raises(SequencePassed, match="sequence 15 is not stored and comes after 30"):
            await partition.append_once(texts("x"), by(15))
        with pytest.raises(SequenceForgotten, match="sequence 2 is so far below 30"):
            await partition.append_once(texts("x"), by(2))
        with pytest.raises(SequencePassed):
            await partition.result_of(by(11))
        assert place(await partition.append_once(texts("x"), by(10)))[0] == 2
        assert len(await contents(partition)) == 5


async def test_a_higher_epoch_fences_lower_ones_and_restarts_its_sequences(tmp_path: Path) -> None:
    async with partition_in(tmp_path) as partition:
        await partition.append_once(texts("old"), by(100))
        assert (await partition.append_once(texts("new"), by(1, epoch=2))).base_offset == 1
        for sequence in (100, 101):
            with pytest.raises(ProducerFenced, match="epoch 1 has ended, epoch 2 has taken its place"):
                await partition.append_once(texts("x"), by(sequence))
        assert (await partition.append_once(texts("other"), by(1, identity=b"q"))).base_offset == 2
        assert await contents(partition) == [b"old", b"new", b"other"]


async def test_a_higher_epoch_fences_lower_ones_while_it_is_being_written(tmp_path: Path) -> None:
    disk = SlowDisk()
    async with partition_in(tmp_path, files=disk) as partition:
        await partition.append_once(texts("old"), by(1))
        disk.stop()
        newer = asyncio.create_task(partition.append_once(texts("new"), by(1, epoch=2)))
        await reached(disk.reached)
        with pytest.raises(ProducerFenced):
            await partition.append_once(texts("late"), by(2))
        disk.go()
        await newer
        assert await contents(partition) == [b"old", b"new"]


async def test_the_least_recently_used_producer_is_forgotten_when_there_are_too_many(
    tmp_path: Path,
) -> None:
    async with partition_in(tmp_path, producers_max=2) as partition:
        await partition.append_once(texts("p"), by(1, identity=b"p"))
        await partition.append_once(texts("q"), by(1, identity=b"q"))
        assert (await partition.append_once(texts("p"), by(1, identity=b"p"))).repeated
        await partition.append_once(texts("r"), by(1, identity=b"r"))
        assert (await partition.append_once(texts("p"), by(1, identity=b"p"))).repeated
        assert not (await partition.append_once(texts("q"), by(1, identity=b"q"))).repeated


async def test_the_producers_file_stays_small_after_many_sends_and_has_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_bytes = producer_file.RECORD.size
    monkeypatch.setattr(producer_file, "COMPACTED_BYTES", 10 * record_bytes)

    async with partition_in(tmp_path, producers_max=3, producer_answers_max=2) as partition:
        for sequence in range(50):
            for identity in (b"p", b"q"):
                await partition.append_once(texts("x"), by(sequence, identity=identity))
        (file,) = files_of(tmp_path)
        assert file.stat().st_size <= 11 * record_bytes
        await partition.append_once(texts("x"), by(50))
    async with partition_in(tmp_path, producers_max=3, producer_answers_max=2) as partition:
        assert (await partition.append_once(texts("x"), by(49))).base_offset == 98
        assert (await partition.append_once(texts("x"), by(50))).base_offset == 100
        assert (await partition.append_once(texts("x"), by(48, identity=b"q"))).base_offset == 97
        with pytest.raises(SequenceForgotten):
            await partition.append_once(texts("x"), by(48))
        assert partition.appended == 101
