"""Deduplication by message id through the command layer, on a real store."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash

from whippet.app.commands.deduplication import Deduplication
from whippet.app.config.system import Limits, MessageDeduplication, System
from whippet.app.model.deduplication_window import Bounds
from whippet.app.model.topic_options import UNLIMITED
from whippet.storage.batch import Message, build, header, messages
from whippet.storage.documents import StreamDocument, TopicDocument
from whippet.storage.errors import WriteFailed
from whippet.storage.files import Buffer, Files
from whippet.storage.options import StoreOptions, TopicOptions
from whippet.storage.partition import Partition
from whippet.storage.store import Store


class FullNow(Files):
    """A disk that is full while a test sets it so."""

    full = False

    def write(self, handle: int, buffers: Any, position: int) -> int:
        if self.full and sum(map(len, buffers)) > 300:
            raise OSError(28, "No space left on device")
        return super().write(handle, buffers, position)


def with_partition(path: Path, act: Callable[[Partition, FullNow], Awaitable[None]]) -> None:
    async def main() -> None:
        disk = FullNow()
        store = await Store.open(StoreOptions(path=str(path)), files=disk)
        await store.create_stream(StreamDocument(id=0, name="s", created_at=1))
        await store.create_topic(0, TopicDocument(id=0, name="t", created_at=1, partitions_count=1))
        partition = store.partition(0, 0, 0)
        assert partition is not None
        async with asyncio.timeout(20):
            await act(partition, disk)
        await store.close()

    asyncio.run(main())


BOUNDS = Bounds(100, 60_000_000)


def deduplication(room_bytes: int = 2**30) -> Deduplication:
    limits = Limits(deduplication_bytes=room_bytes)
    return Deduplication(System(limits=limits))


def batch(*ids: int, mark: bytes = b"") -> bytearray:
    return build([Message(b"%d%s" % (n, mark), n, b"", 5 + n) for n in ids], 1, os.urandom)


async def stored(partition: Partition) -> list[tuple[int, int, bytes]]:
    found = await partition.read(0, 1000)
    octets: Buffer = b"".join(found.buffers)
    kept = []
    while octets:
        length = header(octets).length
        kept += [(one.offset, one.id, one.payload) for one in messages(octets[:length])]
        octets = octets[length:]
    return kept


def test_duplicates_are_dropped_and_offsets_stay_consecutive(tmp_path: Path) -> None:
    async def act(partition: Partition, disk: FullNow) -> None:
        dedup = deduplication()
        await dedup.append(partition, BOUNDS, batch(1, 2, 1, mark=b"a"), 0)
        assert await dedup.append(partition, BOUNDS, batch(2, 1, mark=b"b"), 1) is None
        await dedup.append(partition, BOUNDS, batch(2, 3, 1, 4, mark=b"c"), 2)
        assert await stored(partition) == [(0, 1, b"1a"), (1, 2, b"2a"), (2, 3, b"3c"), (3, 4, b"4c")]

    with_partition(tmp_path, act)


def without_ids(octets: bytearray) -> bytearray:
    """Builds a batch as 0.9 clients may send it: they compute the checksums themselves, and ids are not checked."""
    batch = bytearray(octets)
    position, sums = 256, b""
    while position < len(batch):
        size = 48 + sum(struct.unpack_from("<II", batch, position + 32))
        if batch[position + 8 : position + 24] == (99).to_bytes(16, "little"):
            batch[position + 8 : position + 24] = bytes(16)
        struct.pack_into("<Q", batch, position, xxhash.xxh3_64_intdigest(batch[position + 8 : position + size]))
        sums += batch[position : position + 8]
        position += size
    struct.pack_into("<Q", batch, 40, xxhash.xxh3_64_intdigest(batch[:40] + batch[48:52] + sums))
    return batch


def test_messages_without_an_id_are_no_duplicates(tmp_path: Path) -> None:
    async def act(partition: Partition, disk: FullNow) -> None:
        dedup = deduplication()
        await dedup.append(partition, BOUNDS, without_ids(batch(99, 1, 99, mark=b"a")), 0)
        await dedup.append(partition, BOUNDS, without_ids(batch(99, 99, mark=b"b")), 1)
        await dedup.append(partition, BOUNDS, without_ids(batch(99, 1, 99, mark=b"c")), 2)
        found = await stored(partition)
        payloads = [b"99a", b"1a", b"99a", b"99b", b"99b", b"99c", b"99c"]
        assert [payload for _, _, payload in found] == payloads
        # A batch from which a message was dropped is encoded again, and then every message has its own id.
        ids = [identity for _, identity, _ in found]
        assert ids[:5] == [0, 1, 0, 0, 0]
        assert len({1, *ids[5:]}) == 3

    with_partition(tmp_path, act)


def test_the_same_batch_sent_many_times_at_once_is_stored_once(tmp_path: Path) -> None:
    async def act(partition: Partition, disk: FullNow) -> None:
        dedup = deduplication()
        done = await asyncio.gather(*(dedup.append(partition, BOUNDS, batch(1, 2), 0) for _ in range(20)))
        assert sum(one is not None for one in done) == 1
        assert [one[1] for one in await stored(partition)] == [1, 2]

    with_partition(tmp_path, act)


def test_a_send_that_failed_may_be_repeated(tmp_path: Path) -> None:
    async def act(partition: Partition, disk: FullNow) -> None:
        dedup = deduplication()
        disk.full = True
        with pytest.raises(WriteFailed):
            await dedup.append(partition, BOUNDS, batch(1, 2), 0)
        disk.full = False
        assert await dedup.append(partition, BOUNDS, batch(1, 2), 0) is not None
        assert [one[1] for one in await stored(partition)] == [1, 2]

    with_partition(tmp_path, act)


def test_purged_messages_may_be_sent_again(tmp_path: Path) -> None:
    async def act(partition: Partition, disk: FullNow) -> None:
        dedup = deduplication()
        await dedup.append(partition, BOUNDS, batch(1), 0)
        await partition.purge()
        dedup.forget([partition, None])
        await dedup.append(partition, BOUNDS, batch(1), 0)
        assert [one[:2] for one in await stored(partition)] == [(0, 1)]

    with_partition(tmp_path, act)


def test_ids_are_read_back_from_the_log_after_a_restart(tmp_path: Path) -> None:
    async def act(partition: Partition, disk: FullNow) -> None:
        dedup = deduplication()
        now = 1_000_000
        for start in range(1, 300, 30):
            await dedup.append(partition, BOUNDS, batch(*range(start, start + 30)), now)
        after_a_start = deduplication()
        now = partition.last_timestamp
        again = batch(150, *range(201, 301), 301)
        appended = await after_a_start.append(partition, BOUNDS, again, now)
        assert appended is not None
        assert [one[1] for one in await stored(partition)] == [*range(1, 301), 150, 301]
        assert after_a_start.ids == BOUNDS.entries_max

    with_partition(tmp_path, act)


def test_ids_older_than_the_expiry_are_not_read_back(tmp_path: Path) -> None:
    async def act(partition: Partition, disk: FullNow) -> None:
        dedup = deduplication()
        await dedup.append(partition, BOUNDS, batch(1), 0)
        later = partition.last_timestamp + BOUNDS.expiry_us + 1
        assert await deduplication().append(partition, BOUNDS, batch(1), later) is not None

    with_partition(tmp_path, act)


def test_sends_wait_while_the_ids_are_read_back(tmp_path: Path) -> None:
    async def act(partition: Partition, disk: FullNow) -> None:
        await partition.append(batch(1, 2, 3))
        dedup, now = deduplication(), partition.last_timestamp
        sends = [dedup.append(partition, BOUNDS, batch(one, 4), now) for one in (1, 2, 3)]
        impatient, *others = [asyncio.ensure_future(send) for send in sends]
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.gather(*others)
        assert [one[1] for one in await stored(partition)] == [1, 2, 3, 4]

    with_partition(tmp_path, act)


def test_the_oldest_ids_are_dropped_with_a_warning_when_memory_is_full(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def act(partition: Partition, disk: FullNow) -> None:
        dedup = deduplication(room_bytes=10_000)
        for start in range(1, 1001, 10):
            await dedup.append(partition, Bounds(0, 0), batch(*range(start, start + 10)), 0)
        assert 100 < dedup.ids < 1000
        assert await dedup.append(partition, Bounds(0, 0), batch(1000), 0) is None
        assert await dedup.append(partition, Bounds(0, 0), batch(1), 0) is not None

    with_partition(tmp_path, act)
    assert [one.message for one in caplog.records if "system.limits.deduplication_bytes = 10000" in one.message]
    assert len(caplog.records) == 1


def test_topics_override_the_servers_defaults() -> None:
    dedup = Deduplication(System(message_deduplication=MessageDeduplication(max_entries=5, expiry=2)))
    assert dedup.bounds(TopicOptions()) is None
    assert dedup.bounds(TopicOptions(message_deduplication=True)) == Bounds(5, 2_000_000)
    chosen = TopicOptions(
        message_deduplication=True, message_deduplication_max_entries=7, message_deduplication_expiry=UNLIMITED
    )
    assert dedup.bounds(chosen) == Bounds(7, 0)
    everywhere = Deduplication(System(message_deduplication=MessageDeduplication(enabled=True)))
    assert everywhere.bounds(TopicOptions()) == Bounds(10_000, 60_000_000)
    assert everywhere.bounds(TopicOptions(message_deduplication=False)) is None
