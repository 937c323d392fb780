"""The process that tests/storage/test_kill.py kills: it appends as long as it lives and reports what was acknowledged.

    python appender.py <data folder> <level> <seed> <round> <how batches are stored, as in ways.py>

Lines on its output, each written with one call once it is true:

    opening                              the store is about to be opened
    appended <partition> <base offset> <messages> <key> <level reached>
    stored <partition> <consumer> <offset>
    flushing <partition>, flushed <partition>
    trimming <partition>, trimmed <partition> <first offset>

It imports little, because it is started again and again.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys

from tests.storage.support.ways import WAYS
from whippet.storage.batch import Message, build
from whippet.storage.documents import StreamDocument, TopicDocument
from whippet.storage.offsets import Kind
from whippet.storage.options import Durability, StoreOptions
from whippet.storage.partition import Partition
from whippet.storage.store import Store

PARTITIONS = 3
APPENDERS = 3
"""How many of them each partition has. Each is a consumer, too."""
SEGMENT_BYTES = 15_000


def options(folder: str, level: Durability, way: str = "plain") -> StoreOptions:
    return StoreOptions(
        respects_consumers="all",
        **WAYS[way],
        path=folder,
        durability=level,
        messages_required_to_save=60 if level is Durability.MEMORY else 1,
        saver_interval_s=0.02 if level is Durability.MEMORY else None,
        saver_syncs=False,
        segment_bytes=SEGMENT_BYTES,
        shards=2,
    )


def payload(key: str, index: int) -> bytes:
    """The content of a message follows from the key of its batch, so a reader can verify it."""
    content = random.Random(f"{key}/{index}").randbytes(10 + (index * 37) % 150)
    # So that it can be compressed.
    return f"{key}/{index}/".encode() + content + content


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def open_store(folder: str, level: Durability, way: str = "plain") -> Store:
    store = await Store.open(options(folder, level, way))
    if 0 not in store.streams:
        await store.create_stream(StreamDocument(id=0, name="s", created_at=1))
    if 0 not in store.streams[0].topics:
        await store.create_topic(0, TopicDocument(id=0, name="t", created_at=1, partitions_count=PARTITIONS))
    return store


async def append_for_ever(store: Store, partition: Partition, consumer: int, round_number: int, seed: int) -> None:
    chance = random.Random(f"{seed}/{partition.place}/{consumer}")
    number = partition.place.partition
    for turn in range(1 << 30):
        key = f"{round_number}-{number}-{consumer}-{turn}"
        count = chance.choice((1, 1, 2, 5, 14, 30))
        batch = build([Message(payload(key, i)) for i in range(count)], 1, chance.randbytes)
        level = chance.choice((None, None, None, Durability.WRITTEN, Durability.SYNCED))
        answer = await partition.append(batch, level)
        say("appended", number, answer.base_offset, count, key, int(answer.durability))
        if chance.random() < 0.3:
            offset = min(answer.next_offset, partition.readable) - 1
            await partition.store_offset(Kind.CONSUMER, consumer, offset)
            say("stored", number, consumer, offset)
        if chance.random() < 0.03:
            say("flushing", number)
            await partition.flush(sync=chance.random() < 0.5)
            say("flushed", number)
        if chance.random() < 0.05 and partition.segments_count > 4:
            say("trimming", number)
            await store.delete_segments(partition.place, chance.randrange(1, 4))
            say("trimmed", number, partition.first_offset)


async def main(folder: str, level: Durability, seed: int, round_number: int, way: str) -> None:
    say("opening")
    store = await open_store(folder, level, way)
    await asyncio.gather(
        *(
            append_for_ever(store, partition, consumer, round_number, seed)
            for partition in store.partitions.values()
            for consumer in range(APPENDERS)
        )
    )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Durability(int(sys.argv[2])), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]))
