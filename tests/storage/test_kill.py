"""kill -9 under load, at random moments: everything acknowledged is there once, in order and unchanged, and nothing
else.

A child process (support/appender.py) appends to one folder round after round. Each time, it is killed after a random
number of its acknowledgements was read, and its folder is opened and compared with everything that was ever
acknowledged. WHIPPET_TORTURE_ROUNDS sets the number of rounds over all levels; `make torture` uses it. A failure names
the seed that repeats its choices (but not the moment of the kill).
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from tests.storage.support import appender
from tests.storage.support.segments import messages_in
from tests.storage.support.ways import WAYS
from tests.support.sizes import sized
from whippet.storage.offsets import Kind
from whippet.storage.options import Durability
from whippet.storage.partition import Partition
from whippet.storage.store import Store

SEED = int(os.environ.get("WHIPPET_TORTURE_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
FOLDERS = 3
"""Child processes that run at once, each on a folder of its own."""
ROOT = Path(__file__).parents[2]


class Batch(msgspec.Struct):
    """A batch that was acknowledged."""

    base: int
    count: int
    key: str
    level: int


class Known(msgspec.Struct):
    """Everything that one partition has acknowledged."""

    batches: dict[int, Batch] = {}
    """By base offset."""
    offsets: dict[int, int] = {}
    """By consumer, the newest acknowledged offset."""
    flushing: list[tuple[int, dict[int, int]]] = []
    """The acknowledged end at the start of each flush."""
    safe_until: int = 0
    """Every batch before this offset was acknowledged as written, or before a flush that was."""
    safe_offsets: dict[int, int] = {}
    first: int = 0
    may_trim: bool = False

    def promise(self, batch: Batch) -> None:
        self.batches[batch.base] = batch
        if batch.level >= Durability.WRITTEN:
            # Batches are written in order, so everything before it is written too.
            self.safe_until = max(self.safe_until, batch.base + batch.count)

    def flush(self) -> None:
        self.flushing.append((max((b.base + b.count for b in self.batches.values()), default=0), dict(self.offsets)))

    def flushed(self) -> None:
        # Flushes of one partition may overlap: only the oldest is certainly complete.
        until, offsets = self.flushing.pop(0)
        self.safe_until = max(self.safe_until, until)
        for consumer, offset in offsets.items():
            self.safe_offsets[consumer] = max(offset, self.safe_offsets.get(consumer, -1))


def take(known: dict[int, Known], level: Durability, line: str) -> None:
    """Records one line of the child's output."""
    word, *rest = line.split()
    if word == "opening":
        return
    partition = known[int(rest[0])]
    match word:
        case "appended":
            partition.promise(Batch(int(rest[1]), int(rest[2]), rest[3], int(rest[4])))
        case "stored":
            partition.offsets[int(rest[1])] = int(rest[2])
            if level >= Durability.WRITTEN:
                partition.safe_offsets[int(rest[1])] = int(rest[2])
        case "flushing":
            partition.flush()
        case "flushed":
            partition.flushed()
        case "trimming":
            partition.may_trim = True
        case "trimmed":
            partition.first = max(partition.first, int(rest[1]))


def run_and_kill(folder: Path, level: Durability, seed: int, round_number: int, known: dict[int, Known]) -> int:
    """Kills a child after a random number of lines, and returns how many lines it had written."""
    chance = random.Random(seed)
    wanted = chance.choice((0, 1, 2, chance.randrange(3, 30), chance.randrange(30, 600), chance.randrange(30, 600)))
    # Each child finds what others have stored in other ways.
    way = chance.choice(list(WAYS))
    arguments = [str(folder), str(int(level)), str(seed), str(round_number), way]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    lines = 0
    for partition in known.values():
        partition.flushing = []
    with subprocess.Popen(
        [sys.executable, appender.__file__, *arguments], stdout=subprocess.PIPE, env=environment, text=True
    ) as child:
        assert child.stdout is not None
        try:
            while lines <= wanted and (line := child.stdout.readline()):
                take(known, level, line)
                lines += 1
        finally:
            child.kill()
        # Lines that it could still write before it died count as well.
        for line in child.stdout:
            if line.endswith("\n"):
                take(known, level, line)
                lines += 1
    assert child.returncode == -9, "the child ended by itself"
    return lines


async def read_all(partition: Partition) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    offset = partition.first_offset
    while offset < partition.readable:
        fetched = await partition.read(offset, 1 << 20)
        found += messages_in(fetched)
        assert fetched.next_offset > offset
        offset = fetched.next_offset
    return found


