"""Small batches that the event loop writes itself, and when it leaves them to the shard."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import random
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.storage.support.world import offsets, opened, partition_in, payloads, settled, sized, texts, with_topic
from tests.support.running import HANGS_S
from whippet.storage import write_pipeline
from whippet.storage.errors import WriteFailed
from whippet.storage.files import Buffer, Files
from whippet.storage.handles import Handles
from whippet.storage.options import Durability
from whippet.storage.partition import Partition
from whippet.storage.producers import Producer
from whippet.storage.write_pipeline import CROWDED_SECONDS, REST_SECONDS, SLOW_SECONDS, WritePipeline

LOG = "streams/0/topics/0/partitions/0/00000000000000000000.log"


@pytest.fixture(autouse=True)
def no_write_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine one may take a millisecond, and the shard would write for a while."""
    monkeypatch.setattr(write_pipeline, "SLOW_SECONDS", HANGS_S)


def written_by_loop(partition: Partition) -> int:
    return partition._pipeline._shard.loop_writes


def written_by_shard(partition: Partition) -> int:
    return partition._pipeline._shard.writes


async def test_a_small_batch_is_in_the_file_when_the_append_returns_without_a_turn_of_the_loop(tmp_path: Path) -> None:
    async with partition_in(tmp_path) as partition:
        await partition.append(texts("a"))
        before, orders = (tmp_path / LOG).stat().st_size, written_by_shard(partition)
        batch = texts("b", "c")
        append = partition.append(batch)
        with pytest.raises(StopIteration) as returned:
            append.send(None)
        answer = returned.value.value
        assert (answer.base_offset, answer.messages, answer.durability) == (1, 2, Durability.WRITTEN)
        assert (tmp_path / LOG).read_bytes()[before:] == bytes(batch)
        assert (written_by_loop(partition), written_by_shard(partition)) == (1, orders)
        assert (partition.appended, partition.written, partition.readable, partition.synced) == (3, 3, 3, 0)
        assert partition.size_bytes == before + len(batch)
        assert partition.unflushed_bytes == 0
        assert payloads(await partition.read(0, 9)) == [b"a", b"b", b"c"]
    async with partition_in(tmp_path, tail_bytes_max=0) as partition:
        assert payloads(await partition.read(0, 9)) == [b"a", b"b", b"c"]
        assert partition.size_bytes == before + len(batch)


async def test_the_first_batch_of_every_turn_is_written_at_once_whoever_sends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_pipeline, "perf_counter", lambda: 0.0)
    async with partition_in(tmp_path) as partition:

        async def append() -> None:
            append = partition.append(texts("x"))
            with pytest.raises(StopIteration):
                append.send(None)

        await partition.append(texts("first"))
        for turn in range(1, 4):
            await settled()
            await asyncio.create_task(append())
            assert partition.written == 1 + turn


async def test_a_reader_that_waits_is_woken_by_an_append_on_the_loop(tmp_path: Path) -> None:
    async with partition_in(tmp_path) as partition:
        await partition.append(texts("a"))
        waiting = asyncio.create_task(partition.until(1))
        await settled()
        await partition.append(texts("b"))
        await waiting
        assert written_by_loop(partition) == 1


@pytest.mark.parametrize(
    ("options", "durability"),
    [
        ({"loop_append_bytes_max": len(texts("b")) - 1}, None),
        ({"loop_append_bytes_max": 0}, None),
        ({"durability": Durability.SYNCED}, None),
        ({}, Durability.SYNCED),
        ({"durability": Durability.MEMORY, "messages_required_to_save": 1000}, None),
        ({"durability": Durability.MEMORY, "messages_required_to_save": 1000}, Durability.WRITTEN),
        ({"segment_bytes": 2 * len(texts("b"))}, None),
    ],
    ids=["too large", "off", "synced", "synced once", "memory", "memory, written once", "closes its segment"],
)
async def test_other_batches_are_left_to_the_shard(
    tmp_path: Path, options: dict[str, object], durability: Durability | None
) -> None:
    async with partition_in(tmp_path, **options) as partition:
        await partition.append(texts("a"))
        await partition.flush()
        await partition.append(texts("b"), durability)
        assert written_by_loop(partition) == 0
        assert payloads(await partition.read(0, 9)) == [b"a", b"b"]


