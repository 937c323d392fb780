"""Rates: their cost with a large catalogue and many subscribers, and the lag of groups."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.app.commands.support.reading import Reading, reading
from tests.storage.archive.support.archives import Flaky, archiver_of
from tests.storage.support.scarce_disk import RESERVE, TOTAL, ScarceDisk
from tests.storage.support.world import local
from tests.support.turns import TurnCounter
from whippet.app import rates
from whippet.app.commands import requests
from whippet.storage.disk_space import DiskSpace


@pytest.fixture(autouse=True)
def measured_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "PERIOD_SECONDS", 0.01)


async def lags(made: Reading) -> dict[str, int]:
    measurement = await made.gateway.rates.next()
    (stream,) = measurement.sample.streams
    (topic,) = stream.topics
    return {group.name: group.lag for group in topic.consumer_groups}


async def test_the_lag_of_a_group_is_what_it_has_not_committed(tmp_path: Path) -> None:
    async with reading(tmp_path, 3) as made:
        await made.fill(10)
        for name in ("none", "some"):
            await made.root.execute(requests.CreateConsumerGroup("s", "t", name))
        assert await lags(made) == {"g": 30, "none": 30, "some": 30}
        some = requests.Consumer(requests.ConsumerKind.GROUP, "some")
        await made.root.execute(requests.JoinConsumerGroup("s", "t", "some"))
        await made.root.join()
        for partition, offset in ((0, 0), (1, 9)):
            await made.root.store(offset, partition, some)
        await made.root.store(4, 2)
        assert await lags(made) == {"g": 25, "none": 30, "some": 19}
        await made.root.execute(requests.PurgeTopic("s", "t"))
        assert await lags(made) == {"g": 0, "none": 0, "some": 0}


async def test_a_large_catalogue_is_measured_over_several_iterations_of_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates, "TOGETHER", 10)
    rating, counting = rates._partition, rates._Count
    async with reading(tmp_path, 100) as made:
        counted = TurnCounter()

        def rate(*given: Any) -> Any:
            counted.note(1)
            return rating(*given)

        def count(*given: Any) -> Any:
            counted.note(1)
            return counting(*given)

        monkeypatch.setattr(rates, "_partition", rate)
        monkeypatch.setattr(rates, "_Count", count)
        measurement = await made.gateway.rates.next()
        counted.stop()
        assert len(measurement.sample.streams[0].topics[0].partitions) == 100
        assert sum(counted.done.values()) >= 300
        assert max(counted.done.values()) <= 10


async def test_a_sample_for_many_subscribers_is_encoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Any] = []
    encode = msgspec.json.Encoder().encode

    def counting(what: Any) -> bytes:
        encoded.append(what)
        return encode(what)

    async with reading(tmp_path) as made:
        heard = await asyncio.gather(*(made.gateway.rates.next() for _ in range(100)))
        monkeypatch.setattr(rates, "_encode", counting)
        for part in ((), (0,), (0, 0), (0, 7), (7,), (7, 0)):
            texts = [each.encoded(*part) for each in heard]
            assert all(text is texts[0] for text in texts)
        assert len(encoded) == 6


async def test_who_begins_to_wait_during_the_last_counts_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates, "PERIOD_SECONDS", 0.01)
    async with reading(tmp_path, 1) as made:
        measured = made.gateway.rates
        await measured.next()
        count, counted = measured._counts, 0
        late: asyncio.Future[asyncio.Task[rates.Measurement]] = asyncio.get_running_loop().create_future()

        async def counts() -> Any:
            nonlocal counted
            counted += 1
            if counted == 2:
                late.set_result(asyncio.create_task(measured.next()))
                await asyncio.sleep(0)
            return await count()

        monkeypatch.setattr(measured, "_counts", counts)
        assert (await (await late)).sample.streams


async def test_a_sample_of_everything_has_the_state_of_the_disk_and_of_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates, "TOGETHER", 2)
    disk = ScarceDisk(free=RESERVE - 1)
    async with reading(tmp_path, 3) as made:
        sampled = msgspec.json.decode((await made.gateway.rates.next()).encoded())
        assert (sampled["disk"], sampled["archive"]) == (None, None)
        await made.fill(5)
        store = local(made.gateway.store)
        store.disk = DiskSpace("here", RESERVE, disk, store.room, lambda: 0)
        await store.disk.check()
        archiver = archiver_of(store, Flaky(tmp_path / "archive"), interval_s=1e6)
        made.gateway.archiver = archiver
        measurement = await made.gateway.rates.next()
        sampled = msgspec.json.decode(measurement.encoded())
        assert sampled["disk"] == {
            "free_bytes": RESERVE - 1,
            "total_bytes": TOTAL,
            "reserve_bytes": RESERVE,
            "is_full": True,
        }
        assert sampled["archive"] == {
            "problem": None,
            "is_refused": False,
            "failures": 0,
            "completed_at": None,
            "waiting_messages": 15,
        }
        # Who may read one stream learns nothing of the server.
        assert set(msgspec.json.decode(measurement.encoded(0))) == {"at", "seconds", "stream"}
        disk.free = TOTAL
        await store.disk.check()
        await archiver.start()
        assert await archiver.round()
        archiver.problem, archiver.failures, archiver.refused = "a bucket", 2, True
        archive = (await made.gateway.rates.next()).sample.archive
        assert archive is not None
        assert archive.problem == "archive: another server has the archive, so nothing is archived any more"
        assert (archive.is_refused, archive.failures, archive.waiting_messages) == (True, 2, 0)
        assert archive.completed_at == archiver.completed_at is not None
        await archiver.stop(seconds=10)