async def check_folder(folder: Path, level: Durability, known: dict[int, Known]) -> None:
    store = await Store.open(appender.options(str(folder), level))
    try:
        assert store.problems == []
        assert store.unavailable == {}
        for damage in store.damage:
            # A kill may tear the last batch, nothing else.
            assert damage.offset == damage.next_offset, str(damage)
            assert damage.kept_in is not None, str(damage)
        if not store.partitions:
            assert not any(partition.batches for partition in known.values())
            return
        for number in range(appender.PARTITIONS):
            partition = store.partition(0, 0, number)
            assert partition is not None
            await check_partition(partition, known[number])
    finally:
        await store.close()


async def check_partition(partition: Partition, known: Known) -> None:
    messages = await read_all(partition)
    first, end = partition.first_offset, partition.appended
    assert [offset for offset, _ in messages] == list(range(first, end)), "a gap, or something twice"
    assert end >= known.safe_until, "something acknowledged is lost"
    check_contents(messages, first)
    for batch in known.batches.values():
        if batch.base >= first and batch.base + batch.count <= known.safe_until:
            found = messages[batch.base - first : batch.base - first + batch.count]
            wanted = [(batch.base + i, appender.payload(batch.key, i)) for i in range(batch.count)]
            assert found == wanted, f"batch {batch.key} is not as it was acknowledged"
    offsets = {consumer: partition.offset_of(Kind.CONSUMER, consumer) for consumer in range(appender.APPENDERS)}
    for consumer, offset in offsets.items():
        safe = known.safe_offsets.get(consumer)
        assert offset is not None or safe is None, "a stored offset is lost"
        if offset is not None:
            assert offset < max(end, 1), "a stored offset is ahead of the messages"
            assert safe is None or offset >= safe, "a stored offset went back"
    assert first >= known.first, "deleted segments are back"
    assert first == 0 or known.may_trim, "segments are gone that nobody deleted"
    stored = [offset for offset in offsets.values() if offset is not None]
    assert first <= min(stored, default=end) + 1, "messages are gone that somebody has not read"
    # From now on these messages were not only acknowledged, but read, so they must stay.
    known.first, known.safe_until = first, end
    known.safe_offsets = {consumer: offset for consumer, offset in offsets.items() if offset is not None}
    known.offsets = dict(known.safe_offsets)
    known.batches = {base: batch for base, batch in known.batches.items() if first <= base < end}


def check_contents(messages: list[tuple[int, bytes]], first: int) -> None:
    """Checks that children sent all the messages, batches are whole, and no batch is stored twice."""
    begun: set[str] = set()
    previous, index = "", -1
    for _, payload in messages:
        key, number = payload.split(b"/", 2)[:2]
        name = key.decode()
        assert payload == appender.payload(name, int(number)), "a message that nobody sent"
        if int(number) == 0:
            assert name not in begun, f"batch {name} is there twice"
            begun.add(name)
        else:
            assert (name, int(number)) == (previous, index + 1), f"a part of batch {name} is missing"
        previous, index = name, int(number)


def torture(folder: Path, level: Durability, seed: int, rounds: int) -> None:
    known = {number: Known() for number in range(appender.PARTITIONS)}
    for round_number in range(rounds):
        try:
            run_and_kill(folder, level, seed + round_number, round_number, known)
            if round_number % 2:
                asyncio.run(check_folder(folder, level, known))
            else:
                # The next child has to find what the kill left, not what a clean close has tidied up.
                copy = folder.with_name(f"{folder.name}.copy")
                if folder.exists():
                    shutil.copytree(folder, copy)
                asyncio.run(check_folder(copy, level, known))
                shutil.rmtree(copy)
        except BaseException as error:
            error.add_note(f"level {level.name}, round {round_number}; WHIPPET_TORTURE_SEED={SEED}")
            raise


@sized("kills", 12, long=50, variable="WHIPPET_TORTURE_ROUNDS")
@pytest.mark.parametrize("level", list(Durability), ids=lambda level: level.name.lower())
def test_a_kill_at_any_moment_loses_nothing_acknowledged(tmp_path: Path, level: Durability, kills: int) -> None:
    rounds = max(kills // len(Durability) // FOLDERS, 1)
    with ThreadPoolExecutor(FOLDERS) as pool:
        seeds = [SEED + 1_000_000 * (FOLDERS * level + number) for number in range(FOLDERS)]
        tasks = [pool.submit(torture, tmp_path / str(number), level, seed, rounds) for number, seed in enumerate(seeds)]
        for task in tasks:
            task.result()