async def test_the_batch_of_the_limit_is_written_on_the_loop(tmp_path: Path) -> None:
    async with partition_in(tmp_path, loop_append_bytes_max=len(texts("b"))) as partition:
        await partition.append(texts("a"))
        await partition.append(texts("b"))
        assert written_by_loop(partition) == 1


async def test_a_small_batch_after_a_large_one_of_the_same_turn_is_written_after_it(tmp_path: Path) -> None:
    async with partition_in(tmp_path, loop_append_bytes_max=len(texts("b"))) as partition:
        await partition.append(texts("a"))
        answers = await asyncio.gather(partition.append(texts("large")), partition.append(texts("b")))
        assert [answer.base_offset for answer in answers] == [1, 2]
    async with partition_in(tmp_path, tail_bytes_max=0) as partition:
        assert payloads(await partition.read(0, 9)) == [b"a", b"large", b"b"]


async def test_a_numbered_send_is_left_to_the_shard_which_writes_its_record_first(tmp_path: Path) -> None:
    async with partition_in(tmp_path) as partition:
        await partition.append(texts("a"))
        await partition.append_once(texts("b"), Producer(b"p", 1, 1))
        assert written_by_loop(partition) == 0
        await partition.append(texts("c"))
        assert written_by_loop(partition) == 1
        again = await partition.append_once(texts("b"), Producer(b"p", 1, 1))
        assert (again.base_offset, again.repeated) == (1, True)


async def test_while_the_shard_has_work_for_the_partition_the_loop_leaves_its_files_alone(tmp_path: Path) -> None:
    going = threading.Event()
    async with partition_in(tmp_path) as partition:
        await partition.append(texts("a"))
        call = partition._pipeline.call(lambda: going.wait(HANGS_S))
        waiting = [asyncio.create_task(partition.append(texts(name))) for name in "bcd"]
        await settled()
        assert not any(task.done() for task in waiting)
        assert (partition.appended, partition.written) == (4, 1)
        going.set()
        await asyncio.gather(call, *waiting)
        assert written_by_loop(partition) == 0
        await partition.append(texts("e"))
        assert written_by_loop(partition) == 1
        assert payloads(await partition.read(0, 9)) == [b"a", b"b", b"c", b"d", b"e"]


async def test_a_call_whose_caller_is_cancelled_still_counts_until_the_shard_has_finished_it(tmp_path: Path) -> None:
    going = threading.Event()
    async with partition_in(tmp_path) as partition:
        await partition.append(texts("a"))
        call = partition._pipeline.call(lambda: going.wait(HANGS_S))
        call.cancel()
        await settled()
        append = asyncio.create_task(partition.append(texts("b")))
        await settled()
        assert not append.done()
        going.set()
        await append
        assert written_by_loop(partition) == 0


