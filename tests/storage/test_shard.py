"""A shard: one thread that executes work items in order, and combines writes and syncs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.storage.support.world import SlowDisk, opened, payloads, reached, settled, texts, with_topic
from tests.support.running import HANGS_S
from whippet.storage.errors import PartitionClosed, PartitionFailed
from whippet.storage.files import Files
from whippet.storage.layout import PartitionId
from whippet.storage.options import Durability, StoreOptions
from whippet.storage.shard import Shard, shard_of


@contextlib.asynccontextmanager
async def a_shard(**options: Any) -> AsyncIterator[Shard]:
    shard = Shard(0, Files(), StoreOptions(path="", **options), asyncio.get_running_loop())
    try:
        yield shard
    finally:
        await shard.stop()


async def test_calls_run_in_order_on_one_thread_other_than_the_loops() -> None:
    async with a_shard() as shard:
        threads: list[int] = []
        done: list[int] = []

        def act(i: int) -> int:
            threads.append(threading.get_ident())
            done.append(i)
            return i

        answers = await asyncio.gather(*(shard.call(lambda i=i: act(i)) for i in range(200)))  # type: ignore[misc]
        assert answers == done == list(range(200))
        assert len(set(threads)) == 1
        assert threads[0] != threading.get_ident()


async def test_results_of_brief_calls_are_reported_together_and_those_of_others_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_shard() as shard:
        reports: list[int] = []
        post = shard._post_to_loop

        def counted(function: Callable[..., None], results: list[Any]) -> None:
            reports.append(len(results))
            post(function, results)

        monkeypatch.setattr(shard, "_post_to_loop", counted)
        began, going = threading.Event(), threading.Event()

        def hold() -> bool:
            began.set()
            return going.wait(HANGS_S)

        first = shard.call(hold)
        await reached(began)
        others = [shard.call(int) if i in {7, 8} else shard.call(int, brief=True) for i in range(10)]
        going.set()
        await asyncio.gather(first, *others)
        assert reports == [1, 4, 3, 1, 2]


async def test_a_failing_call_fails_only_its_caller() -> None:
    async with a_shard() as shard:

        def fail(error: BaseException) -> None:
            raise error

        with pytest.raises(ZeroDivisionError):
            await shard.call(lambda: 1 // 0)
        with pytest.raises(OSError, match="gone"):
            await shard.call(lambda: fail(OSError("gone")))
        for other in (KeyboardInterrupt(), SystemExit(3), StopIteration(), GeneratorExit()):
            with pytest.raises(RuntimeError):
                await shard.call(lambda other=other: fail(other))  # type: ignore[misc]
        assert await shard.call(lambda: "still here") == "still here"


async def test_a_call_whose_caller_was_cancelled_does_no_harm() -> None:
    async with a_shard() as shard:
        going = threading.Event()
        first = shard.call(lambda: going.wait(HANGS_S))
        second = shard.call(lambda: 1 // 0)
        third = shard.call(lambda: 3)
        first.cancel()
        second.cancel()
        going.set()
        assert await third == 3


async def test_a_stopped_shard_refuses_calls() -> None:
    async with a_shard() as shard:
        late = [shard.call(lambda: 5)]
    assert await late[0] == 5
    with pytest.raises(PartitionClosed, match="closed"):
        await shard.call(lambda: 6)


async def test_the_event_loop_goes_on_while_a_shard_finishes_its_work_to_stop() -> None:
    shard = Shard(0, Files(), StoreOptions(path=""), asyncio.get_running_loop())
    going = threading.Event()
    last = shard.call(lambda: going.wait(HANGS_S))
    stop = asyncio.create_task(shard.stop())
    await settled()
    assert (last.done(), stop.done()) == (False, False)
    going.set()
    await stop
    assert await last


async def test_a_shard_works_even_if_its_core_does_not_exist(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        async with a_shard(cpus=(100_000,)) as shard:
            assert await shard.call(lambda: 1) == 1
    assert "not pinned to core 100000" in caplog.text


async def test_each_shard_runs_on_its_core_and_the_event_loop_on_any() -> None:
    before = os.sched_getaffinity(0)
    cores = tuple(sorted(before))
    for number in range(len(cores) + 1):
        shard = Shard(number, Files(), StoreOptions(path="", cpus=cores), asyncio.get_running_loop())
        assert await shard.call(lambda: os.sched_getaffinity(0)) == {cores[number % len(cores)]}
        await shard.stop()
    assert os.sched_getaffinity(0) == before


async def test_a_shard_does_not_keep_its_process_alive() -> None:
    async with a_shard() as shard:
        assert await shard.call(lambda: threading.current_thread().daemon)


async def test_what_waits_for_its_turn_is_counted() -> None:
    async with a_shard() as shard:
        assert (shard.queue_length, shard.syncs, shard.writes, shard.loop_writes, shard.slow_loop_writes) == (0,) * 5
        began, going = threading.Event(), threading.Event()

        def hold() -> bool:
            began.set()
            return going.wait(HANGS_S)

        calls = [shard.call(hold)]
        await reached(began)
        for number in range(3):
            assert shard.queue_length == number
            calls.append(shard.call(bool))
        going.set()
        await asyncio.gather(*calls)
        assert shard.queue_length == 0


@pytest.mark.parametrize("shards", [2, 3, 4, 8])
def test_partitions_are_spread_evenly_over_the_shards(shards: int) -> None:
    """Those of one topic, those of many topics, and those of many streams."""
    for places in (
        [PartitionId(1, 1, n) for n in range(1000)],
        [PartitionId(1, n, 0) for n in range(1000)],
        [PartitionId(n, 1, 0) for n in range(1000)],
    ):
        counts = Counter(shard_of(place, shards) for place in places)
        assert set(counts) == set(range(shards))
        assert max(counts.values()) < 1.3 * 1000 / shards


async def test_the_open_files_of_all_shards_together_stay_within_the_limit(tmp_path: Path) -> None:
    disk = CountedFiles()
    async with opened(tmp_path, files=disk, shards=2, open_files_max=12) as store:
        for partition in await with_topic(store, 40):
            await partition.append(texts("a"))
        assert {disk.opens[path] for path in disk.opens if path.endswith(".log")} == {0, 1}
        assert sum(disk.opens[path] for path in disk.opens if path.endswith(".log")) == 12
    assert set(disk.opens.values()) == {0}


class CountedFiles(Files):
    """Counts how often each file is open."""

    def __init__(self) -> None:
        self.opens: Counter[str] = Counter()
        self._paths: dict[int, str] = {}

    def open_for_reading(self, path: str) -> int:
        return self._opened(super().open_for_reading(path), path)

    def open_for_writing(self, path: str) -> int:
        return self._opened(super().open_for_writing(path), path)

    def _opened(self, handle: int, path: str) -> int:
        self._paths[handle] = path
        self.opens[path] += 1
        return handle

    def close(self, handle: int) -> None:
        self.opens[self._paths.pop(handle)] -= 1
        super().close(handle)


# --------------------------------------------------------------------------------------------------------- group commit


async def test_appends_during_a_busy_disk_are_written_and_synced_together(tmp_path: Path) -> None:
    disk = SlowDisk()
    async with opened(tmp_path, files=disk, durability=Durability.SYNCED) as store:
        (partition,) = await with_topic(store)
        (shard,) = store.shards
        disk.stop()
        first = asyncio.create_task(partition.append(texts("first")))
        await reached(disk.reached)
        syncs, writes = shard.syncs, shard.writes
        others = []
        for i in range(100):
            others.append(asyncio.create_task(partition.append(texts(f"{i}"))))
            await settled()
        disk.go()
        await asyncio.gather(first, *others)
        assert partition.synced == 101
        assert shard.syncs - syncs == 2
        assert shard.writes - writes == 2


async def test_appends_to_many_partitions_during_a_busy_disk_sync_each_once(tmp_path: Path) -> None:
    disk = SlowDisk()
    async with opened(tmp_path, files=disk, durability=Durability.SYNCED) as store:
        partitions = await with_topic(store, 5)
        (shard,) = store.shards
        disk.stop()
        first = asyncio.create_task(partitions[0].append(texts("first")))
        await reached(disk.reached)
        syncs = shard.syncs
        others = [asyncio.create_task(p.append(texts("x"))) for p in partitions for _ in range(20)]
        await settled()
        disk.go()
        await asyncio.gather(first, *others)
        assert shard.syncs - syncs == 1 + 5


async def test_writes_and_calls_of_one_partition_keep_their_order(tmp_path: Path) -> None:
    disk = SlowDisk()
    async with opened(tmp_path, files=disk) as store:
        (partition,) = await with_topic(store)
        (shard,) = store.shards
        log = tmp_path / "streams/0/topics/0/partitions/0/00000000000000000000.log"
        disk.stop()
        appends = []
        sizes = []
        for i in range(4):
            appends.append(asyncio.create_task(partition.append(texts(f"{i}"))))
            await settled()
            sizes.append(shard.call(lambda: log.stat().st_size))
        disk.go()
        assert await asyncio.gather(*sizes) == [len(texts("0")) * n for n in (1, 2, 3, 4)]
        await asyncio.gather(*appends)


# -------------------------------------------------------------------------------------------------------------- defects


class Defective(Files):
    """A disk whose driver has a bug: its exception is not an error of the operating system."""

    def __init__(self) -> None:
        self.defective = ""
        self.reached, self.going = threading.Event(), threading.Event()
        self.paths: dict[int, str] = {}

    def open_for_writing(self, path: str) -> int:
        handle = super().open_for_writing(path)
        self.paths[handle] = path
        return handle

    def write(self, handle: int, buffers: Any, position: int) -> int:
        if self.defective and self.defective in self.paths[handle]:
            # Only once: later writes would succeed.
            self.defective = ""
            self.reached.set()
            assert self.going.wait(HANGS_S)
            raise ZeroDivisionError("a defect")
        return super().write(handle, buffers, position)


@pytest.mark.parametrize("level", Durability)
async def test_a_defect_while_one_partition_is_written_fails_that_one_and_loses_nothing(
    tmp_path: Path, level: Durability, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        disk = Defective()
        async with opened(
            tmp_path, files=disk, durability=level, messages_required_to_save=1, loop_append_bytes_max=0
        ) as store:
            bad, good = await with_topic(store, 2)
            await bad.append(texts("a"))
            await bad.flush()
            disk.defective = "partitions/0/"
            syncs = store.shards[0].syncs
            appends = [asyncio.create_task(bad.append(texts(f"{i}"))) for i in range(3)]
            await reached(disk.reached)
            appends += [asyncio.create_task(bad.append(texts("late")))]
            await settled()
            disk.going.set()
            answers = await asyncio.gather(*appends, return_exceptions=True)
            acknowledged = [answer for answer in answers if not isinstance(answer, BaseException)]
            assert len(acknowledged) == (4 if level is Durability.MEMORY else 0)
            assert store.shards[0].syncs == syncs
            assert (await good.append(texts("fine"))).base_offset == 0
            for act in (bad.flush(), bad.append(texts("refused"))):
                with pytest.raises(PartitionFailed, match="a defect"):
                    await act
            await store.save()
            assert bad.failed is None
            assert (await bad.append(texts("after"))).base_offset == 1 + len(acknowledged)
            found = payloads(await bad.read(0, 99))
            assert found[0] == b"a"
            assert found[-1] == b"after"
            assert len(found) == 2 + len(acknowledged)
            assert not store.damage
    assert "a defect in the store" in caplog.text
