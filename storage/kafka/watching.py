"""What is known of the log of a partition in Kafka: where it begins and ends, what was fetched last, and who waits for
more.

While somebody waits, one request for what comes next is open at the leader, whoever and however many they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from aiokafka import errors
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest

from whippet.storage.errors import CatalogueError, ClusterUnavailable, PartitionClosed, StorageError
from whippet.storage.fetched import Fetched
from whippet.storage.kafka.cluster import ORDINARY, Cluster, Refused, said
from whippet.storage.kafka.records import RecordBatch, decode, split
from whippet.storage.waiting import Readers

_log = logging.getLogger(__name__)

COMMITTED = 1
"""The isolation level: what transactions have not committed is not readable, and what they have aborted is skipped."""
EARLIEST, LATEST = -2, -1
WAIT_MS = 500
"""How long a broker waits for more before it answers that there is nothing."""
PIECE_BYTES = 1 << 20
FETCH_BYTES_MAX = 32 << 20
LARGE_BYTES = 256 << 10
"""Larger record batches are decoded in a thread, so that others get their turn."""


class Undecodable(StorageError):
    """Records are damaged, or compressed in a way that is not known here."""


class Recent(NamedTuple):
    """The answer to the last fetch: all record batches of a range of offsets."""

    start: int
    end: int
    batches: Sequence[RecordBatch]
    size: int


class RecentBudget:
    """What all partitions keep of their last fetch, within a limit of bytes. The oldest is dropped first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.used = 0
        self._kept: OrderedDict[Log, int] = OrderedDict()

    def keep(self, log: Log, recent: Recent | None) -> None:
        self.used -= self._kept.pop(log, 0)
        log.recent = recent
        if recent is None:
            return
        self._kept[log] = recent.size
        self.used += recent.size
        while self.used > self._limit:
            oldest, size = self._kept.popitem(last=False)
            self.used -= size
            oldest.recent = None