class Refusing(Files):
    """A disk whose next write to a log fails, or takes only a part."""

    def __init__(self) -> None:
        self.error = 0
        self.part = 0
        self._logs: set[int] = set()

    def open_for_writing(self, path: str) -> int:
        handle = super().open_for_writing(path)
        self._logs.discard(handle)
        if path.endswith(".log"):
            self._logs.add(handle)
        return handle

    def write(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        if handle in self._logs and self.error:
            number, self.error = self.error, 0
            raise OSError(number, os.strerror(number))
        if handle in self._logs and self.part:
            size, self.part = self.part, 0
            return os.pwrite(handle, b"".join(buffers)[:size], position)
        return super().write(handle, buffers, position)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
async def test_an_error_on_the_loop_refuses_the_append_as_an_error_at_the_shard_does(
    tmp_path: Path, number: int
) -> None:
    disk = Refusing()
    async with partition_in(tmp_path, files=disk) as partition:
        await partition.append(texts("a"))
        disk.error = number
        with pytest.raises(WriteFailed, match=os.strerror(number)):
            await partition.append(texts("lost"))
        assert disk.error == 0
        assert (partition.appended, partition.written) == (1, 1)
        assert (await partition.append(texts("b"))).base_offset == 1
        assert (await partition.append(texts("c"))).base_offset == 2
        assert written_by_loop(partition) == 1
        assert payloads(await partition.read(0, 9)) == [b"a", b"b", b"c"]
    async with partition_in(tmp_path, tail_bytes_max=0) as partition:
        assert payloads(await partition.read(0, 9)) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("size", [1, 255, 300])
async def test_a_short_write_on_the_loop_is_repeated_at_the_end_of_the_turn(tmp_path: Path, size: int) -> None:
    disk = Refusing()
    async with partition_in(tmp_path, files=disk) as partition:
        await partition.append(texts("a"))
        disk.part = size
        assert (await partition.append(texts("b"))).base_offset == 1
        assert (disk.part, written_by_loop(partition)) == (0, 1)
    async with partition_in(tmp_path, tail_bytes_max=0) as partition:
        assert payloads(await partition.read(0, 9)) == [b"a", b"b"]


@pytest.mark.parametrize("size", [1, 255, 300, 600])
async def test_a_short_write_of_several_batches_is_completed_by_the_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(write_pipeline, "perf_counter", lambda: 0.0)
    disk = Refusing()
    async with partition_in(tmp_path, files=disk) as partition:
        await partition.append(texts("a"))
        await asyncio.gather(partition.append(texts("b")), partition.append(texts("c")))
        before, disk.part = (written_by_loop(partition), written_by_shard(partition)), size
        results = await asyncio.gather(*(partition.append(texts(name)) for name in "def"))
        assert [result.base_offset for result in results] == [3, 4, 5]
        assert (written_by_loop(partition), written_by_shard(partition)) == (before[0], before[1] + 1)
    async with partition_in(tmp_path, tail_bytes_max=0) as partition:
        assert payloads(await partition.read(0, 9)) == [b"a", b"b", b"c", b"d", b"e", b"f"]


async def test_after_a_slow_write_the_shard_writes_for_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = took = 0.0

    def clock() -> float:
        nonlocal now
        now += took
        return now

    monkeypatch.setattr(write_pipeline, "perf_counter", clock)
    monkeypatch.setattr(write_pipeline, "SLOW_SECONDS", SLOW_SECONDS)
    async with partition_in(tmp_path) as partition:
        await partition.append(texts("first"))
        took = SLOW_SECONDS
        await partition.append(texts("just in time"))
        took = 1.5 * SLOW_SECONDS
        await partition.append(texts("slow"))
        shard = partition._pipeline._shard
        assert (shard.loop_writes, shard.slow_loop_writes) == (2, 1)
        took = 0.0
        until = partition._pipeline._rests_until
        assert now < until <= now + REST_SECONDS
        for moment, on_loop in ((now, 2), (now + 0.9 * REST_SECONDS, 2), (until, 3)):
            now = moment
            await partition.append(texts("later"))
            assert shard.loop_writes == on_loop


async def test_the_handle_is_returned_with_a_sync_and_lent_again_with_the_next_write(tmp_path: Path) -> None:
    async with partition_in(tmp_path) as partition:
        for round_number in range(1, 4):
            await partition.append(texts("shard"))
            await partition.append(texts("loop"))
            assert written_by_loop(partition) == round_number
            await partition.flush(sync=True)
            assert not partition._pipeline._shard.handles._lent
            assert partition.synced == partition.appended


async def test_half_of_the_open_files_at_most_are_lent_and_the_others_are_written_by_the_shard(tmp_path: Path) -> None:
    async with opened(tmp_path, open_files_max=4) as store:
        partitions = await with_topic(store, 5)
        for _ in range(3):
            for partition in partitions:
                await partition.append(texts("x"))
        (shard,) = store.shards
        assert (len(shard.handles._lent), shard.loop_writes) == (2, 2 * 2)
        assert len(shard.handles) <= 4
        for partition in partitions:
            assert offsets(await partition.read(0, 9)) == [0, 1, 2]


def test_a_lent_handle_is_not_closed_to_make_room(tmp_path: Path) -> None:
    files = Files()
    handles = Handles(files, 4)
    lent = [handles.lend(f"{tmp_path}/{name}") for name in "ab" if handles.writing(f"{tmp_path}/{name}")]
    for number in range(9):
        handles.writing(f"{tmp_path}/{number}")
    assert len(handles) == 4
    assert [handles.writing(f"{tmp_path}/{name}") for name in "ab"] == lent
    for handle in lent:
        assert handle is not None
        assert files.size(handle) == 0
    handles.writing(f"{tmp_path}/c")
    assert handles.lend(f"{tmp_path}/c") is None
    assert handles.lend(f"{tmp_path}/unknown") is None
    handles.take_back(f"{tmp_path}/a")
    assert handles.lend(f"{tmp_path}/c") is not None
    handles.close()
    assert len(handles) == 0


@pytest.mark.parametrize("act", ["purge", "trim", "reopen"])
async def test_whatever_changes_the_files_ends_the_loan_or_keeps_its_file(tmp_path: Path, act: str) -> None:
    async with opened(tmp_path, segment_bytes=3000) as store:
        (partition,) = await with_topic(store)
        for _ in range(12):
            await partition.append(texts("x"))
        first = partition.appended
        if act == "purge":
            await partition.purge()
            first = 0
        elif act == "trim":
            assert await partition.trim(partition.appended)
        else:
            await partition.flush(sync=True)
            await store.save()
        sizes = [partition.size_bytes]
        for number in range(3):
            assert (await partition.append(texts(f"{number}"))).base_offset == first + number
            sizes.append(partition.size_bytes)
        assert {after - before for before, after in itertools.pairwise(sizes)} == {len(texts("0"))}
        assert payloads(await partition.read(first, 9)) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("seed", range(6))
async def test_loop_and_shard_write_one_ordered_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """The loop's own appends are on, off, and both in turn; large batches, syncs and reads come in between."""
    chance = random.Random(seed)
    write = WritePipeline._write_on_loop
    monkeypatch.setattr(
        WritePipeline, "_write_on_loop", lambda self, *given: chance.random() < 0.7 and write(self, *given)
    )
    path, sent = tmp_path, {}
    async with partition_in(path, segment_bytes=200_000, tail_bytes_max=chance.choice((0, 1 << 20))) as partition:

        async def client(number: int) -> None:
            for turn in range(60):
                payload = f"{number}-{turn}-".encode() + b"x" * chance.choice((1, 50, 3000))
                batch = sized(chance.choice((1, 3)), len(payload), payload)
                level = chance.choice((None, None, None, None, Durability.SYNCED))
                answer = await partition.append(batch, level)
                sent.update(dict.fromkeys(range(answer.base_offset, answer.next_offset), payload))
                match chance.randrange(8):
                    case 0:
                        await partition.flush(sync=chance.random() < 0.5)
                    case 1:
                        found = await partition.read(answer.base_offset, 1)
                        assert payloads(found) == [payload]
                    case 2:
                        await asyncio.sleep(0)

        await asyncio.gather(*(client(number) for number in range(5)))
        assert sorted(sent) == list(range(partition.appended))
        assert partition.messages_count == len(sent)
        size = partition.size_bytes
    async with partition_in(path, segment_bytes=200_000, tail_bytes_max=0) as partition:
        assert partition.size_bytes == size
        found = [payload for start in range(0, len(sent), 50) for payload in payloads(await partition.read(start, 50))]
        assert found == [sent[offset] for offset in range(len(sent))]


async def test_while_records_of_numbered_sends_are_in_doubt_the_shard_writes_and_settles_them(tmp_path: Path) -> None:
    async with partition_in(tmp_path) as partition:
        await partition.append_once(texts("a"), Producer(b"p", 1, 1))
        await partition.append(texts("b"))
        records = partition._pipeline.log.producers
        records.in_doubt = True
        await partition.append(texts("c"))
        assert (written_by_loop(partition), records.in_doubt) == (1, False)
        await partition.append(texts("d"))
        assert written_by_loop(partition) == 2


class Counting(Files):
    """Counts the calls that write to logs, and their batches."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def write(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        self.batches.append(len(buffers))
        return super().write(handle, buffers, position)


async def test_what_several_clients_send_in_one_turn_is_written_together_and_so_is_what_follows_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(write_pipeline, "perf_counter", lambda: now)
    disk = Counting()
    async with partition_in(tmp_path, files=disk) as partition:
        await partition.append(texts("first"))
        before = written_by_shard(partition)
        disk.batches.clear()
        await asyncio.gather(*(partition.append(texts(name)) for name in "abcd"))
        assert disk.batches == [1, 3]
        now = 0.9 * CROWDED_SECONDS
        await asyncio.gather(*(partition.append(texts(name)) for name in "efg"))
        assert disk.batches == [1, 3, 3]
        now = CROWDED_SECONDS
        for _ in range(2):
            append = partition.append(texts("later"))
            with pytest.raises(StopIteration):
                append.send(None)
            await settled()
        assert disk.batches == [1, 3, 3, 1, 1]
        assert (written_by_loop(partition), written_by_shard(partition)) == (9, before)
        assert payloads(await partition.read(0, 99)) == [b"first", *b"a b c d e f g later later".split()]
        assert (partition.synced, partition.written, partition.unflushed_bytes) == (0, 10, 0)


async def test_a_task_that_appends_one_batch_after_another_has_each_written_at_once(tmp_path: Path) -> None:
    disk = Counting()
    async with partition_in(tmp_path, files=disk) as partition:
        await partition.append(texts("first"))
        disk.batches.clear()
        turns = 0

        def count() -> None:
            nonlocal turns
            turns += 1

        asyncio.get_running_loop().call_soon(count)
        for name in "abcdef":
            await partition.append(texts(name))
        assert (disk.batches, turns) == ([1] * 6, 0)


async def test_what_requests_without_a_task_send_in_one_turn_is_written_together(tmp_path: Path) -> None:
    disk = Counting()
    async with partition_in(tmp_path, files=disk) as partition:
        await partition.append(texts("first"))
        await settled()
        disk.batches.clear()
        loop = asyncio.get_running_loop()
        requests = [partition.append(texts(name)) for name in "abcd"]
        waiting = loop.create_future()

        def begin() -> None:
            with pytest.raises(StopIteration):
                requests[0].send(None)
            waiting.set_result([request.send(None) for request in requests[1:]])

        loop.call_soon(begin)
        for future in await waiting:
            await future
        assert disk.batches == [1, 3]
        for request in requests[1:]:
            with pytest.raises(StopIteration):
                request.send(None)


async def test_what_is_gathered_in_a_turn_is_left_to_the_shard_if_it_is_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_pipeline, "perf_counter", lambda: 0.0)
    async with partition_in(tmp_path, loop_append_bytes_max=2 * len(texts("a"))) as partition:
        await partition.append(texts("first"))
        await asyncio.gather(*(partition.append(texts(name)) for name in "abc"))
        assert written_by_loop(partition) == 3
        await asyncio.gather(*(partition.append(texts(name)) for name in "de"))
        assert written_by_loop(partition) == 5
        await asyncio.gather(*(partition.append(texts(name)) for name in "fghi"))
        assert written_by_loop(partition) == 5
        await asyncio.gather(*(partition.append(texts(name)) for name in "jk"))
        assert written_by_loop(partition) == 7
        assert payloads(await partition.read(0, 99)) == [b"first", *b"a b c d e f g h i j k".split()]


async def test_an_error_of_what_was_gathered_refuses_every_append_of_the_turn(tmp_path: Path) -> None:
    disk = Refusing()
    async with partition_in(tmp_path, files=disk) as partition:
        await partition.append(texts("a"))
        await asyncio.gather(partition.append(texts("b")), partition.append(texts("c")))
        disk.error = errno.ENOSPC
        results = await asyncio.gather(*(partition.append(texts(name)) for name in "de"), return_exceptions=True)
        assert [type(result) for result in results] == [WriteFailed, WriteFailed]
        assert disk.error == 0
        assert (partition.appended, partition.written, partition.unflushed_bytes) == (3, 3, 0)
        assert (await partition.append(texts("f"))).base_offset == 3
    async with partition_in(tmp_path, tail_bytes_max=0) as partition:
        assert payloads(await partition.read(0, 9)) == [b"a", b"b", b"c", b"f"]


async def test_an_error_on_the_loop_is_over_when_the_records_written_before_its_batch_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It belongs to this write round: a later append must not be refused for it."""
    disk = Refusing()
    async with partition_in(tmp_path, files=disk) as partition:
        await partition.append(texts("a"))
        disk.error = errno.EIO
        records = partition._pipeline.log.producers

        def refuse(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as failing:
            failing.setattr(records, "write", refuse)
            # Both in one turn of the loop: the first meets the error, the second adds a record to the same round.
            first = partition.append(texts("b"))
            second = partition.append(texts("c"), producer=Producer(b"p", 1, 1))
            waiting = [first.send(None), second.send(None)]
            assert disk.error == 0
            done, _ = await asyncio.wait(waiting)
            assert {str(future.exception()).rpartition(": ")[2] for future in done} == {os.strerror(errno.ENOSPC)}
            first.close()
            second.close()
        assert (await partition.append(texts("d"), Durability.SYNCED)).base_offset == 1
        assert payloads(await partition.read(0, 9)) == [b"a", b"d"]
