"""For every n, makes the n-th file operation fail, ends the process at it, or cuts the power at it.

The scenario is in support/scenario.py, what was promised to it in support/promises.py, the disk in support/disk.py.
`make test` tries some of the operations, different ones for each level, and `make test-long` all of them. Run with
WHIPPET_FAULT_SEEDS=100 for more power failures at every operation.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import random
import re
from collections.abc import Iterator

import pytest

from tests.storage.support import scenario as scenarios
from tests.storage.support.disk import TAKES_SPACE, Fault, FaultKind, PowerCut, SimulatedDisk
from tests.storage.support.packed import PACKED, pack_everything, usually
from tests.storage.support.promises import Promises, check, read_everything
from tests.storage.support.scenario import Scenario, open_store, run
from tests.support.sizes import mostly_long, sized
from whippet.storage import early_sync
from whippet.storage.batch import Message, build
from whippet.storage.documents import StreamDocument, TopicDocument
from whippet.storage.errors import PartitionFailed, StorageError, WriteFailed
from whippet.storage.layout import PartitionId
from whippet.storage.options import Durability, TopicOptions
from whippet.storage.partition import Partition
from whippet.storage.store import Store

CHUNKS = 16
"""Each test tries every CHUNKS-th operation."""

LEVELS = list(Durability)
STRUCK_BY = {FaultKind.ENOSPC: TAKES_SPACE, FaultKind.SHORT: ("write",), FaultKind.SHORT_ENOSPC: ("write",)}
"""The operations at which a kind of fault can occur; all other kinds can occur at all of them."""

levels = pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name.lower())
chunks = pytest.mark.parametrize("chunk", mostly_long(range(CHUNKS), usual={0}))


@pytest.fixture
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How batches are stored."""
    pack_everything(monkeypatch)
    monkeypatch.setattr(scenarios, "packed_in", [str(request.param)])
    return str(request.param)


ways = pytest.mark.parametrize("way", usually("plain"), indirect=True)


