"""Options and helpers for tests of partitions."""

from __future__ import annotations

from typing import Any

from tests.storage.support.world import stored
from whippet.storage.fetched import Fetched
from whippet.storage.offsets import Kind
from whippet.storage.options import Durability
from whippet.storage.partition import Partition

CONSUMER, GROUP = Kind.CONSUMER, Kind.GROUP

MEMORY, WRITTEN, SYNCED = Durability

BUFFERED: dict[str, Any] = {"durability": MEMORY, "messages_required_to_save": 1000, "bytes_required_to_save": 1 << 20}
"""Level MEMORY, where nothing is written without a flush."""


def progress(partition: Partition) -> tuple[int, int, int]:
    return partition.appended, partition.written, partition.synced


def found(fetched: Fetched) -> list[tuple[int, int, bytes]]:
    return [(message.offset, message.timestamp, message.payload) for message in stored(fetched)]
