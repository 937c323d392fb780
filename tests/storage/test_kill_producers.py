"""kill -9 while producers send, at random moments. Each then repeats the sends without a result: they are stored once.

The child process is support/numbering.py. WHIPPET_TORTURE_ROUNDS sets the number of rounds; `make torture` uses it. A
failure names the seed that repeats its choices (but not the moment of the kill).
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.storage.support import appender, numbering
from tests.storage.support.numbering import PRODUCERS
from tests.storage.support.promises import read_everything
from tests.support.sizes import sized
from whippet.storage.options import Durability
from whippet.storage.store import Store

SEED = int(os.environ.get("WHIPPET_TORTURE_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
ROOT = Path(__file__).parents[2]

Answers = list[dict[int, int]]
"""For each producer, the base offsets in its results, by sequence."""


def run_and_kill(folder: Path, level: Durability, seed: int, answers: Answers) -> None:
    """Every producer begins with its newest send that has a result. The next one may have been stored, too."""
    chance = random.Random(seed)
    wanted = chance.choice((0, 1, 2, chance.randrange(3, 30), chance.randrange(30, 400), chance.randrange(30, 400)))
    sequences = ",".join(str(max(known, default=1)) for known in answers)
    arguments = [str(folder), str(int(level)), str(seed), sequences]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, numbering.__file__, *arguments], stdout=subprocess.PIPE, env=environment, text=True
    ) as child:
        assert child.stdout is not None
        lines = 0
        try:
            while lines < wanted and (line := child.stdout.readline()):
                take(answers, line)
                lines += 1
        finally:
            child.kill()
        for line in child.stdout:
            if line.endswith("\n"):
                take(answers, line)
    assert child.returncode == -9, "the child ended by itself"


def take(answers: Answers, line: str) -> None:
    word, *numbers = line.split()
    assert word == "sent"
    producer, sequence, base, repeated = map(int, numbers)
    known = answers[producer].setdefault(sequence, base)
    assert known == base, f"{line}: was answered with {known} before"
    if sequence in answers[producer] and sequence < max(answers[producer]):
        assert repeated, line


async def check_folder(folder: Path, level: Durability, answers: Answers) -> None:
    """After the kill, sends with a result are stored once, all others at most once."""
    store = await numbering.open_store(str(folder), level)
    try:
        assert store.problems == []
        for number in range(appender.PARTITIONS):
            await check_partition(store, number, answers)
        for producer, known in enumerate(answers):
            await check_repetitions(store, producer, known)
    finally:
        await store.close()


async def check_partition(store: Store, number: int, answers: Answers) -> None:
    partition = store.partition(0, 0, number)
    assert partition is not None
    places: dict[bytes, list[int]] = {}
    for offset, payload in await read_everything(partition):
        if payload != b"plain":
            places.setdefault(payload, []).append(offset)
    for producer in range(number, PRODUCERS, appender.PARTITIONS):
        known = answers[producer]
        newest = max(known, default=0)
        for sequence in range(1, newest + 2):
            key = numbering.key_of(producer, sequence)
            for i in range(numbering.count_of(producer, sequence)):
                found = places.pop(appender.payload(key, i), [])
                assert len(found) <= 1, f"send {key} is there twice, at {found}"
                assert sequence not in known or found == [known[sequence] + i], f"send {key} is not where it was said"
    assert not places, "messages that nobody sent"


async def check_repetitions(store: Store, producer: int, known: dict[int, int]) -> None:
    """Repeated sends get their remembered results, whatever else has happened."""
    partition = store.partition(0, 0, numbering.partition_of(producer))
    assert partition is not None
    for sequence in sorted(known)[-10:]:
        answer = await partition.result_of(numbering.producer_at(producer, sequence))
        assert answer is not None
        assert answer.base_offset == known[sequence]


@sized("kills", 8, long=20, variable="WHIPPET_TORTURE_ROUNDS")
@pytest.mark.parametrize("level", [Durability.WRITTEN, Durability.SYNCED], ids=["written", "synced"])
def test_a_kill_at_any_moment_stores_repeated_sends_once(tmp_path: Path, level: Durability, kills: int) -> None:
    answers: Answers = [{} for _ in range(PRODUCERS)]
    for round_number in range(max(kills // 2, 1)):
        try:
            run_and_kill(tmp_path, level, SEED + round_number, answers)
            if round_number % 3 == 2:
                asyncio.run(check_folder(tmp_path, level, answers))
        except BaseException as error:
            error.add_note(f"level {level.name}, round {round_number}; WHIPPET_TORTURE_SEED={SEED}")
            raise
    asyncio.run(check_folder(tmp_path, level, answers))
    assert sum(map(len, answers)) > 10 * PRODUCERS or kills < 10
