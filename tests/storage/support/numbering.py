"""The process that tests/storage/test_kill_producers.py kills: producers with numbered sends.

    python numbering.py <data folder> <level> <seed> <sequence of each producer to begin with, separated by commas>

It writes one line for every result, with one call as soon as it is known:

    sent <producer> <sequence> <base offset> <1 if it was a repetition, else 0>
"""

from __future__ import annotations

import asyncio
import random
import sys

from tests.storage.support import appender
from tests.storage.support.appender import say
from whippet.storage.batch import Message, build
from whippet.storage.options import Durability
from whippet.storage.partition import Partition
from whippet.storage.producers import Producer
from whippet.storage.store import Store

PRODUCERS = 6
"""Two in each partition of the appender."""


async def open_store(folder: str, level: Durability) -> Store:
    return await appender.open_store(folder, level)


def partition_of(producer: int) -> int:
    return producer % appender.PARTITIONS


def producer_at(producer: int, sequence: int) -> Producer:
    return Producer(f"producer-{producer}".encode(), 1, sequence)


def count_of(producer: int, sequence: int) -> int:
    return random.Random(f"{producer}/{sequence}").choice((1, 1, 2, 7))


def batch_of(producer: int, sequence: int) -> bytearray:
    """A repeated send has the same messages in every process."""
    key = key_of(producer, sequence)
    payloads = [appender.payload(key, i) for i in range(count_of(producer, sequence))]
    return build([Message(payload) for payload in payloads], 1, random.Random(key).randbytes)


def key_of(producer: int, sequence: int) -> str:
    return f"{producer}-{sequence}"


async def send_for_ever(partition: Partition, producer: int, sequence: int, seed: int) -> None:
    chance = random.Random(f"{seed}/{producer}")
    while True:
        sends = [partition.append_once(batch_of(producer, sequence), producer_at(producer, sequence))]
        if chance.random() < 0.2:
            sends.append(partition.append_once(batch_of(producer, sequence), producer_at(producer, sequence)))
        for answer in await asyncio.gather(*sends):
            say("sent", producer, sequence, answer.base_offset, int(answer.repeated))
        sequence += 1


async def disturb_for_ever(partition: Partition, seed: int) -> None:
    """Sends without numbers."""
    chance = random.Random(f"{seed}/{partition.place}")
    while True:
        await partition.append(build([Message(b"plain")], 1, chance.randbytes))
        await asyncio.sleep(chance.random() * 0.01)


async def main(folder: str, level: Durability, seed: int, sequences: list[int]) -> None:
    store = await open_store(folder, level)
    partitions = [store.partition(0, 0, number) for number in range(appender.PARTITIONS)]
    tasks = []
    for producer, sequence in enumerate(sequences):
        partition = partitions[partition_of(producer)]
        assert partition is not None
        tasks.append(send_for_ever(partition, producer, sequence, seed))
    tasks += [disturb_for_ever(partition, seed) for partition in partitions if partition is not None]
    await asyncio.gather(*tasks)


if __name__ == "__main__":
    asyncio.run(
        main(
            sys.argv[1], Durability(int(sys.argv[2])), int(sys.argv[3]), [int(text) for text in sys.argv[4].split(",")]
        )
    )
