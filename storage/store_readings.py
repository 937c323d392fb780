"""What a store measures of itself, for the metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from whippet.storage.engine import Reading, Values

if TYPE_CHECKING:
    from whippet.storage.store import Store


def of(store: Store) -> Iterator[Reading]:
    failed = sum(partition.failed is not None for partition in store.partitions.values())
    for name, sentence, value in (
        ("unflushed_bytes", "Bytes accepted but not yet written.", store.unflushed_bytes),
        ("tail_bytes", "Bytes of recent batches in memory.", store.tail_bytes),
        ("partitions_unavailable", "Partitions that could not be opened.", len(store.unavailable)),
        ("partitions_failed", "Partitions that refuse writes because the disk has failed.", failed),
    ):
        yield Reading(f"whippet_{name}", sentence, [((), value)])
    shards = list(enumerate(store.shards))
    for name, sentence in (
        ("queue_length", "Work items that wait for the thread of a shard."),
        ("writes", "Write orders that a shard has executed."),
        ("loop_writes", "Batches that the event loop has written itself."),
        ("slow_loop_writes", "Those of them that took over a millisecond."),
        ("syncs", "Syncs of a partition for which sends or commits waited."),
    ):
        values: Values = [((str(number),), getattr(shard, name)) for number, shard in shards]
        yield Reading(f"whippet_shard_{name}", sentence, values, ("shard",), counts=name != "queue_length")