@pytest.fixture(autouse=True)
def _early_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sync of a partition begins beside its shard, so that faults strike there as well."""
    monkeypatch.setattr(early_sync, "EARLY_BYTES", 1)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Turns off logging: formatting thousands of expected errors with tracebacks would take most of the time."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


SERVERS = TopicOptions()
PERSISTED = TopicOptions(durability="persisted", consumer_offset_durability="persisted", preallocate_segments=True)


def operations(level: Durability, chosen: TopicOptions = SERVERS) -> tuple[str, ...]:
    """The disk operations of a life without faults."""
    return _operations(scenarios.packed_in[0], level, chosen)


@functools.cache
def _operations(_: str, level: Durability, chosen: TopicOptions) -> tuple[str, ...]:
    disk = SimulatedDisk()
    disk.trace = []
    scenario = Scenario(disk, level, chosen=chosen)
    run(scenario.run())
    assert scenario.closed_cleanly
    assert scenario.refused == []
    assert disk.open_handles == []
    return tuple(operation.act for operation in disk.trace)


def places(level: Durability, chunk: int, *, step: int = 1, chosen: TopicOptions = SERVERS) -> range:
    """The numbers of the operations in a chunk, different ones for each level."""
    first, every = (chunk + level) % CHUNKS + 1, step * CHUNKS
    if scenarios.packed_in[0] != "plain":
        # The ways to pack take turns: together they have all of them.
        first, every = first + every * PACKED.index(scenarios.packed_in[0]), len(PACKED) * every
    return range(first, len(operations(level, chosen)) + 1, every)


def live(
    level: Durability, fault: Fault, *, asks_again: bool = True, chosen: TopicOptions = SERVERS
) -> tuple[SimulatedDisk, Scenario]:
    disk = SimulatedDisk()
    disk.fault = fault
    scenario = Scenario(disk, level, asks_again=asks_again, chosen=chosen)
    run(scenario.run())
    return disk, scenario


def live_again(disk: SimulatedDisk, promises: Promises, level: Durability, survived: Durability) -> None:
    """Opens what is left, checks it, appends more, closes, and checks again."""
    run(_live_again(disk, promises, level, survived))
    assert disk.open_handles == []


def noted(error: BaseException, level: Durability, at: int, more: str, chosen: TopicOptions = SERVERS) -> None:
    error.add_note(f"level {level.name}, operation {at}, {operations(level, chosen)[at - 1]}: {more}")


async def _live_again(disk: SimulatedDisk, promises: Promises, level: Durability, survived: Durability) -> None:
    store = await open_store(disk, level)
    await check(store, promises, survived)
    after = {}
    for place, partition in store.partitions.items():
        before, base = await read_everything(partition), partition.appended
        for payload in (b"again", b"again" * 300, b"and again"):
            appended = await partition.append(build([Message(payload)], 1, random.randbytes))
            assert appended.base_offset == base, f"{place}: offset {appended.base_offset}, {base} comes next"
            before.append((base, payload))
            base += 1
        assert await read_everything(partition) == before
        after[place] = before
    await store.close()
    store = await open_store(disk, level)
    assert {place: await read_everything(partition) for place, partition in store.partitions.items()} == after
    assert not store.unavailable
    await store.close()


# --------------------------------------------------------------------------------------------------------------- faults


@ways
@chunks
@levels
@pytest.mark.parametrize("kind", [FaultKind.EIO, FaultKind.ENOSPC, FaultKind.SHORT, FaultKind.SHORT_ENOSPC])
def test_a_failure_of_any_file_operation_loses_nothing_acknowledged(
    kind: FaultKind, level: Durability, chunk: int, way: str
) -> None:
    """Whether the store is closed, killed or loses its power afterwards."""
    for at in places(level, chunk):
        act = operations(level)[at - 1]
        if act not in STRUCK_BY.get(kind, (act,)):
            continue
        try:
            disk, scenario = live(level, Fault(at, kind), asks_again=kind is not FaultKind.ENOSPC)
            assert disk.open_handles == []
            survived = Durability.MEMORY if scenario.closed_cleanly else Durability.WRITTEN
            live_again(disk.process_kill(), scenario.promises, level, survived)
            if scenario.before_close is not None and at // CHUNKS % 2:
                live_again(scenario.before_close, scenario.promises, level, Durability.WRITTEN)
            elif scenario.before_close is not None:
                cut = scenario.before_close.power_cut(random.Random(at))
                live_again(cut, scenario.promises, level, Durability.SYNCED)
        except BaseException as error:
            noted(error, level, at, kind.value)
            raise


@ways
@chunks
@pytest.mark.parametrize("level", [Durability.WRITTEN, Durability.SYNCED], ids=["written", "synced"])
@pytest.mark.parametrize("kind", [FaultKind.EIO, FaultKind.ENOSPC])
@pytest.mark.parametrize("length", [3, 20])
def test_a_disk_that_fails_for_a_while_loses_nothing_acknowledged(
    length: int, kind: FaultKind, level: Durability, chunk: int, way: str
) -> None:
    for at in places(level, chunk, step=5):
        try:
            disk, scenario = live(level, Fault(at, kind, length), asks_again=False)
            assert disk.open_handles == []
            live_again(disk.process_kill(), scenario.promises, level, Durability.WRITTEN)
            if scenario.before_close is not None:
                cut = scenario.before_close.power_cut(random.Random(at))
                live_again(cut, scenario.promises, level, Durability.SYNCED)
        except BaseException as error:
            noted(error, level, at, f"{kind.value}, {length} operations long")
            raise


@ways
@chunks
@levels
def test_a_process_that_ends_at_any_file_operation_keeps_written_messages(
    level: Durability, chunk: int, way: str
) -> None:
    for at in places(level, chunk):
        try:
            disk, scenario = live(level, Fault(at, FaultKind.CRASH))
            assert disk.off
            live_again(disk.process_kill(), scenario.promises, level, Durability.WRITTEN)
        except BaseException as error:
            noted(error, level, at, "killed")
            raise


@ways
@sized("seeds", 1, long=3, variable="WHIPPET_FAULT_SEEDS")
@chunks
@levels
def test_a_power_failure_at_any_file_operation_keeps_synced_messages(
    level: Durability, chunk: int, way: str, seeds: int
) -> None:
    for at in places(level, chunk):
        disk, scenario = live(level, Fault(at, FaultKind.CRASH))
        for seed in range(seeds):
            try:
                cut = disk.power_cut(random.Random(seed * 1_000_003 + at))
                live_again(cut, scenario.promises, level, Durability.SYNCED)
            except BaseException as error:
                noted(error, level, at, f"power cut, seed {seed}")
                raise


@ways
@chunks
@pytest.mark.parametrize("level", [Durability.MEMORY, Durability.WRITTEN], ids=["memory", "written"])
def test_persisted_topics_lose_nothing_acknowledged_on_a_server_with_a_lower_level(
    level: Durability, chunk: int, way: str
) -> None:
    """Messages and stored offsets, at any operation, also after the disk has refused one."""
    for at in places(level, chunk, chosen=PERSISTED):
        try:
            disk, scenario = live(level, Fault(at, FaultKind.CRASH), chosen=PERSISTED)
            live_again(disk.power_cut(random.Random(at)), scenario.promises, level, Durability.SYNCED)
            refusing, scenario = live(level, Fault(at, FaultKind.EIO), chosen=PERSISTED)
            assert refusing.open_handles == []
            if scenario.before_close is not None:
                cut = scenario.before_close.power_cut(random.Random(at))
                live_again(cut, scenario.promises, level, Durability.SYNCED)
        except BaseException as error:
            noted(error, level, at, "persisted topics", PERSISTED)
            raise


@chunks
@pytest.mark.parametrize("way", PACKED, indirect=True)
def test_packed_batches_survive_what_plain_ones_survive(way: str, chunk: int) -> None:
    """A sample of the tests above, for all ways to pack batches."""
    for level in Durability:
        for at in places(level, chunk, step=5):
            try:
                for kind in (FaultKind.EIO, FaultKind.SHORT_ENOSPC):
                    disk, scenario = live(level, Fault(at, kind))
                    survived = Durability.MEMORY if scenario.closed_cleanly else Durability.WRITTEN
                    live_again(disk.process_kill(), scenario.promises, level, survived)
                disk, scenario = live(level, Fault(at, FaultKind.CRASH))
                live_again(disk.process_kill(), scenario.promises, level, Durability.WRITTEN)
                live_again(disk.power_cut(random.Random(at)), scenario.promises, level, Durability.SYNCED)
            except BaseException as error:
                noted(error, level, at, way)
                raise


@pytest.mark.parametrize("way", usually("plain", PACKED[-1]), indirect=True)
@pytest.mark.parametrize(
    ("ignored", "loss"),
    [
        (r".*", "the catalogue is in no state it may be in"),
        (r".*\.log", "acknowledged and lost"),
        (r".*/partitions/\d+", "acknowledged and lost"),
        (r".*/offsets/.*", "the stored offset of"),
    ],
)
def test_a_disk_that_ignores_syncs_loses_messages_and_these_tests_notice(ignored: str, loss: str, way: str) -> None:
    """The control: if the store left out a sync, the test above would notice."""
    level = Durability.SYNCED
    losses = []
    for at in range(1, len(operations(level)) + 1, 3):
        disk = SimulatedDisk()
        disk.ignores_sync = lambda path: re.fullmatch(ignored, path) is not None
        disk.fault = Fault(at, FaultKind.CRASH)
        scenario = Scenario(disk, level)
        run(scenario.run())
        try:
            live_again(disk.power_cut(random.Random(at)), scenario.promises, level, Durability.SYNCED)
        except (AssertionError, StorageError) as error:
            losses.append(str(error))
    assert any(loss in found for found in losses), losses


# ----------------------------------------------------------------------------------------------- faults while it starts


@chunks
@pytest.mark.parametrize("kind", [FaultKind.EIO, FaultKind.ENOSPC, FaultKind.CRASH])
def test_a_failure_of_any_file_operation_while_a_killed_store_opens_loses_nothing(kind: FaultKind, chunk: int) -> None:
    level = Durability.SYNCED
    for at in range(20 + 17 * chunk, len(operations(level)) + 1, 17 * CHUNKS):
        killed, scenario = live(level, Fault(at, FaultKind.CRASH))
        disk = killed.process_kill()
        number = 0
        while number < disk.operations or not number:
            number += 1
            disk = killed.process_kill()
            disk.fault = Fault(number, kind)
            try:
                run(_open_and_close(disk, level))
                live_again(disk.process_kill(), scenario.promises, level, Durability.WRITTEN)
                if kind is FaultKind.CRASH:
                    cut = disk.power_cut(random.Random(number))
                    live_again(cut, scenario.promises, level, Durability.SYNCED)
            except BaseException as error:
                noted(error, level, at, f"killed; then at operation {number} of the start: {kind.value}")
                raise


async def _open_and_close(disk: SimulatedDisk, level: Durability) -> None:
    """The store opens or raises its own error or that of the disk. Partitions that cannot be opened are named."""
    try:
        store = await open_store(disk, level)
        await store.close()
    except (StorageError, OSError):
        pass
    except (PowerCut, RuntimeError):
        assert disk.off
    assert disk.off or disk.open_handles == []


@ways
@chunks
@levels
def test_a_power_failure_after_a_kill_keeps_recovered_and_later_synced_messages(
    level: Durability, chunk: int, way: str
) -> None:
    """The next process reads and builds on what a killed process had only written."""
    for at in places(level, chunk, step=2):
        killed, _ = live(level, Fault(at, FaultKind.CRASH))
        disk = killed.process_kill()
        try:
            seen = run(_sync_one_more(disk, level))
            for seed in range(2):
                assert run(_everything(disk.power_cut(random.Random(seed + 2 * at)), level)) == seen
        except BaseException as error:
            noted(error, level, at, "killed, opened, and the power cut")
            raise


Contents = dict[PartitionId, list[tuple[int, bytes]]]


async def _sync_one_more(disk: SimulatedDisk, level: Durability) -> Contents:
    store = await open_store(disk, level)
    for partition in store.partitions.values():
        await partition.append(build([Message(b"synced")], 1, random.randbytes), Durability.SYNCED)
    return {place: await read_everything(partition) for place, partition in store.partitions.items()}


async def _everything(disk: SimulatedDisk, level: Durability) -> Contents:
    store = await open_store(disk, level)
    return {place: await read_everything(partition) for place, partition in store.partitions.items()}


# --------------------------------------------------------------------------------------------------------- failed syncs


@pytest.mark.parametrize("way", ["reopen", "save"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_after_a_failed_sync_writes_are_refused_until_reopening_keeps_all_acknowledged(error: int, way: str) -> None:
    async def life(disk: SimulatedDisk) -> list[bytes]:
        store = await _with_partition(disk, Durability.SYNCED)
        partition = _only(store)
        sent = [await _append(partition, f"before {i}") for i in range(7)]
        disk.refuse = lambda act, path: error if act == "sync" and path.endswith(".log") else None
        with pytest.raises(PartitionFailed, match="a sync failed"):
            await _append(partition, "not synced")
        disk.refuse = lambda act, path: None
        with pytest.raises(PartitionFailed, match="refused until"):
            await _append(partition, "refused")
        assert [payload for _, payload in await read_everything(partition)] == sent
        await (store.reopen(partition) if way == "reopen" else store.save())
        sent += [b"not synced", await _append(partition, "after 1"), await _append(partition, "after 2")]
        assert [payload for _, payload in await read_everything(partition)] == sent
        return sent

    disk = SimulatedDisk()
    sent = run(life(disk))
    for seed in range(20):
        found = run(_everything(disk.power_cut(random.Random(seed)), Durability.SYNCED))
        assert found == {PartitionId(0, 0, 0): list(enumerate(sent))}


def test_a_partition_refuses_writes_while_syncs_fail_and_keeps_synced_messages() -> None:
    async def life(disk: SimulatedDisk) -> list[bytes]:
        store = await _with_partition(disk, Durability.SYNCED)
        partition = _only(store)
        sent = [await _append(partition, f"before {i}") for i in range(7)]
        disk.refuse = lambda act, path: errno.EIO if act == "sync" and path.endswith(".log") else None
        for _ in range(3):
            with pytest.raises(PartitionFailed):
                await _append(partition, "not synced")
            with pytest.raises(PartitionFailed):
                await store.reopen(partition)
        with pytest.raises(PartitionFailed):
            await store.close()
        return sent

    disk = SimulatedDisk()
    sent = run(life(disk))
    disk.refuse = lambda act, path: None
    for seed in range(20):
        cut = disk.power_cut(random.Random(seed))
        found = run(_everything(cut, Durability.SYNCED))[PartitionId(0, 0, 0)]
        assert [*found, (len(sent), b"not synced")][: len(sent) + 1] == [*enumerate(sent), (len(sent), b"not synced")]
    assert run(_everything(disk.process_kill(), Durability.SYNCED))[PartitionId(0, 0, 0)][: len(sent)] == list(
        enumerate(sent)
    )


# ----------------------------------------------------------------------------------------------------------- full disks


def _has_failed(partition: Partition) -> bool:
    return partition.failed is not None


def test_messages_in_memory_are_served_from_a_full_disk_and_written_once_there_is_room() -> None:
    async def life(disk: SimulatedDisk) -> list[bytes]:
        store = await _with_partition(disk, Durability.MEMORY)
        partition = _only(store)
        sent = [await _append(partition, f"before {i}") for i in range(3)]
        disk.refuse = lambda act, path: errno.ENOSPC if act == "write" else None
        while not _has_failed(partition):
            sent.append(await _append(partition, f"in memory {len(sent)}"))
            await asyncio.sleep(0)
        with pytest.raises(WriteFailed, match="No space left on device"):
            await _append(partition, "refused")
        with pytest.raises(WriteFailed, match="No space left on device"):
            await partition.flush()
        assert partition.written < partition.appended == len(sent)
        assert [payload for _, payload in await read_everything(partition)] == sent
        disk.refuse = lambda act, path: None
        async with asyncio.timeout(5):
            await partition.until(len(sent) - 1, Durability.WRITTEN)
        assert not _has_failed(partition)
        sent.append(await _append(partition, "after"))
        assert [payload for _, payload in await read_everything(partition)] == sent
        await store.close()
        return sent

    disk = SimulatedDisk()
    sent = run(life(disk))
    for rest in (disk.process_kill(), disk.power_cut(random.Random(1))):
        assert run(_everything(rest, Durability.MEMORY)) == {PartitionId(0, 0, 0): list(enumerate(sent))}


@levels
def test_a_partition_resumes_once_deleted_segments_make_room_on_the_disk(level: Durability) -> None:
    """Everything that takes space is refused. Deleting works and frees space."""

    async def life(disk: SimulatedDisk) -> tuple[int, list[bytes]]:
        store = await _with_partition(disk, level)
        partition = _only(store)
        sent = [await _append(partition, f"{i}".ljust(600)) for i in range(9)]
        await partition.flush(sync=True)
        disk.refuse = lambda act, path: errno.ENOSPC if act in ("write", "make_folder") else None
        assert await store.delete_segments(partition.place, 2) == 2
        first = partition.first_offset
        assert first > 0
        disk.refuse = lambda act, path: None
        sent.append(await _append(partition, "after"))
        await store.close()
        return first, sent

    disk = SimulatedDisk()
    first, sent = run(life(disk))
    assert run(_everything(disk, level)) == {PartitionId(0, 0, 0): list(enumerate(sent))[first:]}


def test_a_power_failure_after_unsynced_deletions_leaves_no_hole() -> None:
    """On a disk too full for an intent, segments are deleted one by one, and that becomes durable in the same order."""

    async def life(disk: SimulatedDisk) -> None:
        store = await _with_partition(disk, Durability.WRITTEN)
        partition = _only(store)
        for i in range(12):
            await _append(partition, f"{i}".ljust(600))
        await partition.flush(sync=True)
        first = partition.first_offset
        disk.refuse = lambda act, path: errno.ENOSPC if act == "sync_folder" else None
        for _ in range(3):
            with pytest.raises(WriteFailed):
                await store.delete_segments(partition.place, 1)
        assert partition.first_offset > first

    disk = SimulatedDisk()
    run(life(disk))
    disk.refuse = lambda act, path: None
    for seed in range(50):
        found = run(_everything(disk.power_cut(random.Random(seed)), Durability.WRITTEN))[PartitionId(0, 0, 0)]
        offsets = [offset for offset, _ in found]
        assert offsets == list(range(offsets[0], 12)), seed


async def _with_partition(disk: SimulatedDisk, level: Durability) -> Store:
    store = await open_store(disk, level)
    await store.create_stream(StreamDocument(id=0, name="s", created_at=1))
    await store.create_topic(0, TopicDocument(id=0, name="t", created_at=1, partitions_count=1))
    return store


def _only(store: Store) -> Partition:
    (partition,) = store.partitions.values()
    return partition


async def _append(partition: Partition, text: str) -> bytes:
    payload = text.encode()
    await partition.append(build([Message(payload)], 1, random.randbytes))
    return payload
