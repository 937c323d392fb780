"""Fails the n-th file operation for every n, ends the process at every one, and cuts the power at every one.

The scenario is in support/scenario.py, what it was promised in support/promises.py, the disk in support/disk.py. Run
with WHIPPET_FAULT_SEEDS=100 for more power cuts at every operation.
"""

from __future__ import annotations

import functools
import logging
import os
import random
from collections.abc import Iterator

import pytest

from storage.batch import Message, build
from storage.options import Durability
from tests.storage.support.disk import Fault, FaultKind, SimulatedDisk
from tests.storage.support.promises import Promises, check, read_everything
from tests.storage.support.scenario import Scenario, open_store, run

SEEDS = int(os.environ.get("WHIPPET_FAULT_SEEDS", "3"))
CHUNKS = 4
"""Each test goes over every CHUNKS-th operation, so that several processes can share the work."""

LEVELS = list(Durability)
levels = pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name.lower())
chunks = pytest.mark.parametrize("chunk", range(CHUNKS))


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Thousands of expected errors are logged, with their traces; formatting them would take most of the time."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@functools.cache
def operations(level: Durability) -> tuple[str, ...]:
    """What a life without faults asks of the disk."""
    disk = SimulatedDisk()
    disk.trace = []
    scenario = Scenario(disk, level)
    run(scenario.run())
    assert scenario.closed_cleanly
    assert scenario.refused == []
    assert disk.open_handles == []
    return tuple(operation.act for operation in disk.trace)


def live(level: Durability, fault: Fault) -> tuple[SimulatedDisk, Scenario]:
    disk = SimulatedDisk()
    disk.fault = fault
    scenario = Scenario(disk, level)
    run(scenario.run())
    return disk, scenario


def live_again(disk: SimulatedDisk, promises: Promises, level: Durability, survived: Durability) -> None:
    """Opens what is left, checks it, goes on appending, closes, and looks once more."""
    run(_live_again(disk, promises, level, survived))
    assert disk.open_handles == []


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


# -------------------------------------------------------------------------------------------------------------- faults


@chunks
@levels
@pytest.mark.parametrize("kind", [FaultKind.EIO, FaultKind.ENOSPC, FaultKind.SHORT, FaultKind.SHORT_ENOSPC])
def test_given_any_file_operation_that_fails_should_keep_everything_acknowledged_and_go_on(
    kind: FaultKind, level: Durability, chunk: int
) -> None:
    for at in range(chunk + 1, len(operations(level)) + 1, CHUNKS):
        if kind in (FaultKind.SHORT, FaultKind.SHORT_ENOSPC) and operations(level)[at - 1] != "write":
            continue
        try:
            disk, scenario = live(level, Fault(at, kind))
            survived = Durability.MEMORY if scenario.closed_cleanly else Durability.WRITTEN
            assert disk.open_handles == []
            live_again(disk.process_kill(), scenario.promises, level, survived)
        except BaseException as error:
            error.add_note(f"operation {at}, {operations(level)[at - 1]}: {kind.value}; level {level.name}")
            raise


@chunks
@levels
def test_given_a_process_that_ends_at_any_file_operation_should_keep_what_was_written(
    level: Durability, chunk: int
) -> None:
    for at in range(chunk + 1, len(operations(level)) + 1, CHUNKS):
        try:
            disk, scenario = live(level, Fault(at, FaultKind.CRASH))
            assert disk.off
            live_again(disk.process_kill(), scenario.promises, level, Durability.WRITTEN)
        except BaseException as error:
            error.add_note(f"operation {at}, {operations(level)[at - 1]}; level {level.name}")
            raise


@chunks
@levels
def test_given_a_power_cut_at_any_file_operation_should_keep_what_was_synced(level: Durability, chunk: int) -> None:
    for at in range(chunk + 1, len(operations(level)) + 1, CHUNKS):
        disk, scenario = live(level, Fault(at, FaultKind.CRASH))
        for seed in range(SEEDS):
            try:
                rest = disk.power_cut(random.Random(seed * 1_000_003 + at))
                live_again(rest, scenario.promises, level, Durability.SYNCED)
            except BaseException as error:
                error.add_note(f"operation {at}, {operations(level)[at - 1]}; level {level.name}; seed {seed}")
                raise