class Log:
    def __init__(self, cluster: Cluster, topic: str, partition: int, budget: RecentBudget) -> None:
        self.first_offset = 0
        self.readable = 0
        self.recent: Recent | None = None
        self.closed: PartitionClosed | None = None
        self.readers = Readers()
        self._is_known = False
        self._cluster = cluster
        self._topic = topic
        self._partition = partition
        self._budget = budget
        self._watching: asyncio.Task[None] | None = None

    def _check_open(self) -> None:
        if self.closed is not None:
            raise self.closed.with_traceback(None)

    # ------------------------------------------------------------------------------------------------------------ ends

    async def refresh(self) -> None:
        """Returns when it is known where the log begins and ends now."""
        self._check_open()
        if self._is_known:
            await self._fetch(self.readable, PIECE_BYTES, 0)
        else:
            await self._find_ends()

    async def _find_ends(self) -> None:
        first, after = await asyncio.gather(self._offset_at(EARLIEST), self._offset_at(LATEST))
        self._is_known = True
        self._advance(first, after)

    async def offset_at(self, timestamp_us: int) -> int:
        """The first offset with a time or a later one; the end if there is none."""
        await self.refresh()
        found = await self._offset_at(max(-(-timestamp_us // 1000), 0))
        return self.readable if found < 0 else found

    async def _offset_at(self, what: int) -> int:
        topics = [(self._topic, [(self._partition, what)])]
        response = await self._cluster.at_leader(
            self._topic,
            self._partition,
            lambda: OffsetRequest(-1, COMMITTED, topics),
            lambda found: int(found.topics[0][1][0][1]),
        )
        return int(response.topics[0][1][0][3])

    def _advance(self, first: int, readable: int) -> None:
        self.first_offset = first
        if readable > self.readable:
            self.readable = readable
            self.readers.advance(lambda _: readable)
        elif readable < self.readable:
            # Everything was lost in Kafka, or the topic was created again by somebody else.
            self.readable = readable
            self._budget.keep(self, None)
            self.readers.wake_all()

    async def _fetch(self, offset: int, size: int, wait_ms: int, link: int = ORDINARY) -> Sequence[RecordBatch]:
        """Fetches from an offset. If it is not in the log, finds out where the log is, and returns nothing."""
        topics = [(self._topic, [(self._partition, offset, size)])]
        try:
            response = await self._cluster.at_leader(
                self._topic,
                self._partition,
                lambda: FetchRequest(wait_ms, 1, size, COMMITTED, topics),
                lambda found: int(found.error_code or found.topics[0][1][0][1]),
                link=link,
            )
        except Refused as refusal:
            if isinstance(refusal.reason, errors.OffsetOutOfRangeError):
                await self._find_ends()
                return ()
            raise
        _, _, _, stable, first, aborted, *_, content = response.topics[0][1][0]
        found = tuple(split(content or b"", aborted))
        self._is_known = True
        if found:
            self._budget.keep(self, Recent(offset, found[-1].next_offset, found, len(content)))
        self._advance(first, max(stable, 0))
        return found

    # --------------------------------------------------------------------------------------------------------- reading

    async def records(self) -> AsyncIterator[tuple[bytes | None, bytes | None]]:
        """Yields the keys and values of all records up to what was the end when it was last looked at."""
        offset, end = self.first_offset, self.readable
        while offset < end:
            began = offset
            for batch in await self._fetch(offset, FETCH_BYTES_MAX, 0):
                for record in iter(batch):
                    if offset <= record.offset < end:
                        yield record.key, record.value
                offset = max(offset, batch.next_offset)
            if offset == began:
                raise CatalogueError(f"{self._topic} cannot be read: there is nothing at offset {offset}")

    async def read(self, offset: int, count: int, room: int) -> Fetched:
        self._check_open()
        buffers: list[Any] = []
        messages = size = 0
        if offset >= self.readable:
            await self.refresh()
        offset = max(offset, self.first_offset)
        while offset < self.readable and messages < count and (size < room or not messages):
            batches = self._recent(offset)
            if batches is None:
                batches = await self._fetch(offset, min(max(room - size, PIECE_BYTES), FETCH_BYTES_MAX), 0)
                offset = max(offset, self.first_offset)
            began = offset
            for records in batches:
                if records.next_offset <= offset:
                    continue
                if records.first_offset >= self.readable:
                    break
                if not records.content:
                    offset = records.next_offset
                    continue
                take = partial(
                    decode, records, self._partition, offset, count - messages, room - size, at_least_one=not messages
                )
                try:
                    found = take() if len(records.content) <= LARGE_BYTES else await asyncio.to_thread(take)
                except Exception as error:  # codecs have errors of their own
                    raise Undecodable(
                        f"{self._topic}, partition {self._partition}: offset {records.first_offset} cannot be decoded: "
                        f"{said(error)}"
                    ) from error
                if found.messages:
                    buffers.append(found.content)
                    messages += found.messages
                    size += len(found.content)
                offset = max(offset, found.next_offset)
                if found.next_offset < records.next_offset or messages >= count:
                    return Fetched(buffers, messages, offset)
                # Decoding takes time: others get their turn.
                await asyncio.sleep(0)
            if offset == began:
                break
        return Fetched(buffers, messages, offset)

    def _recent(self, offset: int) -> Sequence[RecordBatch] | None:
        recent = self.recent
        return recent.batches if recent is not None and recent.start <= offset < recent.end else None

    # --------------------------------------------------------------------------------------------------------- waiting

    def wait(self, offset: int) -> asyncio.Future[None]:
        self._check_open()
        future = self.readers.begin(offset, None)
        if offset < self.readable:
            self.readers.advance(lambda _: self.readable)
        elif self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        return future

    async def _watch(self) -> None:
        try:
            async with self._cluster.own_link() as link:
                while self.readers.waiting:
                    # Brokers come back, and those who wait have deadlines of their own.
                    with contextlib.suppress(ClusterUnavailable):
                        if not self._is_known:
                            await self._find_ends()
                        else:
                            await self._fetch(self.readable, PIECE_BYTES, WAIT_MS, link)
        except StorageError as error:
            self.readers.refuse(error)
        except Exception:  # noqa: BLE001 -- a defect: nobody may wait forever
            _log.exception("waiting for %s, partition %d has failed", self._topic, self._partition)
            self.readers.refuse(ClusterUnavailable(f"{self._topic}, partition {self._partition}: an unexpected error"))
        finally:
            self._watching = None

    async def close(self, reason: PartitionClosed) -> None:
        self.closed = reason
        self.readers.refuse(reason)
        self._budget.keep(self, None)
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
