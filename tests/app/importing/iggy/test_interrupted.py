"""An import that is killed, or meets a full disk, or a power cut, has happened completely or not at all."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable

import pytest

from tests.app.importing.iggy.support import made
from tests.app.importing.iggy.support.made import Classic
from tests.app.importing.iggy.support.running import imported
from tests.storage.support.disk import Fault, FaultKind, PowerCut, SimulatedDisk
from tests.support.sizes import mostly_long
from whippet.app.importing.iggy.importer import Finished, Interrupted
from whippet.app.importing.iggy.report import Refused
from whippet.storage.options import StoreOptions
from whippet.storage.store import Store

DATA = "/no-such-folder/data"
"""On the simulated disk."""
POINTS = 1000
"""The operations of an import are divided into as many points; each is the end in one run of the long tests."""
QUICK = 50


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Classic:
    return made.small_classic(tmp_path_factory.mktemp("source") / "iggy")


@pytest.fixture(scope="module")
def operations(source: Classic) -> int:
    """How many an undisturbed import takes."""
    disk = SimulatedDisk()
    imported(source.root, DATA, files=disk)
    operations = disk.operations
    assert there(disk) == (30, 2)
    return operations


def there(disk: SimulatedDisk) -> tuple[int, int]:
    """The messages and the users in the folder after the next start."""

    async def look() -> tuple[int, int]:
        store = await Store.open(StoreOptions(path=DATA), files=disk)
        messages = sum(partition.appended for partition in store.partitions.values())
        assert list(store.problems) + list(store.damage) == []
        users = len(store.users)
        await store.close()
        return messages, users

    return asyncio.run(look())


Survive = Callable[[SimulatedDisk], SimulatedDisk]


def _killed(disk: SimulatedDisk) -> SimulatedDisk:
    return disk.process_kill()


def _cut(disk: SimulatedDisk) -> SimulatedDisk:
    return disk.power_cut(random.Random(disk.operations))


@pytest.mark.parametrize("survive", [_killed, _cut], ids=["kill", "power cut"])
@pytest.mark.parametrize("point", mostly_long(range(POINTS), range(0, POINTS, POINTS // QUICK)))
def test_everything_or_nothing_is_there_after_an_end_at_any_point(
    source: Classic, operations: int, point: int, survive: Survive
) -> None:
    disk = SimulatedDisk()
    disk.fault = Fault(1 + point * operations // POINTS, FaultKind.CRASH)
    with pytest.raises(PowerCut):
        imported(source.root, DATA, files=disk)
    after = survive(disk)
    assert there(after.process_kill()) in ((0, 0), (30, 2))
    # The same command again imports it, unless all of it is there already.
    try:
        imported(source.root, DATA, files=after)
    except Finished:
        pass
    except Exception as error:  # noqa: BLE001 -- its type and sentence are checked
        assert "the target already has a stream 'shop'" in str(error)
    assert there(after) == (30, 2)


@pytest.mark.parametrize("point", mostly_long(range(POINTS), range(0, POINTS, POINTS // QUICK)))
def test_a_full_disk_leaves_nothing_or_everything(source: Classic, operations: int, point: int) -> None:
    disk = SimulatedDisk()
    first = 1 + point * operations // POINTS

    def refuse(act: str, _: str) -> int | None:
        takes_space = act in ("write", "make_folder", "open_for_writing", "rename")
        return errno.ENOSPC if takes_space and disk.operations >= first else None

    disk.refuse = refuse
    try:
        imported(source.root, DATA, files=disk)
    except OSError as error:
        assert error.errno == errno.ENOSPC
        assert not disk.exists(f"{DATA}/staging/import")
    except Refused as refused:
        assert "No space left on device" in str(refused)
    except Interrupted as interrupted:
        assert "the same command, finishes that" in str(interrupted)
    disk.refuse = lambda act, path: None
    assert there(disk.process_kill()) in ((0, 0), (30, 2))
